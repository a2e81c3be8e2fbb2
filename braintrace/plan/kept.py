"""One step of the way of an influence, and whether a trace that remembers one unit for each weight
keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .._jax import Atom
from ..graph.analysis import Row
from ..graph.groups import Group
from ..graph.index_maps import positions
from ..graph.relations import Relation
from ..graph.uses import Use
from .layout import Layout, Scope


@dataclass(frozen=True, eq=False)
class Passage:
    """One step of the way from a parameter to the future.

    Args:
        use: where the parameter meets data; None for a way around all uses, as that of a parameter
            that the user keeps out of the traces.
        old: a state that it has reached, whose old value goes on; None for the output of the use.
        new: the state whose new value is reached; None for the outputs of the same step.
        single_step: whether credit is taken inside each step.
        matters: whether later steps depend on the new state; otherwise only outputs of its own
            step do.
        graded: what credit comes from.
    """

    use: Use | None
    old: Row | None
    new: Row | None
    single_step: bool
    matters: bool = True
    graded: Sequence[Atom] = ()


def relation_of(layout: Layout, use: Use | None) -> Relation | None:
    """The relation of a use, if it has one."""
    return next((r for r in layout.relations if r.use is use), None)


def lost_between_units(layout: Layout, way: Passage) -> str | None:
    """Why a position-wise trace does not keep this influence; None where it keeps it whole."""
    if way.new is None and way.old is None:
        return None
    if way.use is None or relation_of(layout, way.use) is None:
        return 'the parameter has no trace there'
    groups = {row: _group_with_trace(layout, row) for row in (way.old, way.new) if row is not None}
    if way.old is None:
        assert way.new is not None
        return _lost_on_entering(layout, way, way.new, groups[way.new])
    if way.new is not None:
        lost = _lost_on_the_way(layout, way.old, way.new)
        if lost is not None:
            return lost
        if not way.matters and layout.scope not in (Scope.COUPLED, Scope.LEAK):
            groups.pop(way.new)  # credit comes back along the path itself
        elif groups[way.old] is not groups[way.new]:
            return 'a trace stays with the units that the weight feeds'
    for row, group in groups.items():
        if group is None:
            return f'the trace does not follow {name_of(row)}'
    return None


def name_of(row: Row) -> str:
    """A state as people write it."""
    name = row.leaf.name or 'the state'
    return name if row.column is None else f'{name}[..., {row.column}]'


def _group_with_trace(layout: Layout, row: Row) -> Group | None:
    """The group of a state that traces follow."""
    for g in layout.graph.groups:
        if g.index in layout.units and layout.units[g.index].carries(row):
            return g
    return None


def _lost_on_entering(layout: Layout, way: Passage, new: Row, group: Group | None) -> str | None:
    analysis, relation = layout.graph.analysis, relation_of(layout, way.use)
    assert relation is not None
    if analysis.of_row(new).mixed >> analysis.seed_of(relation.use) & 1:
        return 'units are mixed there, and a trace remembers one unit for each weight'
    if group is None:
        # with single-step credit a hidden state that is not followed loses what goes on from it
        is_hidden = new in analysis.rows
        if way.single_step and is_hidden:
            return None
        return f'the trace does not follow {name_of(new)}'
    if group.index not in relation.maps:
        return 'one output of the op feeds too many units for traces'
    return None


def _lost_on_the_way(layout: Layout, old: Row, new: Row) -> str | None:
    analysis = layout.graph.analysis
    seed = [*analysis.rows, *analysis.others].index(old)
    dep, here = analysis.of_row(new), positions(new.shape)
    if dep.mixed >> seed & 1:
        return 'units are mixed there, and a trace remembers one unit for each weight'
    if not all(bool(((m < 0) | (m == here)).all()) for m in dep.maps.get(seed, ())):
        return 'values move from unit to unit there, and a trace stays with one unit'
    return None
