"""What a drawn graph tells about a box when asked: shapes, bytes, exactness, the user's line."""

from __future__ import annotations

from .._jax import Atom, Var
from ..graph.compile import Graph
from ..graph.groups import Group
from ..graph.lines import source_line
from ..graph.uses import Use
from ..learn.exactness import Exactness
from ..step import Leaf, dotted
from .report import CompilationReport
from .text import bytes_as_text

Told = tuple[tuple[str, str], ...]


class Details:
    """The details of the boxes of a graph, as pairs of a word and a text."""

    def __init__(self, graph: Graph, report: CompilationReport):
        self.graph = graph
        self.rows = {row.name: row for row in report.parameters}
        self.exactness = report.exactness

    def data(self, a: Atom) -> Told:
        return _array(a)

    def weight(self, leaf: Leaf, v: Var) -> Told:
        row = self.rows[leaf.name]
        told = [('parameter', leaf.name or 'params'), *_array(v)]
        if row.trace_bytes is not None:
            told.append(('traces', bytes_as_text(row.trace_bytes)))
        told.append(('what it gets', row.fate))
        if leaf.name in self.exactness:
            told.append(('exact', exact_in_words(self.exactness[leaf.name])))
        return tuple(told)

    def op(self, use: Use) -> Told:
        told = [('op', use.meets.primitive.name), ('line', source_line(use.meets))]
        if use.x_var is not None:
            told.append(('data', use.x_var.aval.str_short()))
        told.append(('weight', use.w.aval.str_short()))
        told.append(('output', ', '.join(y.aval.str_short() for y in use.y)))
        return tuple(told)

    def group(self, group: Group) -> Told:
        states = ', '.join(dotted(path) or 'state' for path in group.paths)
        size = sum(_bytes(v) for v in group.invars)
        return (
            ('states', states),
            ('units', str(group.varshape)),
            ('states a unit', f'{group.num_state}, {len(group.carried)} carried by the trace'),
            ('size', bytes_as_text(size)),
        )


def exact_in_words(told: Exactness) -> str:
    return "yes, BPTT's gradient at every window" if told.exact else f'no, {told.why}'


def _array(a: Atom) -> Told:
    return (('shape', a.aval.str_short()), ('size', bytes_as_text(_bytes(a))))


def _bytes(a: Atom) -> int:
    return a.aval.size * a.aval.dtype.itemsize
