"""Where all credit of a step is a signal at states that are carried, and where it is not: the
gradient is the same, by signals or by the credit of outputs and old states."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inside import graph_of
from told import LOST

import braintrace
from braintrace.plan.layout import Layout, lay_out

RNG = np.random.default_rng(0)
N, BATCH, STEPS = 4, 2, 7
XS = RNG.standard_normal((STEPS, BATCH, 3))
P = {name: RNG.standard_normal((3, N)) for name in ('W', 'Wr', 'Wz', 'Wa')}
P |= {name: 0.6 * RNG.standard_normal((N, N)) for name in ('R', 'Rr', 'Rz', 'up')}
P |= {'b': RNG.standard_normal(N), 'out': RNG.standard_normal((N, 2))}
H = jnp.zeros((BATCH, N))
OPTIONS = {'pp_prop': {'decay_or_rank': 0.9}, 'rflo': {'decay': 0.7}}


def gru(p, h, x):
    z, r = (jax.nn.sigmoid(x @ p[f'W{g}'] + h @ p[f'R{g}']) for g in 'zr')
    h = (1 - z) * h + z * jnp.tanh(x @ p['W'] + (r * h) @ p['R'] + p['b'])
    return h, h @ p['out']


def read_before_its_reset(p, h, x):
    new = 0.8 * h + jnp.tanh(x @ p['W'] + h @ p['R'])
    return new, jnp.tanh(h) @ p['out'] + new @ p['out']


def two_layers(p, h, x):
    first = 0.7 * h[0] + jnp.tanh(x @ p['W'] + h[0] @ p['R'])
    second = 0.9 * h[1] + jnp.tanh(first @ p['up'] + p['b'])
    return (first, second), second @ p['out']


def two_states_seen(p, h, x):
    v = 0.9 * h[0] + x @ p['W'] - 0.3 * h[1]
    a = 0.8 * h[1] + jnp.tanh(v) * p['b']
    return (v, a), (jnp.sin(v) * a) @ p['out']


def by_way_of_others(p, h, x):
    """The second state hears the first one in the same step, after other units have."""
    v = 0.9 * h[0] + x @ p['W'] - 0.2 * h[1]
    w = 0.7 * h[2] + jnp.tanh(v @ p['R'])
    u = 0.8 * h[1] + 0.1 * h[0] + jnp.tanh(w @ p['up'] + p['b'])
    return (v, u, w), (jnp.sin(v) * u) @ p['out'] + w @ p['out']


def by_way_of_other_units(p, h, x):
    v = 0.9 * h[0] + x @ p['W'] - 0.2 * h[1]
    u = 0.8 * h[1] + 0.1 * v + jnp.tanh(v @ p['R'])
    return (v, u), (jnp.sin(v) * u) @ p['out']


def a_state_that_is_not_carried(p, h, x):
    v = 0.5 * jnp.roll(h[0], 1, -1) + x @ p['W']
    u = 0.5 * h[1] + jnp.tanh(v)
    return (v, u), (u + v) @ p['out']


def a_curve_of_what_is_read(p, h, x):
    """The output of one product feeds two groups, of which one reads the other."""
    v = jnp.tanh(x @ p['W'])
    return (v, jnp.cos(v)), (v + jnp.cos(v)) @ p['out']


def lstm(p, h, x):
    i, f = jax.nn.sigmoid(x @ p['Wz'] + h[1] @ p['Rz']), jax.nn.sigmoid(x @ p['Wr'])
    c = f * h[0] + i * jnp.tanh(x @ p['W'] + h[1] @ p['R'])
    new = jax.nn.sigmoid(x @ p['Wa']) * jnp.tanh(c)
    return (c, new), new @ p['out']


def product_that_is_read(p, h, x):
    y = x @ p['W']
    h = 0.9 * h + jnp.tanh(y + p['b'])
    return h, h @ p['out'] + y[:, :2]


def neighbours(p, h, x):
    h = 0.5 * h + 0.3 * jnp.roll(h, 1, -1) + jnp.tanh(x @ p['W'])
    return h, h @ p['out']


BY_SIGNALS = gru, read_before_its_reset, two_layers, two_states_seen
OF_TWO_STATES = by_way_of_other_units, a_state_that_is_not_carried, lstm
BY_OUTPUTS = *OF_TWO_STATES, product_that_is_read, neighbours, by_way_of_others


def start(step):
    if step is by_way_of_others:
        return H, H, H
    two = two_layers, two_states_seen, a_curve_of_what_is_read, *OF_TWO_STATES
    return (H, H) if step in two else H


def square(out):
    return (out**2).sum()


def gradient(step, rule):
    h = start(step)
    learner = braintrace.compile(step, rule, P, h, XS[0], **OPTIONS.get(rule, {}))
    # Two calls, so that traces of the one are read by the other, in blocks of three steps.
    carry, total = learner.init(P, h), 0
    for xs in (XS[:4], XS[4:]):
        (grads, _), carry = learner.grad(square, P, carry, xs, window=3)
        total = jax.tree.map(jnp.add, total, grads) if total else grads
    return total


@LOST
@pytest.mark.parametrize(
    'step, rule',
    [
        (gru, 'd_rtrl'),
        (gru, 'eprop'),
        (read_before_its_reset, 'd_rtrl'),
        (read_before_its_reset, 'pp_prop'),
        (two_layers, 'pp_prop'),
        (two_states_seen, 'd_rtrl'),
        (two_states_seen, 'pp_prop'),
    ],
    ids=lambda a: getattr(a, '__name__', a),
)
def test_signals_give_what_outputs_and_old_states_do(step, rule, monkeypatch):
    found = gradient(step, rule)
    monkeypatch.setattr(Layout, 'are_signalled', lambda layout, relations: False)
    expected = gradient(step, rule)
    for name, g in expected.items():
        np.testing.assert_allclose(found[name], g, rtol=1e-10, atol=1e-12, err_msg=name)
    assert np.abs(expected['W']).max() > 0.01


@LOST
@pytest.mark.parametrize(
    'step, rule',
    [
        (two_states_seen, 'pp_prop'),
        (product_that_is_read, 'd_rtrl'),
        (by_way_of_others, 'pp_prop'),
        (by_way_of_other_units, 'd_rtrl'),
        (a_state_that_is_not_carried, 'd_rtrl'),
        (a_curve_of_what_is_read, 'rflo'),
    ],
    ids=lambda a: getattr(a, '__name__', a),
)
def test_one_step_has_its_whole_gradient(step, rule):
    """For random programs see `test_exactness.py`."""
    h = jax.tree.map(lambda a: a + 0.3, start(step))
    learner = braintrace.compile(step, rule, P, h, XS[0], **OPTIONS.get(rule, {}))
    (found, _), _ = learner.grad(square, P, learner.init(P, h), XS[:1])
    expected = jax.grad(lambda p: square(step(p, h, XS[0])[1]))(P)
    assert np.abs(expected['W']).max() > 0.01
    for name, g in expected.items():
        np.testing.assert_allclose(found[name], g, rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.parametrize('step', [*BY_SIGNALS, *BY_OUTPUTS], ids=lambda step: step.__name__)
def test_which_models_have_signals(step):
    layout = lay_out(graph_of(step, P, start(step), XS[0]))
    traced = frozenset(f.relation for s in layout.slots for f in s.feeds)
    assert traced
    assert layout.are_signalled(traced) == (step in BY_SIGNALS)


@pytest.mark.parametrize(
    'step, reading, mixing',
    [
        (gru, 0, 0),
        (two_layers, 0, 0),
        (neighbours, 0, 0),
        (two_states_seen, 1, 0),
        (by_way_of_other_units, 1, 1),
        (by_way_of_others, 1, 1),
    ],
    ids=lambda step: getattr(step, '__name__', None),
)
def test_groups_that_read_themselves(step, reading, mixing):
    graph = graph_of(step, P, start(step), XS[0])
    read, groups = lay_out(graph).read_in_step, [g.index for g in graph.groups]
    assert sum(map(read.by_itself, groups)) == reading
    assert sum(g in read.far[g] for g in groups) == mixing


@pytest.mark.parametrize('rule', ['d_rtrl', 'pp_prop'])
def test_the_program_of_a_stack_grows_with_its_layers(rule):
    def equations(layers):
        def step(p, hs, x):
            new = []
            for w, r, h in zip(p['W'], p['R'], hs, strict=True):
                x = 0.9 * h + jnp.tanh(x @ w + h @ r)
                new.append(x)
            return new, x

        params, hs = {k: [jnp.eye(N)] * layers for k in 'WR'}, [H] * layers
        learner = braintrace.compile(step, rule, params, hs, H, **OPTIONS.get(rule, {}))
        carry, xs = learner.init(params, hs), jnp.ones((4, *H.shape))
        program = jax.make_jaxpr(partial(learner.grad, jnp.mean))(params, carry, xs)
        return str(program).count('\n')

    few, some, many = map(equations, (2, 4, 8))
    assert many - some <= 2.1 * (some - few)
