"""Pictures: the compiled model as hidden groups, weights and ops; the state of the traces as an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

import numpy as np

from .._jax import Var, source_line
from ..graph.etrace_graph import ETraceGraph
from ..graph.relations import Origin

# kind of node -> (fill, border, what the legend says)
KINDS = {
    'input': ('#f3f4f6', '#6b7280', 'input'),
    'group': ('#dbeafe', '#1d4ed8', 'hidden group'),
    'traced': ('#dcfce7', '#15803d', 'traced'),
    'partly': ('#fef9c3', '#a16207', 'traced in part, the rest in-window'),
    'untraced': (
        '#fee2e2',
        '#b91c1c',
        'reaches the state without a trace: in-window gradient only',
    ),
    'readout': ('#f3e8ff', '#7e22ce', 'read-out: needs no trace'),
    'output': ('#f3f4f6', '#6b7280', 'output'),
}
ROUND = ('input', 'output')
CHAR, LINE, GAP = 6.7, 15, 14  # of the text, in pixels


class Node(NamedTuple):
    """A box: `kind` is one of KINDS, `shape` one of 'data', 'group', 'weight', 'op'."""

    name: str
    lines: tuple[str, ...]
    kind: str
    shape: str


class Edge(NamedTuple):
    """Who feeds whom; `past` means with the value of the step before, `traced` that the trace follows this way."""

    source: str
    target: str
    past: bool = False
    traced: bool = False


@dataclass(frozen=True)
class Picture:
    """A drawn graph. Notebooks show it; `mermaid()` and `svg()` are text, `matplotlib()` a figure."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]

    def mermaid(self) -> str:
        """A mermaid flowchart."""
        ends = {'data': ('([', '])'), 'group': ('[[', ']]'), 'weight': ('(', ')'), 'op': ('[', ']')}
        out = ['flowchart LR']
        for n in self.nodes:
            left, right = ends[n.shape]
            text = '<br/>'.join(
                line.replace('"', '#quot;').replace('<', '#lt;') for line in n.lines
            )
            out.append(f'    {n.name}{left}"{text}"{right}:::{n.kind}')
        for e in self.edges:
            arrow = '-. "t-1" .->' if e.past else '==>' if e.traced else '-->'
            out.append(f'    {e.source} {arrow} {e.target}')
        used = {n.kind for n in self.nodes}
        return '\n'.join(
            [
                *out,
                *[
                    f'    classDef {k} fill:{fill},stroke:{border},color:#111827'
                    for k, (fill, border, _) in KINDS.items()
                    if k in used
                ],
            ]
        )

    def svg(self) -> str:
        """An SVG image that stands alone."""
        boxes, width, height = _place(self.nodes, self.edges)
        out = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" '
            'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="11">',
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0L8 4L0 8z" fill="#4b5563"/></marker></defs>',
            f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>',
        ]
        for e in self.edges:
            points = ' '.join(
                f'{"MC"[k == 1] if k < 2 else ""}{x:.1f} {y:.1f}'
                for k, (x, y) in enumerate(_curve(e, boxes))
            )
            stroke = (
                'stroke="#1d4ed8" stroke-dasharray="4 3"'
                if e.past
                else 'stroke="#15803d" stroke-width="1.8"'
                if e.traced
                else 'stroke="#4b5563"'
            )
            out.append(f'<path d="{points}" fill="none" {stroke} marker-end="url(#head)"/>')
        for n in self.nodes:
            x, y, w, h = boxes[n.name]
            fill, border, _ = KINDS[n.kind]
            round_ = h / 2 if n.shape == 'data' else 7 if n.shape == 'weight' else 1
            out.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" rx="{round_:.0f}" fill="{fill}" stroke="{border}" '
                f'stroke-width="{2 if n.shape == "group" else 1}"/>'
            )
            out += [
                f'<text x="{x + w / 2:.1f}" y="{y + LINE * (k + 1):.1f}" text-anchor="middle" fill="#111827">{escape(line)}</text>'
                for k, line in enumerate(n.lines)
            ]
        for k, kind in enumerate(_legend(self.nodes)):
            fill, border, told = KINDS[kind]
            y = height - 16 * (len(_legend(self.nodes)) - k)
            out.append(
                f'<rect x="10" y="{y - 9:.0f}" width="10" height="10" fill="{fill}" stroke="{border}"/>'
                f'<text x="26" y="{y:.0f}" fill="#374151">{escape(told)}</text>'
            )
        return '\n'.join([*out, '</svg>'])

    _repr_svg_ = svg

    def matplotlib(self) -> Any:
        """The same as a matplotlib figure."""
        from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
        from matplotlib.path import Path

        boxes, width, height = _place(self.nodes, self.edges)
        figure = new_figure(max(width / 95, 3), max(height / 95, 2))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, width), ylim=(height, 0))
        axes.axis('off')
        for e in self.edges:
            colour = '#1d4ed8' if e.past else '#15803d' if e.traced else '#4b5563'
            path = Path(_curve(e, boxes), [Path.MOVETO, *[Path.CURVE4] * 3])
            axes.add_patch(
                FancyArrowPatch(
                    path=path,
                    arrowstyle='-|>',
                    mutation_scale=8,
                    color=colour,
                    linestyle='--' if e.past else '-',
                    fill=False,
                )
            )
        for n in self.nodes:
            x, y, w, h = boxes[n.name]
            fill, border, _ = KINDS[n.kind]
            style = (
                'round,pad=0,rounding_size=6' if n.shape in ('data', 'weight') else 'square,pad=0'
            )
            axes.add_patch(
                FancyBboxPatch(
                    (x, y),
                    w,
                    h,
                    boxstyle=style,
                    facecolor=fill,
                    edgecolor=border,
                    linewidth=2 if n.shape == 'group' else 1,
                )
            )
            axes.text(
                x + w / 2,
                y + h / 2,
                '\n'.join(n.lines),
                ha='center',
                va='center',
                family='monospace',
                fontsize=7,
            )
        return figure


def draw(graph: ETraceGraph) -> Picture:
    """The compiled model as a picture: inputs, weights, the ops they enter, hidden groups and outputs, and who feeds whom.

    Args:
        graph: of a learner (`learner.graph`) or from `compile_etrace_graph`.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> from braintrace.show.picture import draw
        >>> leaky = lambda p, h, x: (0.9 * h + x @ p['W'], h)
        >>> learner = braintrace.compile(leaky, 'd_rtrl', {'W': jnp.ones((3, 2))}, jnp.zeros(2), jnp.ones(3))
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
    if not isinstance(graph, ETraceGraph):
        raise TypeError(
            f'`draw` takes a compiled graph (`learner.graph`), got {type(graph).__name__}.'
        )
    step, uses, edges = graph.step, graph.found.uses, _edges(graph)
    traced = {id(r.use): r for r in graph.hidden_param_op_relations}
    kinds = _kinds(graph, edges)
    nodes = [
        Node(f'in{k}', (f'input {k}', v.aval.str_short()), 'input', 'data')
        for k, v in enumerate(step.input_vars)
    ]
    origin, number = Origin(step), {v: k for k, v in enumerate(step.param_vars)}
    of_leaf: dict[int, set[str]] = {}
    for u, use in enumerate(uses):
        for _, _, _, v in origin.of(use.w):
            edges.setdefault(Edge(f'w{number[v]}', f'op{u}'), None)
            of_leaf.setdefault(number[v], set()).add(kinds[u])
    for k, (leaf, v) in enumerate(zip(step.params, step.param_vars, strict=True)):
        best = next(
            (kind for kind in ('partly', 'traced', 'untraced') if kind in of_leaf.get(k, ())),
            'readout',
        )
        nodes.append(Node(f'w{k}', (leaf.name, v.aval.str_short()), best, 'weight'))
    nodes += [
        Node(f'op{u}', (use.meets.primitive.name, source_line(use.meets)), kinds[u], 'op')
        for u, use in enumerate(uses)
    ]
    nodes += [
        Node(
            f'g{g.index}',
            (f'group {g.index}: {_names(g.hidden_paths)}', str(g.varshape)),
            'group',
            'group',
        )
        for g in graph.hidden_groups
    ]
    nodes += [
        Node(f'out{k}', (f'output {k}', v.aval.str_short()), 'output', 'data')
        for k, v in enumerate(step.outs)
    ]
    follows = {
        (f'op{u}', f'g{g.index}')
        for u, use in enumerate(uses)
        if id(use) in traced
        for g in traced[id(use)].hidden_groups
    }
    order = {n.name: k for k, n in enumerate(nodes)}
    marked = [e._replace(traced=(e.source, e.target) in follows) for e in edges]
    return Picture(
        tuple(nodes),
        tuple(sorted(marked, key=lambda e: (order[e.target], order[e.source], e.past))),
    )


def _names(paths: Sequence[tuple]) -> str:
    return ', '.join('.'.join(map(str, p)) for p in paths)


def _edges(graph: ETraceGraph) -> dict[Edge, None]:
    """Who feeds whom at once: each value remembers the nearest inputs, ops and groups that it is made of."""
    step = graph.step
    old = {v: f'g{g.index}' for g in graph.hidden_groups for v in g.hidden_invars}
    new = {v: f'g{g.index}' for g in graph.hidden_groups for v in g.hidden_outvars}
    ops: dict[Var, list[str]] = {}
    for u, use in enumerate(graph.found.uses):
        for y in use.y:
            ops.setdefault(y, []).append(f'op{u}')
    made: dict[Any, frozenset[tuple[str, bool]]] = {
        v: frozenset([(f'in{k}', False)]) for k, v in enumerate(step.input_vars)
    }
    made.update({v: frozenset([(g, True)]) for v, g in old.items()})
    edges: dict[Edge, None] = {}

    def feed(sources: Any, target: str) -> None:
        edges.update(
            {Edge(s, target, past): None for s, past in sorted(sources) if past or s != target}
        )

    of = lambda a: made.get(a, frozenset()) if isinstance(a, Var) else frozenset()
    for eqn in step.jaxpr.jaxpr.eqns:
        sources = frozenset().union(*map(of, eqn.invars))
        for v in eqn.outvars:
            made[v] = sources
            for op in ops.get(v, ()):
                feed(sources, op)
            if v in ops:
                made[v] = frozenset((op, False) for op in ops[v])
            if v in new:
                feed(made[v], new[v])
                made[v] = frozenset([(new[v], False)])
    for k, v in enumerate(step.outs):
        feed(of(v), f'out{k}')
    return edges


def _kinds(graph: ETraceGraph, edges: Mapping[Edge, None]) -> list[str]:
    """The kind of each op."""
    whole = {
        id(r.use): 'mixed' not in r.path_classification.values()
        for r in graph.hidden_param_op_relations
    }
    after: dict[str, set[str]] = {}
    for e in edges:
        after.setdefault(e.source, set()).add(e.target)

    def reaches(name: str) -> bool:
        seen, todo = set(), [name]
        while todo:
            for n in after.get(todo.pop(), ()):
                if n.startswith('g'):
                    return True
                todo += [n] if n not in seen else []
                seen.add(n)
        return False

    kind = lambda u, use: (
        ('traced' if whole[id(use)] else 'partly')
        if id(use) in whole
        else 'untraced'
        if reaches(f'op{u}')
        else 'readout'
    )
    return [kind(u, use) for u, use in enumerate(graph.found.uses)]


def _legend(nodes: Sequence[Node]) -> list[str]:
    return [k for k in KINDS if k not in ROUND and any(n.kind == k for n in nodes)]


Box = tuple[float, float, float, float]


def _place(nodes: Sequence[Node], edges: Sequence[Edge]) -> tuple[dict[str, Box], float, float]:
    """A box for each node, in columns from left to right along what happens within a step, and the size of the whole."""
    before: dict[str, list[str]] = {n.name: [] for n in nodes}
    for e in edges:
        if not e.past and e.source != e.target:
            before[e.target].append(e.source)
    column: dict[str, int] = {}

    def depth(name: str, above: frozenset = frozenset()) -> int:
        if name not in column:
            column[name] = 1 + max(
                (depth(s, above | {name}) for s in before[name] if s not in above), default=-1
            )
        return column[name]

    for n in nodes:
        depth(n.name)
    free = [
        n.name for n in nodes if all(s.startswith('w') for s in before[n.name])
    ]  # weights, biases and inputs stand right before what they feed
    for name in sorted(free, key=lambda n: -column[n]):
        column[name] = (
            min((column[e.target] for e in edges if e.source == name and not e.past), default=1) - 1
        )
    columns = [[n for n in nodes if column[n.name] == k] for k in range(max(column.values()) + 1)]
    height_of = lambda n: LINE * len(n.lines) + 8
    boxes: dict[str, Box] = {}
    x = 20.0
    tallest = max(sum(height_of(n) + GAP for n in c) for c in columns)
    for members in columns:
        middle = lambda n: np.mean([boxes[s][1] for s in before[n.name] if s in boxes] or [0.0])
        members = sorted(members, key=middle)
        wide = max((CHAR * max(map(len, n.lines)) + 16 for n in members), default=0)
        y = 20 + (tallest - sum(height_of(n) + GAP for n in members)) / 2
        for n in members:
            boxes[n.name] = (x, y, wide, height_of(n))
            y += height_of(n) + GAP
        x += wide + 60
    return boxes, max(x - 40, 430), tallest + 50 + 16 * len(_legend(nodes))


def _curve(e: Edge, boxes: Mapping[str, Box]) -> list[tuple[float, float]]:
    """The four points of a Bezier curve from the right side of one box to the left of another; what comes from the past goes back underneath."""
    (x1, y1, w1, h1), (x2, y2, w2, h2) = boxes[e.source], boxes[e.target]
    if x2 > x1:
        bend = max((x2 - x1 - w1) / 2, 20)
        return [
            (x1 + w1, y1 + h1 / 2),
            (x1 + w1 + bend, y1 + h1 / 2),
            (x2 - bend, y2 + h2 / 2),
            (x2, y2 + h2 / 2),
        ]
    if e.source == e.target:
        return [
            (x1 + w1 * 0.7, y1 + h1),
            (x1 + w1 * 0.7, y1 + h1 + 26),
            (x1 + w1 * 0.3, y1 + h1 + 26),
            (x1 + w1 * 0.3, y1 + h1),
        ]
    low = max(y1 + h1, y2 + h2) + 30
    return [(x1 + w1 / 2, y1 + h1), (x1 + w1 / 2, low), (x2 + w2 / 2, low), (x2 + w2 / 2, y2 + h2)]


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure, of no window and no global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            'Pictures of this kind need matplotlib: pip install "braintrace[viz]".'
        ) from error
    return Figure(figsize=(width, height))


def picture_of_traces(traces: Mapping[str, Any], path: Any = None) -> Any:
    """The traces as images, a panel for each: the sizes of its entries, averaged over all axes but the last two.

    Args:
        traces: by name: `learner.etrace`, `learner.get_etrace_of(weight)` or the `traces` of a carry.
        path: a file to write.

    Returns:
        The matplotlib figure.
    """
    arrays = {k: np.abs(np.asarray(getattr(v, 'value', v))) for k, v in traces.items()}
    arrays = {k: a for k, a in arrays.items() if a.size and np.issubdtype(a.dtype, np.number)}
    if not arrays:
        raise ValueError(
            '`picture_of_traces`: there is no trace to show. BPTT has none, and the report of a learner says what its rule traces.'
        )
    across = min(3, len(arrays))
    down = -(-len(arrays) // across)
    figure = new_figure(4.2 * across, 3 * down)
    for k, (name, a) in enumerate(arrays.items()):
        flat = a.reshape(-1, *a.shape[-2:]).mean(0) if a.ndim > 2 else np.atleast_2d(a)
        axes = figure.add_subplot(down, across, k + 1)
        figure.colorbar(
            axes.imshow(flat, aspect='auto', interpolation='nearest', cmap='magma'), ax=axes
        )
        axes.set_title(f'{name}\n{a.shape}', fontsize=8)
    figure.tight_layout()
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure
