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


@pytest.mark.parametrize('name', LEAKS)
def test_leaks_are_had_once_where_they_do_not_change_and_gradients_stay_exact(name):
    leak, steps, first = LEAKS[name]
    step, h = step_of(leak), jnp.zeros((B, U))
    xs = jnp.asarray(np.random.default_rng(1).standard_normal((T, B, 2)))
    learner = braintrace.compile(step, 'd_rtrl', PARAMS, h, xs[0])
    layout = lay_out(graph_of(step, PARAMS, h, xs[0]))
    assert layout.steady_transitions[0] == [[(steps, first, name == 'number')]]

    @jax.jit
    def gradients(params):
        def loss(params):
            return jax.lax.scan(lambda h, x: step(params, h, x), h, xs)[1].mean((1, 2)).mean()

        carry = learner.init(params, h)
        return jax.grad(loss)(params), learner.grad(jnp.mean, params, carry, xs, window=3)[0][0]

    true, got = gradients(jax.tree.map(jnp.asarray, PARAMS))
    assert np.abs(true['W']).max() > 0.1
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), got, true)


def test_states_of_a_unit_act_on_each_other_entry_by_entry():
    """A leak that is one number, a way that is not there, and slopes that change, in one unit."""

    def step(p, s, x):
        v, a, u = s
        v = 0.9 * v + x @ p['W'] + p['b']
        a = 0.97 * a + 0.1 * jnp.tanh(v - a)
        u = p['leak'] * u + 0.5 * s[0]
        return (v, a, u), jnp.sin(v) * a + u**2

    zero = (jnp.zeros((B, U)),) * 3
    xs = jnp.asarray(np.random.default_rng(1).standard_normal((T, B, 2)))
    number, of_units, moving = (True, True, True), (True, True, False), (False, False, False)
    layout = lay_out(graph_of(step, PARAMS, zero, xs[0]))
    assert layout.steady_transitions[0] == [
        [number, None, None],
        [moving, moving, None],
        [number, None, of_units],
    ]
    learner = braintrace.compile(step, 'd_rtrl', PARAMS, zero, xs[0])

    @jax.jit
    def gradients(params):
        def loss(params):
            return jax.lax.scan(lambda s, x: step(params, s, x), zero, xs)[1].mean((1, 2)).mean()

        carry = learner.init(params, zero)
        return jax.grad(loss)(params), learner.grad(jnp.mean, params, carry, xs, window=3)[0][0]

    true, got = gradients(jax.tree.map(jnp.asarray, PARAMS))
    assert np.abs(true['W']).max() > 0.1
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), got, true)
