"""Programs of every kind: control flow, dead branches, derivatives put beside values, bad steps."""

import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inside import graph_of, groups, records_of, run_flat, told, traced
from jax import lax
from oracle import check_step
from step_models import KIND, MODELS, H, P, h, newton, x

from braintrace import (
    CompilationError,
    ControlFlowPolicy,
    DiagnosticLevel,
    marked,
)


def grads(graph, params, state):
    """Gradient of the sum of the new state, by the flat program."""
    leaves, tree = jax.tree.flatten((params, state, x))
    n = len(jax.tree.leaves(state))
    return jax.grad(
        lambda ps: sum(a.sum() for a in run_flat(graph, *jax.tree.leaves((*ps, x)))[:n])
    )((params, state))


def test_a_while_loop_that_acts_unit_by_unit_has_a_gradient():
    graph = graph_of(newton, P, h, x)
    y = newton(P, h, x)[0]
    dp, dh = grads(graph, P, h)
    np.testing.assert_allclose(dh, 1 / (1 + 3 * y**2), rtol=1e-9)  # implicit function theorem
    np.testing.assert_allclose(dp['W'], x.T @ (1 / (1 + 3 * y**2)), rtol=1e-9)
    assert traced(graph) == [(('W',), 'dot_general')]
    assert told(graph, KIND.CONTROL_FLOW_OPAQUE_FWD)[0].level is DiagnosticLevel.INFO


def test_control_flow_policy():
    def mixing(p, h, x):
        return (
            lax.while_loop(lambda c: c.sum() < 0, lambda c: c @ jnp.eye(H), h) + x @ p['W'],
            h,
        )

    graph = graph_of(mixing, P, h, x)
    assert told(graph, KIND.CONTROL_FLOW_OPAQUE_FWD)[0].level is DiagnosticLevel.WARNING

    def weight(p, h, x):
        return (lax.while_loop(lambda c: c.sum() < 0, lambda c: c @ p['R'], h), h)

    with pytest.raises(NotImplementedError, match='weight is used inside `while`'):
        graph_of(weight, P, h, x)
    graph = graph_of(weight, P, h, x, policy=ControlFlowPolicy(etp_in_control_flow='exclude'))
    assert told(graph, KIND.WEIGHT_IN_WHILE)
    with pytest.raises(NotImplementedError, match="while_hidden='error'"):
        graph_of(newton, P, h, x, policy=ControlFlowPolicy(while_hidden='error'))
    for model, policy in (
        ('cond', ControlFlowPolicy(cond='opaque')),
        ('long scan with a weight', ControlFlowPolicy(scan_descent='off')),
    ):
        graph = check_step(MODELS[model][0], P, h, x, policy=policy)
        assert not traced(graph) and told(graph, KIND.WEIGHT_IN_CONTROL_FLOW)

    def inside(p, h, x):
        return (lax.cond(x[0, 0] > 0, lambda: x @ marked(p['W']), lambda: h), h)

    with pytest.raises(NotImplementedError, match='marked weight'):
        graph_of(inside, P, h, x, policy=ControlFlowPolicy(cond='opaque'))
    for wrong in (
        dict(cond='maybe'),
        dict(scan_descent='on'),
        dict(fixpoint_iteration_limit=0),
        dict(fixpoint_iteration_limit=True),
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ControlFlowPolicy(**wrong)


@pytest.mark.parametrize(
    'step, state, error, message',
    [
        (lambda p, s, x: (s, x), (), CompilationError, 'no hidden state'),
        (
            lambda p, s, x: (s[:, 1:], x),
            h,
            ValueError,
            'enters the step as float64.2,6. and leaves it as float64.2,5.',
        ),
        (lambda p, s, x: (s.astype('float32'), x), h, ValueError, 'must keep its shape and dtype'),
        (lambda p, s, x: ({'a': s}, x), h, ValueError, 'structure'),
        (lambda p, s, x: s, h, TypeError, r'must return \(state, out\)'),
        (lambda p, s, x: 1 / 0, h, ZeroDivisionError, 'division by zero'),
        ('not a function', h, TypeError, 'must be a function'),
    ],
)
def test_bad_steps(step, state, error, message):
    with pytest.raises(error, match=message):
        graph_of(step, P, state, x)


def test_values_of_a_dead_branch_do_not_poison_the_gradient():
    step = MODELS['cond with singular branches'][0]
    graph = graph_of(step, P, h, x)
    assert all(bool(jnp.isfinite(g).all()) for g in jax.tree.leaves(grads(graph, P, h)))


@jax.custom_jvp
def root(a, w):
    return jnp.sqrt(a @ w)


root.defjvp(lambda p, t: (root(*p), (t[0] @ p[1] + p[0] @ t[1]) * 0.5 / root(*p)))


def test_a_derivative_put_beside_its_value_leaves_the_value_alone():
    zero, ones = jnp.zeros(3), jnp.ones((3, 4))
    graph = graph_of(lambda p, s, x: (root(x, p) + s, None), ones, jnp.ones(4), zero)
    np.testing.assert_array_equal(run_flat(graph, ones, jnp.ones(4), zero)[0], 1)

    def loop(p, s):
        def turn(c):
            return c[0] + 1, jnp.minimum(c[1], 1.0)

        return lax.while_loop(lambda c: c[0] < 1, turn, (0, s))[1] * p, None

    graph = graph_of(loop, jnp.ones(2), jnp.ones(2))
    np.testing.assert_array_equal(run_flat(graph, jnp.ones(2), jnp.full(2, jnp.inf))[0], 1)


@pytest.mark.parametrize(
    'dead',
    [
        lambda p, s: s / p,
        lambda p, s: s * 1e200 * 1e200 * p,
        lambda p, s: jnp.arctanh(s) * s * p,
        lambda p, s: (1 / (s - s)) * p,
        lambda p, s: lax.scan(lambda c, _: (jnp.sqrt(c), None), s - s, length=20)[0] * p,
        lambda p, s: jnp.log(s - s) @ jnp.diag(p),
    ],
)
def test_a_branch_not_taken_leaves_the_gradient_alone(dead):
    def step(p, s, q):
        return (lax.cond(q > 0, lambda s: dead(p, s), lambda s: s * 0.5 + p, s), None)

    p, s = jnp.zeros(3), jnp.ones(3)
    graph = graph_of(step, p, s, -1.0)
    for mine, true in zip(
        jax.grad(lambda p, s: run_flat(graph, p, s, -1.0)[0].sum(), (0, 1))(p, s),
        (jnp.ones(3), jnp.full(3, 0.5)),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, true)


@jax.custom_vjp
def clipped(a, w):
    return a @ w


clipped.defvjp(
    lambda a, w: (a @ w, (a, w)), lambda r, g: (r[1] @ g, jnp.clip(jnp.outer(r[0], g), -1, 1))
)


def test_odd_programs_compile():
    one, ones = jnp.ones(4), (jnp.ones(4), jnp.ones(4))
    no_rule = graph_of(
        lambda p, s, x: (clipped(x, p) + s, None), jnp.ones((3, 4)), one, jnp.ones(3)
    )
    assert told(no_rule, KIND.RELATION_EXCLUDED_NO_RULE)

    def barrier(p, s):
        a, c = lax.optimization_barrier(s)
        return (a * p, c * 0.5), None

    assert groups(graph_of(barrier, one, ones)) == [[('state', 0)], [('state', 1)]]
    graph_of(lambda p, s: ((s[0] * p, s[1] * 2), s[1].sum()), one, (one, jnp.zeros(0)))

    def keyed(p, s):
        return (s[0] * p + jax.random.normal(s[1], (4,)), jax.random.split(s[1])[0]), None

    other = graph_of(keyed, one, (one, jax.random.key(0))).step.other
    assert [leaf.path for leaf in other] == [('state', 1)]
    half = one.astype(jnp.bfloat16)
    graph_of(lambda p, s: (s.at[0].set(p[0]), None), half, half)


def test_a_step_may_close_over_values():
    one, ones = jnp.ones(4), (jnp.ones(4), jnp.ones(4))
    closed_over = jnp.arange(4.0)
    graph = graph_of(lambda p, s: ((closed_over, s[1] * p + s[0]), None), one, ones)
    moved = records_of(graph).hidden_perturb.eval_jaxpr([one] * 3, [one] * 2)
    np.testing.assert_array_equal(moved[0], closed_over + 1)

    def within_a_trace(k):
        order = jnp.argsort(k)
        assert groups(graph_of(lambda p, s: (s[order] * p, None), one, one))
        return k

    jax.jit(within_a_trace)(one)


@pytest.mark.parametrize('turns, few', [(20, True), (100, False)])
def test_the_analysis_of_a_loop_that_moves_units_around_ends(turns, few):
    """Turn after turn an output of the op reaches another unit, in the end one. Where turns are too
    many to follow them all it may have reached any: more than there are maps."""

    def step(p, s):
        return lax.fori_loop(0, turns, lambda i, v: jnp.roll(v, 1) * 0.9, s * p), s

    def give_up(*_):
        raise TimeoutError('the analysis does not end')

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(60)
    try:
        graph = check_step(step, jnp.ones(6), jnp.arange(6.0))
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert bool(traced(graph)) == few


def test_a_scan_that_moves_units_keeps_its_rows_apart():
    """What goes in and comes out row by row, forwards and backwards."""

    def step(p, s):
        def turn(c, row):
            return jnp.roll(c, 1, -1), jnp.sin(c) + row

        rows = jnp.stack([s * p, s[::-1]] * 9)
        last, ys = lax.scan(turn, s, rows, reverse=True)
        return last + ys[0] * ys[5], ys[1]

    graph = check_step(step, jnp.ones(6), jnp.arange(6.0))
    assert traced(graph) and not graph.analysis.of_row(graph.analysis.rows[0]).mixed


def test_a_weight_that_is_stored_in_a_state():
    one = jnp.ones(4)
    graph = check_step(lambda p, s: ((p['b'], s[1] * 0.5 + s[0]), None), dict(b=one), (one, one))
    assert [path for path, _ in traced(graph)] == [('b',)]
