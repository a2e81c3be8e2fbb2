"""Where traces live: a slot for each weight and the units it feeds, and how values of units reach
the outputs of its op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._jax import Var, is_float
from ..graph.analysis import Part, Row
from ..graph.compile import Graph
from ..graph.groups import Group, colour
from ..graph.index_maps import Maps, along
from ..graph.relations import Relation
from ..graph.samples import Samples
from ..graph.uses import Use
from ..ops.axes import Op
from . import readers
from .keys import TraceKey, distinct, trace_type
from .self_paths import SelfPaths, find_self_paths, give_whole_diagonal
from .steady import MOVING, Steady, steadiness
from .wholes import moves_as_complex, wholes


class Scope(Enum):
    """What counts as a unit's own transition from step to step."""

    DIAGONAL = 'diagonal'  # position-wise paths only
    BLOCK = 'block'  # also over the diagonal of each op that mixes units
    COUPLED = 'coupled'  # the unit's own block of the whole Jacobian
    LEAK = 'leak'  # whatever the rule puts in its place, for all states of a unit
    FILTERED = 'filtered'  # as DIAGONAL, but units without a memory of their own have a trace too

    @classmethod
    def named(cls, name: str) -> Scope:
        """The scope that a user may ask for by this name."""
        chosen = (cls.DIAGONAL, cls.BLOCK, cls.COUPLED)
        for scope in chosen:
            if scope.value == name:
                return scope
        known = ', '.join(repr(scope.value) for scope in chosen)
        raise ValueError(f'`scope` must be one of {known}, got {name!r}.')


# Where the transition of a unit may be a complex number.
AS_COMPLEX = Scope.DIAGONAL, Scope.FILTERED


@dataclass(frozen=True, eq=False)
class Feed:
    """One relation's outputs into one group.

    `unit` has the shape of y and says for each element of it which unit it feeds (flat number, -1
    for none); `at_y` takes values of units, with any leading axes, to the elements of y that feed
    them.
    """

    relation: int
    unit: np.ndarray
    at_y: Callable[[jax.Array], jax.Array]

    def at_all(self, a: jax.Array) -> jax.Array:
        """Values at y, with any leading axes, with every element of it."""
        return jnp.broadcast_to(a, (*a.shape[: a.ndim - self.unit.ndim], *self.unit.shape))


@dataclass(frozen=True, eq=False)
class Slot:
    """One trace: a weight, the group it feeds, and the relations that use it in the same way and so
    share it.

    `shape` is that of the trace for one state of a unit.
    """

    key: TraceKey
    group: int
    feeds: tuple[Feed, ...]
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def relation(self) -> int:
        """The first relation, to which the gradient that the trace gives belongs."""
        return self.feeds[0].relation


@dataclass(frozen=True, eq=False)
class Units:
    """A hidden group as the carriers see it.

    `rows` are the states of a unit whose old value matters, `leaves` the hidden leaf that each is a
    part of, `shape` the units. `colours`, of that shape, keeps units apart in a pull: no unit acts
    on another of its colour. `remembers` says whether a unit has a way of its own into the next
    step.
    """

    rows: tuple[Row, ...]
    leaves: tuple[int, ...]
    shape: tuple[int, ...]
    colours: np.ndarray
    remembers: bool = True

    @property
    def states(self) -> int:
        """How many states of a unit are carried."""
        return len(self.rows)

    @property
    def are_whole(self) -> bool:
        """Whether states are complex and carried as such, not part by part."""
        return all(row.part is Part.WHOLE for row in self.rows)

    def carries(self, row: Row) -> bool:
        """Whether a row of the analysis is carried, or is part of a state that is."""
        return row in self.rows or row._replace(part=Part.WHOLE) in self.rows

    @property
    def dtype(self) -> np.dtype:
        """The type of the values of a carried state."""
        return self.rows[0].dtype

    @property
    def number_of_colours(self) -> int:
        return int(self.colours.max(initial=0)) + 1

    def of_leaves(self, leaves: Sequence[Any], axis: int) -> jax.Array:
        """Values of hidden leaves as values of the carried states, stacked on an axis."""
        parts = [row.of(leaves[i]) for row, i in zip(self.rows, self.leaves, strict=True)]
        return jnp.stack(parts, axis)

    def credit_by_state(self, leaves: Sequence[Any]) -> list[Any]:
        """Credit of hidden leaves as credit of the carried states."""
        return [row.credit(leaves[i]) for row, i in zip(self.rows, self.leaves, strict=True)]

    def credit_of_leaves(self, leaves: Sequence[Any], axis: int) -> jax.Array:
        """The same, stacked on an axis."""
        return jnp.stack(self.credit_by_state(leaves), axis)

    @property
    def identity(self) -> list[list[np.ndarray]]:
        """A transition `D[a][b]` that keeps every carried state as it is, with axes of length one
        for the units."""
        ones, states = np.ones([1] * len(self.shape), self.dtype), range(self.states)
        return [[ones if a == b else 0 * ones for b in states] for a in states]


@dataclass(frozen=True, eq=False)
class Layout:
    """The slots of a graph for one scope, and the self-paths that position-wise paths take over
    mixing ops. `every_state` says that credit may arrive at all states of a unit, see `lay_out`."""

    graph: Graph
    scope: Scope
    units: dict[int, Units]
    slots: tuple[Slot, ...]
    self_paths: SelfPaths
    every_state: bool = False

    @property
    def relations(self) -> tuple[Relation, ...]:
        return self.graph.relations

    def sample_axis_of_trace(self, relation: int, samples: Samples) -> int | None:
        """The axis of samples in a trace of a relation's weight, `(states, *trace)`."""
        r = self.relations[relation]
        axis = samples.axes.get(r.y_var)
        label = '' if axis is None else (r.op.kept or r.axes.y)[axis]
        return 1 + r.axes.trace.index(label) if label and label in r.axes.trace else None

    def sample_axis_of_output(self, relation: int, samples: Samples) -> int | None:
        """The axis of samples in values `(states, *y)` at a relation's output."""
        axis = samples.axes.get(self.relations[relation].y_var)
        return None if axis is None else 1 + axis

    def sample_axis_of_input(self, relation: int, samples: Samples) -> int | None:
        """The axis of samples in what multiplies a relation's weight, as it is averaged over
        time."""
        r = self.relations[relation]
        if r.op.spread is None:
            return None if r.x_var is None else samples.axes.get(r.x_var)
        axis = samples.axes.get(r.y_var)
        label = '' if axis is None else (r.op.kept or r.axes.y)[axis]
        letters = r.axes.x or ''
        return letters.index(label) if label and label in letters else None

    def slots_of(self, group: int) -> list[Slot]:
        """The traces that follow one group."""
        return [s for s in self.slots if s.group == group]

    @cached_property
    def read_before(self) -> frozenset[Var]:
        """The old hidden states that outputs read directly, not through a new one."""
        return readers.read_before(self.graph)

    @cached_property
    def read_in_step(self) -> readers.ReadInStep:
        """Of which groups' new states those of each group are made in the same step."""
        return readers.read_in_step(self.graph)

    @cached_property
    def feedback_uses(self) -> dict[Var, Use]:
        """The products through which credit comes down to hidden states, by their outputs."""
        return readers.feedback_uses(self.graph)

    @cached_property
    def shared_sums(self) -> dict[Var, Var]:
        """For each relation's y the sum it goes into; outputs with the same sum have the same
        slopes."""
        return readers.shared_sums(self.graph, [r.y_var for r in self.relations])

    @cached_property
    def pure(self) -> frozenset[int]:
        """The relations whose outputs act in a step only position by position on the new hidden
        state."""
        numbered = enumerate(self.relations)
        return frozenset(i for i, r in numbered if readers.acts_on_units_only(self.graph, r))

    def are_signalled(self, relations: frozenset[int]) -> bool:
        """Whether all credit that the outputs of these relations get in a step comes by way of new
        values of states that are carried, each of its own unit, and all states of these units that
        are seen are carried: signals there say all of it, and nothing twice."""
        fed = [frozenset(g.index for g in self.relations[r].groups) for r in relations]
        groups = frozenset().union(*fed)
        once = not any(of & (self.read_in_step.near[g] - {g}) for of in fed for g in of)
        return once and relations <= self.pure and all(map(self._is_seen_as_carried, groups))

    def _is_seen_as_carried(self, group: int) -> bool:
        if group not in self.units or group in self.read_in_step.far[group]:
            return False
        units = self.units[group]
        return units.number_of_colours == 1 and self.exposed(group) == units.rows

    @cached_property
    def steady_transitions(self) -> dict[int, list[list[Steady | None]]]:
        """How the slope of each state of a group by the old value of each changes; None where it
        has no way into that."""
        return {g: self._transitions(g) for g in self.units}

    def moving_entries(self, group: int) -> int:
        """How many slopes of the states of a unit by each other are not the same in all steps."""
        if self.scope is Scope.COUPLED:
            return self.units[group].states ** 2
        entries = [entry for row in self.steady_transitions[group] for entry in row]
        return sum(entry is not None and not entry.steps for entry in entries)

    def linked_ops(self, captured: Sequence[Any]) -> list[Op]:
        """The op of each relation, with its arrays taken from the values that the step captured."""
        values = dict(zip(self.graph.step.captured_vars, captured, strict=True))

        def linked(use: Use) -> Op:
            assert use.op is not None
            if use.op.with_arrays is None:
                return use.op
            return use.op.with_arrays([values[v] for v in use.links])

        return [linked(r.use) for r in self.relations]

    def _transitions(self, group: int) -> list[list[Steady | None]]:
        units, analysis = self.units[group], self.graph.analysis
        if units.number_of_colours > 1 or self.self_paths:
            return [[MOVING] * units.states for _ in units.rows]

        def entry(new: Row, old: Row) -> Steady | None:
            [seed] = analysis.seeds_of((old,))
            if seed not in analysis.of_row(new).live:
                return None
            return steadiness(analysis, [seed], [old.old], [new])

        return [[entry(new, old) for old in units.rows] for new in units.rows]

    @cached_property
    def steady_slopes(self) -> dict[tuple[int, int], Steady]:
        """How the slopes of the states of a group by an output of a relation's op change, by
        relation and group."""
        fed = {(f.relation, s.group) for s in self.slots for f in s.feeds}
        return {(r, g): self._slopes(g, self.relations[r].use) for r, g in fed}

    def _slopes(self, group: int, by: Use) -> Steady:
        units, analysis = self.units[group], self.graph.analysis
        if units.number_of_colours > 1 or self.self_paths:
            return MOVING
        return steadiness(analysis, [analysis.seed_of(by)], by.y, units.rows)

    def exposed(self, group: int) -> tuple[Row, ...]:
        """The states of a group that something outside of the group reads in the same step."""
        rows = readers.exposed_rows(self.graph, self.graph.groups[group])
        return wholes(rows) if self.units[group].are_whole else rows

    def is_readout(self, group: int) -> bool:
        """Whether a group only listens to others and is read by the outputs alone."""
        return readers.is_readout(self.graph, self.graph.groups[group])


def lay_out(graph: Graph, scope: Scope = Scope.DIAGONAL, every_state: bool = False) -> Layout:
    """Find the slots: one for each weight and group, shared by relations with equal labels and
    maps.

    With `every_state` also those states have a trace that the next step does not take from their
    own unit: credit that is exact inside a window arrives at all of them.
    """
    self_paths: SelfPaths = {}
    if scope in (Scope.BLOCK, Scope.COUPLED):
        self_paths = find_self_paths(graph, twice=scope is Scope.COUPLED)
    if scope is Scope.COUPLED and give_whole_diagonal(graph, self_paths):
        scope = Scope.BLOCK
    elif scope is Scope.COUPLED:
        self_paths = {}
    units = {g.index: _units(graph, g, scope, self_paths, every_state) for g in graph.groups}
    units = {g: u for g, u in units.items() if u.rows}
    return Layout(graph, scope, units, _slots(graph, units), self_paths, every_state)


def _slots(graph: Graph, units: dict[int, Units]) -> tuple[Slot, ...]:
    slots: list[Slot] = []
    place_of: dict[tuple, int] = {}  # what means the same trace -> its place
    for i, r in enumerate(graph.relations):
        weight = tuple(source.leaf for source in r.sources)
        origin = r.w_var if r.axes.x is not None else r.use.eqn.invars[0]
        told_by_labels = None if r.op.plain else i
        for g in (g for g in r.groups if g.index in units):
            for unit in r.maps[g.index]:
                feed = Feed(i, unit, along(unit, units[g.index].shape))
                shape = r.y_var.aval.shape
                alike = origin, r.axes, shape, g.index, unit.tobytes(), told_by_labels
                place = place_of.setdefault(alike, len(slots))
                if place < len(slots) and slots[place].feeds[-1].relation != i:
                    slots[place] = replace(slots[place], feeds=(*slots[place].feeds, feed))
                else:
                    key, w = TraceKey(weight, g.paths[0]), r.w_var.aval.dtype
                    slots.append(Slot(key, g.index, (feed,), r.trace_shape(), trace_type(w)))
    keys = distinct(s.key for s in slots)
    return tuple(replace(s, key=key) for s, key in zip(slots, keys, strict=True))


def _units(graph: Graph, g: Group, scope: Scope, self_paths: SelfPaths, every_state: bool) -> Units:
    carried = _carried_rows(graph, g, scope, self_paths)
    rows = tuple(row for row in g.rows if is_float(row.old)) if every_state else carried
    if scope in AS_COMPLEX and moves_as_complex(graph, g):
        rows = wholes(rows)
    leaf_of = {v: i for i, v in enumerate(graph.step.hidden_vars)}
    n = int(np.prod(g.varshape))
    apart = [*g.elsewhere]
    for relation in graph.relations:
        apart += _fed_by_one_element(relation.maps.get(g.index, ()), n)
    colours = colour(n, apart) if apart else np.zeros(n, np.int32)
    leaves = tuple(leaf_of[row.old] for row in rows)
    return Units(rows, leaves, g.varshape, colours.reshape(g.varshape), bool(carried))


def _carried_rows(graph: Graph, g: Group, scope: Scope, self_paths: SelfPaths) -> tuple[Row, ...]:
    """The rows of a group whose old value matters to a trace."""
    seeds = [s for s, row in enumerate(graph.analysis.rows) if row.old in g.invars]
    on_self_paths = {s for over in self_paths.values() for path in over for s in path.rows}
    remembered = {s for k, s in enumerate(seeds) if k in g.carried or s in on_self_paths}
    every = scope in (Scope.COUPLED, Scope.LEAK) or (scope is Scope.FILTERED and not remembered)
    rows = [graph.analysis.rows[s] for s in seeds if every or s in remembered]
    return tuple(row for row in rows if is_float(row.old))


def _fed_by_one_element(maps: Maps, units: int) -> list[np.ndarray]:
    """Pairs of units that one element of y feeds, as maps from unit to unit (-1 for none)."""
    links = []
    for k, second in enumerate(maps):
        for first in maps[:k]:
            both = (first.ravel() >= 0) & (second.ravel() >= 0)
            link = np.full(units, -1, np.int32)
            link[first.ravel()[both]] = second.ravel()[both]
            links.append(link)
    return links
