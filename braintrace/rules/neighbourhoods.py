"""Which elements of a model's state a weight can reach within n steps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..graph.analysis import Row
from ..graph.uses import Use
from .sample_state import SampleState, TracedUse

DENSE = 0.7  # a neighbourhood of more than this part of all is kept as all of them


class Neighbours(NamedTuple):
    """For each element of y (of one sample) the elements of the state it may influence,
    `(number, *y of a sample)`, in a list of equal length; `there`, of the same shape, says which
    entries count."""

    units: np.ndarray
    there: np.ndarray

    @property
    def alike(self) -> bool:
        """Whether all elements have the same list."""
        flat = self.units.reshape(len(self.units), -1)
        return bool((flat == flat[:, :1]).all())

    @property
    def first(self) -> np.ndarray:
        """The list of the first element of y."""
        return self.units.reshape(len(self.units), -1)[:, 0]

    @property
    def by_list(self) -> Lists:
        """The different lists, and the elements of y that have each."""
        units, there = (a.reshape(len(a), -1).T for a in (self.units, self.there))
        both = np.concatenate([units, there], 1)
        _, first, which = np.unique(both, axis=0, return_index=True, return_inverse=True)
        by_first = np.argsort(first)  # lists in the order of the elements that have them
        first, which = first[by_first], np.argsort(by_first)[which.ravel()]
        count = np.bincount(which)
        if len(count) * count.max() > 2 * len(which):  # too unequal: each element by itself
            first = which = np.arange(len(both))
            count = np.ones(len(both), int)
        by_list = np.argsort(which, kind='stable')
        slot = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
        members = np.tile(first[:, None], count.max())
        members[which[by_list], slot] = by_list
        place = np.empty(len(which), int)
        place[by_list] = which[by_list] * count.max() + slot
        return Lists(units[first], there[first], members, place)


def all_elements(number: int, u: TracedUse) -> Neighbours:
    """All elements of the state as what each output of a use may influence."""
    shape = number, *u.inner_shape
    every = np.arange(number).reshape(-1, *[1] * len(u.inner_shape))
    return Neighbours(np.broadcast_to(every, shape), np.broadcast_to(True, shape))


class Lists(NamedTuple):
    """Lists of elements of the state, `units` and `there` of `(lists, number)`, the elements of y
    that have each list, `members` of `(lists, most)` (the first of them again where there are
    fewer), and where each element of y stands among those, `place` of `(y,)`."""

    units: np.ndarray
    there: np.ndarray
    members: np.ndarray
    place: np.ndarray

    def together(self, a: jax.Array, axis: int) -> jax.Array:
        """Elements of y on an axis, in the order of the lists: `lists * most` of them."""
        return taken(a, self.members.ravel(), axis)

    def apart(self, a: jax.Array, axis: int) -> jax.Array:
        """Back to the order of y."""
        return taken(a, self.place, axis)


def taken(a: jax.Array, places: np.ndarray, axis: int) -> jax.Array:
    """`take`, which copies, only where it changes something."""
    if np.array_equal(places, np.arange(a.shape[axis])):
        return a
    return jnp.take(a, places, axis)


class Neighbourhoods:
    """The neighbourhoods of n steps for each use of a weight, found from the structure of the
    step.

    With `far_reach` a weight reaches in its own step also those units that it acts on through the
    product of another weight, as the reset gate of a GRU does; without, only the units that its
    outputs feed position by position.
    """

    def __init__(self, state: SampleState, n: int, far_reach: bool = True):
        self._state, self._n, self._far_reach = state, n, far_reach

    @cached_property
    def of_state(self) -> np.ndarray:
        """Which elements of the new state depend on which of the old state in one step,
        `(new, old)`."""
        state = self._state
        sizes = [int(np.prod(shape)) for shape in state.shapes]
        parts = np.split(np.eye(sum(sizes), dtype=np.float32), np.cumsum(sizes)[:-1], 1)
        axis = -1 if state.axes is None else 0
        start = {
            v: _in_first_sample(part, v.aval.shape, axis)
            for v, part in zip(state.vars, parts, strict=True)
        }
        reached = self._of_one_sample(state.structure.reach(start, self._new_states))
        return reached[:, state.value_of_element]

    @cached_property
    def of_outputs(self) -> list[np.ndarray]:
        """Which elements of the new state depend on which of each use's output, `(new, y)`."""
        reached = []
        for u in self._state.uses:
            shape = u.y.aval.shape
            elements = np.eye(int(np.prod(u.inner_shape)), dtype=np.float32)
            start = {u.y: _in_first_sample(elements, shape, u.sample_axis)}
            sets = self._state.structure.reach(start, self._new_states)
            reached.append(self._of_one_sample(sets))
        return reached

    @property
    def _new_states(self) -> list:
        step = self._state.graph.step
        old = [*step.hidden_vars, *step.other_vars]
        new = [*step.hidden_outs, *step.other_outs]
        return [b for a, b in zip(old, new, strict=True) if a in self._state.vars]

    def _of_one_sample(self, sets: Sequence[np.ndarray]) -> np.ndarray:
        """From what each source reaches, `(source, *state)` leaf by leaf, to
        `(element of a sample, source)`."""
        parts = [s if self._state.axes is None else s[:, 0] for s in sets]
        values = np.concatenate([p.reshape(len(p), -1) for p in parts], 1).T
        return values[self._state.value_of_element]

    @cached_property
    def reached(self) -> list[np.ndarray]:
        """What each use reaches in its own step and `n - 1` more, `(element of the state, y)`."""
        ahead = self.of_state.astype(np.float32)
        within = list(self.of_outputs)
        if not self._far_reach:
            pairs = zip(self._state.uses, within, strict=True)
            within = [r & self._fed(u, r.shape) for u, r in pairs]
        for _ in range(self._n - 1):
            within = [r | (ahead @ r.astype(np.float32) > 0) for r in within]
        return within

    @cached_property
    def of_uses(self) -> list[Neighbours]:
        """The neighbourhoods of each use."""
        pairs = zip(self._state.uses, self.kept, strict=True)
        return [self._neighbours(u, kept) for u, kept in pairs]

    @cached_property
    def kept(self) -> list[np.ndarray]:
        """What is kept of each use: all states of the units that it reaches,
        `(element of the state, y)`."""
        return [self._together @ r.astype(np.float32) > 0 for r in self.reached]

    def _fed(self, u: TracedUse, shape: tuple[int, ...]) -> np.ndarray:
        """Which elements of the state the outputs of a use feed position by position,
        `(element of the state, y)`."""
        fed = np.zeros(shape, bool)
        for relation in self._state.graph.relations:
            if relation.use is not u.use:
                continue
            for group in relation.groups:
                for units in relation.maps[group.index]:
                    unit = units if u.sample_axis < 0 else units.take(0, u.sample_axis)
                    [y] = np.nonzero(unit.ravel() >= 0)
                    for row in group.rows:
                        fed[self._elements(row)[unit.ravel()[y]], y] = True
        return fed

    def drops(self, use: Use, new: Row) -> bool:
        """Whether what a use does to new values of a state in its own step is not kept."""
        number, to_new = [u.use for u in self._state.uses].index(use), self._elements(new)
        done, kept = self.of_outputs[number], self.kept[number]
        return bool((done[to_new] & ~kept[to_new]).any())

    def leaves(self, use: Use, old: Row, new: Row) -> bool:
        """Whether the influence of a use on the old values of a state goes on to new values of
        another outside of the neighbourhood."""
        inside = self.kept[[u.use for u in self._state.uses].index(use)]
        from_old, to_new = self._elements(old), self._elements(new)
        ahead = self.of_state[np.ix_(to_new, from_old)].astype(np.float32)
        reached = ahead @ inside[from_old].astype(np.float32) > 0
        return bool((reached & ~inside[to_new]).any())

    def _elements(self, row: Row) -> np.ndarray:
        """The elements of a sample's state that belong to a state of units."""
        place = self._state.vars.index(row.old)
        sizes = [int(np.prod(shape)) for shape in self._state.shapes]
        own = np.arange(sizes[place]).reshape(self._state.shapes[place])
        with jax.ensure_compile_time_eval():  # inside a trace too
            units = np.asarray(row.of(own))
        return sum(sizes[:place]) + units.ravel()

    def _neighbours(self, u: TracedUse, kept: np.ndarray) -> Neighbours:
        most, anywhere = max(1, int(kept.sum(0).max(initial=0))), np.flatnonzero(kept.any(1))
        index = np.argsort(~kept, axis=0, kind='stable')[:most]
        if len(anywhere) and most > DENSE * len(
            anywhere
        ):  # one list for all, and one product instead of many
            most = len(anywhere)
            index = np.broadcast_to(anywhere[:, None], (most, kept.shape[1]))
        there = np.take_along_axis(kept, index, 0)
        shape = most, *u.inner_shape
        return Neighbours(index.reshape(shape), there.reshape(shape))

    @cached_property
    def _together(self) -> np.ndarray:
        """Which elements are states of one unit, `(elements, elements)`: a weight that reaches one
        of them keeps all, since the next step takes it there."""
        state = self._state
        group_of = {v: g.index for g in state.graph.groups for v in g.invars}
        leaf_of = dict(zip(state.vars, state.leaves, strict=True))
        units = []
        for i, (v, shape) in enumerate(zip(state.vars, state.shapes, strict=True)):
            unit = np.arange(int(np.prod(shape))) // max(leaf_of[v].columns, 1)
            alone = -1 - i  # a state that is not hidden is a group of its own
            units.append(np.stack([np.full(len(unit), group_of.get(v, alone)), unit]))
        unit = np.concatenate(units, 1)[:, state.value_of_element]
        return (unit[:, :, None] == unit[:, None]).all(0).astype(np.float32)

    @cached_property
    def colours(self) -> np.ndarray:
        """A colour for each element of the state: no source reaches two of one colour, so that one
        pull serves them all."""
        size = self._state.size_of_one
        sources = np.concatenate([self.of_state, *self.of_outputs], 1).astype(np.float32)
        apart = sources @ sources.T > 0
        colour = np.full(size, -1)
        for i in np.argsort(-apart.sum(0), kind='stable'):
            taken = np.zeros(size + 1, bool)
            taken[colour[apart[i]]] = True  # -1, for those without a colour, is the last place
            colour[i] = np.argmin(taken[:-1])
        return colour

    @property
    def number_of_colours(self) -> int:
        return int(self.colours.max(initial=0)) + 1


def _in_first_sample(sources: np.ndarray, shape: tuple[int, ...], axis: int) -> np.ndarray:
    """Sources `(number, elements of one sample)` in a value of this shape: those of the first
    sample along an axis (-1: there are none)."""
    if axis < 0:
        return sources.reshape(-1, *shape)
    whole = np.zeros((len(sources), *shape), np.float32)
    inner = [n for a, n in enumerate(shape) if a != axis]
    np.moveaxis(whole, 1 + axis, 1)[:, 0] = sources.reshape(len(sources), *inner)
    return whole
