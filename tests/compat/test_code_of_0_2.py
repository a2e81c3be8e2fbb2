"""What code written for 0.2 does with learners, in its own words."""

import brainstate as bs
import braintools
import brainunit as u
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from told import RESET

import braintrace
from braintrace import DiagnosticKind, ETraceConfig

rng = np.random.RandomState(0)
X = jnp.asarray(rng.randn(6, 2, 3))
KEY = jax.random.PRNGKey(0)


class Leaky(bs.nn.Module):
    """`h = 0.7 h + x @ W`, read as it is."""

    def __init__(self):
        super().__init__()
        self.w = bs.ParamState(jnp.asarray(np.random.RandomState(1).randn(3, 4)))

    def init_state(self, batch_size=None, **kwargs):
        self.h = bs.HiddenState(jnp.zeros((batch_size, 4) if batch_size else 4))

    def update(self, x):
        self.h.value = 0.7 * self.h.value + braintrace.matmul(x, self.w.value)
        return self.h.value


def gradients(learner, **how):
    def loss(x):
        return jnp.sin(learner(x)).sum()

    return learner.etrace_grad(X, step_fn=loss, reduction='sum', **how)['w',]


@pytest.mark.parametrize('more', [{'max_norm': 0.5}, {'max_norm': 0.5 * u.mA, 'padding_idx': 0}])
def test_an_embedding_in_milliampere(more):
    table = braintools.init.LecunUniform(scale=9.0, unit=u.mA)
    rows = braintrace.nn.Embedding(5, 3, embedding_init=table, **more)(jnp.arange(5))
    lengths = np.linalg.norm(rows.to_decimal(u.mA), axis=1)
    assert lengths.max() < 0.5 + 1e-6 and (lengths == 0).sum() == ('padding_idx' in more)


def test_a_convolution_in_milliampere():
    how = dict(w_init=braintools.init.KaimingNormal(1.0, unit=u.mA), padding='SAME')
    layer = braintrace.nn.Conv2d(
        (4, 4, 1), 2, 3, b_init=braintools.init.Constant(3.0 * u.mA), **how
    )
    w = layer.weight.value['weight']
    images = jnp.asarray(rng.randn(2, 4, 4, 1))
    wanted = jax.lax.conv_general_dilated(
        images, w.to_decimal(u.mA).astype(images.dtype), (1, 1), 'SAME',
        dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
    )  # fmt: skip
    np.testing.assert_allclose(layer(images).to_decimal(u.mA), wanted + 3, rtol=1e-6)
    assert braintrace.nn.Conv1d((4, 1), 2, 3, **how)(images[0]).unit == u.mA


CONFIGS = {
    'D_RTRL': ({}, ETraceConfig()),
    'pp_prop': ({'decay_or_rank': 0.9}, ETraceConfig('io_factorized', decay=0.9)),
    'EProp': ({'kappa_filter_decay': 0.8}, ETraceConfig(trace_filter='kappa', kappa=0.8)),
    'OSTLRecurrent': ({}, ETraceConfig(recurrence_scope='coupled')),
    'OSTLFeedforward': ({}, ETraceConfig('io_factorized', decay=1e-6)),
    'SnAp': ({'n': 3}, ETraceConfig(recurrence_scope='sparse_n', sparse_n=3)),
    'UORO': ({}, ETraceConfig('random_projection', recurrence_scope='coupled')),
    'ThreeFactor': ({}, ETraceConfig(learning_signal='modulatory')),
    'DNI': ({}, ETraceConfig(learning_signal='bootstrapped')),
    'RFLO': ({'decay': 0.5}, ETraceConfig(temporal_recursion='scalar_leak', decay=0.5)),
    'OTTT': (
        {'decay': 0.5},
        ETraceConfig('io_factorized', ('scalar_leak', 'none'), decay=(0.5, 0.0)),
    ),
    'RTRL': ({}, None),
}


@pytest.mark.parametrize('name', CONFIGS)
def test_every_learner_knows_its_configuration(name):
    options, config = CONFIGS[name]
    learner = getattr(braintrace, name)(bs.nn.init_all_states(Leaky()), fast_solve=False, **options)
    assert learner.config == config and learner.fast_solve is False
    assert learner.graph_executor.vjp_method == learner.vjp_method


def test_the_attributes_of_learners():
    model = bs.nn.init_all_states(Leaky())
    eprop = braintrace.EProp(model, 'random', random_feedback_key=KEY)
    assert eprop.feedback == 'random' and eprop.config.learning_signal == 'random_feedback'
    assert braintrace.SnAp(model, n=3).n == 3
    learner = braintrace.compile(Leaky(), braintrace.OSTLRecurrent, X[0], batch_size=2)
    assert isinstance(learner, braintrace.ParamDimVjpAlgorithm) and len(learner.etrace_bwg) == 1
    assert learner.graph_executor is learner.executor
    assert learner.executor.graph is learner.graph and learner.graph.hidden_perturb is not None
    learner = braintrace.compile(Leaky(), braintrace.OSTLFeedforward, X[0], batch_size=2)
    assert isinstance(learner, braintrace.IODimVjpAlgorithm)
    assert isinstance(learner, braintrace.pp_prop)
    assert len(learner.etrace_xs) == len(learner.etrace_dfs) == 1


def test_the_base_of_the_learners_takes_an_executor():
    model = bs.nn.init_all_states(Leaky())
    learner = braintrace.ETraceAlgorithm(model, braintrace.ETraceVjpGraphExecutor(model), name='n')
    learner.compile_graph(X[0, 0])
    assert learner.is_compiled and learner.graph_executor.graph.hidden_groups
    assert learner(X[0, 0]).shape == (4,) and learner.running_index.value == 1
    with pytest.raises(ValueError, match='`graph_executor` must be an ETraceGraphExecutor'):
        braintrace.ETraceAlgorithm(model, model)
    with pytest.raises(ValueError, match='`model` must be a brainstate.nn.Module'):
        braintrace.ETraceAlgorithm(3, learner.graph_executor)


@pytest.mark.parametrize('n', [1, 2, 3])
def test_the_neighbours_of_snap_on_a_ring(n):
    ring = np.eye(5) + np.eye(5, k=1) + np.eye(5, k=-4)

    class Ring(bs.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = braintrace.nn.Linear(5, 5, w_mask=jnp.asarray(ring))

        def init_state(self, *args, **kwargs):
            self.h = bs.HiddenState(jnp.zeros(5))

        def update(self, x):
            self.h.value = jnp.tanh(self.linear(self.h.value) + x)
            return self.h.value

    learner = braintrace.compile(Ring(), braintrace.SnAp, jnp.ones(5), n=n)
    [group] = learner.graph.hidden_groups
    assert group.trace_state_width == n
    if n > 1:
        assert sorted(group.snap.neighbours[3]) == sorted((3 + np.arange(n)) % 5)
        near = np.linalg.matrix_power(ring, n - 1) > 0
        assert np.array_equal(group.snap.axes[0], near) and not group.snap.conservative


def test_random_feedback_where_the_loss_reads_the_hidden_state():
    found = {}
    for feedback in ('symmetric', 'random', 'square'):
        options = {'feedback': feedback, 'random_feedback_key': KEY}
        learner = braintrace.compile(Leaky(), 'eprop', X[0], batch_size=2, **options)
        found[feedback] = gradients(learner)
    assert np.array_equal(found['random'], found['square'])
    assert np.abs(found['random'] - found['symmetric']).max() > 0.1


# ---- rules of one's own ----


def clipped(traces):
    return {name: jnp.clip(trace, -0.5, 0.5) for name, trace in traces.items()}


@pytest.mark.parametrize('window', [1, 4, 6])
def test_a_d_rtrl_that_clips_its_traces(window):
    learner = braintrace.compile(Leaky(), 'd_rtrl', X[0], batch_size=2, on_traces=clipped)
    W = learner.model4compile.w.value
    h, e, wanted = np.zeros((2, 4)), np.zeros((2, 3)), 0.0
    for x in np.asarray(X):
        h, e = 0.7 * h + x @ W, 0.7 * e + x
        wanted = wanted + np.einsum('bi,bo->io', e, np.cos(h))
        e = np.clip(e, -0.5, 0.5)
    np.testing.assert_allclose(gradients(learner, window=window), wanted, atol=1e-12)
    [trace] = learner.etrace.values()
    np.testing.assert_allclose(trace.value[0], np.repeat(e[:, :, None], 4, 2), atol=1e-12)


def test_traces_may_come_back_in_any_order():
    def step(p, h, x):
        h = p['leak'] * h + x @ p['W']
        return h, h

    params, state = {'leak': jnp.full(4, 0.7), 'W': jnp.ones((3, 4))}, jnp.ones((2, 4))

    def gradient(**options):
        learner = braintrace.compile(step, 'd_rtrl', params, state, X[0], **options)
        return learner.grad(jnp.sum, params, learner.init(params, state), X)[0][0]

    turned = gradient(on_traces=lambda traces: dict(reversed(traces.items())))
    jax.tree.map(np.testing.assert_allclose, turned, gradient())


@pytest.mark.parametrize('hook', ['_update_etrace_data', '_solve_weight_gradients'])
def test_an_override_that_nobody_would_call_is_refused(hook):
    mine = type('Mine', (braintrace.D_RTRL,), {hook: lambda self, *args: None})
    with pytest.raises(TypeError, match=f'`Mine.{hook}` would never be called.*carrier'):
        mine(Leaky())


def test_an_override_of_init_etrace_state_is_called():
    class Mine(braintrace.D_RTRL):
        def init_etrace_state(self, *args):
            super().init_etrace_state(*args)
            self.mine = bs.ShortTermState(jnp.zeros(args[0].shape))

    learner = braintrace.compile(Leaky(), Mine, X[0], batch_size=2)
    assert learner.mine.value.shape == (2, 3) and np.abs(gradients(learner)).max() > 0


@pytest.mark.parametrize(
    'on_traces, message',
    [
        (lambda traces: None, 'must return a dict with the names'),
        (lambda traces: {k: t[0] for k, t in traces.items()}, r"must keep the trace 'w->h' as it"),
        (3, '`on_traces` must be a function'),
    ],
)
def test_functions_that_lose_a_trace(on_traces, message):
    with pytest.raises((TypeError, ValueError), match=message):
        learner = braintrace.compile(Leaky(), 'd_rtrl', X[0], batch_size=2, on_traces=on_traces)
        learner(X[0])


# ---- records ----


@RESET
def test_the_relations_of_a_gru():
    """One for each op, with its weight and its bias."""
    learner = braintrace.compile(braintrace.nn.GRUCell(3, 4), braintrace.D_RTRL, X[0, 0])
    relations = learner.graph.hidden_param_op_relations
    assert [r.trainable_paths for r in relations] == [
        dict.fromkeys(('weight', 'bias'), (name, 'weight')) for name in ('Wz', 'Wh')
    ]
    assert relations[0].trainable_vars.keys() == relations[0].trainable_leaf_indices.keys()
    report = learner.report
    assert report.counts == dict(
        hidden_groups=1, etrace_weights=4, excluded_weights=1, warnings=1, errors=0
    )
    [(path, reason)] = report.excluded_weights
    assert path == ('Wr', 'weight') and reason == 'relation_excluded_weight_to_weight'
    assert reason is DiagnosticKind.RELATION_EXCLUDED_WEIGHT_TO_WEIGHT
    assert 'only through another weight' in report.why_excluded[path]


def test_a_synthesizer_trained_without_a_batch_size():
    learner = braintrace.compile(braintrace.nn.MiniGRU(3, 4), braintrace.DNI, X[0], batch_size=2)
    learner.attach_synthesizer(braintrace.SyntheticGradient(learner.group_signal_shapes()))
    assert len(braintrace.train_synthetic_gradient(learner, X, epochs=2)) == 2
    assert learner(X[0]).shape == (2, 4)
    with pytest.raises(ValueError, match='`batch_size`'):
        braintrace.train_synthetic_gradient(learner, X, batch_size=3)
    with pytest.raises(TypeError, match='`epochs` must be an int'):
        braintrace.train_synthetic_gradient(learner, X, epochs='2')
    with pytest.raises(TypeError, match='`synthesizer` must be a `SyntheticGradient`.*got int'):
        learner.attach_synthesizer(3)
    assert learner(X[0]).shape == (2, 4)


def test_a_parameter_that_enters_several_equations_has_one_trace():
    def step(p, h, x):
        h = jnp.tanh(p * h + p * x)
        return h, p * h

    xs, p, h = X, jnp.asarray([0.3, -0.5, 0.8]), jnp.zeros((2, 3))
    learner = braintrace.compile(step, 'd_rtrl', p, h, xs[0])
    assert len(learner.graph.hidden_param_op_relations) == len(learner.init(p, h).traces) == 1

    def loss(p):
        return (jax.lax.scan(lambda h, x: step(p, h, x), h, xs)[1] ** 2).mean()

    (found, _), _ = learner.grad(lambda out: (out**2).mean(), p, learner.init(p, h), xs, window=2)
    np.testing.assert_allclose(found, jax.grad(loss)(p), atol=1e-12)
