"""Slopes that are the same in all steps, or for all samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inside import graph_of

import braintrace
from braintrace.plan.layout import lay_out

RNG = np.random.default_rng(0)
B, U, T = 3, 4, 7
PARAMS = {
    'W': RNG.standard_normal((2, U)),
    'leak': RNG.uniform(0.5, 0.9, U),
    'of sample': RNG.uniform(0.5, 0.9, (B, U)),
    'long': RNG.uniform(0.5, 0.9, B * U),
    'b': RNG.standard_normal(U),
}
TABLE = RNG.uniform(0.5, 0.9, (B, U))
XS = jnp.asarray(np.random.default_rng(1).standard_normal((T, B, 2)))


def step_of(leak):
    def step(p, h, x):
        h = leak(p, h, x) * h + x @ p['W'] + p['b']
        return h, h**2

    return step


# By the leak of a unit: is it the same in all steps, and for all samples?
LEAKS = {
    'number': (lambda p, h, x: 0.9, True, True),
    'parameter': (lambda p, h, x: jax.nn.sigmoid(p['leak']), True, True),
    'of each sample': (lambda p, h, x: p['of sample'], True, False),
    'reshaped': (lambda p, h, x: p['long'].reshape(B, U), True, False),
    'captured': (lambda p, h, x: jnp.asarray(TABLE), True, False),
    'of the input': (lambda p, h, x: jax.nn.sigmoid(x.sum(-1, keepdims=True)), False, False),
    'of the state': (lambda p, h, x: jax.nn.sigmoid(h), False, False),
}


def assert_exact(step, state, xs):
    """The gradient of D_RTRL in windows of three steps is that of BPTT."""
    learner = braintrace.compile(step, 'd_rtrl', PARAMS, state, xs[0])

    @jax.jit
    def gradients(params):
        def loss(params):
            return jax.lax.scan(lambda s, x: step(params, s, x), state, xs)[1].mean((1, 2)).mean()

        carry = learner.init(params, state)
        return jax.grad(loss)(params), learner.grad(jnp.mean, params, carry, xs, window=3)[0][0]

    true, got = gradients(jax.tree.map(jnp.asarray, PARAMS))
    assert np.abs(true['W']).max() > 0.1
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), got, true)


@pytest.mark.parametrize('name', LEAKS)
def test_leaks_are_had_once_where_they_do_not_change_and_gradients_stay_exact(name):
    leak, steps, first = LEAKS[name]
    step, h = step_of(leak), jnp.zeros((B, U))
    layout = lay_out(graph_of(step, PARAMS, h, XS[0]))
    assert layout.steady_transitions[0] == [[(steps, first, name == 'number')]]
    assert_exact(step, h, XS)


def of_three_states(p, s, x):
    v, a, u = s
    v = 0.9 * v + x @ p['W'] + p['b']
    a = 0.97 * a + 0.1 * jnp.tanh(v - a)
    u = p['leak'] * u + 0.5 * s[0]
    return (v, a, u), jnp.sin(v) * a + u**2


def test_states_of_a_unit_act_on_each_other_entry_by_entry():
    """A leak that is one number, a way that is not there, and slopes that change, in one unit."""
    zero = (jnp.zeros((B, U)),) * 3
    number, of_units, moving = (True, True, True), (True, True, False), (False, False, False)
    layout = lay_out(graph_of(of_three_states, PARAMS, zero, XS[0]))
    assert layout.steady_transitions[0] == [
        [number, None, None],
        [moving, moving, None],
        [number, None, of_units],
    ]
    assert_exact(of_three_states, zero, XS)


@pytest.mark.parametrize('rule', ['d_rtrl', 'eprop', 'rflo'])
def test_a_model_in_single_precision_stays_in_it(rule):
    """Also where a way is not there, and double precision is on."""
    options = {'eprop': {'kappa_filter_decay': 0.9}, 'rflo': {'decay': 0.9}}.get(rule, {})
    params, zero, xs = jax.tree.map(jnp.float32, (PARAMS, (np.zeros((B, U)),) * 3, XS))
    learner = braintrace.compile(of_three_states, rule, params, zero, xs[0], **options)
    carry = learner.init(params, zero)
    (grads, _), after = learner.grad(jnp.mean, params, carry, xs, window=3)
    assert np.abs(grads['W']).max() > 0.01
    assert {g.dtype for g in grads.values()} == {np.dtype('float32')}
    assert jax.tree.map(jnp.dtype, after) == jax.tree.map(jnp.dtype, carry)
