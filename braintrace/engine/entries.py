"""How the states of a unit act on each other, entry by entry.

`D[a][b]` is the slope of new state a by old state b of the same unit, `(K, *units)` for K steps. An
axis along which it does not change has length one; where b has no way into a there is None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

Entries: TypeAlias = list[list[Any]]
Place: TypeAlias = tuple[tuple[int, ...], int]  # of a stack: the shape of its entries, a number
LARGE = 512  # elements of an entry from which on a stack of many takes longer than a loop for each


def back_through(D: Entries, credit: Sequence[Any], more: Sequence[Any] | None = None) -> list[Any]:
    """Credit of new states to that of the old ones, state by state, on top of `more`."""
    states = range(len(D))

    def of_state(b: int) -> Any:
        ways = [credit[a] * D[a][b] for a in states if D[a][b] is not None]
        if more is not None:
            ways = [more[b], *ways]
        return reduce(jnp.add, ways) if ways else jnp.zeros_like(credit[b])

    return [of_state(b) for b in states]


def product(Q: Entries, D: Entries) -> Entries:
    """`Q D`, unit by unit."""
    states = range(len(D))

    def entry(a: int, b: int) -> Any:
        ways = [m for m in states if Q[a][m] is not None and D[m][b] is not None]
        return reduce(jnp.add, [Q[a][m] * D[m][b] for m in ways]) if ways else None

    return [[entry(a, b) for b in states] for a in states]


def identity(D: Entries, like: Sequence[jax.Array]) -> Entries:
    """Each state stays as it is: with an entry wherever a product of many `D` has one, as large as
    that becomes in one step. `like` are values of all states, of the shape of the units."""
    states = range(len(D))
    dtype = jnp.result_type(*[e.dtype for e in _present(D)] or [like[0].dtype])
    one = jax.ShapeDtypeStruct((1,) * like[0].ndim, dtype)
    of_one_step = _each(D, lambda e: jax.ShapeDtypeStruct(e.shape[1:], dtype))
    Q: Entries = [[one if a == b else None for b in states] for a in states]
    for _ in states:
        more = jax.eval_shape(product, Q, of_one_step)
        Q = [[_as_large(Q[a][b], more[a][b]) for b in states] for a in states]
    return [
        [None if e is None else jnp.full(e.shape, a == b, dtype) for b, e in enumerate(row)]
        for a, row in enumerate(Q)
    ]


def of_each_step(D: Entries, length: int) -> Entries:
    """The entries that there are for each of so many steps."""
    return _each(D, lambda e: e if len(e) == length else None)


def of_all_steps(D: Entries, length: int) -> Entries:
    """The other entries, which are the same in all steps, for one of these."""
    return _each(D, lambda e: None if len(e) == length else e[0])


def filled(D: Entries, more: Entries) -> Entries:
    """Entries with others in the places that are empty."""
    pairs = [zip(*rows, strict=True) for rows in zip(D, more, strict=True)]
    return [[b if a is None else a for a, b in row] for row in pairs]


def together(Q: Entries, like: Entries) -> dict[Place, jax.Array]:
    """The entries in few arrays, which a loop keeps faster than many: those of `like`, in its
    shapes, zero where there is none."""
    stacks: dict[Place, list[Any]] = {}
    for number, (of, e) in enumerate(zip(_flat(like), _flat(Q), strict=True)):
        if of is not None:
            value = jnp.zeros_like(of) if e is None else jnp.broadcast_to(e, of.shape)
            stacks.setdefault(_place(of, number), []).append(value)
    return {place: jnp.stack(entries) for place, entries in stacks.items()}


def apart_again(stacks: dict[Place, jax.Array], like: Entries, axis: int) -> Entries:
    """The entries that `together` has put on this axis, in the places that they have in `like`."""
    rest = {place: iter(range(a.shape[axis])) for place, a in stacks.items()}
    numbers = iter(range(len(like) ** 2))

    def entry(of: Any) -> Any:
        number = next(numbers)
        if of is None:
            return None
        place = _place(of, number)
        return jax.lax.index_in_dim(stacks[place], next(rest[place]), axis, False)

    return [[entry(of) for of in row] for row in like]


def _place(of: Any, number: int) -> Place:
    """Entries with the same place are stacked: all small ones of a shape, large ones two by two,
    since XLA makes a longer stack element by element."""
    return of.shape, number // 2 if of.size > LARGE else 0


def whole(D: Entries, shape: tuple[int, ...], axis: int, dtype: Any) -> jax.Array:
    """All entries in one array: those of this shape, stacked on two axes from `axis` on."""

    def entry(e: Any) -> jax.Array:
        return jnp.zeros(shape, dtype) if e is None else jnp.broadcast_to(e, shape)

    return jnp.stack([jnp.stack([entry(e) for e in row], axis) for row in D], axis)


def _each(D: Entries, f: Callable[[Any], Any]) -> Entries:
    return [[None if e is None else f(e) for e in row] for row in D]


def _flat(D: Entries) -> list[Any]:
    return [e for row in D for e in row]


def _present(D: Entries) -> list[Any]:
    return [e for e in _flat(D) if e is not None]


def _as_large(a: Any, b: Any) -> Any:
    """What is as large as both."""
    if a is None or b is None:
        return b if a is None else a
    return jax.ShapeDtypeStruct(jnp.broadcast_shapes(a.shape, b.shape), a.dtype)
