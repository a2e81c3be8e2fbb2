"""The op rules by primitive. A rule `(eqn, i, const)` describes the use of operand `i` as a weight, or answers `NotImplemented`."""

from __future__ import annotations

from collections.abc import Callable
from string import ascii_letters

import jax
import jax.numpy as jnp

from .._jax import JaxprEqn, bind
from .axes import Axes, Op, Table
from .convolution import convolution
from .families import Family, members
from .sparse import product


def _dot_general(eqn: JaxprEqn, i: int, const: Callable) -> Op:
    contract, batch = eqn.params['dimension_numbers']
    letters = iter(ascii_letters)
    labels = [[''] * a.aval.ndim for a in eqn.invars]
    for pairs in (batch, contract):
        for p, q in zip(*pairs, strict=True):
            labels[0][p] = labels[1][q] = next(letters)
    free: list[list[str]] = [[], []]
    for side, axes in enumerate(labels):
        for p, c in enumerate(axes):
            if not c:
                axes[p] = next(letters)
                free[side].append(axes[p])
    y = [labels[0][p] for p in batch[0]] + free[0] + free[1]
    return Op(
        Axes(''.join(labels[1 - i]), ''.join(labels[i]), ''.join(y)),
        eqn.invars[i].aval.shape,
        lambda values: values[1 - i],
    )


def _gather(eqn: JaxprEqn, i: int, const: Callable) -> Op:
    """Rows of a table, picked by data."""
    n = eqn.params['dimension_numbers']
    table, index = (a.aval for a in eqn.invars)
    rows = n.start_index_map
    whole = all(
        size == (1 if a in rows else table.shape[a])
        for a, size in enumerate(eqn.params['slice_sizes'])
    )
    if i or not whole or n.operand_batching_dims or sorted(n.collapsed_slice_dims) != sorted(rows):
        return NotImplemented
    w = ascii_letters[: table.ndim]
    batch = ascii_letters[table.ndim : table.ndim + index.ndim - 1]
    kept, picked = iter(c for a, c in enumerate(w) if a not in rows), iter(batch)
    y = ''.join(
        next(kept) if a in n.offset_dims else next(picked) for a in range(eqn.outvars[0].aval.ndim)
    )
    sizes = [table.shape[a] for a in rows]
    clip = 'CLIP' in str(eqn.params['mode'])

    def valid(index):  # what lies outside is clipped, or reads no row
        return [
            jnp.clip(index[..., k], 0, n - 1)
            if clip
            else jnp.where(index[..., k] < 0, n, index[..., k])
            for k, n in enumerate(sizes)
        ]

    def one_hot(index):
        x = jnp.ones(index.shape[:-1], table.dtype)
        for k, at in enumerate(valid(index)):
            x = x[..., None] * jax.nn.one_hot(at, sizes[k], dtype=table.dtype).reshape(
                *index.shape[:-1], *[1] * k, sizes[k]
            )
        return x

    axes = Axes(batch + ''.join(w[a] for a in rows), w, y)

    def outer(x, q):
        width = [c for c in w if c not in [w[a] for a in rows]]
        q = q.transpose([0, *[2 + y.index(c) for c in batch], 1, *[2 + y.index(c) for c in width]])
        shape = x.shape[1:-1]
        e = jnp.zeros(
            (*shape, *sizes, q.shape[1 + len(batch)], *[table.shape[w.index(c)] for c in width]),
            q.dtype,
        )
        samples = [
            jnp.arange(n).reshape(-1, *[1] * (len(shape) - k - 1)) for k, n in enumerate(shape)
        ]
        e = e.at[(*samples, *valid(x))].add(q, mode='drop')
        order = [*batch, *[w[a] for a in rows], 'S', *width]
        return e.transpose([order.index(c) for c in f'S{axes.trace}'])

    places = tuple(y.index(c) for c in batch), tuple(y.index(c) for c in w[1:] if c in y)
    rows_of = Table(table.shape[0], lambda x: valid(x)[0], *places) if tuple(rows) == (0,) else None
    return Op(
        axes,
        table.shape,
        lambda values: values[1],
        apply=lambda x, w: bind(eqn, [w, x])[0],
        spread=one_hot,
        outer=outer,
        table=rows_of,
    )


def _dynamic_slice(eqn: JaxprEqn, i: int, const: Callable) -> Op:
    """A part of a table that starts where data says: `y[a..] = w[start + a..]` on the axes that are not taken whole."""
    table, sizes = eqn.invars[0].aval, eqn.params['slice_sizes']
    if i:
        return NotImplemented
    cut = [a for a in range(table.ndim) if sizes[a] != table.shape[a]]
    w, moved = ascii_letters[: table.ndim], ascii_letters[table.ndim :]
    y = ''.join(moved[a] if a in cut else c for a, c in enumerate(w))

    def picked(values):
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
    'jit': product,
    **dict.fromkeys(members(Family.SPARSE), product),
}
