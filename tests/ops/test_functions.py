"""The operators of the interface: shapes, units, sparse formats, errors."""

import brainevent
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import saiunit as u
from jax.experimental.sparse import BCOO, BCSR

import braintrace

rng = np.random.RandomState(0)
MASK = rng.rand(3, 2) < 0.7
DENSE = rng.randn(3, 2) * MASK


@pytest.mark.parametrize(
    'cls', [BCOO, BCSR, u.sparse.CSR, u.sparse.COO, u.sparse.CSC, brainevent.CSR, brainevent.CSC]
)
@pytest.mark.parametrize('lead', [(), (2,), (2, 2)])
def test_sparse_formats(cls, lead):
    m, x = cls.fromdense(jnp.asarray(DENSE)), rng.randn(*lead, 3)

    def loss(y):
        return jnp.sum(jnp.sin(y) * jnp.cos(jnp.arange(y.size)).reshape(y.shape))

    grad = jax.grad(lambda w: loss(braintrace.sparse_matmul(x, w, sparse_mat=m)))(m.data)
    dense = jax.grad(lambda w: loss(x @ w))(DENSE)
    np.testing.assert_allclose(np.sort(grad), np.sort(dense[MASK]), atol=1e-12)


@pytest.mark.parametrize('lead', [(), (4,), (4, 5)])
def test_operators(lead):
    x, w, mv, ms = rng.randn(*lead, 2, 3), rng.randn(2, 3, 4), u.mV, u.mS

    def same(a, b):
        return np.testing.assert_allclose(u.get_magnitude(a), b, atol=1e-12)

    same(
        braintrace.matmul(x * mv, w[0] * ms, 5e-3 * u.mA, weight_fn=jnp.sin).to_decimal(u.uA),
        x @ np.sin(w[0]) + 5,
    )
    same(
        braintrace.grouped_matmul(x, w, w[:, 0], bias_fn=jnp.exp),
        np.einsum('...gk,gkn->...gn', x, w) + np.exp(w[:, 0]),
    )
    same(
        braintrace.lora_matmul(x * mv, w[0] * ms, w[0].T, alpha=2.0, b_fn=jnp.sin).to_decimal(u.uA),
        2 * x @ np.sin(w[0]) @ w[0].T,
    )
    same(braintrace.element_wise(w * mv, weight_fn=jnp.abs).to_decimal(mv), np.abs(w))
    same(braintrace.einsum('...gk,gkn->...gn', x, w), np.einsum('...gk,gkn->...gn', x, w))
    indices = rng.randint(3, size=lead)
    same(braintrace.embedding(indices, w[0] * mv).to_decimal(mv), w[0][indices])
    kernel = rng.randn(5, 2, 1)  # of width one: a product over the channels
    same(
        braintrace.conv(x * mv, kernel, np.arange(5.0) * mv),
        np.einsum('...ck,oc->...ok', x, kernel[..., 0]) + np.arange(5)[:, None],
    )


ONE, TWO = jnp.ones(3), jnp.ones((3, 2))


@pytest.mark.parametrize(
    'error, message, call',
    [
        (ValueError, '`x`.* and `weight`.*got shapes', lambda: braintrace.matmul(jnp.ones(4), TWO)),
        (
            TypeError,
            '`weight` must be an array, got NoneType',
            lambda: braintrace.matmul(ONE, None),
        ),
        (
            TypeError,
            '`weight_fn` must be a function',
            lambda: braintrace.matmul(ONE, TWO, weight_fn=3),
        ),
        (ValueError, '`bias` of shape', lambda: braintrace.matmul(ONE, TWO, ONE)),
        (
            u.UnitMismatchError,
            '`bias` has unit mV',
            lambda: braintrace.matmul(ONE, TWO, jnp.ones(2) * u.mV),
        ),
        (ValueError, 'G, K', lambda: braintrace.grouped_matmul(ONE, TWO)),
        (TypeError, '`indices` must be integers', lambda: braintrace.embedding(ONE, TWO)),
        (ValueError, 'a table', lambda: braintrace.embedding(0, ONE)),
        (ValueError, 'two operands', lambda: braintrace.einsum('bi,io', TWO, TWO)),
        (ValueError, 'does not fit shapes', lambda: braintrace.einsum('bi,io->bo', TWO, TWO)),
        (ValueError, 'equal channels', lambda: braintrace.conv(TWO, jnp.ones((1, 2, 1)))),
        (
            ValueError,
            '`strides`',
            lambda: braintrace.conv(TWO, jnp.ones((1, 3, 1)), strides=(1, 1)),
        ),
        (
            ValueError,
            '`padding`',
            lambda: braintrace.conv(TWO, jnp.ones((1, 3, 1)), padding='FULL'),
        ),
        (
            TypeError,
            '`sparse_mat` must be',
            lambda: braintrace.sparse_matmul(ONE, ONE, sparse_mat=TWO),
        ),
        (
            ValueError,
            '`weight` must be like',
            lambda: braintrace.sparse_matmul(ONE, ONE, sparse_mat=brainevent.CSR.fromdense(TWO)),
        ),
        (ValueError, '`B`.* and `A`', lambda: braintrace.lora_matmul(ONE, TWO, TWO)),
    ],
)
def test_errors(error, message, call):
    with pytest.raises(error, match=message):
        call()
