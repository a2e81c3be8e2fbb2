"""A learner that is restored goes on with the same bits; what does not fit is refused by name."""

import json
import pathlib

import brainstate as bs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import saiunit as u

import braintrace

B = 2
rng = np.random.RandomState(0)
X, Y = rng.randn(8, B, 3), rng.randn(8, B, 2)
RULES = {
    'd_rtrl': {},
    'uoro': {},
    'eprop': {'feedback': 'adaptive', 'random_feedback_key': 0, 'kappa_filter_decay': 0.5},
    'dni': {},
}


class Net(bs.nn.Module):
    """Noise of the default generator, a unit of measurement, a state that is not hidden."""

    def __init__(self, units=4):
        super().__init__()
        self.inp, self.out = bs.nn.Linear(3, units), bs.nn.Linear(units, 2)
        self.units = units

    def init_state(self, batch_size=B, **_):
        self.V = bs.HiddenState(jnp.ones((batch_size, self.units)) * u.mV)
        self.mean = bs.ShortTermState(jnp.zeros(3))

    def update(self, x):
        noise = 0.1 * bs.random.normal(size=self.V.value.shape)
        self.V.value = 0.9 * self.V.value + (self.inp(x - self.mean.value) + noise) * u.mV
        self.mean.value = 0.9 * self.mean.value + 0.1 * x.mean(0)
        return self.out(jnp.tanh(self.V.value.to_decimal(u.mV)))


def learner_of(rule='d_rtrl', seed=0, units=4, batch=B, **options):
    bs.random.seed(seed)
    net, options = Net(units), {**RULES.get(rule, {}), **options}
    learner = braintrace.compile(net, rule, X[0, :batch], batch_size=batch, **options)
    if rule == 'dni':
        guess = braintrace.SyntheticGradient(learner.group_signal_shapes(), scale=0.1, seed=seed)
        learner.attach_synthesizer(guess)
    return learner


def streamed(learner):
    """`train(steps)`, the losses of these."""

    def update(grads):
        for key, state in learner.param_states.items():
            state.value = jax.tree.map(lambda w, g: w - 0.1 * g, state.value, grads[key])

    live = learner.etrace_stream(step_fn=lambda x, y: ((learner(x) - y) ** 2).mean(), update=update)
    return lambda steps: [live(X[t], Y[t]) for t in steps]


def same_bits(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@pytest.mark.parametrize('rule', RULES)
def test_a_restored_learner_goes_on_with_the_same_bits(rule, tmp_path):
    learner, other = learner_of(rule), learner_of(rule, seed=1)
    train = streamed(learner)
    train(range(3))
    arrays, about = learner.snapshot()
    np.savez(tmp_path / 'it.npz', **arrays)
    losses, after = train(range(3, 8)), learner.snapshot()
    kept = braintrace.Snapshot(dict(np.load(tmp_path / 'it.npz')), about)
    other.restore(kept)
    assert other.snapshot().about == about
    same_bits(other.snapshot().arrays, arrays)
    learner.restore(kept)
    assert train(range(3, 8)) == losses
    same_bits(learner.snapshot().arrays, after.arrays)
    assert json.loads(about)['rule'] == rule and 'hidden/V' in arrays


CHANGED = {
    'rule': (dict(rule='rtrl'), "its rule is 'd_rtrl', here it is 'rtrl'"),
    'option': (dict(trace_dtype='float32'), 'its option `trace_dtype` is None'),
    'credit': (dict(vjp_method='multi-step'), "its credit is 'single-step'"),
    'units': (dict(units=5), r'its hidden/V is float64\[2,4\] mV, here it is float64\[2,5\] mV'),
    'batch': (dict(batch=1), r'its hidden/V is float64\[2,4\] mV, here it is float64\[1,4\] mV'),
}


@pytest.mark.parametrize('made, message', CHANGED.values(), ids=CHANGED)
def test_what_does_not_fit_is_refused_by_name_and_changes_nothing(made, message):
    snapshot, other = learner_of().snapshot(), learner_of(**made)
    before = other.snapshot()
    with pytest.raises(ValueError, match=message):
        other.restore(snapshot)
    same_bits(other.snapshot().arrays, before.arrays)


def test_a_text_that_lies_is_refused():
    learner = learner_of()
    arrays, about = learner.snapshot()
    name = 'trace/inp.weight.weight->V'
    with pytest.raises(ValueError, match=f'lacks the array {name}'):
        learner.restore((({k: a for k, a in arrays.items() if k != name}), about))
    with pytest.raises(ValueError, match=rf'{name} is float32\[.*its text says float64'):
        learner.restore(({**arrays, name: arrays[name].astype('float32')}, about))
    later = json.dumps({**json.loads(about), 'format': 99})
    for text, message in {'': 'does not say', '[]': 'does not say', later: 'format is 99'}.items():
        with pytest.raises(ValueError, match=message):
            learner.restore((arrays, text))


KEPT = pathlib.Path(__file__).parent / 'kept'


@pytest.mark.parametrize('file', sorted(KEPT.glob('*.json')), ids=lambda file: file.stem)
def test_snapshots_of_older_versions_load(file):
    """Made by `keep` below; the losses are those of the steps that followed."""
    arrays = dict(np.load(file.with_suffix('.npz')))
    losses = arrays.pop('losses')
    learner = learner_of(json.loads(file.read_text())['rule'], seed=1)
    learner.restore(braintrace.Snapshot(arrays, file.read_text()))
    np.testing.assert_allclose(streamed(learner)(range(3, 8)), losses, rtol=1e-10)


def keep(rule):
    """Write a snapshot of the present version; to be run by hand, once for each version."""
    learner = learner_of(rule)
    train = streamed(learner)
    train(range(3))
    arrays, about = learner.snapshot()
    name = KEPT / f'{rule}-{braintrace.__version__}'
    name.with_suffix(f'{name.suffix}.json').write_text(about)
    np.savez(f'{name}.npz', **arrays, losses=train(range(3, 8)))
