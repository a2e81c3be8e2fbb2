"""The op rules by primitive. A rule `(eqn, i, const)` describes the use of operand `i` as a weight,
or answers `NotImplemented`; `const(atom)` is the value of an atom that is known, or None."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from string import ascii_letters
from typing import Any

import jax
import jax.numpy as jnp

from .._jax import JaxprEqn, bind
from .axes import Axes, Op, Table
from .convolution import convolution
from .families import Family, members
from .sparse import product


def labels_of_product(eqn: JaxprEqn) -> tuple[str, str, str]:
    """Of a `dot_general`: labels of the axes of its two operands and of its output."""
    contract, batch = eqn.params['dimension_numbers']
    letters = iter(ascii_letters)
    labels = [[''] * a.aval.ndim for a in eqn.invars]
    for pairs in (batch, contract):
        for p, q in zip(*pairs, strict=True):
            labels[0][p] = labels[1][q] = next(letters)
    out = [labels[0][p] for p in batch[0]]
    for axes in labels:
        for p, c in enumerate(axes):
            if not c:
                axes[p] = next(letters)
                out.append(axes[p])
    return ''.join(labels[0]), ''.join(labels[1]), ''.join(out)


def _dot_general(eqn: JaxprEqn, i: int, const: Callable) -> Op:
    *labels, y = labels_of_product(eqn)
    shape = eqn.invars[i].aval.shape
    return Op(Axes(labels[1 - i], labels[i], y), shape, lambda values: values[1 - i])


def _gather(eqn: JaxprEqn, i: int, const: Callable) -> Op:
    """Rows of a table, picked by data."""
    if i or not _takes_whole_rows(eqn):
        return NotImplemented
    n = eqn.params['dimension_numbers']
    table, index = (a.aval for a in eqn.invars)
    rows = n.start_index_map
    w = ascii_letters[: table.ndim]
    batch = ascii_letters[table.ndim : table.ndim + index.ndim - 1]
    row, width = ''.join(w[a] for a in rows), ''.join(c for a, c in enumerate(w) if a not in rows)
    of_row, of_index = iter(width), iter(batch)
    ndim = eqn.outvars[0].aval.ndim
    y = ''.join(next(of_row) if a in n.offset_dims else next(of_index) for a in range(ndim))
    sizes = [table.shape[a] for a in rows]
    axes = Axes(batch + row, w, y)
    clip = 'CLIP' in str(eqn.params['mode'])

    def valid(index: jax.Array) -> list[jax.Array]:
        """The number of the row on each axis; outside it is clipped, or reads no row (`size`)."""
        return [_inside(index[..., k], size, clip) for k, size in enumerate(sizes)]

    def one_hot(index: jax.Array) -> jax.Array:
        x = jnp.ones(index.shape[:-1], table.dtype)
        for k, at in enumerate(valid(index)):
            hot = jax.nn.one_hot(at, sizes[k], dtype=table.dtype)
            x = x[..., None] * hot.reshape(*index.shape[:-1], *[1] * k, sizes[k])
        return x

    def outer(x: jax.Array, q: jax.Array) -> jax.Array:
        q = q.transpose([0, *[2 + y.index(c) for c in batch], 1, *[2 + y.index(c) for c in width]])
        samples, states = x.shape[1:-1], q.shape[1 + len(batch)]
        e = jnp.zeros(
            (*samples, *sizes, states, *[table.shape[w.index(c)] for c in width]), q.dtype
        )
        e = e.at[(*_each(samples), *valid(x))].add(q, mode='drop')
        order = f'{batch}{row}S{width}'
        return e.transpose([order.index(c) for c in f'S{axes.trace}'])

    rows_of = None
    if tuple(rows) == (0,):
        samples_at, width_at = (tuple(y.index(c) for c in part) for part in (batch, width))
        rows_of = Table(table.shape[0], lambda x: valid(x)[0], samples_at, width_at)
    return Op(
        axes,
        table.shape,
        lambda values: values[1],
        apply=lambda x, w: bind(eqn, [w, x])[0],
        spread=one_hot,
        outer=outer,
        table=rows_of,
    )


def _takes_whole_rows(eqn: JaxprEqn) -> bool:
    """Whether a gather picks single indices on some axes and takes all of the others."""
    n, shape = eqn.params['dimension_numbers'], eqn.invars[0].aval.shape
    rows = n.start_index_map
    for a, size in enumerate(eqn.params['slice_sizes']):
        if size != (1 if a in rows else shape[a]):
            return False
    return not n.operand_batching_dims and sorted(n.collapsed_slice_dims) == sorted(rows)


def _inside(index: jax.Array, size: int, clip: bool) -> jax.Array:
    if clip:
        return jnp.clip(index, 0, size - 1)
    return jnp.where(index < 0, size, index)


def _each(shape: Sequence[int]) -> list[jax.Array]:
    """The numbers of each axis, so that together they index every element."""
    return [jnp.arange(n).reshape(-1, *[1] * (len(shape) - k - 1)) for k, n in enumerate(shape)]


def _dynamic_slice(eqn: JaxprEqn, i: int, const: Callable) -> Op:
    """A part of a table that starts where data says: `y[a..] = w[start + a..]` on the axes that are
    not taken whole."""
    if i:
        return NotImplemented
    table, sizes = eqn.invars[0].aval, eqn.params['slice_sizes']
    cut = [a for a in range(table.ndim) if sizes[a] != table.shape[a]]
    w, moved = ascii_letters[: table.ndim], ascii_letters[table.ndim :]
    y = ''.join(moved[a] if a in cut else c for a, c in enumerate(w))

    def picked(values: Sequence[Any]) -> jax.Array:
        x = jnp.ones((), table.dtype)
        for a in cut:
            start = jnp.clip(values[1 + a], 0, table.shape[a] - sizes[a])
            hit = jnp.arange(table.shape[a]) == start + jnp.arange(sizes[a])[:, None]
            x = x[..., None, None] * hit.astype(table.dtype)
        return x

    return Op(Axes(''.join(moved[a] + w[a] for a in cut), w, y), table.shape, picked)


RULES: dict[str, Callable[[JaxprEqn, int, Callable], Op]] = {
    'dot_general': _dot_general,
    'gather': _gather,
    'dynamic_slice': _dynamic_slice,
    'conv_general_dilated': convolution,
    'jit': product,  # a kernel that is looked at from outside
    **dict.fromkeys(members(Family.SPARSE), product),
}
