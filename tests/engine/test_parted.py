"""Products with values side by side, parted so that inputs go ahead."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from braintrace._jax import run_jaxpr
from braintrace.engine.parted import part_products
from braintrace.frontends.function import trace

RNG = np.random.RandomState(0)
W, H, X = RNG.randn(9, 4), RNG.randn(2, 4), RNG.randn(2, 3)


def beside(w, h, x):
    return jnp.tanh(jnp.concatenate([x, h, x[:, :2]], -1) @ w)


def weight_first(w, h, x):
    return jnp.tanh(w[:7].T @ jnp.concatenate([h.T, x.T])).T


def made_weight(w, h, x):
    return jnp.tanh(jnp.concatenate([x, jax.nn.sigmoid(h)], -1) @ jnp.abs(w[2:]))


def nothing_to_part(w, h, x):
    return jnp.tanh(jnp.concatenate([h, 2 * h], -1) @ w[:8] + x @ w[:3])


def not_summed_over(w, h, x):
    return jnp.tanh(jnp.concatenate([x @ w[:3], h], 0) @ w[:4])[:2]


def weight_of_the_state(w, h, x):
    return jnp.tanh(jnp.concatenate([x[0], h[0]]) @ (w[:7] * h.sum())) + h


@pytest.mark.parametrize(
    'cell, products',
    [
        (beside, 2),
        (weight_first, 2),
        (made_weight, 2),
        (nothing_to_part, 2),
        (not_summed_over, 2),
        (weight_of_the_state, 1),
    ],
)
def test_the_same_numbers_and_how_many_products(cell, products):
    def step(w, h, x):
        new = cell(w, h, x)
        return new, new.sum()

    whole = trace(step, W, H, X).step
    parted = part_products(whole)
    given = *whole.captured, W, H, X
    pairs = zip(run_jaxpr(parted.jaxpr, *given), run_jaxpr(whole.jaxpr, *given), strict=True)
    for found, expected in pairs:
        np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)
    assert sum(e.primitive.name == 'dot_general' for e in parted.jaxpr.eqns) == products
