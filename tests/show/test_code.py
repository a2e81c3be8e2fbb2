"""A learner's rule as a file: it gives the engine's gradients without braintrace."""

import ast
import doctest
import functools
import importlib
import os
import pathlib
import pickle
import subprocess
import sys

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import saiunit as u
from cells import CELLS, draw, sig, spike, step_of
from told import LOST

import braintrace

pytestmark = LOST

T, B, I, H, O = 3, 3, 3, 4, 2  # noqa: E741
RULES = {
    'd_rtrl': {},
    'pp_prop': {'decay_or_rank': 0.9},
    'eprop': {'kappa_filter_decay': 0.8},
    'rflo': {'decay': 0.9},
    'ottt': {'decay': 0.8},
    'three_factor': {},
    'rtrl': {},
}
MODULATOR = jnp.array([0.5, -1.0, 2.0])


def minimal_gru(p, h, x):
    f = sig(x @ p['F'] + p['b'])
    n = jnp.tanh(x @ p['N'])
    h = (1 - f) * h + f * n
    return h, h @ p['o']


def lif(p, v, x):
    z = spike(v - 0.5)
    v = 0.9 * v + x @ p['W'] + z @ p['R'] - jax.lax.stop_gradient(z)
    return v, spike(v - 0.5) @ p['o']


def convolution(p, h, x):
    y = jax.lax.conv_general_dilated(x, p['K'], (1,), 'SAME')
    h = jnp.tanh(0.5 * h + y + p['b'][:, None])
    return h, h.reshape(B, -1) @ p['o']


def embedding(p, h, i):
    h = 0.8 * h + p['E'][i] + jnp.tanh(h) @ p['R']
    return h, h @ p['o']


def turned_gates(p, h, x):
    """Weights stand in front of the data, as in Equinox, and `exprel` is a primitive of saiunit."""
    y = jax.vmap(lambda x, h: p['W'] @ x + p['R'] @ h)(x, h)
    z, n = sig(y[:, :H]), y[:, H:]
    h = z * h + (1 - z) * u.math.exprel(-(n**2)) * u.math.exprel(-0.1)
    return h, h @ p['o']


def of_cell(name):
    cell, params, start = CELLS[name]
    return step_of(cell), params, start(B), draw(T, B, I)


MODELS = {
    'tanh': of_cell('rnn'),
    'gru': of_cell('gru'),
    'lstm': of_cell('lstm'),
    'alif': of_cell('alif'),
    'minimal gru': (
        minimal_gru,
        dict(F=draw(I, H), N=draw(I, H), b=draw(H), o=draw(H, O)),
        draw(B, H),
        draw(T, B, I),
    ),
    'lif': (lif, dict(W=draw(I, H), R=draw(H, H), o=draw(H, O)), draw(B, H), draw(T, B, I)),
    'convolution': (
        convolution,
        dict(K=draw(3, 2, 3), b=draw(3), o=draw(18, O)),
        draw(B, 3, 6),
        draw(T, B, 2, 6),
    ),
    'embedding': (
        embedding,
        dict(E=draw(6, H), R=draw(H, H), o=draw(H, O)),
        draw(B, H),
        jnp.array([[0, 2, 5], [1, -1, 2], [3, 3, 3]]),
    ),
    'turned gates': (
        turned_gates,
        dict(W=draw(2 * H, I), R=draw(2 * H, H), o=draw(H, O)),
        draw(B, H),
        draw(T, B, I),
    ),
}
TARGETS = draw(T, B, O)
NUMPY = ('tanh', 'gru', 'alif')  # models that are also run without JAX, with these rules
BY_NUMPY = ('d_rtrl', 'pp_prop', 'rtrl')

RUN = """
import pickle, sys
sys.modules['braintrace'] = None  # importing it fails
folder = sys.argv[1]
with open(folder + '/jobs', 'rb') as file:
    jobs, by_numpy, data, targets, modulator = pickle.load(file)

def run(model, text, step):
    global params
    params, state, xs = data[model]
    names = {}
    exec(text, names)
    now, traces, total = state, names['init'](params, state), dict.fromkeys(params, 0)
    for t, x in enumerate(xs):
        now, traces, out, grads = step(names['learn'], now, traces, x, t)
        total = {k: g + grads[k] for k, g in total.items()}
    return total, now, traces

def by_hand(learn, state, traces, x, t):
    def loss(out):
        return ((out - targets[t]) ** 2).sum(), 2 * (out - targets[t])
    return learn(params, state, traces, x, loss=loss)

sys.modules['jax'] = None
done = {('numpy', *job): run(job[0], text, by_hand) for job, text in by_numpy.items()}
del sys.modules['jax']
import jax

jax.config.update('jax_enable_x64', True)
jax.config.update('jax_disable_most_optimizations', True)
for (model, rule), text in jobs.items():
    @jax.jit
    def compiled(params, state, traces, x, y, m):
        more = {'modulator': m} if rule == 'three_factor' else {}
        return learn(params, state, traces, x, loss=lambda o: ((o - y) ** 2).sum(), **more)

    def step(f, state, traces, x, t):
        global learn
        learn = f
        return compiled(params, state, traces, x, targets[t], modulator[t])

    done['jax', model, rule] = jax.device_get(run(model, text, step))
with open(folder + '/done', 'wb') as file:
    pickle.dump(done, file)
"""


def rules_of(model):
    """D-RTRL for every model, and two of the other rules by turns."""
    turn = (list(MODELS).index(model) + 2) % 3
    return ['d_rtrl', *list(RULES)[1 + turn :: 3]]


@functools.cache
def learners(model):
    brainstate.environ.set(precision=64)
    step, params, state, xs = MODELS[model]
    return {
        rule: braintrace.compile(step, rule, params, state, xs[0], **RULES[rule])
        for rule in rules_of(model)
    }


@functools.cache
def pages(model):
    return {rule: learner.code() for rule, learner in learners(model).items()}


def run_files(folder):
    """What the files of all models give in a process that cannot import braintrace."""
    files = {(model, rule): text for model in MODELS for rule, text in pages(model).items()}
    by_numpy = {
        (model, rule): learners(model)[rule].code('numpy')
        for model, rule in files
        if model in NUMPY and rule in BY_NUMPY
    }
    data = jax.device_get({model: given for model, (_, *given) in MODELS.items()})
    given = files, by_numpy, data, np.asarray(TARGETS), np.asarray(MODULATOR)
    (folder / 'jobs').write_bytes(pickle.dumps(given))
    env = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
    subprocess.run([sys.executable, '-W', 'error', '-c', RUN, str(folder)], check=True, env=env)
    return pickle.loads((folder / 'done').read_bytes())


def loss(out, y):
    return ((out - y) ** 2).sum()


@functools.cache
def engine(model, rule):
    """The learner itself, in windows of one step."""
    _, params, state, xs = MODELS[model]
    learner = learners(model)[rule]
    carry, total = learner.init(params, state), dict.fromkeys(params, 0)
    for t in range(T):
        now = slice(t, t + 1)
        more = {'modulator': MODULATOR[now]} if rule == 'three_factor' else {}
        (grads, _), carry = learner.grad(loss, params, carry, xs[now], TARGETS[now], **more)
        total = {name: g + grads[name] for name, g in total.items()}
    return total, carry.state, carry.traces


@pytest.mark.long
def test_files_give_the_gradients_of_the_engine(tmp_path):
    done = run_files(tmp_path)
    assert {rule for _, _, rule in done} == {*RULES}
    for (backend, *job), found in done.items():
        expected = engine(*job)
        assert max(np.abs(g).max() for g in expected[0].values()) > 1e-2
        for mine, theirs in zip(found, expected, strict=True):
            if isinstance(theirs, dict):
                mine = {name: mine[name] for name in theirs}
            for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
                np.testing.assert_allclose(a, b, atol=1e-10, err_msg=f'{backend} {job}')


def never_read(function):
    """Names that a function assigns to and never reads."""
    names = [n for n in ast.walk(function) if isinstance(n, ast.Name)]
    read = {n.id for n in names if isinstance(n.ctx, ast.Load)}
    return {n.id for n in names if isinstance(n.ctx, ast.Store)} - read - {'_'}


@pytest.mark.parametrize('model', MODELS)
def test_files_read_well(model):
    for text in pages(model).values():
        tree = ast.parse(text)
        imports = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
        assert {a.name for n in imports for a in n.names} == {'jax', 'jax.numpy'}
        functions = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
        assert [f.name for f in functions][:3] == ['init', 'learn', 'step']
        assert functions[-1].name == 'gradient'
        for f in functions:
            assert not never_read(f), ast.unparse(f)
            lines = [line.strip() for line in ast.unparse(f).split('\n') if ' = ' in line]
            values = [line.split(' = ')[1] for line in lines]
            assert len(set(values)) == len(values), ast.unparse(f)  # nothing is computed twice
        for word in (
            'mul(',
            'add(',
            'broadcast_in_dim',
            'convert_element_type',
            'dot_general',
            'gather',
        ):
            assert word not in text.replace('].add(', ''), word
        assert max(map(len, text.split('\n'))) <= 100


def test_a_gru_is_about_a_page():
    text = pages('gru')['d_rtrl']
    assert len(text.split('\n')) < 95
    for line in ('e_Z = ', 'D = 1 - ', 'new_s = ', 'e[t] = D e[t-1] + x (x) df', '# (3, 4)'):
        assert line in text, line


@pytest.mark.parametrize(
    'model, op', [('convolution', 'conv_general_dilated'), ('embedding', 'scatter')]
)
def test_numpy_refuses_by_name(model, op):
    learner = learners(model)['d_rtrl']
    with pytest.raises(braintrace.NotSupportedError, match=op):
        learner.code('numpy')
    with pytest.raises(ValueError, match="`backend` must be 'jax' or 'numpy'"):
        learner.code('torch')


def test_the_file_of_a_module():
    class Net(brainstate.nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = braintrace.nn.MGUCell(I, H)
            self.out = braintrace.nn.Linear(H, O)

        def update(self, x):
            return self.out(self.cell(x))

    net, xs = Net(), draw(T, B, I)
    learner = braintrace.compile(net, 'pp_prop', xs[0], batch_size=B, decay_or_rank=0.9)
    names, text = {}, learner.code()
    exec(text, names)
    assert 'out.weight.bias (2,)' in text and 'state: cell.h (3, 4)' in text, 'as it takes them'
    step = jax.tree_util.Partial(names['learn'], loss=lambda out: (out**2).sum())
    params = {
        '.'.join((*path, key)): value
        for path, s in learner.param_states.items()
        for key, value in s.value.items()
    }
    state = {'.'.join(path): s.value for path, s in learner.hidden_states.items()}
    traces, total = names['init'](params, state), dict.fromkeys(params, 0)
    for x in xs:
        state, traces, out, grads = jax.jit(step)(params, state, traces, x)
        total = {name: g + grads[name] for name, g in total.items()}

    def of_step(x):
        return (learner(x) ** 2).sum()

    expected = learner.etrace_grad(xs, step_fn=of_step, window=1, reduction='sum')
    for path, tree in expected.items():
        for key, g in tree.items():
            np.testing.assert_allclose(total['.'.join((*path, key))], g, atol=1e-10)


def test_the_page_in_the_documentation_is_what_is_written(tmp_path, monkeypatch):
    text = (pathlib.Path(braintrace.__file__).parents[1] / 'docs' / 'code.md').read_text()
    examples = doctest.DocTestParser().get_examples(text)
    model = ''.join(e.source for e in examples[:15] if 'learner.code' not in e.source)
    brainstate.environ.set(precision=32)
    (tmp_path / 'model_of_the_page.py').write_text(model.split('rule = {}')[0])
    monkeypatch.syspath_prepend(tmp_path)
    page = importlib.import_module('model_of_the_page').learner.code()
    assert page in text, page
