"""Units whose states are complex numbers that move on as such.

Where a new state is a holomorphic function of the old one and of all that feeds it, its slopes are
complex numbers: one trace of the whole state says what two traces of its parts would, and a
transition is one product of complex numbers where it would be four of real ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .._jax import Atom, Var, is_complex, is_float
from ..graph.analysis import Analysis, Part, Row
from ..graph.compile import Graph
from ..graph.groups import Group
from ..ops.families import Family, family
from .ways import on_the_way

HOLOMORPHIC = frozenset(
    'add add_any convert_element_type copy cos cosh div exp exp2 expm1 integer_pow log log1p '
    'logistic mul neg pow pvary rsqrt select_n sin sinh sqrt square sub tan tanh'.split()
)


def wholes(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Rows of complex states with one in the place of the two parts of a state."""
    return tuple(row._replace(part=Part.WHOLE) for row in rows if row.part is Part.REAL)


def moves_as_complex(graph: Graph, group: Group) -> bool:
    """Whether all states of a group, and all weights and products that feed it, are complex, and
    the new states are holomorphic in what they come from."""
    analysis = graph.analysis
    feeding = [r for r in graph.relations if group.index in {g.index for g in r.groups}]
    rows = [row for row in group.rows if is_float(row.old)]
    values = [row.old for row in rows]
    for r in feeding:
        values += [r.w_var, r.y_var]
    if not rows or not all(map(is_complex, values)):
        return False

    def arrive(seeds: Sequence[int], starts: Sequence[Var]) -> bool:
        return _are_holomorphic(analysis, seeds, starts, group.outvars)

    of_products = all(arrive([analysis.seed_of(r.use)], r.use.y) for r in feeding)
    return of_products and arrive(analysis.seeds_of(rows), group.invars)


def _are_holomorphic(
    analysis: Analysis, seeds: Iterable[int], starts: Sequence[Var], ends: Sequence[Atom]
) -> bool:
    """Whether no equation on the way leaves the complex numbers, or takes a conjugate."""
    for eqn, _ in on_the_way(analysis, seeds, starts, ends):
        known = eqn.primitive.name in HOLOMORPHIC or family(eqn) is Family.LAYOUT
        if not known or not all(map(is_complex, eqn.outvars)):
            return False
    return True
