"""Fans, the inverse of index maps: for each element of a seed the one element of a value that it goes into, -1 for none, both by flat position.

Where elements are added up, a value depends on many elements of a seed and no few maps can say on which; but if each goes into one sum only, a fan can.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._jax import JaxprEqn, bind, is_float
from .index_maps import ELEMENTWISE, LAYOUT, REDUCTIONS, Const, Maps, move, positions

SCATTER_ADD = {'scatter-add', 'scatter_add'}
SUMS = SCATTER_ADD | {'reduce_window_sum'}
SEVERAL = -2


def fan_of(maps: Maps, size: int) -> np.ndarray | None:
    """The same dependence as these maps; None if an element of the seed, which has `size`, goes into several elements."""
    elements = np.concatenate([m.ravel()[m.ravel() >= 0] for m in maps])
    if len(np.unique(elements)) < len(elements):
        return None
    fan = np.full(size, -1, np.int32)
    fan[elements] = np.concatenate([np.flatnonzero(m.ravel() >= 0) for m in maps])
    return fan


def merge_fans(a: np.ndarray | None, b: np.ndarray | None) -> np.ndarray | None:
    """Both dependences together, if each element still goes into one only."""
    if a is None or b is None or ((a >= 0) & (b >= 0) & (a != b)).any():
        return None
    return np.maximum(a, b)


def is_base(eqn: JaxprEqn, i: int) -> bool:
    """Whether operand `i` is what something is scattered onto: it stays where it is."""
    return eqn.primitive.name in SCATTER_ADD and i == 0


def fate(eqn: JaxprEqn, i: int, const: Const) -> list[np.ndarray] | None:
    """For each output the element that each element of operand `i` goes into: -1 for none, `SEVERAL` for more than one. None if that is not known."""
    name, here, out = eqn.primitive.name, positions(eqn.invars[i].aval.shape), eqn.outvars[0].aval
    if name in ELEMENTWISE:
        return [_inverse(np.broadcast_to(here, out.shape), here.size)] * len(eqn.outvars)
    if name in LAYOUT:
        moved = move(eqn, i, here, const)
        return None if moved is None else [_inverse(m, here.size) for m in moved]
    if name in REDUCTIONS:
        kept = [1 if a in eqn.params['axes'] else n for a, n in enumerate(here.shape)]
        return [np.broadcast_to(positions(out.shape).reshape(kept), here.shape).ravel()]
    if name == 'dot_general':
        return _of_product(eqn, i)
    if name == 'reduce_window_max':
        return _of_sum(eqn.replace(primitive=lax.reduce_window_sum_p), i, const)
    return _of_sum(eqn, i, const) if name in SUMS else None


def _inverse(m: np.ndarray, size: int) -> np.ndarray:
    """From `position -> element` to `element -> position`."""
    flat = m.ravel()
    at = np.flatnonzero(flat >= 0)
    to = np.full(size, -1, np.int32)
    to[flat[at]] = at
    to[np.bincount(flat[at], minlength=size) > 1] = SEVERAL
    return to


def _of_product(eqn: JaxprEqn, i: int) -> list[np.ndarray] | None:
    """An element of one factor goes into a single sum where the other has no free axis."""
    contract, batch = (dims[i] for dims in eqn.params['dimension_numbers'])
    shape, out = eqn.invars[i].aval.shape, eqn.outvars[0].aval
    order = [
        *batch,
        *[a for a in range(len(shape)) if a not in contract and a not in batch],
        *contract,
    ]
    kept = [shape[a] for a in order[: len(order) - len(contract)]]
    if int(np.prod(kept)) != out.size:
        return None
    places = np.broadcast_to(
        positions(out.shape).reshape(*kept, *[1] * len(contract)), [shape[a] for a in order]
    )
    return [places.transpose(np.argsort(order)).ravel()]


def _of_sum(eqn: JaxprEqn, i: int, const: Const) -> list[np.ndarray] | None:
    """A sum of elements as they are: the transpose of it, on the position numbers of the output."""
    a, out = eqn.invars[i].aval, eqn.outvars[0].aval
    rest = [jnp.zeros(b.aval.shape, b.aval.dtype) if is_float(b) else const(b) for b in eqn.invars]
    if (
        any(v is None for v in rest)
        or not jnp.issubdtype(a.dtype, jnp.floating)
        or out.size >= 1 << jnp.finfo(a.dtype).nmant
    ):
        return None
    with jax.ensure_compile_time_eval():
        pull = jax.linear_transpose(
            lambda v: bind(eqn, [v if j == i else jnp.asarray(b) for j, b in enumerate(rest)])[0],
            rest[i],
        )
        count, number = (
            np.asarray(pull(jnp.asarray(ct, out.dtype))[0], float).ravel()
            for ct in (np.ones(out.shape), positions(out.shape))
        )
    return [np.where(count == 0, -1, np.where(count == 1, number, SEVERAL)).astype(np.int32)]
