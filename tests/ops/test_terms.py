"""Sums of products in the forms that suit a CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from braintrace.ops.terms import TERMS, einsum, einsum_flat, einsum_in_terms

SIZES = dict(S=2, b=4, i=3, j=5, n=2 * TERMS + 3, o=0, l=1)


@pytest.mark.parametrize('form', [einsum_in_terms, einsum_flat])
@pytest.mark.parametrize(
    'labels',
    [
        'Sbj,Sbij->ij',
        'nj,nij->ij',
        'bi,bj->ij',
        'ni,nj->ij',
        'Sbj,Sbj->j',
        'bo,bj->oj',
        'Sbi,Sbj->ij',
        'bl,bij->ijl',
        'bij,b->ij',
        'bil,bj->ilj',
    ],
)
def test_it_is_an_einsum(labels, form):
    rng = np.random.RandomState(0)
    of_a, of_b = labels.split('->')[0].split(',')
    a, b, more = (rng.randn(*[SIZES[c] for c in of]) for of in (of_a, of_b, 'S' + of_b))

    def all_of_it(f):
        def one(a, b):
            return f(a, b, labels=labels)

        def square(a, b):
            return (one(a, b) ** 2).sum()

        twice = jax.vmap(jax.grad(square, (0, 1)), (None, 0))(a, more)
        return one(a, b), jax.jit(one)(a, b), jax.vmap(one, (None, 0), -1)(a, more), twice

    pairs = zip(*[jax.tree.leaves(all_of_it(f)) for f in (form, einsum)], strict=True)
    for found, expected in pairs:
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_one_of_them_may_be_complex():
    a, b = jnp.arange(3.0), jnp.arange(6.0).reshape(3, 2) * (1 + 2j)
    np.testing.assert_allclose(einsum_in_terms(a, b, labels='n,nj->j'), a @ b)


@pytest.mark.parametrize(
    ('labels', 'a', 'b'),
    [('zbi,zbj->ij', (4, 3, 5), (4, 3, 2)), ('zbl,zbi->bil', (8, 1, 1), (8, 3, 5))],
)
def test_nothing_is_turned_round_for_a_flat_sum(labels, a, b):
    def turned_round(f):
        def alone(a, b):
            return f(jnp.sin(a), jnp.sin(b), labels=labels)

        program = jax.jit(alone).lower(jnp.ones(a), jnp.ones(b))
        return 'transpose' in program.as_text(), program.compile().as_text().count('copy')

    assert turned_round(einsum_flat) == (False, 0)
    assert turned_round(einsum)[1] > 0
