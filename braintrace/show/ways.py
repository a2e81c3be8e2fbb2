"""Who feeds whom in a compiled model, and on which of these ways influence is lost."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from .._jax import Atom, Var
from ..graph.analysis import Row
from ..graph.compile import Graph
from ..graph.relations import Relation
from ..learn.core import Core
from ..plan.kept import Passage
from .boxes import Edge

Sources = frozenset[tuple[str, bool]]  # names of nodes, and whether their past value is meant


def group_name(index: int) -> str:
    """The name of the box of a hidden group."""
    return f'g{index}'


def op_name(use: int) -> str:
    """The name of the box of an op, by the number of its use."""
    return f'op{use}'


def data_edges(graph: Graph) -> set[Edge]:
    """Who feeds whom at once, without the weights.

    Each value remembers the nearest inputs, ops and groups that it is made of.
    """
    step = graph.step
    group_of_new = {v: group_name(g.index) for g in graph.groups for v in g.outvars}
    ops_of_value = _ops_by_value(graph)
    sources: dict[Var, Sources] = {}
    for k, v in enumerate(step.input_vars):
        sources[v] = frozenset([(f'in{k}', False)])
    for g in graph.groups:
        sources |= {v: frozenset([(group_name(g.index), True)]) for v in g.invars}

    def sources_of(atom: Atom) -> Sources:
        return sources.get(atom, frozenset()) if isinstance(atom, Var) else frozenset()

    edges: set[Edge] = set()
    for eqn in step.jaxpr.eqns:
        operands: Sources = frozenset().union(*map(sources_of, eqn.invars))
        for v in eqn.outvars:
            sources[v] = operands
            if v in ops_of_value:
                for op in ops_of_value[v]:
                    edges |= _feeding(operands, op)
                sources[v] = frozenset((op, False) for op in ops_of_value[v])
            if v in group_of_new:
                edges |= _feeding(sources[v], group_of_new[v])
                sources[v] = frozenset([(group_of_new[v], False)])
    for k, out in enumerate(step.outs):
        edges |= _feeding(sources_of(out), f'out{k}')
    return edges


def _feeding(sources: Sources, target: str) -> set[Edge]:
    return {Edge(source, target, past) for source, past in sources if past or source != target}


def _ops_by_value(graph: Graph) -> dict[Var, list[str]]:
    """The nodes of the ops that make a value."""
    ops: dict[Var, list[str]] = defaultdict(list)
    for u, use in enumerate(graph.analysis.uses):
        for y in use.y:
            ops[y].append(op_name(u))
    return dict(ops)


def _leading_to(groups: Iterable[str], edges: Iterable[Edge]) -> set[str]:
    """The nodes from which some way leads to one of these groups."""
    feeding: dict[str, set[str]] = defaultdict(set)
    for e in edges:
        feeding[e.target].add(e.source)
    leading: set[str] = set()
    todo = list(groups)
    while todo:
        new = feeding.get(todo.pop(), set()) - leading
        leading |= new
        todo += new
    return leading


def relations_by_use(graph: Graph) -> dict[int, Relation]:
    """The relation of each use that has one, by the number of the use."""
    number = {use: u for u, use in enumerate(graph.analysis.uses)}
    return {number[relation.use]: relation for relation in graph.relations}


class Influence:
    """Which ways the traces of a rule follow, and which it drops or only estimates. Without a rule
    (`core` is None) it is one that remembers one unit for each weight, as D-RTRL does.

    A way is one on which influence has to be carried if it ends in a group or leads on to one.
    """

    def __init__(self, graph: Graph, core: Core | None, edges: Iterable[Edge]):
        self.analysis, self.core = graph.analysis, core
        self._groups = {group_name(g.index): g for g in graph.groups}
        self._uses = {op_name(u): u for u in range(len(graph.analysis.uses))}
        self.leading = _leading_to(self._groups, edges)
        self.kept = {
            (op_name(u), group_name(group.index))
            for u, relation in relations_by_use(graph).items()
            for group in relation.groups
        } | {(name, name) for name, group in self._groups.items() if group.carried}

    @property
    def is_by_unit(self) -> bool:
        """Whether a weight remembers the units that it feeds, and no others."""
        return self.core is None or self.core.carrier.follows_relations

    @property
    def has_traces(self) -> bool:
        """Whether the rule keeps anything."""
        return self.core is None or bool(self.core.shapes)

    def followed(self, edge: Edge) -> bool:
        """Whether traces follow this way."""
        if self.is_by_unit:
            return (edge.source, edge.target) in self.kept
        return self.has_traces and self._carries(edge) and not self.dropped(edge)

    def dropped(self, edge: Edge) -> bool:
        """Whether influence is lost on this way."""
        if not self._carries(edge):
            return False
        if self.is_by_unit:
            return self._mixes(edge)
        if not self.has_traces:  # nothing crosses the edge of a window
            return edge.past
        return self._mixes(edge) and self._is_lost(edge)

    def _carries(self, edge: Edge) -> bool:
        """Whether what weights have done goes this way, to a hidden state."""
        is_inner = edge.source in self._groups or edge.source in self._uses
        return is_inner and (edge.target in self._groups or edge.target in self.leading)

    def _mixes(self, edge: Edge) -> bool:
        """Whether units are mixed on this way."""
        if edge.source in self._uses and edge.target in self._groups:
            return (edge.source, edge.target) not in self.kept
        if edge.target in self._groups:
            return edge.source != edge.target
        ends = self.analysis.uses[self._uses[edge.target]].y
        seeds = self._seeds(edge.source)
        return any(self.analysis.dep(y).mixed >> seed & 1 for y in ends for seed in seeds)

    def _seeds(self, source: str) -> list[int]:
        """What a node stands for in the analysis: the states of a group, or a use."""
        if source in self._groups:
            return self.analysis.seeds_of(self._groups[source].rows)
        return [self.analysis.seed(self._uses[source])]

    def _is_lost(self, edge: Edge) -> bool:
        """Whether the rule loses what some weight has done on this way."""
        assert self.core is not None
        uses = list(self.analysis.uses)
        olds: list[Row | None] = [None]
        if edge.source in self._uses:
            uses = [self.analysis.uses[self._uses[edge.source]]]
        else:
            olds = list(self._groups[edge.source].rows)
        return any(
            self.core.carrier.loses(Passage(use, old, new, self.core.single_step)) is not None
            for use in uses
            for old in olds
            for new in self.analysis.rows
        )
