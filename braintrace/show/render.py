"""Boxes and ways as a mermaid flowchart and as a matplotlib figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .boxes import LOOKS, Edge, Look, Node
from .figure import new_figure
from .placing import Box, Segment, place, route
from .svg import border_width

TEXT = '#111827'
MERMAID_ENDS = {
    'data': ('([', '])'),
    'group': ('[[', ']]'),
    'weight': ('(', ')'),
    'op': ('[', ']'),
}
PIXELS_PER_INCH = 95


def mermaid(nodes: Sequence[Node], edges: Sequence[Edge]) -> str:
    """A mermaid flowchart."""
    used = {n.kind for n in nodes}
    lines = [
        'flowchart LR',
        *map(_mermaid_node, nodes),
        *map(_mermaid_edge, edges),
        *[_mermaid_class(kind, look) for kind, look in LOOKS.items() if kind in used],
    ]
    return '\n'.join(lines)


def _mermaid_node(node: Node) -> str:
    left, right = MERMAID_ENDS[node.shape]
    text = '<br/>'.join(line.replace('"', '#quot;').replace('<', '#lt;') for line in node.lines)
    return f'    {node.name}{left}"{text}"{right}:::{node.kind}'


def _mermaid_edge(edge: Edge) -> str:
    arrow = '-->'
    if edge.past:
        arrow = '-. "t-1" .->'
    elif edge.traced:
        arrow = '==>'
    return f'    {edge.source} {arrow} {edge.target}'


def _mermaid_class(kind: str, look: Look) -> str:
    return f'    classDef {kind} fill:{look.fill},stroke:{look.border},color:{TEXT}'


def matplotlib(nodes: Sequence[Node], edges: Sequence[Edge]) -> Any:
    """A matplotlib figure."""
    placed = place(nodes, edges)
    boxes, width, height = placed.boxes, placed.width, placed.height
    figure = new_figure(max(width / PIXELS_PER_INCH, 3), max(height / PIXELS_PER_INCH, 2))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis('off')
    lines = [(e, route(e, placed)) for e in edges]
    for e, line in lines:
        if line:
            axes.add_patch(_arrow(e, line))
    for n in nodes:
        axes.add_patch(_frame(n, boxes[n.name]))
        axes.text(
            *boxes[n.name].middle,
            '\n'.join(n.lines),
            ha='center',
            va='center',
            family='monospace',
            fontsize=7,
        )
    return figure


def _arrow(edge: Edge, line: Sequence[Segment]) -> Any:
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    codes = {'M': Path.MOVETO, 'L': Path.LINETO, 'Q': Path.CURVE3, 'C': Path.CURVE4}
    return FancyArrowPatch(
        path=Path(
            [point for _, points in line for point in points],
            [codes[letter] for letter, points in line for _ in points],
        ),
        arrowstyle='-|>',
        mutation_scale=8,
        color=edge.ink.colour,
        linewidth=edge.ink.width,
        linestyle='--' if edge.ink.dashes else '-',
        fill=False,
    )


def _frame(node: Node, box: Box) -> Any:
    from matplotlib.patches import FancyBboxPatch

    is_round = node.shape in ('data', 'weight')
    return FancyBboxPatch(
        (box.x, box.y),
        box.width,
        box.height,
        boxstyle='round,pad=0,rounding_size=6' if is_round else 'square,pad=0',
        facecolor=node.look.fill,
        edgecolor=node.look.border,
        linewidth=border_width(node),
    )
