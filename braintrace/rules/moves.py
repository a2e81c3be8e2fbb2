"""Values moved along an index map: by slices where the map has that form, which XLA fuses and whose transpose is no scatter, else by a gather."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from ..graph.layout import positions


def along(unit: np.ndarray, shape: tuple[int, ...]) -> Callable:
    """A function that takes values of this shape, with any leading axes, to where the map points at them; zero where it points nowhere (-1)."""
    runs = _runs(unit, shape)
    if runs is None:
        keep, index = unit >= 0, np.maximum(unit, 0)
        return lambda a: jnp.where(keep, a.reshape(*a.shape[:a.ndim - len(shape)], -1)[..., index], 0)
    if runs == [(0, shape[-1])]:
        return lambda a: a
    return lambda a: jnp.concatenate([jnp.zeros((*a.shape[:-1], n), a.dtype) if start is None else a[..., start:start + n] for start, n in runs], -1)


def _runs(unit: np.ndarray, shape: tuple[int, ...]) -> list[tuple[int | None, int]] | None:
    """The map as slices of the last axis, (start or None for nothing, length), if it has that form."""
    if unit.ndim != len(shape) or not shape or unit.shape[:-1] != shape[:-1]:
        return None
    here = positions(shape)
    row = unit.reshape(-1, unit.shape[-1])[0] if unit.size else unit.ravel()
    starts = np.flatnonzero(np.diff(row, prepend=-5) != (row >= 0))
    runs: list[tuple[int | None, int]] = []
    for a, b in zip(starts, [*starts[1:], len(row)], strict=True):
        runs.append((None if row[a] < 0 else int(row[a]), int(b - a)))
        expected = -1 if row[a] < 0 else here[..., row[a]:row[a] + (b - a)]
        if not np.array_equal(unit[..., a:b], np.broadcast_to(expected, unit[..., a:b].shape)):
            return None
    return runs if len(runs) <= 16 else None
