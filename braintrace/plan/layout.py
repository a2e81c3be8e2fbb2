"""Where traces live: a slot for each weight and the units it feeds, and how values of units reach the outputs of its op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._jax import JaxprEqn, Var, is_float
from ..graph.analysis import Row
from ..graph.etrace_graph import ETraceGraph
from ..graph.groups import HiddenGroup, colour
from ..graph.index_maps import along
from ..graph.relations import HiddenParamOpRelation
from .self_paths import Bridges, covered, find_bridges


@dataclass(frozen=True, eq=False)
class Feed:
    """One relation's outputs into one group: `unit` is the map from an element of y to the unit it feeds, `at_y` moves values of units there."""

    relation: int
    unit: np.ndarray
    at_y: Callable


@dataclass(frozen=True, eq=False)
class Slot:
    """One trace: a weight, the group it feeds, and the relations that use it in the same way and so share the trace."""

    name: str
    group: int
    feeds: tuple[Feed, ...]
    shape: tuple[int, ...]
    dtype: np.dtype


@dataclass(frozen=True, eq=False)
class Units:
    """A hidden group as the carriers see it: the rows whose old value matters, and colours that keep units apart in a pull."""

    rows: tuple[Row, ...]
    leaves: tuple[int, ...]
    shape: tuple[int, ...]
    colours: np.ndarray


@dataclass(frozen=True, eq=False)
class Layout:
    """The slots of a graph, and the bridges that position-wise paths take over mixing ops."""

    graph: ETraceGraph
    relations: tuple[HiddenParamOpRelation, ...]
    units: dict[int, Units]
    slots: tuple[Slot, ...]
    bridges: Bridges
    scope: str = 'diagonal'

    def at_rows(self, group: int, leaves: Sequence[Any], axis: int) -> Any:
        """Values of hidden leaves as values of the group's carried rows, stacked on an axis."""
        units = self.units[group]
        return jnp.stack(
            [row.of(leaves[i]) for row, i in zip(units.rows, units.leaves, strict=True)], axis
        )

    def identity(self, group: int, length: int) -> Any:
        """A transition that keeps every carried row as it is."""
        units = self.units[group]
        eye = jnp.eye(len(units.rows), dtype=units.rows[0].old.aval.dtype)
        return jnp.broadcast_to(
            eye.reshape(*eye.shape, *[1] * len(units.shape)), (length, *eye.shape, *units.shape)
        )

    def exposed(self, group: int) -> tuple[Row, ...]:
        """The rows of a group that something outside of the group reads in the same step."""
        found, step = self.graph.found, self.graph.step
        g = self.graph.hidden_groups[group]
        rows = [r for r in found.rows if r.old in g.hidden_invars and is_float(r.old)]
        ends = {a for a in (*step.outs, *step.other_outs) if isinstance(a, Var)} | set(
            step.hidden_outs
        ) - set(g.hidden_outvars)

        def outside(new) -> bool:
            seen = {new}
            for eqn in found.eqns:
                if any(isinstance(a, Var) and a in seen for a in eqn.invars):
                    seen.update(v for v in eqn.outvars if v not in g.hidden_outvars)
            return not seen.isdisjoint(ends)

        return tuple(r for r in rows if outside(r.new) or r.old in self.read_before)

    def is_readout(self, group: int) -> bool:
        """Whether a group only listens: nothing but the outputs (and its own old values) depends on it, and the model has other groups."""
        found, g = self.graph.found, self.graph.hidden_groups[group]
        mine = {s for s, row in enumerate(found.rows) if row.old in g.hidden_invars}
        others = [row for s, row in enumerate(found.rows) if s not in mine]
        read = any(found.dep(row.new).seeds >> s & 1 for row in others for s in mine)
        above = set(g.hidden_outvars)
        for eqn in found.eqns:
            if any(isinstance(a, Var) and a in above for a in eqn.invars):
                above.update(eqn.outvars)
        return bool(others) and not read and above.isdisjoint(row.new for row in others)

    @cached_property
    def _outward(self) -> set[Var]:
        """What outputs need, as far back as the new hidden states."""
        needed, hidden = (
            {a for a in self.graph.step.outs if isinstance(a, Var)},
            set(self.graph.step.hidden_outs),
        )
        for eqn in reversed(self.graph.found.eqns):
            if any(v in needed and v not in hidden for v in eqn.outvars):
                needed.update(a for a in eqn.invars if isinstance(a, Var))
        return needed

    @cached_property
    def read_before(self) -> frozenset[Var]:
        """The old hidden states that outputs read directly, not through a new one."""
        return frozenset(
            v for v in self.graph.step.hidden_vars if v in self._outward and is_float(v)
        )

    @cached_property
    def feedback_uses(self) -> dict[Var, Var]:
        """The products in which hidden states meet a weight on their way to the outputs or the next layer: y to weight."""
        after: set = set()
        old: set = set(self.read_before)
        found = {}
        weight = {
            u.y[0]: u for u in self.graph.found.uses if u.op is not None and u.op.axes.x is not None
        }
        for eqn in self.graph.found.eqns:
            reads = {
                a
                for a in eqn.invars
                if isinstance(a, Var)
                and (a in after or a in old and not self._outward.isdisjoint(eqn.outvars))
            }
            old |= (
                set(eqn.outvars) & self._outward - set(self.graph.step.hidden_outs)
                if reads & old
                else set()
            )
            for v in eqn.outvars:
                if v in weight and reads - {weight[v].w}:
                    found[v] = weight[v].w
            after.update(
                eqn.outvars
                if reads - old
                else [v for v in eqn.outvars if v in self.graph.step.hidden_outs]
            )
        return found

    @cached_property
    def sums(self) -> dict[Var, Var]:
        """Outputs of relations with the same sum have the same slopes."""
        return _sums(self.graph)

    @cached_property
    def pure(self) -> frozenset[int]:
        """The relations whose outputs have no effect in a step but position by position on the new hidden state."""
        return frozenset(i for i, r in enumerate(self.relations) if _is_pure(self.graph, r))


def lay_out(graph: ETraceGraph, scope: str = 'diagonal') -> Layout:
    """Find the slots: one for each weight and group, shared by relations with equal labels and maps.

    `scope` says what a unit's transition is: 'diagonal', position-wise paths only; 'block', also over the diagonal of each op that mixes units; 'coupled',
    the unit's own block of the whole Jacobian; 'leak', whatever the rule puts in its place, for all states of a unit; 'filtered', as 'diagonal', but also units
    without a memory of their own have a trace.
    """
    if scope not in ('diagonal', 'block', 'coupled', 'leak', 'filtered'):
        raise ValueError(f"`scope` must be 'diagonal', 'block' or 'coupled', got {scope!r}.")
    bridges = find_bridges(graph, twice=scope == 'coupled') if scope in ('block', 'coupled') else {}
    if scope == 'coupled':
        scope, bridges = ('block', bridges) if covered(graph, bridges) else (scope, {})
    every = {
        g.index: scope in ('coupled', 'leak')
        or scope == 'filtered'
        and not _carried(graph, g, bridges)
        for g in graph.hidden_groups
    }
    relations = tuple(graph.hidden_param_op_relations)
    units = {
        g.index: _units(graph, g, relations, bridges, every[g.index])
        for g in graph.hidden_groups
        if _carried(graph, g, bridges, every[g.index])
    }
    slots: list[Slot] = []
    home: dict[tuple, int] = {}
    for i, r in enumerate(relations):
        for g in r.hidden_groups:
            if g.index not in units:
                continue
            for unit in r.maps[g.index]:
                feed = Feed(i, unit, along(unit, units[g.index].shape))
                source = r.w_var if r.axes.x is not None else r.use.eqn.invars[0]
                alike = (
                    source,
                    r.axes,
                    r.y_var.aval.shape,
                    g.index,
                    unit.tobytes(),
                    None if r.op.plain else i,
                )  # these mean the same trace
                k = home.setdefault(alike, len(slots))
                if k < len(slots) and slots[k].feeds[-1].relation != i:
                    slots[k] = replace(slots[k], feeds=(*slots[k].feeds, feed))
                else:
                    slots.append(
                        Slot(
                            _name(r, g, slots),
                            g.index,
                            (feed,),
                            r.trace_shape(),
                            r.w_var.aval.dtype,
                        )
                    )
    return Layout(graph, relations, units, tuple(slots), bridges, scope)


def _sums(graph: ETraceGraph) -> dict[Var, Var]:
    """For each relation's y the sum that it is added into and that alone goes on (a product and its bias): such outputs have the same slopes."""
    readers: dict[Var, list[JaxprEqn]] = {}
    for eqn in graph.found.eqns:
        for a in {a for a in eqn.invars if isinstance(a, Var)}:
            readers.setdefault(a, []).append(eqn)
    kept = {a for a in graph.step.jaxpr.jaxpr.outvars if isinstance(a, Var)}
    sums = {}
    for r in graph.hidden_param_op_relations:
        v = r.y_var
        while (
            v not in kept
            and len(readers.get(v, ())) == 1
            and readers[v][0].primitive.name == 'add'
            and readers[v][0].outvars[0].aval.shape == v.aval.shape
        ):
            [v] = readers[v][0].outvars
        sums[r.y_var] = v
    return sums


def _is_pure(graph: ETraceGraph, r: HiddenParamOpRelation) -> bool:
    found, ends = graph.found, set(graph.step.hidden_outs)
    seen = {r.y_var} - ends
    for k in range(found.made_by[r.y_var] + 1, len(found.eqns)):
        touched = [
            i for i, a in enumerate(found.eqns[k].invars) if isinstance(a, Var) and a in seen
        ]
        if not found.use_cuts.get(k, frozenset()).isdisjoint(touched):
            return False
        if touched:
            seen.update(v for v in found.eqns[k].outvars if v not in ends and found.dep(v))
    return seen.isdisjoint(a for a in graph.step.outs if isinstance(a, Var))


def _name(r: HiddenParamOpRelation, g: HiddenGroup, slots: Sequence[Slot]) -> str:
    """Weight and first hidden state, in the user's names: the same in every program that holds the model."""
    name = f'{r.name.split(":", 1)[1]}->{".".join(map(str, g.hidden_paths[0]))}'
    again = sum(s.name.split('#')[0] == name for s in slots)
    return f'{name}#{again}' if again else name


def _carried(
    graph: ETraceGraph, g: HiddenGroup, bridges: Bridges, every: bool = False
) -> tuple[Row, ...]:
    """The rows of a group whose old value matters to a trace; with `every` all of them."""
    mine = [
        s for s, row in enumerate(graph.found.rows) if any(row.old is v for v in g.hidden_invars)
    ]
    bridged = {s for over in bridges.values() for b in over for s in b.rows}
    return tuple(
        graph.found.rows[s]
        for k, s in enumerate(mine)
        if (every or k in g.carried or s in bridged) and is_float(graph.found.rows[s].old)
    )


def _units(
    graph: ETraceGraph,
    g: HiddenGroup,
    relations: Sequence[HiddenParamOpRelation],
    bridges: Bridges,
    every: bool,
) -> Units:
    carried = _carried(graph, g, bridges, every)
    leaves = tuple(
        next(i for i, v in enumerate(graph.step.hidden_vars) if v is row.old) for row in carried
    )
    n = int(np.prod(g.varshape))
    apart = list(g.elsewhere)
    for r in relations:
        maps = r.maps.get(g.index, ())
        for k, m in enumerate(maps[1:]):  # two units fed by one element of y
            for first in maps[: k + 1]:
                both = (first.ravel() >= 0) & (m.ravel() >= 0)
                link = np.full(n, -1, np.int32)
                link[first.ravel()[both]] = m.ravel()[both]
                apart.append(link)
    return Units(
        carried,
        leaves,
        g.varshape,
        (colour(n, apart) if apart else np.zeros(n, np.int32)).reshape(g.varshape),
    )
