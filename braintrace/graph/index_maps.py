"""Index maps, and how the primitives that only move elements around carry them.

An index map has the shape of a value and says for each of its elements which element of a seed it
depends on, -1 for none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from .._jax import JaxprEqn, bind
from .constants import Const

MAX_MAPS = 4  # elements of one seed that an element may depend on before that counts as mixed

Maps = tuple[np.ndarray, ...]


def positions(shape: tuple[int, ...]) -> np.ndarray:
    """The identity map: the flat position of every element."""
    return np.arange(np.prod(shape, dtype=np.int64), dtype=np.int32).reshape(shape)


def merge(maps: Maps, more: Maps) -> tuple[Maps, bool]:
    """Both sets of maps together, and whether some dependence found no room.

    An element's dependences are stored in the first free maps, so disjoint pieces (the two halves
    of a roll) become one map again.
    """
    if maps is more:
        return maps, False
    merged, full = list(maps), False
    for m in more:
        if any(s is m or np.array_equal(s, m) for s in merged):
            continue
        for s in merged:
            m = np.where(s == m, -1, m)
        for k, s in enumerate(merged):
            free = (s < 0) & (m >= 0)
            if free.any():
                merged[k], m = np.where(free, m, s), np.where(free, -1, m)
        if (m >= 0).any():
            full |= len(merged) == MAX_MAPS
            if len(merged) < MAX_MAPS:
                merged.append(m)
    return tuple(merged), full


def constant_along(m: np.ndarray, axes: Iterable[int]) -> bool:
    """Whether all elements that differ only in these axes depend on the same seed element."""
    return not m.size or all(
        m.shape[a] == 1 or bool((m == m.take([0], axis=a)).all()) for a in axes
    )


# ---- maps through a layout primitive: one function for each, or the primitive itself -------------


def _reshape(eqn: JaxprEqn, i: int, m: np.ndarray) -> list[np.ndarray]:
    return [m.reshape(eqn.outvars[0].aval.shape)]


def _transpose(eqn: JaxprEqn, i: int, m: np.ndarray) -> list[np.ndarray]:
    return [m.transpose(eqn.params['permutation'])]


def _rev(eqn: JaxprEqn, i: int, m: np.ndarray) -> list[np.ndarray]:
    return [np.flip(m, eqn.params['dimensions'])]


def _broadcast_in_dim(eqn: JaxprEqn, i: int, m: np.ndarray) -> list[np.ndarray]:
    shape = eqn.outvars[0].aval.shape
    at = [1] * len(shape)
    for axis, size in zip(eqn.params['broadcast_dimensions'], m.shape, strict=True):
        at[axis] = size
    return [np.broadcast_to(m.reshape(at), shape)]


def _slice(eqn: JaxprEqn, i: int, m: np.ndarray) -> list[np.ndarray]:
    starts, limits = eqn.params['start_indices'], eqn.params['limit_indices']
    strides = eqn.params['strides'] or [1] * m.ndim
    return [m[tuple(map(slice, starts, limits, strides))]]


def _split(eqn: JaxprEqn, i: int, m: np.ndarray) -> list[np.ndarray]:
    return np.split(m, np.cumsum(eqn.params['sizes'])[:-1], eqn.params['axis'])


def _concatenate(eqn: JaxprEqn, i: int, m: np.ndarray) -> list[np.ndarray]:
    return [np.concatenate(_beside_nothing(eqn, i, m), eqn.params['dimension'])]


def _stack(eqn: JaxprEqn, i: int, m: np.ndarray) -> list[np.ndarray]:
    return [np.stack(_beside_nothing(eqn, i, m), eqn.params['axis'])]


def _beside_nothing(eqn: JaxprEqn, i: int, m: np.ndarray) -> list[np.ndarray]:
    """A map for each operand: `m` for number `i`, no dependence for the others."""
    return [m if j == i else np.full(a.aval.shape, -1, np.int32) for j, a in enumerate(eqn.invars)]


_MOVES: dict[str, Callable[[JaxprEqn, int, np.ndarray], list[np.ndarray]]] = {
    'reshape': _reshape,
    'squeeze': _reshape,
    'expand_dims': _reshape,
    'transpose': _transpose,
    'rev': _rev,
    'broadcast_in_dim': _broadcast_in_dim,
    'slice': _slice,
    'split': _split,
    'concatenate': _concatenate,
    'stack': _stack,
}


def move(eqn: JaxprEqn, i: int, m: np.ndarray, const: Const) -> list[np.ndarray] | None:
    """The maps of a layout equation's outputs when operand `i` has map `m`; None when the move
    depends on run-time data."""
    moved = _MOVES.get(eqn.primitive.name)
    return _run(eqn, i, m, const) if moved is None else moved(eqn, i, m)


def _run(eqn: JaxprEqn, i: int, m: np.ndarray, const: Const) -> list[np.ndarray] | None:
    """The primitive itself on position numbers, at the known values of its index operands."""
    dtype: np.dtype = np.dtype(np.int32)
    if eqn.primitive.name == 'scatter':
        # Its update program is typed: number the positions in the operand's own type.
        dtype = eqn.invars[0].aval.dtype
        if np.issubdtype(dtype, np.complexfloating):
            return None
        if m.size and m.max() >= 1 << jnp.finfo(dtype).nmant:
            return None
    if 'fill_value' in eqn.params:
        eqn = eqn.replace(params={**eqn.params, 'fill_value': -1})
    values = []
    for j, a in enumerate(eqn.invars):
        if np.issubdtype(a.aval.dtype, np.integer):
            values.append(const(a))
        else:
            values.append(np.asarray(m if j == i else np.full(a.aval.shape, -1), dtype))
    if any(v is None for v in values):
        return None
    with jax.ensure_compile_time_eval():
        results = bind(eqn, [jnp.asarray(v) for v in values])
        return [np.asarray(r).astype(np.int32) for r in results]


# ---- values along a map: by slices where the map has that form, which XLA fuses and whose --------
# ---- transpose is no scatter, else by a gather ---------------------------------------------------


def along(unit: np.ndarray, shape: tuple[int, ...]) -> Callable[[jax.Array], jax.Array]:
    """A function that takes values of this shape, with any leading axes, to where the map `unit`
    points at them; zero where it points nowhere (-1). An axis of length one may stand for all."""
    runs = _runs(unit, shape)
    if runs is None:
        return partial(_gather, unit, shape)
    if runs == [(0, shape[-1])]:
        return _as_it_is
    return partial(_concatenate_slices, runs, shape[-1])


def _as_it_is(a: jax.Array) -> jax.Array:
    return a


def _gather(unit: np.ndarray, shape: tuple[int, ...], a: jax.Array) -> jax.Array:
    lead = a.shape[: a.ndim - len(shape)]
    flat = jnp.broadcast_to(a, (*lead, *shape)).reshape(*lead, -1)
    return jnp.where(unit >= 0, flat[..., np.maximum(unit, 0)], 0)


def _concatenate_slices(runs: list[tuple[int | None, int]], last: int, a: jax.Array) -> jax.Array:
    a = jnp.broadcast_to(a, (*a.shape[:-1], last))
    pieces = []
    for start, n in runs:
        if start is None:
            pieces.append(jnp.zeros((*a.shape[:-1], n), a.dtype))
        else:
            pieces.append(a[..., start : start + n])
    return jnp.concatenate(pieces, -1)


def _runs(unit: np.ndarray, shape: tuple[int, ...]) -> list[tuple[int | None, int]] | None:
    """The map as slices of the last axis, (start or None for nothing, length), if it has that
    form."""
    if unit.ndim != len(shape) or not shape or unit.shape[:-1] != shape[:-1]:
        return None
    here = positions(shape)
    row = unit.reshape(-1, unit.shape[-1])[0] if unit.size else unit.ravel()
    starts = np.flatnonzero(np.diff(row, prepend=-5) != (row >= 0))
    runs: list[tuple[int | None, int]] = []
    for a, b in zip(starts, [*starts[1:], len(row)], strict=True):
        if row[a] >= 0 and row[a] + (b - a) > shape[-1]:  # it points at another row
            return None
        runs.append((None if row[a] < 0 else int(row[a]), int(b - a)))
        expected = -1 if row[a] < 0 else here[..., row[a] : row[a] + (b - a)]
        if not np.array_equal(unit[..., a:b], np.broadcast_to(expected, unit[..., a:b].shape)):
            return None
    return runs if len(runs) <= 16 else None
