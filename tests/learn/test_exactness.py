"""What the report says about exactness, against BPTT."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from random_models import LEAK, random_model
from random_programs import PROGRAMS, C, R, build, example, lasting, programs
from small_models import OTHERS, POSITION_WISE, H, P, X, draw, one, spike
from told import LOST

import braintrace

STEPS = 4
RULES = [
    ('d_rtrl', {}),
    ('d_rtrl', dict(vjp_method='multi-step')),
    ('d_rtrl', dict(trace=lambda path: path[-1] not in ('W', 'v'))),
    ('d_rtrl', dict(scope='coupled', vjp_method='multi-step')),
    ('ostl_recurrent', {}),
    ('rtrl', {}),
    ('rtrl', dict(trace=lambda path: path[-1] != 'W')),
    ('snap', dict(n=1)),
    ('snap', dict(n=2)),
    ('snap', dict(n=2, vjp_method='multi-step')),
    ('snap', dict(n=3)),
    ('pp_prop', dict(decay_or_rank=0.8)),
    ('pp_prop', dict(decay_or_rank=0.8, vjp_method='multi-step')),
    ('hybrid', dict(decay_or_rank=0.8)),
    ('hybrid', dict(decay_or_rank=0.8, vjp_method='multi-step')),
    ('eprop', dict(kappa_filter_decay=LEAK)),
    ('eprop', dict(kappa_filter_decay=LEAK, vjp_method='multi-step')),
    ('eprop', dict(feedback='random', random_feedback_key=0)),
    ('rflo', dict(decay=LEAK)),
    ('rflo', dict(decay=LEAK, vjp_method='multi-step')),
    ('rflo', dict(decay='model')),
    ('ottt', dict(decay=LEAK)),
    ('ottt', dict(decay=LEAK, vjp_method='multi-step')),
    ('uoro', {}),
    ('kf_rtrl', {}),
    ('low_rank', dict(rank=4)),
    ('bptt', {}),
]


def loss(out, y):
    return (jnp.sin(out) * y).sum()


def true_gradient(step, params, state, xs, ys):
    def total(p):
        def one(s, xy):
            s, out = step(p, s, xy[0])
            return s, loss(out, xy[1])

        return lax.scan(one, state, (xs, ys))[1].sum()

    return jax.jit(jax.grad(total))(params)


def by_name(tree):
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {'.'.join(key.key for key in path): leaf for path, leaf in leaves}


def claimed_and_wrong(step, params, state, xs, ys, rule, window, **options):
    """The parameters that the report calls exact, those of them whose gradient is not BPTT's, and
    the report."""
    learner = braintrace.compile(step, rule, params, state, xs[0], **options)
    claimed = {name for name, told in learner.report.exactness.items() if told.exact}
    if not claimed:
        return claimed, {}, learner.report
    carry = learner.init(params, state)
    (grads, _), _ = learner.grad(loss, params, carry, xs, ys, window=window, reduction='sum')
    grads, true = (by_name(g) for g in (grads, true_gradient(step, params, state, xs, ys)))
    size = max(float(jnp.abs(a).max()) for a in true.values())
    wrong = {
        name: float(jnp.abs(grads[name] - true[name]).max()) / max(size, 1e-300)
        for name in claimed
        if not jnp.allclose(grads[name], true[name], rtol=1e-7, atol=1e-9 * size)
    }
    return claimed, wrong if np.isfinite(size) and size < 1e30 else {}, learner.report


@LOST
@settings(lasting, max_examples=max(1, PROGRAMS // 8))
@given(st.integers(0, 2**32 - 1), st.sampled_from(RULES), st.sampled_from([1, 2, 3]))
def test_what_is_called_exact_is_exact_on_models_that_people_write(seed, rule, window):
    name, options = rule
    model = random_model(seed)
    try:
        _, wrong, _ = claimed_and_wrong(*model, name, window, **options)
    except braintrace.NotSupportedError:
        return  # refused, and said so
    assert not wrong, (seed, name, options, wrong)


def read_out(step):
    """The step with a read-out, so that each has a parameter."""

    def with_read_out(p, state, x):
        state, out = step(p, state, x)
        return state, out * p['v']

    return with_read_out


@LOST
@settings(lasting, max_examples=max(1, PROGRAMS // 8))
@given(programs(2, 5), st.sampled_from(RULES), st.sampled_from([1, 2]))
def test_what_is_called_exact_is_exact(code, rule, window):
    name, options = rule
    params, state, _ = example()
    rng = np.random.RandomState(1)
    xs, ys = (jnp.asarray(rng.randn(STEPS, R, C)) for _ in range(2))
    try:
        step = read_out(build(code))
        _, wrong, _ = claimed_and_wrong(step, params, state, xs, ys, name, window, **options)
    except braintrace.NotSupportedError:
        return  # refused, and said so
    except TypeError as error:
        assert 'custom_vjp' in str(error)  # UORO needs a derivative that goes forward
        return
    assert not wrong, (name, options, wrong)


# ---- one step ----

WHOLE_INSIDE_A_STEP = [
    (name, options)
    for name, options in RULES
    if not options.keys() & {'kappa_filter_decay', 'feedback'} and options.get('trace') is None
]


def assert_whole(step, params, state, xs, ys, rule):
    """Whatever a trace follows, nothing inside a step is lost: all of the gradient of a sequence of
    one step is there."""
    name, options = rule
    try:
        learner = braintrace.compile(step, name, params, state, xs[0], **options)
    except braintrace.NotSupportedError:
        return  # refused, and said so
    carry, xs, ys = learner.init(params, state), xs[:1], ys[:1]
    (grads, _), _ = learner.grad(loss, params, carry, xs, ys, reduction='sum')
    grads, true = (by_name(g) for g in (grads, true_gradient(step, params, state, xs, ys)))
    size = max(float(jnp.abs(a).max()) for a in true.values())
    for key, g in true.items():
        close = jnp.allclose(grads[key], g, rtol=1e-7, atol=1e-9 * size)
        assert close or not np.isfinite(size) or size > 1e30, (rule, key)


@LOST
@settings(lasting, max_examples=max(1, PROGRAMS // 8))
@given(st.integers(0, 2**32 - 1), st.sampled_from(WHOLE_INSIDE_A_STEP))
def test_a_step_is_whole_in_models_that_people_write(seed, rule):
    assert_whole(*random_model(seed), rule)


@LOST
@settings(lasting, max_examples=max(1, PROGRAMS // 8))
@given(programs(2, 5), st.sampled_from(WHOLE_INSIDE_A_STEP))
def test_a_step_is_whole(code, rule):
    params, state, _ = example()
    rng = np.random.RandomState(1)
    xs, ys = (jnp.asarray(rng.randn(1, R, C)) for _ in range(2))
    try:
        assert_whole(read_out(build(code)), params, state, xs, ys, rule)
    except TypeError as error:
        assert 'custom_vjp' in str(error)  # UORO needs a derivative that goes forward


# ---- what the pages call exact ----


def exact(step, state, rule, **options):
    return braintrace.compile(step, rule, P, state, X[0], **options).report.exact


@pytest.mark.parametrize('method', ['single-step', 'multi-step'])
@pytest.mark.parametrize('name', POSITION_WISE)
def test_d_rtrl_is_called_exact_where_the_recurrence_is_position_wise(name, method):
    assert exact(*POSITION_WISE[name], 'd_rtrl', vjp_method=method) is True


@LOST
@pytest.mark.parametrize('name', OTHERS)
def test_rtrl_is_called_exact_everywhere_and_d_rtrl_is_not(name):
    step, state = OTHERS[name]
    assert exact(step, state, 'rtrl') is True
    told = braintrace.compile(step, 'd_rtrl', P, state, X[0]).report
    assert told.exact['o'] and not told.exact, 'a read-out is exact with any rule'
    assert all('small_models.py' in e.through for e in told.exactness.values() if not e.exact)


@pytest.mark.parametrize('name', ['linear recurrent unit', 'synapse and membrane'])
def test_snap_keeps_all_states_of_a_unit(name):
    step, state = POSITION_WISE[name]
    xs, ys = X[:4], draw(4, *one.shape[:1], P['o'].shape[1])
    claimed, wrong, _ = claimed_and_wrong(step, P, state, xs, ys, 'snap', 2, n=1)
    assert claimed == set(P) and not wrong


def leaky(p, h, x):
    return 2 * (0.8 * h + x @ p['W'],)


def ring(p, h, x):
    return 2 * (jnp.tanh(h @ (p['R'] * np.roll(np.eye(H), 1, 1)) + x @ p['W']),)


def stored_spike(p, s, x):
    v = 0.8 * s[0] + x @ p['W']
    z = spike(v)
    return (v - lax.stop_gradient(z), z), z @ p['o']


def test_a_state_that_only_outputs_read_need_not_be_carried():
    two = (one, one)
    for method in ('single-step', 'multi-step'):
        options = dict(vjp_method=method)
        ys = draw(3, 2, 2)
        claimed, wrong, _ = claimed_and_wrong(
            stored_spike, P, two, X[:3], ys, 'd_rtrl', 1, **options
        )
        assert claimed == set(P) and not wrong


def test_a_value_that_two_states_share_is_named_by_the_line_that_makes_it():
    def step(p, s, x):
        h = jnp.tanh(0.5 * s[0] + x @ p['W'])
        return (h, h), s[1] @ p['o']

    report = braintrace.compile(step, 'd_rtrl', P, (one, one), X[0]).report
    assert 'test_exactness.py' in report.exactness['W'].through


def shown(p, h, x):  # no memory of its own, and read by the output
    return 2 * (jnp.tanh(x @ p['W']),)


def half_bent(p, h, x):  # a leak, and in one half of the units more
    rest, bent = jnp.split(h, 2, -1)
    return 2 * (0.8 * h + jnp.concatenate([0 * rest, jnp.tanh(bent)], -1) + x @ p['W'],)


def slow(p, h, x):  # sent on before the weight, so that only units of one layer mix
    return 2 * (jnp.tanh(0.9 * h + spike(x @ p['W']) @ p['U']),)


@LOST
@pytest.mark.parametrize(
    'step, rule, options, expected',
    [
        (OTHERS['tanh rnn'][0], 'snap', dict(n=1), False),
        (OTHERS['tanh rnn'][0], 'snap', dict(n=2), True),
        (ring, 'snap', dict(n=H - 1), False),
        (ring, 'snap', dict(n=H), True),
        (ring, 'low_rank', dict(rank=H), False),
        (ring, 'low_rank', dict(rank=one.size), True),
        (ring, 'bptt', {}, False),
        (leaky, 'ostl_recurrent', {}, True),
        (leaky, 'rflo', dict(decay=0.8), True),
        (leaky, 'rflo', dict(decay=0.7), False),
        (shown, 'rflo', dict(decay=0.8), False),
        (half_bent, 'rflo', dict(decay=0.8), False),
        (half_bent, 'ottt', dict(decay=0.8), False),
        (leaky, 'ottt', dict(decay=0.8), True),
        (leaky, 'ottt', dict(decay=0.8, vjp_method='multi-step'), True),
        (leaky, 'ottt', dict(decay=0.7), False),
        (leaky, 'pp_prop', dict(decay_or_rank=0.8), False),
        (leaky, 'hybrid', dict(decay_or_rank=0.8, prefer='full'), True),
        (leaky, 'eprop', {}, True),
        (leaky, 'eprop', dict(kappa_filter_decay=0.5), False),
        (leaky, 'eprop', dict(feedback='random', random_feedback_key=0), False),
        (leaky, 'three_factor', {}, False),
        (leaky, 'd_rtrl', dict(trace_dtype='bfloat16'), False),
        (leaky, 'd_rtrl', dict(trace=lambda path: False), False),
        (leaky, 'd_rtrl', dict(trace_limit=8), False),
        (leaky, 'uoro', {}, False),
        (leaky, 'kf_rtrl', {}, False),
        (slow, 'd_rtrl', {}, None),
    ],
)
def test_the_word_of_each_rule(step, rule, options, expected):
    told = braintrace.compile(step, rule, P, one, X[0], **options).report.exactness
    used = ('W', 'R') if step is ring else ('W',)
    if expected is None:  # a stack without memory below: W reaches its unit through another weight
        assert told['U'].exact and not told['W'].exact
    else:
        assert [told[name].exact for name in used] == [expected] * len(used)


def read_by(how):
    """Leaky units under a read-out that leaks, and what may spoil that."""

    def step(p, s, x):
        h = jnp.tanh(0.8 * s['h'] + x @ p['W'])
        seen = jnp.tanh(h) if how == 'bent' else h
        B = p['o'] * x.sum() if how == 'moving' else p['o']
        y = (0.6 if how == 'other leak' else 0.7) * s['y'] + seen @ B
        if how == 'mixed':
            y = y + 0.1 * s['y'].mean()
        if how == 'fed back':
            h = h + 0.1 * s['y'].sum(-1, keepdims=True)
        outs = {'late': s['y'], 'units too': y + h.sum(-1, keepdims=True), 'bent after': jnp.sin(y)}
        return {'h': h, 'y': y}, outs.get(how, y)

    return step


@pytest.mark.parametrize('method', ['single-step', 'multi-step'])
@pytest.mark.parametrize(
    'how',
    ['', 'bent after', 'bent', 'moving', 'other leak', 'mixed', 'fed back', 'late', 'units too'],
)
@pytest.mark.filterwarnings('ignore::UserWarning')
def test_a_filter_that_stands_for_the_leak_of_the_read_out_is_exact(how, method):
    params, state = {'W': P['W'], 'o': P['o']}, {'h': one, 'y': draw(len(one), 2)}
    ys = draw(3, len(one), 2)
    claimed, wrong, _ = claimed_and_wrong(
        read_by(how),
        params,
        state,
        X[:3],
        ys,
        'eprop',
        1,
        kappa_filter_decay=0.7,
        vjp_method=method,
    )
    assert ('W' in claimed) == (how in ('', 'bent after')) and not wrong


@LOST
def test_kf_rtrl_keeps_of_a_masked_weight_what_is_not_masked_out():
    params, ys = {'W': P['W'], 'R': P['R']}, draw(2, *one.shape)
    learner = braintrace.compile(ring, 'kf_rtrl', params, one, X[0])
    carry = learner.init(params, one)
    given = learner.grad(loss, params, carry, X[:2], ys, window=1, reduction='sum')[0][0]
    true = true_gradient(ring, params, one, X[:2], ys)  # one step back there is one product only
    for name in params:
        np.testing.assert_allclose(given[name], true[name], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize('rule', ['rtrl', 'snap', 'uoro', 'kf_rtrl', 'low_rank', 'd_rtrl'])
def test_a_read_out_of_fixed_units_is_exact_and_keeps_nothing(rule):
    fixed = draw(H, H)

    def reservoir(p, h, x):
        h = jnp.tanh(h @ fixed + x.sum())
        return h, h @ p['o']

    options = dict(rank=2) if rule == 'low_rank' else {}
    params, ys = {'o': P['o']}, draw(3, len(one), 2)
    claimed, wrong, report = claimed_and_wrong(
        reservoir, params, one, X[:3], ys, rule, 2, **options
    )
    assert claimed == {'o'} and not wrong and report.parameters[0].trace_bytes == 0


def test_a_weight_that_is_zero_for_some_parameters_is_not_taken_for_a_masked_one():
    def pruned(p, h, x):
        R = jnp.where(jnp.abs(p['R']) > 1.6, p['R'], 0) + jax.nn.relu(p['U'] - 0.9)
        return 2 * (jnp.tanh(x @ p['W'] + h @ R),)

    params = {'W': P['W'], 'R': draw(H, H) * 4, 'U': draw(H, H) + 1}
    xs, ys = X[:3], draw(3, *one.shape)
    claimed, wrong, _ = claimed_and_wrong(pruned, params, one, xs, ys, 'snap', 3, n=2)
    assert claimed == set(params) and not wrong


def test_bytes_are_those_of_the_rule_and_sum_to_the_total():
    n = 30
    params = {'R': jnp.ones((n, n), 'float32'), 'o': jnp.ones((n, 2), 'float32')}
    state = jnp.ones((4, n), 'float32')

    def step(p, h, x):
        h = jnp.tanh(h @ p['R'] + x)
        return h, h @ p['o']

    def kept(rule, **options):
        report = braintrace.compile(step, rule, params, state, state, **options).report
        rows = {row.name: row.trace_bytes for row in report.parameters}
        shared = report.memory['trace_bytes'] - sum(rows.values())
        assert f'{shared} B of them shared' in report.to_str() or not shared
        return rows['R'], shared

    assert kept('rtrl') == (432_000, 0)
    assert kept('pp_prop', decay_or_rank=0.9) == (480, 0)
    assert kept('bptt') == (0, 0)
    assert kept('uoro') == (3600, 480 + 8), 'a factor of the state and a random key are shared'

    def mixed(p, h, x):  # samples act on each other
        return step(p, h - h.mean(0), x)

    rows = braintrace.compile(mixed, 'rtrl', params, state, state).report.parameters
    assert {row.name: row.trace_bytes for row in rows} == {'R': 432_000, 'o': 0}
