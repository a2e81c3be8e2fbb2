"""What the scripts of 0.1 do, in their own words: `brainscale` was the name before."""

import functools

import brainevent
import brainstate as bs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from told import expected

import braintrace as brainscale
from braintrace import nn

pytestmark = pytest.mark.filterwarnings(
    'ignore:`braintrace.* belongs to version 0.1:DeprecationWarning'
)
rng = np.random.RandomState(0)
T, B = 5, 2
X = jnp.asarray(rng.randn(T, B, 3))


class Net(bs.nn.Module):
    """A layer into leaky units; like the models of that time it takes the number of the step."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def init_state(self, batch_size=None, **kwargs):
        self.h = bs.HiddenState(jnp.zeros((batch_size, 4) if batch_size else 4))

    def update(self, i, x):
        self.h.value = 0.7 * self.h.value + self.layer(x)
        return self.h.value


@functools.cache
def learned(rule='D_RTRL', **options):
    """A learner, and its gradient of one sequence."""
    bs.random.seed(0)
    net = bs.nn.init_all_states(Net(nn.Linear(3, 4)), batch_size=B)
    learner = getattr(brainscale, rule)(net, **options)
    learner.compile_graph(0, X[0])
    return gradient(learner, X)


def gradient(learner, xs):
    def step(i, x):
        return jnp.sin(learner(i, x)).sum()

    return learner.etrace_grad(jnp.arange(T), xs, step_fn=step)['layer', 'weight']


@pytest.mark.parametrize(
    'name, options, like',
    [
        ('D_RTRL', {}, 'D_RTRL'),
        ('ES_D_RTRL', {'decay_or_rank': 0.9}, 'pp_prop'),
        ('HybridDimVjpAlgorithm', {'decay_or_rank': 0.9}, 'HybridDimVjpAlgorithm'),
    ],
)
def test_a_mode(name, options, like):
    batching = bs.mixin.Batching()
    for found in learned(name, mode=batching, **options), learned(name, name=batching, **options):
        jax.tree.map(np.testing.assert_array_equal, found, learned(like, **options))
    with pytest.raises(TypeError, match='`mode` must be a brainstate.mixin.Mode'):
        learned(name, mode='batch', **options)


def test_an_algorithm_that_truncates():
    found = learned('DiagTruncatedAlgorithm', n_truncation=T)
    jax.tree.map(np.testing.assert_array_equal, found, learned())
    with pytest.raises(ValueError, match='`n_truncation` must be at least 1'):
        learned('DiagTruncatedAlgorithm', n_truncation=0)


# ---- layers ----

CSR = brainevent.CSR.fromdense(jnp.asarray(rng.randn(3, 4)))
LAYERS = {
    'Linear': lambda **how: nn.Linear(3, 4, **how),
    'SignedWLinear': lambda **how: nn.SignedWLinear(3, 4, **how),
    'ScaledWSLinear': lambda **how: nn.ScaledWSLinear(3, 4, **how),
    'SparseLinear': lambda **how: nn.SparseLinear(CSR, **how),
    'LoRA': lambda **how: nn.LoRA(in_features=3, lora_rank=2, out_features=4, **how),
    'GRUCell': lambda **how: nn.GRUCell(3, 4, **how),
    'LRUCell': lambda **how: nn.LRUCell(3, 4, **how),
    'Conv1d': lambda **how: nn.Conv1d((3, 1), 4, 3, **how),
    'Embedding': lambda **how: nn.Embedding(3, 4, padding_idx=1, **how),
    'LayerNorm': lambda **how: nn.LayerNorm(4, **how),
    'BatchNorm0d': lambda **how: nn.BatchNorm0d(4, **how),
}


@pytest.mark.parametrize('layer', LAYERS)
def test_the_type_of_a_layers_parameters(layer):
    for name in ('ETraceParam', 'ElemWiseParam', 'NonTempParam'):
        kind = getattr(brainscale, name)
        states = LAYERS[layer](param_type=kind).states(bs.ParamState).values()
        assert states and all(isinstance(s, kind) for s in states)
    fake = LAYERS[layer](param_type=brainscale.FakeETraceParam)
    assert not fake.states(bs.ParamState)


def test_what_the_type_says_about_the_trace():
    xs, found = X[:, 0], {}
    for name in ('ETraceParam', 'ElemWiseParam', 'NonTempParam', 'FakeETraceParam'):
        bs.random.seed(0)
        net = Net(nn.Linear(3, 4, w_init=jnp.ones((3, 4)), param_type=getattr(brainscale, name)))
        learner = brainscale.compile(net, 'd_rtrl', 0, xs[0], trace='marked')
        grads = learner.etrace_grad(
            jnp.arange(T), xs, step_fn=lambda i, x, f=learner: f(i, x).sum()
        )
        found[name] = grads.get(('layer', 'weight'))
    e, steps = np.zeros(3), []
    for x in np.asarray(xs):
        e = 0.7 * e + x
        steps.append(e)
    for name in ('ETraceParam', 'ElemWiseParam'):
        wanted = np.repeat(np.mean(steps, 0)[:, None], 4, 1)
        np.testing.assert_allclose(found[name]['weight'], wanted, atol=1e-12)
    same_step = np.repeat(np.mean(xs, 0)[:, None], 4, 1)
    np.testing.assert_allclose(found['NonTempParam']['weight'], same_step, atol=1e-12)
    assert found['FakeETraceParam'] is None


def test_parameters_choose_between_two_kinds_of_traces():
    for grad, kinds in ('full', {'trace'}), ('approx', {'x', 'f'}):
        kind = functools.partial(brainscale.ETraceParam, grad=grad)
        net = bs.nn.init_all_states(Net(nn.Linear(3, 4, param_type=kind)), batch_size=B)
        learner = brainscale.HybridDimVjpAlgorithm(net, 0.9)
        learner.compile_graph(0, X[0])
        assert {key.kind for key in learner.compiled_step().core.shapes} == kinds


def test_the_factors_of_lora():
    ones = bs.nn.init.Constant(1.0)
    layer = nn.LoRA(in_features=3, lora_rank=2, out_features=4, B_init=ones, A_init=ones, alpha=2.0)
    np.testing.assert_allclose(layer(X[0]), np.repeat(2 * X[0].sum(1)[:, None], 4, 1))
    layer = nn.LoRA(3, 2, 4, A_init=ones)
    assert not layer(X[0]).any()
    with pytest.raises(TypeError, match='not both'):
        nn.LoRA(3, 2, 4, A_init=ones, kernel_init=ones)


def test_stopped_gradients_leave_what_a_unit_does_to_itself():
    layer = nn.Linear(4, 4)

    def step(h):
        return 0.7 * h + layer(h)

    with brainscale.stop_param_gradients():
        D = jax.jacobian(step)(jnp.ones(4))
        with brainscale.stop_param_gradients(False):
            whole = jax.jacobian(step)(jnp.ones(4))
    np.testing.assert_allclose(D, 0.7 * np.eye(4))
    np.testing.assert_allclose(whole, 0.7 * np.eye(4) + layer.weight.value['weight'].T)
    w = jnp.asarray(rng.randn(3, 4))
    pulled = brainscale.general_y2w(lambda x, w: x @ w, X[0, 0], jnp.arange(4.0), w)
    np.testing.assert_allclose(pulled, np.tile(np.arange(4.0), (3, 1)))


# ---- the ways in which experiments drive a learner ----


def test_states_mapped_by_their_tags():
    bs.random.seed(0)
    net = Net(nn.Linear(3, 4))
    learner = brainscale.D_RTRL(net)

    @bs.transform.vmap_new_states(state_tag='hidden', axis_size=B)
    def init():
        bs.nn.init_all_states(net)
        learner.compile_graph(0, X[0, 0])

    init()
    model = bs.nn.Vmap(learner, vmap_states=('hidden', 'etrace'), in_axes=(None, 0))
    weights = net.states(bs.ParamState)

    def step(i, x):
        return bs.transform.grad(lambda: jnp.sin(model(i, x)).sum(), weights)()

    grads = bs.transform.for_loop(step, jnp.arange(T), X)['layer', 'weight']
    mean = jax.tree.map(lambda g: g.sum(0) / T, grads)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), mean, learned())


@expected('State delay.history carries the influence')
def test_a_delay_in_the_model():
    class Delayed(bs.nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.r = nn.Linear(3, 4), nn.Linear(4, 4)
            self.delay = bs.nn.Delay(jax.ShapeDtypeStruct((4,), X.dtype), time=2.0)

        def init_state(self, *args, **kwargs):
            self.h = bs.HiddenState(jnp.zeros(4))

        def update(self, i, x):
            with bs.environ.context(i=i, t=i * 1.0):
                before = self.delay.retrieve_at_step(1)
                self.h.value = jnp.tanh(0.5 * self.h.value + self.w(x) + self.r(before))
                self.delay.update(self.h.value)
            return self.h.value

    found = {}
    with bs.environ.context(dt=1.0):
        for rule, window in ('bptt', T), ('rtrl', 2):
            learner = brainscale.compile(Delayed(), rule, 0, X[0, 0], seed=0)
            bs.random.seed(0)
            for state in learner.param_states.values():
                state.value = jax.tree.map(lambda a: bs.random.randn(*a.shape), state.value)
            found[rule] = learner.etrace_grad(
                jnp.arange(T),
                X[:, 0],
                step_fn=lambda i, x, f=learner: jnp.sin(f(i, x)).sum(),
                window=window,
            )
    assert np.abs(found['bptt']['r', 'weight']['weight']).max() > 1e-3
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-10), found['rtrl'], found['bptt']
    )


def test_events_as_inputs():
    spikes = (X > 0).astype(X.dtype)
    found = []
    for xs in spikes, brainevent.BinaryArray(spikes):  # it was called EventArray
        bs.random.seed(0)
        first = jax.tree.map(lambda a: a[0], xs)
        learner = brainscale.compile(Net(nn.Linear(3, 4)), 'd_rtrl', 0, first, batch_size=B)
        found.append(gradient(learner, xs))
    jax.tree.map(np.testing.assert_array_equal, *found)
    assert np.abs(found[0]['weight']).max() > 0
