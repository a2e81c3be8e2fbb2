"""A step that was exported, run by a process that has jax alone, gives the same bits."""

import subprocess
import sys

import brainstate as bs
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import braintrace

pytest.importorskip('flatbuffers')  # jax reads and writes these files with it
rng = np.random.RandomState(0)
X, Y = rng.randn(2, 6, 2, 3)
PARAMS = {'W': jnp.asarray(rng.randn(3, 3)), 'a': jnp.zeros(3)}
STATE = {'h': jnp.zeros((2, 3)), 'key': jax.random.key(0)}

# Every file is run over all data, one step or two steps in a call.
DRIVE = """
import pathlib, sys
import jax, numpy as np
from jax import export

def load(path):
    with np.load(path) as file:
        return dict(file)

def drive(end, *names):
    data = load('data.npz')
    for name in names:
        call = export.deserialize(bytearray(pathlib.Path(name).read_bytes())).call
        values, outs = load(name + '.npz'), []
        steps = 2 if name.startswith('block') else None
        for t in range(0, len(data['x']), steps or 1):
            part = slice(t, t + steps) if steps else t
            inputs = [data[k][part] for k in ('x' if 'evolve' in name else 'xy')]
            values, out = call(values, *inputs)
            outs.append(out)
        np.savez(name + end, out=np.concatenate([np.ravel(o) for o in outs]), **values)
"""
RUN = """
sys.modules.update(braintrace=None, brainstate=None, optax=None)
jax.config.update('jax_enable_x64', True)
jax.config.update('jax_disable_most_optimizations', True)
drive('.there.npz', *sys.argv[1:])
"""


def noisy(p, s, x):
    key, draw = jax.random.split(s['key'])
    h = jax.nn.sigmoid(p['a']) * s['h'] + x @ p['W'] + 0.1 * jax.random.normal(draw, (2, 3))
    return {'h': h, 'key': key}, jnp.tanh(h)


def error(out, y):
    return ((out - y) ** 2).mean()


class Net(bs.nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = bs.nn.Linear(3, 4), bs.nn.Linear(4, 3)

    def init_state(self, **_):
        self.h = bs.HiddenState(jnp.zeros((2, 4)))

    def update(self, x):
        noise = 0.1 * bs.random.normal(size=(2, 4))
        self.h.value = 0.9 * self.h.value + jnp.tanh(self.inp(x)) + noise
        return self.out(self.h.value)


def plain(write):
    """A learner of a function with an optimiser, exported; its values after all data."""
    learner = braintrace.compile(noisy, 'uoro', PARAMS, STATE, X[0])
    carry, adam = learner.init(PARAMS, STATE), optax.adam(0.1)

    def update(params, grads, state):
        updates, state = adam.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    given = dict(loss_fn=error, update=update, more=adam.init(PARAMS))
    write('plain', learner.export, PARAMS, carry, X[0], Y[0], **given)
    params, state, losses = PARAMS, adam.init(PARAMS), []

    @jax.jit
    def step(params, carry, state, x, y):
        (grads, [loss]), carry = learner.grad(error, params, carry, x[None], y[None])
        return *update(params, grads, state), carry, loss

    for x, y in zip(X, Y, strict=True):
        params, state, carry, loss = step(params, carry, state, x, y)
        losses.append(loss)
    return {'out': losses, 'param.W': params['W'], 'state.h': carry.state['h']}


def block(write):
    """Two steps in a call, without an update."""
    learner = braintrace.compile(noisy, 'd_rtrl', PARAMS, STATE, X[0])
    carry = learner.init(PARAMS, STATE)
    write('block_evolve', learner.export, PARAMS, carry, braintrace.MultiStepData(X[:2]))
    outs = []
    for t in (0, 2, 4):
        out, carry = learner.evolve(PARAMS, carry, X[t : t + 2])
        outs.append(out)
    [name] = [n for n in carry.traces if '->' in n and n.startswith('W')]
    return {'out': np.ravel(outs), f'trace/{name}': carry.traces[name]}


def module(write):
    """A module, with its optimiser in a state."""
    bs.random.seed(0)
    learner = braintrace.compile(Net(), 'pp_prop', X[0], decay_or_rank=0.9)
    weights, adam = learner.param_states, optax.adam(1e-2)
    optimizer = bs.ShortTermState(adam.init({k: s.value for k, s in weights.items()}))

    def update(grads):
        values = {k: s.value for k, s in weights.items()}
        updates, optimizer.value = adam.update(grads, optimizer.value, values)
        for k, value in optax.apply_updates(values, updates).items():
            weights[k].value = value

    def step(x, y):
        return error(learner(x), y)

    write('module', learner.export, X[0], Y[0], step_fn=step, update=update)
    live = learner.etrace_stream(step_fn=step, update=update)
    losses = [live(x, y) for x, y in zip(X, Y, strict=True)]
    return {'out': losses, **learner.snapshot().arrays}


@pytest.mark.long
def test_elsewhere_it_gives_the_same_bits(tmp_path, monkeypatch):
    """With this library and without it, to the bit; and what the learner gives, whose own program
    XLA may arrange in another way."""
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / 'data.npz', x=X, y=Y)
    names = []

    def write(name, export, *given, **more):
        values = export(tmp_path / name, *given, **more)
        np.savez(tmp_path / f'{name}.npz', **values)
        names.append(name)

    true = [one(write) for one in (plain, block, module)]
    subprocess.run([sys.executable, '-c', DRIVE + RUN, *names], check=True)
    scope: dict = {}
    exec(DRIVE, scope)
    scope['drive']('.here.npz', *names)
    for name, values in zip(names, true, strict=True):
        here, there = (scope['load'](f'{name}.{where}.npz') for where in ('here', 'there'))
        assert here.keys() == there.keys()
        for entry, value in here.items():
            np.testing.assert_array_equal(there[entry], value, err_msg=f'{name}: {entry}')
        for entry, value in values.items():
            np.testing.assert_allclose(here[entry], value, rtol=1e-12, err_msg=f'{name}: {entry}')


def test_wrong_calls(tmp_path):
    learner = braintrace.compile(noisy, 'd_rtrl', PARAMS, STATE, X[0])
    carry = learner.init(PARAMS, STATE)
    with pytest.raises(TypeError, match='`update` needs gradients: give `loss_fn`'):
        learner.export(tmp_path / 'it', PARAMS, carry, X[0], update=lambda p, g: p)
    with pytest.raises(TypeError, match='wrap all of them'):
        learner.export(tmp_path / 'it', PARAMS, carry, braintrace.MultiStepData(X), Y[0])
    with pytest.raises(ValueError, match='`any_batch` needs a model whose states all'):
        learner.export(tmp_path / 'it', PARAMS, carry, X[0], any_batch=True)
    assert not (tmp_path / 'it').exists()


def gated(p, h, x):
    h = jax.nn.sigmoid(p['a']) * h + jnp.tanh(x @ p['W'])
    return h, h


@pytest.mark.parametrize('block', [False, True])
def test_for_any_batch(block, tmp_path):
    x, y = rng.randn(2, 2, 5, 3)
    wrap = braintrace.MultiStepData if block else first
    for rule, given in {'d_rtrl': dict(loss_fn=error), 'rtrl': {}}.items():
        learner = braintrace.compile(gated, rule, PARAMS, jnp.ones((2, 3)), X[0])
        carry = learner.init(PARAMS, jnp.ones((2, 3)))
        data = [wrap(a[:, :2]) for a in ((x, y) if given else (x,))]
        values = learner.export(tmp_path / 'it', PARAMS, carry, *data, **given, any_batch=True)
        call = jax.export.deserialize((tmp_path / 'it').read_bytes()).call
        more = {
            n: a if n.startswith('param') else jnp.repeat(a[:1], 5, 0) for n, a in values.items()
        }
        assert more['state'].shape == (5, 3)
        whole = braintrace.compile(gated, rule, PARAMS, jnp.ones((5, 3)), x[0])
        steps = 2 if block else 1
        begin = whole.init(PARAMS, jnp.ones((5, 3)))
        if given:
            (true, losses), _ = whole.grad(error, PARAMS, begin, x[:steps], y[:steps])
            _, (grads, loss) = call(more, *[a if block else a[0] for a in (x, y)])
            np.testing.assert_allclose(loss, losses if block else losses[0], rtol=1e-12)
            np.testing.assert_allclose(grads['param.W'], true['W'], rtol=1e-10)
        else:
            outs, _ = whole.evolve(PARAMS, begin, x[:steps])
            np.testing.assert_allclose(
                call(more, x if block else x[0])[1], outs if block else outs[0], rtol=1e-12
            )


def first(a):
    return a[0]


def test_a_modulator_is_the_last_input(tmp_path):
    learner = braintrace.compile(gated, 'three_factor', PARAMS, jnp.ones((2, 3)), X[0])
    carry, given = learner.init(PARAMS, jnp.ones((2, 3))), dict(loss_fn=error, modulator=1.0)
    values = learner.export(tmp_path / 'it', PARAMS, carry, X[0], Y[0], **given)
    call = jax.export.deserialize((tmp_path / 'it').read_bytes()).call
    _, (grads, _) = call(values, X[0], Y[0], 0.5)
    (true, _), _ = learner.grad(error, PARAMS, carry, X[:1], Y[:1], modulator=0.5)
    np.testing.assert_allclose(grads['param.W'], true['W'], rtol=1e-10)
    with pytest.raises(ValueError, match='`modulator`.*any_batch'):
        learner.export(tmp_path / 'it', PARAMS, carry, X[0], Y[0], **given, any_batch=True)


def bs_module(batch):
    class Quiet(Net):
        def update(self, x):
            self.h.value = 0.9 * self.h.value + jnp.tanh(self.inp(x))
            return self.out(self.h.value)

        def init_state(self, **_):
            self.h = bs.HiddenState(jnp.ones((batch, 4)))

    bs.random.seed(0)
    learner = braintrace.compile(Quiet(), 'd_rtrl', X[0, :1].repeat(batch, 0))
    weights, steps = learner.param_states, bs.ShortTermState(jnp.zeros(()))

    def update(grads):
        steps.value += 1
        for k, state in weights.items():
            state.value = jax.tree.map(lambda w, g: w - 0.1 * g, state.value, grads[k])

    return learner, update


def nnx_module(batch):
    class Hidden(nnx.Variable):
        pass

    class Quiet(nnx.Module):
        def __init__(self):
            self.inp, self.out = (nnx.Linear(3, 3, rngs=nnx.Rngs(0)) for _ in range(2))
            self.h = Hidden(jnp.ones((batch, 3)))

        def __call__(self, x):
            self.h[...] = 0.9 * self.h[...] + jnp.tanh(self.inp(x))
            return self.out(self.h[...])

    net = Quiet()
    learner = braintrace.compile(net, 'd_rtrl', X[0, :1].repeat(batch, 0), hidden=Hidden)
    optimizer = nnx.Optimizer(net, optax.adam(0.1), wrt=nnx.Param)
    return learner, lambda grads: optimizer.update(net, grads)


@pytest.mark.parametrize('make', [bs_module, nnx_module])
def test_a_module_for_any_batch(make, tmp_path):
    """Exported with two samples, run with five; the learner is as before."""
    x, y = rng.randn(2, 3, 5, 3)
    (small, update), (whole, of_whole) = make(2), make(5)
    before = small.snapshot()
    given = dict(step_fn=lambda x, y: error(small(x), y), update=update, any_batch=True)
    values = small.export(tmp_path / 'it', x[0, :2], y[0, :2], **given)
    after = small.snapshot()
    assert before.about == after.about
    jax.tree.map(np.testing.assert_array_equal, before.arrays, after.arrays)
    call = jax.export.deserialize((tmp_path / 'it').read_bytes()).call
    own = ('param/', 'met/')
    more = {n: a if n.startswith(own) else jnp.repeat(a[:1], 5, 0) for n, a in values.items()}
    live = whole.etrace_stream(step_fn=lambda x, y: error(whole(x), y), update=of_whole)
    for t in range(3):
        more, loss = call(more, x[t], y[t])
        np.testing.assert_allclose(loss, live(x[t], y[t]), rtol=1e-6)
    for name, value in whole.snapshot().arrays.items():
        if name.startswith(('param/', 'hidden/')):
            np.testing.assert_allclose(more[name], value, rtol=1e-5, err_msg=name)
    small(x[0, :2])
    with pytest.raises(ValueError, match='`any_batch` begins anew'):
        small.export(tmp_path / 'it', x[0, :2], y[0, :2], **given)


def test_a_carry_in_programs_of_ones_own():
    learner = braintrace.compile(gated, 'd_rtrl', PARAMS, jnp.ones((2, 3)), X[0])
    carry = learner.init(PARAMS, jnp.ones((2, 3)))

    def step(params, carry, x):
        return learner.evolve(params, carry, x[None])

    file = jax.export.export(jax.jit(step))(PARAMS, carry, X[0]).serialize()
    found = jax.export.deserialize(file).call(PARAMS, carry, X[0])
    jax.tree.map(np.testing.assert_array_equal, found, jax.jit(step)(PARAMS, carry, X[0]))
