"""Values that are known, with the derivative of what they stand for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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
