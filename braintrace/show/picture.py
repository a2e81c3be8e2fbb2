"""Pictures: the compiled model as weights, ops and hidden groups; the traces as images."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._jax import Atom, Var
from ..graph.analysis import Analysis
from ..graph.compile import Graph
from ..graph.lines import source_line
from ..graph.relations import Relation
from ..graph.sources import Origin
from ..step import dotted
from . import render
from .boxes import Edge, Node
from .figure import new_figure
from .published import Published, compiled_of


@dataclass(frozen=True)
class Picture:
    """A drawn graph. Notebooks show it.

    `mermaid()` and `svg()` give text, `matplotlib()` a figure.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]

    def mermaid(self) -> str:
        """A mermaid flowchart."""
        return render.mermaid(self.nodes, self.edges)

    def svg(self) -> str:
        """An SVG image that stands alone."""
        return render.svg(self.nodes, self.edges)

    def matplotlib(self) -> Any:
        """A matplotlib figure."""
        return render.matplotlib(self.nodes, self.edges)

    _repr_svg_ = svg


def draw(graph: Graph | Published) -> Picture:
    """The compiled model as a picture, and who feeds whom in it.

    It has the inputs, the weights, the ops that they enter, the hidden groups and the outputs.

    Args:
        graph: of a learner (`learner.graph`) or from `compile_etrace_graph`.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> from braintrace.show.picture import draw
        >>> leaky = lambda p, h, x: (0.9 * h + x @ p['W'], h)
        >>> learner = braintrace.compile(
        ...     leaky, 'd_rtrl', {'W': jnp.ones((3, 2))}, jnp.zeros(2), jnp.ones(3)
        ... )
        >>> print(draw(learner.graph).mermaid())  # doctest: +ELLIPSIS
        flowchart LR
            in0(["input 0<br/>float32[3]"]):::input
            w0("W<br/>float32[3,2]"):::traced
            op0["dot_general<br/>...:1"]:::traced
            g0[["group 0: state<br/>(2,)"]]:::group
            out0(["output 0<br/>float32[2]"]):::output
            in0 --> op0
            w0 --> op0
            op0 ==> g0
            g0 -. "t-1" .-> g0
            g0 -. "t-1" .-> out0
            classDef ...
    """
    compiled = compiled_of(graph)
    if not isinstance(compiled, Graph):
        raise TypeError(
            f'`draw` takes a compiled graph (`learner.graph`), got {type(graph).__name__}.'
        )
    edges = _data_edges(compiled)
    kinds = _kinds_of_uses(compiled, edges)
    weights = _weights_of_uses(compiled)
    edges |= {Edge(f'w{w}', f'op{u}') for u, used in enumerate(weights) for w in used}
    nodes = _nodes(compiled, kinds, weights)

    traced = _traced_ways(compiled)
    marked = [e._replace(traced=(e.source, e.target) in traced) for e in edges]
    order = {n.name: k for k, n in enumerate(nodes)}
    marked.sort(key=lambda e: (order[e.target], order[e.source], e.past))
    return Picture(tuple(nodes), tuple(marked))


def _nodes(graph: Graph, kinds: list[str], weights: list[list[int]]) -> list[Node]:
    """All boxes. `kinds` has the kind of each use, `weights` the numbers of its parameters."""
    step = graph.step
    inputs = [
        Node(f'in{k}', (f'input {k}', v.aval.str_short()), 'input', 'data')
        for k, v in enumerate(step.input_vars)
    ]
    params = [
        Node(f'w{w}', (leaf.name, v.aval.str_short()), _kind_of_weight(w, kinds, weights), 'weight')
        for w, (leaf, v) in enumerate(zip(step.params, step.param_vars, strict=True))
    ]
    ops = [
        Node(f'op{u}', (use.meets.primitive.name, source_line(use.meets)), kinds[u], 'op')
        for u, use in enumerate(graph.analysis.uses)
    ]
    groups = [
        Node(
            f'g{g.index}',
            (f'group {g.index}: {", ".join(map(dotted, g.paths))}', str(g.varshape)),
            'group',
            'group',
        )
        for g in graph.groups
    ]
    outputs = [
        Node(f'out{k}', (f'output {k}', v.aval.str_short()), 'output', 'data')
        for k, v in enumerate(step.outs)
    ]
    return [*inputs, *params, *ops, *groups, *outputs]


def _kind_of_weight(weight: int, kinds: list[str], weights: list[list[int]]) -> str:
    """The kind of a parameter: of its uses the one that says most."""
    own = {kind for kind, used in zip(kinds, weights, strict=True) if weight in used}
    telling = [kind for kind in ('partly', 'traced', 'untraced') if kind in own]
    return telling[0] if telling else 'readout'


def _weights_of_uses(graph: Graph) -> list[list[int]]:
    """For each use, the numbers of the parameters that its weight is made from."""
    origin = Origin(graph.step)
    return [[source.index for source in origin.of(use.w)] for use in graph.analysis.uses]


def _traced_ways(graph: Graph) -> set[tuple[str, str]]:
    """The ways from an op into a group that a trace follows."""
    relations = _relations_by_use(graph)
    return {
        (f'op{u}', f'g{group.index}')
        for u, relation in relations.items()
        for group in relation.groups
    }


def _relations_by_use(graph: Graph) -> dict[int, Relation]:
    """The relation of each use that has one, by the number of the use."""
    number = {use: u for u, use in enumerate(graph.analysis.uses)}
    return {number[relation.use]: relation for relation in graph.relations}


Sources = frozenset[tuple[str, bool]]  # names of nodes, and whether their past value is meant


def _data_edges(graph: Graph) -> set[Edge]:
    """Who feeds whom at once, without the weights.

    Each value remembers the nearest inputs, ops and groups that it is made of.
    """
    step = graph.step
    group_of_new = {v: f'g{g.index}' for g in graph.groups for v in g.outvars}
    ops_of_value = _ops_by_value(graph)
    sources: dict[Var, Sources] = {}
    for k, v in enumerate(step.input_vars):
        sources[v] = frozenset([(f'in{k}', False)])
    for g in graph.groups:
        sources |= {v: frozenset([(f'g{g.index}', True)]) for v in g.invars}

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
            ops[y].append(f'op{u}')
    return dict(ops)


def _kinds_of_uses(graph: Graph, edges: Iterable[Edge]) -> list[str]:
    """The kind of box of each op."""
    relations = _relations_by_use(graph)
    leading = _leading_to_groups(edges)

    def kind(u: int) -> str:
        if u not in relations:
            return 'untraced' if f'op{u}' in leading else 'readout'
        return 'partly' if _is_partial(graph.analysis, u, relations[u]) else 'traced'

    return [kind(u) for u in range(len(graph.analysis.uses))]


def _is_partial(analysis: Analysis, use: int, relation: Relation) -> bool:
    """Whether the output of a traced op also reaches a state of its groups in a mixed way."""
    seed = analysis.seed(use)
    states = [analysis.dep(new) for group in relation.groups for new in group.outvars]
    return any(seed in dep.live and bool(dep.mixed >> seed & 1) for dep in states)


def _leading_to_groups(edges: Iterable[Edge]) -> set[str]:
    """The nodes from which some way leads to a hidden group."""
    feeding: dict[str, set[str]] = defaultdict(set)
    for e in edges:
        feeding[e.target].add(e.source)
    leading: set[str] = set()
    todo = [target for target in feeding if target.startswith('g')]
    while todo:
        new = feeding.get(todo.pop(), set()) - leading
        leading |= new
        todo += new
    return leading


def picture_of_traces(traces: Mapping[str, Any], path: Any = None) -> Any:
    """The traces as images, a panel for each.

    A pixel is the absolute value of an entry, averaged over all axes but the last two.

    Args:
        traces: by name: `learner.etrace`, `learner.get_etrace_of(weight)` or the `traces` of a
            carry.
        path: a file to write.

    Returns:
        The matplotlib figure.
    """
    sizes = {name: np.abs(np.asarray(getattr(v, 'value', v))) for name, v in traces.items()}
    sizes = {k: a for k, a in sizes.items() if a.size and np.issubdtype(a.dtype, np.number)}
    if not sizes:
        raise ValueError(
            '`picture_of_traces`: there is no trace to show. BPTT has none, and the report of a '
            'learner says what its rule traces.'
        )
    across = min(3, len(sizes))
    down = -(-len(sizes) // across)
    figure = new_figure(4.2 * across, 3 * down)
    for k, (name, a) in enumerate(sizes.items()):
        axes = figure.add_subplot(down, across, k + 1)
        image = axes.imshow(_flat(a), aspect='auto', interpolation='nearest', cmap='magma')
        figure.colorbar(image, ax=axes)
        axes.set_title(f'{name}\n{a.shape}', fontsize=8)
    figure.tight_layout()
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def _flat(a: np.ndarray) -> np.ndarray:
    """Two axes `(rows, columns)`: the last two, the mean over the others."""
    if a.ndim > 2:
        return a.reshape(-1, *a.shape[-2:]).mean(0)
    return np.atleast_2d(a)
