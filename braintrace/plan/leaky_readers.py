"""Whether units are seen through leaky read-outs alone.

    y <- leak y + h @ B        B made of parameters and constants

Then what units have done is seen later as a low-pass of it, and nothing else of it is seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import jax
import numpy as np

from .._jax import Atom, JaxprEqn, Var, is_float
from ..graph.analysis import Analysis, Row
from ..graph.compile import Graph
from ..graph.groups import Group
from ..graph.index_maps import positions
from ..ops.families import Family, family
from .readers import variables
from .slopes import SAME, constant_slope, is_leak

SUMS = ('add', 'add_any', 'neg', 'sub')


def are_seen_through_leaks(
    graph: Graph, group: Group, fed_by: Iterable[Var], leak: float, graded: Sequence[Atom]
) -> bool:
    """Whether all that `graded` values see of a group's units, and of what feeds them, are states
    that leak by `leak` and take up the units' new values linearly, in every step alike."""
    analysis = graph.analysis
    outside = [row for row in [*analysis.rows, *analysis.others] if row not in group.rows]
    ends, seen = set(variables([row.new for row in outside])), set(variables(graded))
    own = set(variables(group.outvars))
    around = _reached(analysis, [*group.invars, *fed_by], stop=own)
    linear, bent = _linear_in(graph, own, stop=ends)
    directly_seen = seen & ((linear | bent) - ends)
    if directly_seen or not around.isdisjoint(ends | seen):
        return False
    readers = [row for row in outside if row.new in linear | bent]
    return all(row.new not in bent and _leaks(analysis, row, leak, seen) for row in readers)


def _reached(analysis: Analysis, start: Iterable[Var], stop: set[Var]) -> set[Var]:
    """What depends on these variables on ways that end at `stop`, which does not belong to it."""
    reached = set(start) - stop
    for eqn in analysis.eqns:
        if not reached.isdisjoint(variables(eqn.invars)):
            reached.update(v for v in eqn.outvars if v not in stop)
    return reached


def _linear_in(graph: Graph, start: set[Var], stop: set[Var]) -> tuple[set[Var], set[Var]]:
    """What depends on these variables on ways that end at `stop`, which does belong to it: with
    slopes that are the same in every step, and otherwise."""
    step = graph.step
    captured = zip(step.captured_vars, step.captured, strict=True)
    fixed = {v for v, value in captured if not isinstance(value, jax.core.Tracer)}
    fixed.update(step.param_vars)
    linear, bent, going = set(start), set[Var](), start - stop
    for eqn in graph.analysis.eqns:
        given = variables(eqn.invars)
        if not eqn.effects and fixed.issuperset(given):
            fixed.update(eqn.outvars)
        if going.isdisjoint(given) or family(eqn) is Family.NO_DERIVATIVE:
            continue
        is_linear = bent.isdisjoint(given) and _keeps_slopes(eqn, going, fixed)
        made = {v for v in eqn.outvars if is_float(v)}
        (linear if is_linear else bent).update(made)
        going |= made - stop
    return linear, bent


def _keeps_slopes(eqn: JaxprEqn, moving: set[Var], fixed: set[Var]) -> bool:
    """Whether an equation is linear in what moves, with slopes that are fixed."""
    name = eqn.primitive.name
    moves = [isinstance(a, Var) and a in moving for a in eqn.invars]
    others = variables([a for a, m in zip(eqn.invars, moves, strict=True) if not m])
    if name in SUMS or name in SAME:
        return True
    if not fixed.issuperset(others):
        return False
    if family(eqn) is Family.PRODUCT or name == 'mul':
        return sum(moves) == 1
    return name in ('broadcast_in_dim', 'reduce_sum') or (name == 'div' and moves == [True, False])


def _leaks(analysis: Analysis, row: Row, leak: float, seen: set[Var]) -> bool:
    """Whether a hidden state keeps `leak` of itself, no other state depends on it, and it is seen
    by its new value alone."""
    rows = [*analysis.rows, *analysis.others]
    seed = rows.index(row)
    if row in analysis.others:
        return False
    if any(analysis.of_row(other).seeds >> seed & 1 for other in rows if other is not row):
        return False
    dep, here = analysis.of_row(row), positions(row.shape)
    maps = dep.maps.get(seed, ())
    if dep.mixed >> seed & 1 or seed in dep.inverse or len(maps) != 1:
        return False
    if not np.array_equal(maps[0], here):
        return False
    if not _reached(analysis, [row.old], stop=set(variables([row.new]))).isdisjoint(seen):
        return False
    return is_leak(constant_slope(analysis, seed, row.old, row), leak)
