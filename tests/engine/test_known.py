"""Values that are known, with the derivative of what they stand for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import braintrace
from braintrace.engine.known import LIKE, known

RNG = np.random.default_rng(0)


@pytest.mark.parametrize('axes', [(0, 0), (0, None), (None, 0)])
def test_a_known_value_has_the_derivative_of_what_stands_beside_it(axes):
    def known(y, x):
        return LIKE.bind(y, x**2)

    given = [jnp.arange(1.0, 4) if axis == 0 else jnp.array(2.0) for axis in axes]
    both = jax.vmap(jax.value_and_grad(known, argnums=(0, 1)), axes)
    value, (to_y, to_x) = jax.jit(both)(*given)
    y, x = jnp.broadcast_arrays(*given)
    np.testing.assert_array_equal(value, y)
    np.testing.assert_array_equal(to_x, 2 * x)
    np.testing.assert_array_equal(to_y, 0 * y)


@pytest.mark.parametrize('side_by_side', [{}, {0: [1, 3]}])
def test_a_known_product_has_its_derivative(side_by_side):
    X, W, Y = (RNG.standard_normal(shape) for shape in ((5, 2, 4), (4, 3), (5, 2, 3)))
    [eqn] = jax.make_jaxpr(jnp.matmul)(X[0], W).eqns

    def value(x, w, y):
        return known(eqn, [x, w], y, side_by_side)

    def slopes(f, x, axis):
        def total(x, w):
            return (jnp.sin(Y) * jax.vmap(f, (axis, None, 0))(x, w, Y)).sum()

        return jax.jit(jax.grad(total, (0, 1)))(x, W)

    np.testing.assert_array_equal(jax.vmap(value, (0, None, 0))(X, W, Y), Y)
    for x, axis in ((X, 0), (X[0], None)):
        expected = slopes(lambda x, w, y: x @ w, x, axis)
        for found, true in zip(slopes(value, x, axis), expected, strict=True):
            np.testing.assert_allclose(found, true, rtol=1e-12)


def leaky(w, h, x):
    return 0.5 * h + x @ w


def half_of_a_split(w, h, x):
    new, _ = jnp.split(jnp.concatenate([0.5 * h, h], -1) + x @ jnp.concatenate([w, w], -1), 2, -1)
    return new


@pytest.mark.parametrize('cell', [leaky, half_of_a_split])
def test_gradients_where_the_new_state_is_known_and_where_it_is_not(cell):
    W, H, X = (RNG.standard_normal(shape) for shape in ((3, 4), (2, 4), (7, 2, 3)))

    def step(w, h, x):
        new = cell(w, h, x)
        return new, (new**3).sum()

    learner = braintrace.compile(step, 'd_rtrl', W, H, X[0])
    grads, *_ = learner.grad(jnp.sum, W, learner.init(W, H), X, window=3)
    expected = jax.grad(lambda w: jax.lax.scan(lambda h, x: step(w, h, x), H, X)[1].mean())(W)
    np.testing.assert_allclose(grads[0], expected, rtol=1e-12)
    assert np.abs(expected).max() > 0.01
