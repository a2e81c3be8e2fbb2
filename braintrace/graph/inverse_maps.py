"""Inverse maps: for each element of a seed the one element of a value that it goes into, -1 for
none, both by flat position.

Where elements are added up, a value depends on many elements of a seed and no few index maps can
say on which; but if each goes into one sum only, an inverse map can.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._jax import JaxprEqn, bind, is_float
from ..ops.families import Family, family
from .constants import Const
from .index_maps import Maps, move, positions

SEVERAL = -2  # an element goes into more than one


def inverse_of(maps: Maps, size: int) -> np.ndarray | None:
    """The dependence that these maps tell as an inverse map; None if an element of the seed, which
    has `size`, goes into several elements."""
    elements = np.concatenate([m.ravel()[m.ravel() >= 0] for m in maps])
    if len(np.unique(elements)) < len(elements):
        return None
    inverse = np.full(size, -1, np.int32)
    inverse[elements] = np.concatenate([np.flatnonzero(m.ravel() >= 0) for m in maps])
    return inverse


def merge_inverse(a: np.ndarray | None, b: np.ndarray | None) -> np.ndarray | None:
    """Both dependences together, if each element still goes into one only."""
    if a is None or b is None or ((a >= 0) & (b >= 0) & (a != b)).any():
        return None
    return np.maximum(a, b)


def is_base(eqn: JaxprEqn, i: int) -> bool:
    """Whether operand `i` is what something is scattered onto: it stays where it is."""
    return family(eqn) is Family.SCATTER_ADD and i == 0


def destinations(eqn: JaxprEqn, i: int, const: Const) -> list[np.ndarray] | None:
    """For each output the element that each element of operand `i` goes into: -1 for none,
    `SEVERAL` for more than one. None if that is not known."""
    kind = family(eqn)
    here, out = positions(eqn.invars[i].aval.shape), eqn.outvars[0].aval
    if kind is Family.ELEMENTWISE:
        return [_inverted(np.broadcast_to(here, out.shape), here.size)] * len(eqn.outvars)
    if kind is Family.LAYOUT:
        moved = move(eqn, i, here, const)
        return None if moved is None else [_inverted(m, here.size) for m in moved]
    if kind is Family.REDUCTION:
        kept = [1 if a in eqn.params['axes'] else n for a, n in enumerate(here.shape)]
        return [np.broadcast_to(positions(out.shape).reshape(kept), here.shape).ravel()]
    if eqn.primitive.name == 'dot_general':
        return _of_product(eqn, i)
    if eqn.primitive.name == 'reduce_window_max':
        return _of_sum(eqn.replace(primitive=lax.reduce_window_sum_p), i, const)
    if kind in (Family.WINDOW, Family.SCATTER_ADD):
        return _of_sum(eqn, i, const)
    return None


def _inverted(m: np.ndarray, size: int) -> np.ndarray:
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
    free = [a for a in range(len(shape)) if a not in contract and a not in batch]
    order = [*batch, *free, *contract]
    kept = [shape[a] for a in (*batch, *free)]
    if int(np.prod(kept)) != out.size:
        return None
    sums = positions(out.shape).reshape(*kept, *[1] * len(contract))
    places = np.broadcast_to(sums, [shape[a] for a in order])
    return [places.transpose(np.argsort(order)).ravel()]


def _of_sum(eqn: JaxprEqn, i: int, const: Const) -> list[np.ndarray] | None:
    """A sum of elements as they are: the transpose of it, on the position numbers of the output."""
    a, out = eqn.invars[i].aval, eqn.outvars[0].aval
    if not jnp.issubdtype(a.dtype, jnp.floating) or out.size >= 1 << jnp.finfo(a.dtype).nmant:
        return None
    rest = [jnp.zeros(b.aval.shape, b.aval.dtype) if is_float(b) else const(b) for b in eqn.invars]
    if any(v is None for v in rest):
        return None

    def total(v):
        return bind(eqn, [v if j == i else jnp.asarray(b) for j, b in enumerate(rest)])[0]

    with jax.ensure_compile_time_eval():
        pull = jax.linear_transpose(total, rest[i])
        count, number = (
            np.asarray(pull(jnp.asarray(ct, out.dtype))[0], float).ravel()
            for ct in (np.ones(out.shape), positions(out.shape))
        )
    return [np.where(count == 0, -1, np.where(count == 1, number, SEVERAL)).astype(np.int32)]
