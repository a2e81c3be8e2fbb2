"""Pictures: the compiled model as weights, ops and hidden groups; the traces as images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..graph.analysis import Analysis
from ..graph.compile import Graph
from ..graph.lines import source_line
from ..graph.relations import Relation
from ..graph.sources import Origin
from ..step import dotted
from . import render
from .boxes import Edge, Node
from .details import Details
from .figure import new_figure
from .published import Published, compiled_of
from .report import CompilationReport
from .svg import svg
from .ways import Influence, data_edges, group_name, op_name, relations_by_use


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
        return svg(self.nodes, self.edges)

    def matplotlib(self) -> Any:
        """A matplotlib figure."""
        return render.matplotlib(self.nodes, self.edges)

    _repr_svg_ = svg


def draw(graph: Graph | Published | CompilationReport) -> Picture:
    """The compiled model as a picture, and who feeds whom in it.

    It has the inputs, the weights, the ops that they enter, the hidden groups and the outputs.

    Args:
        graph: of a learner (`learner.graph`) or from `compile_etrace_graph`; or the report of a
            learner: then ways are dropped, and bytes counted, as its rule does it.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> from braintrace.show.picture import draw
        >>> leaky = lambda p, h, x: (0.9 * h + x @ p['W'], h)
        >>> learner = braintrace.compile(
        ...     leaky, 'd_rtrl', {'W': jnp.ones((3, 2))}, jnp.zeros(2), jnp.ones(3)
        ... )
        >>> print(draw(learner.graph).mermaid())  # doctest: +ELLIPSIS
        flowchart LR
            in0(["input 0<br/>(3,)"]):::input
            w0("W (3, 2)"):::traced
            op0["dot_general ...:1"]:::traced
            g0[["group 0: state<br/>(2,)"]]:::group
            out0(["output 0<br/>(2,)"]):::output
            in0 --> op0
            w0 --> op0
            op0 ==> g0
            g0 -. "t-1" .-> g0
            g0 -. "t-1" .-> out0
            classDef ...
    """
    report = graph if isinstance(graph, CompilationReport) else None
    compiled = compiled_of(report.graph if report is not None else graph)  # type: ignore[arg-type]
    if not isinstance(compiled, Graph):
        raise TypeError(
            f'`draw` takes a compiled graph (`learner.graph`), got {type(graph).__name__}.'
        )
    return _drawn(compiled, report or CompilationReport(compiled))


def _drawn(graph: Graph, report: CompilationReport) -> Picture:
    edges = data_edges(graph)
    influence = Influence(graph, report.core, edges)
    kinds = _kinds_of_uses(graph, influence)
    weights = _weights_of_uses(graph)
    nodes = _nodes(graph, Details(graph, report), kinds, weights)
    marked = [e._replace(traced=influence.followed(e), dropped=influence.dropped(e)) for e in edges]
    marked += {Edge(f'w{w}', op_name(u)) for u, used in enumerate(weights) for w in used}
    order = {n.name: k for k, n in enumerate(nodes)}
    marked.sort(key=lambda e: (order[e.target], order[e.source], e.past))
    return Picture(tuple(nodes), tuple(marked))


def _nodes(
    graph: Graph, details: Details, kinds: list[str], weights: list[list[int]]
) -> list[Node]:
    """All boxes. `kinds` has the kind of each use, `weights` the numbers of its parameters."""
    step = graph.step
    inputs = [
        Node(f'in{k}', (f'input {k}', str(v.aval.shape)), 'input', 'data', details.data(v))
        for k, v in enumerate(step.input_vars)
    ]
    params = [
        Node(
            f'w{w}',
            (f'{leaf.name or "params"} {v.aval.shape}',),
            _kind_of_weight(w, kinds, weights),
            'weight',
            details.weight(leaf, v),
        )
        for w, (leaf, v) in enumerate(zip(step.params, step.param_vars, strict=True))
    ]
    ops = [
        Node(
            op_name(u),
            (f'{use.meets.primitive.name} {source_line(use.meets)}',),
            kinds[u],
            'op',
            details.op(use),
        )
        for u, use in enumerate(graph.analysis.uses)
    ]
    groups = [
        Node(
            group_name(g.index),
            (f'group {g.index}: {", ".join(map(dotted, g.paths))}', str(g.varshape)),
            'group',
            'group',
            details.group(g),
        )
        for g in graph.groups
    ]
    outputs = [
        Node(f'out{k}', (f'output {k}', str(v.aval.shape)), 'output', 'data', details.data(v))
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


def _kinds_of_uses(graph: Graph, influence: Influence) -> list[str]:
    """The kind of box of each op."""
    relations = relations_by_use(graph)

    def kind(u: int) -> str:
        if op_name(u) not in influence.leading:
            return 'readout'
        if not influence.is_by_unit:  # a rule that keeps the whole state, or nothing at all
            return 'traced' if influence.has_traces else 'untraced'
        if u not in relations:
            return 'untraced'
        return 'partly' if _is_partial(graph.analysis, u, relations[u]) else 'traced'

    return [kind(u) for u in range(len(graph.analysis.uses))]


def _is_partial(analysis: Analysis, use: int, relation: Relation) -> bool:
    """Whether the output of a traced op also reaches a state of its groups in a mixed way."""
    seed = analysis.seed(use)
    states = [analysis.dep(new) for group in relation.groups for new in group.outvars]
    return any(seed in dep.live and bool(dep.mixed >> seed & 1) for dep in states)


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
