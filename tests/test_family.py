"""The rules as learners of brainstate models: names, configurations, feedback, modulators, guesses, and e-prop to the digit."""

import itertools

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import saiunit as u

import braintrace

pytestmark = pytest.mark.filterwarnings('ignore:.*in-window gradient')
T, D, H, C = 6, 3, 4, 2
rng = np.random.RandomState(0)
X, Y = jnp.asarray(rng.randn(T, 2, D)), jnp.asarray(rng.randn(T, 2, C))


class Net(brainstate.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = braintrace.nn.GRUCell(D, H), brainstate.nn.Linear(H, C)

    def update(self, x):
        return self.out(self.cell(x))


def learner_of(rule, **options):
    with brainstate.random.seed_context(1):
        model = Net()
    return braintrace.compile(model, rule, X[0], batch_size=2, **options)


def grads_of(learner, window=3, **options):
    return learner.etrace_grad(
        X, Y, step_fn=lambda x, y: jnp.mean((learner(x) - y) ** 2), window=window, **options
    )


def same(a, b, tolerance=1e-10):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, atol=tolerance)


CLASSES = {
    'EProp': dict(kappa_filter_decay=0.5),
    'OSTLRecurrent': {},
    'OSTLFeedforward': {},
    'RFLO': dict(decay=0.5),
    'OTTT': dict(decay=0.5),
    'SnAp': dict(n=1),
    'UORO': {},
    'KFRTRL': {},
    'LowRankRTRL': dict(rank=2),
    'ThreeFactor': dict(modulator=0.5),
    'D_RTRL': {},
    'pp_prop': dict(decay_or_rank=0.9),
    'RTRL': {},
    'BPTT': {},
    'HybridDimVjpAlgorithm': dict(decay_or_rank=0.9),
}


@pytest.mark.parametrize(
    'name',
    [c for c in CLASSES if c not in ('D_RTRL', 'pp_prop', 'RTRL', 'BPTT', 'HybridDimVjpAlgorithm')],
)  # test_learner has these
def test_a_loop_of_calls_gives_the_sum_that_the_driver_gives(name):
    learner = learner_of(getattr(braintrace, name), **CLASSES[name])
    whole = grads_of(learner, window=1, reduction='sum')
    assert all(np.abs(g).max() > 0 for g in jax.tree.leaves(whole))
    other = learner_of(getattr(braintrace, name), **CLASSES[name])
    one = lambda x, y: brainstate.transform.grad(
        lambda: jnp.mean((other(x) - y) ** 2), other.param_states
    )()
    same(jax.tree.map(lambda g: g.sum(0), brainstate.transform.for_loop(one, X, Y)), whole)


def test_every_rule_has_a_class_and_a_row():
    from braintrace.rules.registry import BY_NAME, LEARNERS

    assert LEARNERS.keys() == BY_NAME.keys()
    assert {c.__name__ for c in LEARNERS.values()} == CLASSES.keys() | {'DNI'}


def test_a_rule_of_ones_own_by_name_and_as_it_is():
    from braintrace.rules import Rule
    from braintrace.rules.bptt import Nothing
    from braintrace.rules.registry import BY_NAME

    forget = Rule(
        'forget',
        lambda layout, depth: Nothing(layout),
        'multi-step',
        {'depth': 1},
        traces=False,
        multi_only=True,
    )
    braintrace.register_rule(forget)
    for rule in ('Forget', forget):
        learner = learner_of(rule, depth=2)
        assert learner.rule is forget and isinstance(learner, braintrace.ETraceVjpAlgorithm)
    assert braintrace.compile(rnn, 'forget', P, jnp.zeros((2, H)), X[0]).rule is forget
    assert type(learner_of(BY_NAME['pp_prop'], decay_or_rank=0.9)) is braintrace.pp_prop
    for error, call in [
        (ValueError, lambda: braintrace.register_rule(forget)),
        (TypeError, lambda: braintrace.register_rule('forget')),
        (
            TypeError,
            lambda: braintrace.register_rule(
                Rule('other', Nothing, 'multi-step', {}), braintrace.BPTT
            ),
        ),
        (ValueError, lambda: braintrace.register_rule(Rule('e_prop', Nothing, 'multi-step', {}))),
        (TypeError, lambda: learner_of('forget', speed=1)),
    ]:
        with pytest.raises(error):
            call()
    assert 'other' not in BY_NAME


def test_a_signal_that_would_have_no_effect_is_refused():
    Config, start = braintrace.ETraceConfig, (P, jnp.zeros((2, H)), X[0])
    for rule in ('three_factor', Config(learning_signal='modulatory')):
        for build in (
            lambda **o: braintrace.compile(rnn, rule, *start, **o),
            lambda **o: learner_of(rule, **o),
        ):
            with pytest.raises(ValueError, match="signal .* in each step.* Use 'single-step'"):
                build(vjp_method='multi-step')
    for build in (
        lambda **o: braintrace.compile(rnn, 'dni', *start, guess=lambda p, h: h, **o),
        lambda **o: learner_of('dni', **o),
    ):
        with pytest.raises(ValueError, match="must be 'multi-step'"):
            build(vjp_method='single-step')
    learner = braintrace.compile(rnn, 'd_rtrl', *start)
    with pytest.raises(TypeError, match="'d_rtrl' takes no `modulator`"):
        learner.grad(lambda out: out.sum(), P, learner.init(*start[:2]), X, modulator=0.5)


P = dict(
    W=jnp.asarray(rng.randn(D, H)), R=jnp.asarray(rng.randn(H, H)), o=jnp.asarray(rng.randn(H, C))
)


def rnn(p, h, x):
    h = 0.5 * h + 0.5 * jnp.tanh(x @ p['W'] + h @ p['R'])
    return h, h @ p['o']


def legal():
    sides = dict(
        per_param=['jacobian', 'scalar_leak', 'none'],
        io_factorized=['jacobian', 'scalar_leak', 'none'],
        random_projection=['jacobian'],
    )
    for form, scope, signal, low in itertools.product(
        sides,
        ['diagonal', 'coupled', 'sparse_n'],
        ['symmetric', 'random_feedback', 'modulatory'],
        ['none', 'kappa'],
    ):
        for recursion in sides[form]:
            given = (
                dict(decay=0.5)
                if recursion == 'scalar_leak' or form == 'io_factorized' and recursion == 'jacobian'
                else {}
            )
            given |= dict(kappa=0.5) if low == 'kappa' else {}
            given |= dict(sparse_n=2) if scope == 'sparse_n' else {}
            try:
                yield braintrace.ETraceConfig(form, recursion, scope, signal, low, **given)
            except ValueError:
                continue


CONFIGS = list(dict.fromkeys(legal()))


@pytest.mark.parametrize('k', range(0, len(CONFIGS), 3))
def test_legal_configurations_compile_and_run(k):
    for config in CONFIGS[k : k + 3]:
        key = dict(random_feedback_key=0) if config.learning_signal == 'random_feedback' else {}
        learner = braintrace.compile(rnn, config, P, jnp.zeros((2, H)), X[0], **key)
        modulator = 0.5 if config.learning_signal == 'modulatory' else None
        grads = learner.grad(
            lambda out, y: jnp.mean((out - y) ** 2),
            P,
            learner.init(P, jnp.zeros((2, H))),
            X,
            Y,
            window=3,
            modulator=modulator,
        )[0][0]
        assert all(np.isfinite(g).all() and np.abs(g).max() > 0 for g in jax.tree.leaves(grads)), (
            config
        )


def test_configurations_mean_the_rules_they_describe():
    Config = braintrace.ETraceConfig
    pairs = [
        (Config('io_factorized', decay=0.9), 'pp_prop', dict(decay_or_rank=0.9)),
        (Config(temporal_recursion='scalar_leak', decay=0.5), 'rflo', dict(decay=0.5)),
        (Config(trace_filter='kappa', kappa=0.5), 'eprop', dict(kappa_filter_decay=0.5)),
        (
            Config('io_factorized', ('scalar_leak', 'none'), decay=(0.5, 0.0)),
            'ottt',
            dict(decay=0.5),
        ),
    ]
    for config, rule, options in pairs:
        same(grads_of(learner_of(config)), grads_of(learner_of(rule, **options)))


def test_configurations_have_one_form_and_refuse_nonsense():
    Config = braintrace.ETraceConfig
    assert Config(temporal_recursion='scalar_leak', decay=0) == Config(temporal_recursion='none')
    assert Config(recurrence_scope='sparse_n', sparse_n=1) == Config(recurrence_scope='coupled')
    assert Config(trace_filter='kappa', kappa=0.0) == Config()
    assert (
        Config('io_factorized', decay=0.9).recursion_f == 'jacobian'
        and Config('io_factorized', decay=(0.9, 0.0)).recursion_f == 'none'
    )
    assert 'kappa=0.5' in Config(trace_filter='kappa', kappa=0.5).describe()
    bad = [
        dict(trace_factorization='io_factorized'),
        dict(kappa=0.5),
        dict(trace_filter='kappa'),
        dict(decay=0.5),
        dict(sparse_n=2),
        dict(trace_factorization='x'),
        dict(trace_factorization='random_projection'),
        dict(temporal_recursion=('none', 'none')),
        dict(trace_filter='kappa', kappa=1.5),
        dict(
            trace_factorization='io_factorized',
            temporal_recursion=('jacobian', 'jacobian'),
            decay=0.5,
        ),
        dict(update_schedule='window'),
    ]
    for options in bad:
        with pytest.raises(ValueError):
            Config(**options)
    for options in (
        dict(recurrence_scope='sparse_n', sparse_n=True),
        dict(trace_filter='kappa', kappa='x'),
    ):
        with pytest.raises(TypeError):
            Config(**options)
    with pytest.raises(AttributeError):
        Config().decay_x  # noqa: B018
    with pytest.raises(ValueError, match='per_param'):
        braintrace.ParamDimVjpAlgorithm(Net(), config=Config('io_factorized', decay=0.5))


def test_a_modulator_may_change_under_jit():
    learner = learner_of('three_factor')

    @brainstate.transform.jit
    def step(x, m):
        return brainstate.transform.grad(
            lambda: learner(x, modulator=m).sum(), learner.param_states
        )()

    a = step(X[0], 1.0)['cell', 'Wh', 'weight']['weight']
    learner.reset_state()
    brainstate.nn.reset_all_states(learner.model4compile, batch_size=2)
    np.testing.assert_allclose(step(X[0], 2.0)['cell', 'Wh', 'weight']['weight'], 2 * a, atol=1e-12)
    with pytest.raises(RuntimeError, match='modulator'):
        brainstate.transform.grad(lambda: learner(X[0]).sum(), learner.param_states)()


def test_updates_follow_the_schedule():
    for config, count in (
        (braintrace.ETraceConfig(), T),
        (braintrace.ETraceConfig(update_schedule='window', window_size=4), 2),
        (braintrace.ETraceConfig(update_schedule='sequence_end'), 1),
    ):
        learner = learner_of(config)
        done = brainstate.LongTermState(jnp.zeros((), jnp.int32))

        def update(grads):
            done.value += 1
            for k, s in learner.param_states.items():
                s.value = jax.tree.map(lambda w, g: w - 0.1 * g, s.value, grads[k])

        before = jax.tree.leaves([s.value for s in learner.param_states.values()])
        losses = learner.etrace_learn(
            X, Y, step_fn=lambda x, y: jnp.mean((learner(x) - y) ** 2), update=update
        )
        assert losses.shape == (T,) and int(done.value) == count
        assert all(
            (a != b).any()
            for a, b in zip(
                before,
                jax.tree.leaves([s.value for s in learner.param_states.values()]),
                strict=True,
            )
        )


def test_dni_guesses_for_weights_without_a_trace():
    learner = learner_of('dni')
    with pytest.raises(RuntimeError, match='synthesizer'):
        grads_of(learner)
    synth = braintrace.SyntheticGradient(learner.group_signal_shapes())
    learner.attach_synthesizer(synth)
    plain = grads_of(learner, window=2)
    with pytest.raises(TypeError, match='takes no `modulator`'):
        learner(X[0], modulator=0.5)
    again = learner_of('d_rtrl', vjp_method='multi-step')
    same(plain, grads_of(again, window=2))
    errors = braintrace.train_synthetic_gradient(
        learner, X, chunk_size=2, lr=0.05, epochs=8, batch_size=2
    )
    assert errors[-1] < errors[0]
    with pytest.raises(ValueError, match='windows of 2'):
        grads_of(learner, window=3)
    learner.reset_state()
    brainstate.nn.reset_all_states(learner.model4compile, batch_size=2)
    guessed = grads_of(learner, window=2)
    same(guessed['out', 'weight'], plain['out', 'weight'])
    assert not np.allclose(
        guessed['cell', 'Wr', 'weight']['weight'], plain['cell', 'Wr', 'weight']['weight']
    )


def test_an_executor_gives_the_factors_of_a_step():
    with brainstate.random.seed_context(1):
        model = brainstate.nn.init_all_states(Net(), batch_size=2)
    executor = braintrace.ETraceVjpGraphExecutor(model)
    with pytest.raises(ValueError, match='compile_graph'):
        executor.graph  # noqa: B018
    executor.compile_graph(X[0])
    out, hidden, other, (xs, dfs), [jacobian], rest = executor.solve_h2w_h2h_jacobian(X[0])
    assert (
        executor.is_single_step_vjp
        and not other
        and rest is None
        and jacobian.shape == (2, H, 1, 1)
    )
    z = jax.nn.sigmoid(model.cell.Wz(jnp.concatenate([X[0], jnp.zeros((2, H))], -1)))
    np.testing.assert_allclose(jacobian[..., 0, 0], 1 - z, atol=1e-12)
    np.testing.assert_allclose(model(X[0]), out, atol=1e-12)
    assert all(a.shape[-1] == 1 and np.abs(a).max() > 0 for a in dfs.values()) and xs[
        '0:cell.Wz.weight.weight'
    ].shape == (2, D + H)


def test_filters():
    low = braintrace.KappaFilter(jnp.zeros(3), 0.5)
    np.testing.assert_allclose(low.update(jnp.ones(3)), 0.5)
    low.reset_state(batch_size=2)
    assert low.value.shape == (2,)
    with pytest.raises(ValueError, match='kappa'):
        braintrace.KappaFilter(jnp.zeros(3), 1.0)
    total = braintrace.GradExpon({'w': jnp.zeros(2)}, 0.5)
    total.update({'w': jnp.ones(2)})
    np.testing.assert_allclose(total.update({'w': jnp.ones(2)})['w'], 1.5)
    with brainstate.environ.context(dt=1.0 * u.ms):
        np.testing.assert_allclose(
            braintrace.GradExpon({'w': jnp.zeros(2)}, 10.0 * u.ms).decay, np.exp(-0.1)
        )
    for wrong, error in ((2, TypeError), (1.5, AssertionError)):
        with pytest.raises(error):
            braintrace.GradExpon({'w': jnp.zeros(2)}, wrong)


# ---- an outside result: e-prop pattern generation, to the digit ----------------------------------------------------------------


def test_eprop_pattern_generation():
    """Five losses of a regression test that other implementations agree on to 1e-7."""
    n, steps, alpha, threshold = 100, 1000, np.exp(-1 / 30), 0.03
    random = np.random.RandomState(1)
    W_in, W, W_out, B = (
        np.float64(np.float32(random.randn(*shape) / 10))
        for shape in ((n, n), (n, n), (n, 1), (n, 1))
    )
    x = np.float64(random.rand(steps, n) < 0.05)
    x[0] = 0
    amplitudes, phases = random.uniform(0.5, 2, 4), random.uniform(0, 2 * np.pi, 4)
    waves = zip(amplitudes, phases, (1000, 500, 333, 200), strict=True)
    target = sum(
        a * np.sin(np.linspace(p, p + 2 * np.pi * (1000 // period), steps))
        for a, p, period in waves
    )
    target = (target - target[0]) / np.abs(target - target[0]).max()
    off = 1 - np.eye(n)

    @jax.custom_jvp
    def spike(v):
        return (v >= threshold).astype(v.dtype)

    spike.defjvp(
        lambda p, t: (
            spike(*p),
            t[0] * (0.3 / threshold) * jnp.maximum(0, 1 - jnp.abs((p[0] - threshold) / threshold)),
        )
    )

    def step(p, s, x):
        z = jax.lax.stop_gradient(s['z'])
        v = alpha * s['v'] + (1 - alpha) * (x @ p['W_in'] + s['z'] @ (p['W'] * off)) - threshold * z
        z = spike(v)
        y = alpha * s['y'] + (1 - alpha) * z @ p['W_out']
        return {'v': v, 'z': z, 'y': y}, (y, z)

    params, zero = (
        dict(W_in=W_in, W=W * off, W_out=W_out),
        dict(v=jnp.zeros(n), z=jnp.zeros(n), y=jnp.zeros(1)),
    )
    params = jax.tree.map(jnp.asarray, params)
    eprop = braintrace.compile(
        step,
        'eprop',
        params,
        zero,
        x[0],
        feedback='random',
        random_feedback_key=0,
        kappa_filter_decay=float(alpha),
    )
    rates = braintrace.compile(step, 'd_rtrl', params, zero, x[0])
    losses = []
    for _ in range(5):
        carry = eprop.init(params, zero)
        carry = carry._replace(traces={**carry.traces, 'feedback:W_out': jnp.asarray(B)})
        (grads, loss), _ = eprop.grad(
            lambda out, t: 0.5 * ((out[0] - t) ** 2).sum(),
            params,
            carry,
            x,
            target,
            reduction='sum',
            window=100,
        )
        losses.append(float(loss.sum()))
        z = rates.evolve(params, rates.init(params, zero), x, window=100)[0][1]
        push = 300 * (z.mean(0) - 0.01) / steps
        (more, _), _ = rates.grad(
            lambda out, m: (out[1] * m).sum(),
            params,
            rates.init(params, zero),
            x,
            jnp.broadcast_to(push, (steps, n)),
            reduction='sum',
            window=100,
        )
        params = {
            k: w - 1e-4 * (grads[k] + (more[k] if k != 'W_out' else 0)) for k, w in params.items()
        }
    np.testing.assert_allclose(
        losses,
        [101.964356999041, 103.466731126205, 103.340607074771, 103.680244037686, 104.412775748752],
        rtol=1e-9,
    )


def test_a_readout_outside_the_model_has_feedback_weights_of_its_own():
    cell, out = braintrace.nn.GRUCell(D, H), brainstate.nn.Linear(H, C)
    learner = braintrace.compile(
        cell, 'eprop', X[0], batch_size=2, feedback='random', random_feedback_key=0
    )
    step = lambda x, y: jnp.mean((out(learner(x)) - y) ** 2)
    for _ in range(2):
        assert all(
            np.abs(g).max() > 0
            for g in jax.tree.leaves(learner.etrace_grad(X, Y, step_fn=step, window=3))
        )
        learner(X[0])  # the model alone does not use them, and leaves them as they are
    with pytest.raises(TypeError, match='bogus'):
        braintrace.compile(Net(), braintrace.ETraceConfig(), X[0], batch_size=2, bogus=1)
