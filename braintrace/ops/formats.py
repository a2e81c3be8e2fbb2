"""Sparse matrices of JAX and of other libraries, known by their attributes.

Where the indices of the stored values can be read, the product is a plain one of ours: the gradient
of the formats' own `x @ m` is wrong or missing for some of them.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..frontends.base import by_columns, runnable
from .units import operand


class Indices(NamedTuple):
    """Row and column of each stored value, both `(stored,)`."""

    rows: jax.Array
    cols: jax.Array


@functools.partial(jax.jit, static_argnums=4)
def sparse_product(
    x: jax.Array, w: jax.Array, rows: jax.Array, cols: jax.Array, n: int
) -> jax.Array:
    """`y[..., cols[p]] += x[..., rows[p]] w[p]`, from `(..., K)` to `(..., n)`.

    The compiler knows it by its name, as one product.
    """
    return jnp.zeros((*x.shape[:-1], n), jnp.result_type(x, w)).at[..., cols].add(x[..., rows] * w)


def indices_of(m: Any) -> Indices | None:
    """The indices of a matrix; None for one that multiplies with kernels of its own."""
    if hasattr(m, 'n_batch'):  # BCOO and BCSR of JAX
        if m.n_batch or m.n_dense or m.ndim != 2:
            raise ValueError(
                '`sparse_matmul`: `sparse_mat` must be a matrix without batch or dense axes.'
            )
    elif not hasattr(m, 'with_data'):
        raise TypeError(
            '`sparse_matmul`: `sparse_mat` must be a BCOO or BCSR of jax.experimental.sparse, or '
            f'a matrix of a library that has `data` and `with_data`, got {type(m).__name__}.'
        )
    elif hasattr(m, 'backend') or not (hasattr(m, 'row') or hasattr(m, 'indptr')):
        return None
    with jax.ensure_compile_time_eval():  # the compiler looks at the indices
        return _read_indices(m)


def _read_indices(m: Any) -> Indices:
    if hasattr(m, 'row'):
        return Indices(m.row, m.col)
    if not hasattr(m, 'indptr'):
        return Indices(m.indices[:, 0], m.indices[:, 1])
    line = jnp.searchsorted(m.indptr, jnp.arange(len(m.indices)), side='right') - 1
    if by_columns(m):  # a square matrix shows no sign of it
        return Indices(m.indices, line)
    return Indices(line, m.indices)


def with_data(m: Any, data: jax.Array) -> Any:
    """A matrix with kernels of its own with other stored values, in the unit it has."""
    _, quantity = operand('sparse_matmul', 'sparse_mat.data', m.data)
    return runnable(
        m.with_data(data if quantity is None else type(quantity)(data, unit=quantity.unit))
    )
