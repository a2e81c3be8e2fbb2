"""Gradients by the labels of an op."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from braintrace.ops.axes import Axes, Op, gradients_of_one_credit, spread_gradient

PLAIN = Axes('bi', 'ij', 'bj')
TURNED = Axes('ib', 'ji', 'jb')
ELEMENTWISE = Axes('bj', 'j', 'bj')


@pytest.mark.parametrize(
    ('axes', 'steps', 'products'),
    [
        ((PLAIN, PLAIN), 1, 1),
        ((TURNED, TURNED), 1, 1),
        ((PLAIN, PLAIN), 3, 2),
        ((PLAIN, Axes('bc', 'cj', 'bj')), 1, 2),
        ((ELEMENTWISE, ELEMENTWISE), 1, 0),
    ],
)
def test_ops_of_one_credit_share_a_product(axes, steps, products):
    rng, ops, xs = np.random.RandomState(0), [], []
    for n, of in enumerate(axes):
        sizes = dict(b=6, i=3 + n, c=2, j=5)  # another number of inputs for each
        ops.append(Op(of, tuple(sizes[c] for c in of.w)))
        xs.append(jnp.asarray(rng.randn(steps, *[sizes[c] for c in of.x])))
    dy = jnp.asarray(rng.randn(steps, *[sizes[c] for c in axes[0].y]))
    found = gradients_of_one_credit(ops, xs, dy)
    for op, x, a in zip(ops, xs, found, strict=True):
        np.testing.assert_allclose(a, spread_gradient(op, x, dy), rtol=1e-12)
    together = jax.jit(lambda xs, dy: gradients_of_one_credit(ops, xs, dy)).lower(xs, dy)
    assert together.as_text().count('stablehlo.dot_general') == products
