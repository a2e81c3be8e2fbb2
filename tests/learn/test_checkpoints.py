"""Checkpoints of a run: complete ones are found, others are told and skipped."""

import pathlib
import shutil

import brainstate as bs
import braintools
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import braintrace

# orbax leaves readers behind when a file is damaged
pytestmark = pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')


def leaky(p, h, x):
    h = jnp.tanh(p['a'] * h + x)
    return h, h


PARAMS, STATE = {'a': jnp.arange(2.0)}, jnp.zeros(2)


def learner_of(rule='d_rtrl', **options):
    return braintrace.compile(leaky, rule, PARAMS, STATE, jnp.ones(2), **options)


LEARNER = learner_of()


def run_of(number):
    params = jax.tree.map(lambda a: a + number, PARAMS)
    carry = LEARNER.init(params, STATE)._replace(steps=jnp.asarray(number, 'int32'))
    numpys = np.random.Generator(np.random.MT19937(number))
    state = bs.ShortTermState(jnp.full(3, number, 'bfloat16'))
    optimizer = braintools.optim.Adam(1e-3)
    weights = bs.nn.Linear(1, 1)
    optimizer.register_trainable_weights(weights.states(bs.ParamState))
    optimizer.step_count.value = jnp.asarray(number)
    plain = {
        'params': params,
        'carry': carry,
        'opt': optax.adam(0.1).init(params),
        'key': jax.random.key(number),
        'epoch': number,
    }
    return dict(run=plain, data=numpys, state=state, optimizer=optimizer, list=[number])


def told_of(run):
    """All that a run holds, as numbers."""
    plain = {**run['run'], 'key': jax.random.key_data(run['run']['key'])}
    step = run['optimizer'].step_count.value
    draw = np.random.Generator(np.random.MT19937())
    draw.bit_generator.state = run['data'].bit_generator.state
    return plain, draw.random(3), run['state'].value, step, run['list']


def same(a, b):
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def test_what_belongs_to_a_run_is_restored_in_place(tmp_path):
    with braintrace.Checkpoints(tmp_path, keep=2) as checkpoints:
        run = run_of(0)
        assert checkpoints.restore(LEARNER, **run) is None
        for step in (1, 2, 5):
            checkpoints.save(step, LEARNER, **run_of(step))
        assert checkpoints.restore(LEARNER, **run) == 5
        assert same(told_of(run), told_of(run_of(5)))
        assert type(run['run']['carry']) is type(LEARNER.init(PARAMS, STATE))
        assert type(run['run']['epoch']) is int
        with pytest.raises(ValueError, match='larger than 5'):
            checkpoints.save(5, LEARNER, **run)
    assert sorted(p.name for p in tmp_path.iterdir()) == ['2', '5']


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
    directory = tmp_path_factory.mktemp('saved')
    with braintrace.Checkpoints(directory) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, LEARNER, run=run_of(step)['run'], data=run_of(step)['data'])
    return directory


def halve(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


DAMAGE = {
    'no text': lambda d: shutil.rmtree(d / 'about'),
    'no arrays': lambda d: shutil.rmtree(d / 'arrays'),
    'half of a file': lambda d: halve(d / 'arrays/manifest.ocdbt'),
    'a text that is none': lambda d: (d / 'about/metadata').write_text('{"learner": "{'),
}


@pytest.mark.parametrize('damage', DAMAGE)
def test_a_damaged_one_is_told_and_skipped(damage, saved, tmp_path):
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    DAMAGE[damage](tmp_path / '2')
    run, data = run_of(0)['run'], run_of(0)['data']
    with braintrace.Checkpoints(tmp_path) as checkpoints:
        with pytest.warns(UserWarning, match='checkpoint .*2 is skipped'):
            assert checkpoints.restore(LEARNER, run=run, data=data) == 1
        checkpoints.save(2, LEARNER, run=run, data=data)
        assert checkpoints.restore(LEARNER, run=run, data=data) == 2
    assert same(run['params'], run_of(1)['run']['params'])


def test_an_unfinished_one_is_told_and_removed(saved, tmp_path):
    shutil.copytree(saved, tmp_path, dirs_exist_ok=True)
    torn = tmp_path / '3.orbax-checkpoint-tmp'
    shutil.copytree(saved / '2', torn)
    with pytest.warns(UserWarning, match='checkpoint .*3.* is skipped: it is not finished'):
        checkpoints = braintrace.Checkpoints(tmp_path)
    assert torn.exists()  # somebody else may be writing it
    with checkpoints:
        checkpoints.save(4, LEARNER, run=run_of(4)['run'])
    assert not torn.exists()


OTHERS = {
    'rule': (learner_of('rtrl'), {}, "its rule is 'd_rtrl'"),
    'option': (learner_of(scope='block'), {}, 'its option `scope`'),
    'shape': (LEARNER, {'key': jnp.zeros(3)}, r'more/run.key is key<fry>\[\], here it is float64'),
    'name': (LEARNER, {'more': jnp.zeros(3)}, r'it has no more/run.more'),
}


@pytest.mark.parametrize('learner, change, message', OTHERS.values(), ids=OTHERS)
def test_what_does_not_fit_is_refused(learner, change, message, saved):
    run, data = {**run_of(0)['run'], **change}, run_of(0)['data']
    before = dict(run)
    with braintrace.Checkpoints(saved) as checkpoints, pytest.raises(ValueError, match=message):
        checkpoints.restore(learner, run=run, data=data)
    assert run == before


def test_wrong_calls(saved):
    with braintrace.Checkpoints(saved) as checkpoints:
        with pytest.raises(TypeError, match='`opt` is a tuple.*Put it into a dict'):
            checkpoints.save(9, LEARNER, opt=optax.sgd(0.1).init(PARAMS))
        with pytest.raises(ValueError, match='nothing to save'):
            checkpoints.save(9, LEARNER)
        with pytest.raises(ValueError, match='data is MT19937, not PCG64'):
            checkpoints.restore(LEARNER, run=run_of(0)['run'], data=np.random.default_rng())
        with pytest.raises(TypeError, match='holds a str'):
            checkpoints.save(9, LEARNER, run={'name': 'x'})
    for wrong in (0, True, 1.5):
        with pytest.raises(ValueError, match='`keep`'):
            braintrace.Checkpoints(saved, keep=wrong)
    assert sorted(p.name for p in pathlib.Path(saved).iterdir()) == ['1', '2']


def test_a_carry_is_checked_by_name():
    carry = LEARNER.init(PARAMS, STATE)
    LEARNER.check(carry)
    [name] = carry.traces
    wrong = {
        r'its state is float64\[3\], here it is float64\[2\]': carry._replace(state=jnp.zeros(3)),
        f'it has no trace/{name}'.replace('>', '.'): carry._replace(traces={}),
        rf'its trace/{name} is float32': carry._replace(
            traces={name: carry.traces[name].astype('float32')}
        ),
        'its steps is float': carry._replace(steps=1.0),
    }
    for message, other in wrong.items():
        with pytest.raises(ValueError, match=message):
            LEARNER.check(other)
    with pytest.raises(TypeError, match='`carry` must be what `init` .*, got tuple'):
        LEARNER.check(tuple(carry))


class Hidden(nnx.Variable):
    pass


class Net(nnx.Module):
    """Leaky units with noise."""

    def __init__(self, seed):
        self.rngs = nnx.Rngs(seed)
        self.inp = nnx.Linear(2, 3, rngs=self.rngs)
        self.h = Hidden(jnp.zeros((1, 3)))

    def __call__(self, x):
        self.h[...] = 0.9 * self.h[...] + self.inp(x) + self.rngs.normal((1, 3))
        return self.h[...]


def test_a_module_of_nnx_with_its_optimizer(tmp_path):
    x = jnp.ones((1, 2))

    def run_of(seed):
        net = Net(seed)
        learner = braintrace.compile(net, 'd_rtrl', x, hidden=Hidden)
        optimizer = nnx.Optimizer(net, optax.adam(0.1), wrt=nnx.Param)

        def update(grads):
            optimizer.update(net, grads)

        live = learner.etrace_stream(step_fn=lambda x: (learner(x) ** 2).mean(), update=update)
        return learner, optimizer, live

    learner, optimizer, live = run_of(0)
    live(x)
    with braintrace.Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, learner, optimizer=optimizer)
        true = [float(live(x)) for _ in range(3)]
        other, its_optimizer, its_live = run_of(1)
        assert checkpoints.restore(other, optimizer=its_optimizer) == 1
    assert [float(its_live(x)) for _ in range(3)] == true
    assert {'param/inp.kernel', 'hidden/h'} < other.snapshot().arrays.keys()
