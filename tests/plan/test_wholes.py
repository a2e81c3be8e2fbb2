"""Complex states that are carried as one number each, and those that are carried part by part: the
gradient is the same, and that of BPTT where the rule is exact."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inside import graph_of

import braintrace
from braintrace.plan import layout as plan

RNG = np.random.default_rng(0)
N, BATCH, STEPS = 4, 2, 7
XS = RNG.standard_normal((STEPS, BATCH, 3))


def drawn(*shape):
    return RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)


P = {'W': drawn(3, N), 'V': drawn(N, N) / 2, 'a': 0.4 * drawn(N), 'b': drawn(N), 'out': drawn(N, 2)}
P |= {'real': RNG.standard_normal((3, N)), 'turn': RNG.standard_normal(N)}
H = 0.1 * drawn(BATCH, N)


def linear(p, h, x):
    h = jnp.exp(-0.3 + 1j * p['turn']) * h + x @ p['W'] + p['b']
    return h, (h @ p['out']).real


def curved(p, h, x):
    h = 0.5 * jnp.sin(0.4 * h) + p['a'] * (x @ p['W'])
    return h, jnp.abs(h) @ p['real'].T


def two_layers(p, h, x):
    """Between layers it may be anything."""
    first = p['a'] * h[0] + x @ p['W']
    second = 0.7j * h[1] + jnp.tanh(first.real) @ p['V']
    return (first, second), (second @ p['out']).real


def two_states(p, h, x):
    v = (0.8 + 0.1j) * h[0] - 0.3 * h[1] + x @ p['W']
    u = p['a'] * h[1] + 0.2 * v**2
    return (v, u), (u @ p['out']).real


def conjugated(p, h, x):
    h = p['a'] * jnp.conj(h) + x @ p['W']
    return h, (h @ p['out']).real


def from_parts(p, h, x):
    h = 0.5 * h + jnp.tanh((x @ p['W']).real) + 1j * jnp.tanh(h.imag)
    return h, (h @ p['out']).real


def real_weight(p, h, x):
    h = p['a'] * h + x @ p['real']
    return h, (h @ p['out']).real


def real_state(p, h, x):
    r = 0.9 * h[1] + p['turn']
    return (p['a'] * h[0] + r + x @ p['W'], r), (h[0] @ p['out']).real


WHOLE = linear, curved, two_layers, two_states
BY_PARTS = conjugated, from_parts, real_weight, real_state
OPTIONS = {'pp_prop': {'decay_or_rank': 0.9}, 'eprop': {'kappa_filter_decay': 0.7}}


def start(step):
    if step is real_state:
        return H, H.real
    return (H, H) if step in (two_layers, two_states) else H


def square(out):
    return (out**2).sum()


def gradient(step, rule):
    """Of two calls, so that traces of the one are read by the other, in blocks of three steps."""
    h = start(step)
    learner = braintrace.compile(step, rule, P, h, XS[0], **OPTIONS.get(rule, {}))

    @jax.jit
    def both(params):
        carry, total = learner.init(params, h), jax.tree.map(jnp.zeros_like, params)
        for xs in (XS[:4], XS[4:]):
            (grads, _), carry = learner.grad(square, params, carry, xs, window=3, reduction='sum')
            total = jax.tree.map(jnp.add, total, grads)
        return total, carry.traces

    return both(P)


def assert_close(found, expected):
    assert np.abs(expected['W']).max() > 0.01
    for name, g in expected.items():
        np.testing.assert_allclose(found[name], g, rtol=1e-10, atol=1e-11, err_msg=name)


@pytest.mark.parametrize(
    'step, rule',
    [
        (linear, 'd_rtrl'),
        (linear, 'pp_prop'),
        (curved, 'eprop'),
        (two_layers, 'pp_prop'),
        (two_states, 'd_rtrl'),
        (two_states, 'eprop'),
    ],
    ids=lambda a: getattr(a, '__name__', a),
)
def test_a_whole_number_gives_what_its_parts_do(step, rule, monkeypatch):
    found, traces = gradient(step, rule)
    monkeypatch.setattr(plan, 'moves_as_complex', lambda graph, group: False)
    expected, by_parts = gradient(step, rule)
    assert_close(found, expected)
    states = {key: len(a) for key, a in traces.items() if a.ndim > 2}
    assert states and all(len(by_parts[key]) == 2 * n for key, n in states.items())


@pytest.mark.parametrize('step', [linear, curved, two_states], ids=lambda step: step.__name__)
def test_d_rtrl_is_exact_on_them(step):
    def loss(params):
        _, outs = jax.lax.scan(lambda h, x: step(params, h, x), start(step), XS)
        return jax.vmap(square)(outs).sum()

    assert_close(gradient(step, 'd_rtrl')[0], jax.jit(jax.grad(loss))(P))


@pytest.mark.parametrize('step', [*WHOLE, *BY_PARTS], ids=lambda step: step.__name__)
def test_which_states_are_carried_whole(step):
    layout = plan.lay_out(graph_of(step, P, start(step), XS[0]))
    assert layout.units
    assert all(units.are_whole == (step in WHOLE) for units in layout.units.values())
