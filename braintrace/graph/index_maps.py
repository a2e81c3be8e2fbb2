"""Index maps, and how the primitives that only move elements around carry them.

An index map has the shape of a value and says for each of its elements which element of a seed it depends on, -1 for none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import numpy as np

from .._jax import Atom, JaxprEqn, bind

ELEMENTWISE = set(
    'abs acos acosh add add_any asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt clamp complex conj convert_element_type copy cos cosh digamma '
    'div erf erf_inv erfc exp exp2 expm1 igamma igammac imag integer_pow lgamma log log1p logistic max min mul neg polygamma '
    'pow real reduce_precision regularized_incomplete_beta rem rsqrt select_n sin sinh sqrt square sub tan tanh zeta '
    'exprel heaviside_surrogate_gradient trace_mark'.split()
)
REDUCTIONS = set('reduce_sum reduce_max reduce_min reduce_prod'.split())
MAX_MAPS = (
    4  # elements of one seed that an element may depend on before the dependence counts as mixed
)

Maps = tuple[np.ndarray, ...]
Const = Callable[[Atom], np.ndarray | None]


def positions(shape: tuple[int, ...]) -> np.ndarray:
    """The identity map: the flat position of every element."""
    return np.arange(np.prod(shape, dtype=np.int64), dtype=np.int32).reshape(shape)


def merge(maps: Maps, more: Maps) -> tuple[Maps, bool]:
    """Both sets of maps together, and whether some dependence found no room.

    An element's dependences are stored in the first free maps, so disjoint pieces (the two halves of a roll) become one map again.
    """
    if maps is more:
        return maps, False
    slots, full = list(maps), False
    for m in more:
        if any(s is m or np.array_equal(s, m) for s in slots):
            continue
        for s in slots:
            m = np.where(s == m, -1, m)
        for k, s in enumerate(slots):
            free = (s < 0) & (m >= 0)
            if free.any():
                slots[k], m = np.where(free, m, s), np.where(free, -1, m)
        if (m >= 0).any():
            full |= len(slots) == MAX_MAPS
            if len(slots) < MAX_MAPS:
                slots.append(m)
    return tuple(slots), full


def constant_along(m: np.ndarray, axes: Iterable[int]) -> bool:
    """Whether all elements that differ only in these axes depend on the same seed element."""
    return not m.size or all(
        m.shape[a] == 1 or bool((m == m.take([0], axis=a)).all()) for a in axes
    )


def _broadcast_in_dim(m, eqn):
    shape = eqn.outvars[0].aval.shape
    at = [1] * len(shape)
    for axis, size in zip(eqn.params['broadcast_dimensions'], m.shape, strict=True):
        at[axis] = size
    return np.broadcast_to(m.reshape(at), shape)


def _slice(m, eqn):
    p = eqn.params
    return m[
        tuple(
            slice(a, b, s)
            for a, b, s in zip(
                p['start_indices'], p['limit_indices'], p['strides'] or [1] * m.ndim, strict=True
            )
        )
    ]


ONE_OPERAND: dict[str, Callable[[np.ndarray, JaxprEqn], np.ndarray]] = {
    'reshape': lambda m, e: m.reshape(e.outvars[0].aval.shape),
    'squeeze': lambda m, e: m.reshape(e.outvars[0].aval.shape),
    'expand_dims': lambda m, e: m.reshape(e.outvars[0].aval.shape),
    'transpose': lambda m, e: m.transpose(e.params['permutation']),
    'rev': lambda m, e: np.flip(m, e.params['dimensions']),
    'broadcast_in_dim': _broadcast_in_dim,
    'slice': _slice,
}


def _beside_nothing(m: np.ndarray, i: int, eqn: JaxprEqn) -> list[np.ndarray]:
    return [m if j == i else np.full(a.aval.shape, -1, np.int32) for j, a in enumerate(eqn.invars)]


JOINING: dict[str, Callable[[list[np.ndarray], JaxprEqn], np.ndarray]] = {
    'concatenate': lambda ms, e: np.concatenate(ms, e.params['dimension']),
    'stack': lambda ms, e: np.stack(ms, e.params['axis']),
}

# Found by running the primitive itself on the position numbers: operands that hold data, and those that must be known constants.
RUN = {'gather', 'dynamic_slice', 'dynamic_update_slice', 'pad', 'tile', 'scatter'}
LAYOUT = {*ONE_OPERAND, *JOINING, *RUN, 'split'}


def move(eqn: JaxprEqn, i: int, m: np.ndarray, const: Const) -> list[np.ndarray] | None:
    """The maps of the outputs when operand `i` has map `m`; None when the move depends on run-time data."""
    name = eqn.primitive.name
    if name in ONE_OPERAND:
        return [ONE_OPERAND[name](m, eqn)]
    if name in JOINING:
        return [JOINING[name](_beside_nothing(m, i, eqn), eqn)]
    if name == 'split':
        return np.split(m, np.cumsum(eqn.params['sizes'])[:-1], eqn.params['axis'])
    return _run(eqn, i, m, const)


def _run(eqn: JaxprEqn, i: int, m: np.ndarray, const: Const) -> list[np.ndarray] | None:
    dtype = np.int32
    if (
        eqn.primitive.name == 'scatter'
    ):  # its update program is typed: number the positions in the operand's own type
        dtype = eqn.invars[0].aval.dtype
        if np.issubdtype(dtype, np.complexfloating) or (
            m.size and m.max() >= 1 << jax.numpy.finfo(dtype).nmant
        ):
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
        return [
            np.asarray(r).astype(np.int32)
            for r in bind(eqn, [jax.numpy.asarray(v) for v in values])
        ]


# ---- values moved along a map: by slices where the map has that form, which XLA fuses and whose transpose is no scatter, else by a gather ----


def along(unit: np.ndarray, shape: tuple[int, ...]) -> Callable:
    """A function that takes values of this shape, with any leading axes, to where the map points at them; zero where it points nowhere (-1)."""
    runs = _runs(unit, shape)
    if runs is None:
        keep, index = unit >= 0, np.maximum(unit, 0)
        return lambda a: jnp.where(
            keep, a.reshape(*a.shape[: a.ndim - len(shape)], -1)[..., index], 0
        )
    if runs == [(0, shape[-1])]:
        return lambda a: a
    return lambda a: jnp.concatenate(
        [
            jnp.zeros((*a.shape[:-1], n), a.dtype) if start is None else a[..., start : start + n]
            for start, n in runs
        ],
        -1,
    )


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
        expected = -1 if row[a] < 0 else here[..., row[a] : row[a] + (b - a)]
        if not np.array_equal(unit[..., a:b], np.broadcast_to(expected, unit[..., a:b].shape)):
            return None
    return runs if len(runs) <= 16 else None
