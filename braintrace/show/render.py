"""Boxes and curves as a mermaid flowchart, as an SVG image and as a matplotlib figure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from .boxes import LEGEND_LINE, LINE, LOOKS, Box, Edge, Look, Node, Point, curve, legend, place
from .figure import new_figure

PLAIN, PAST, TRACED = '#4b5563', '#1d4ed8', '#15803d'  # colours of the edges
TEXT, LEGEND_TEXT = '#111827', '#374151'
FONT = 'ui-monospace, Menlo, Consolas, monospace'
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


def svg(nodes: Sequence[Node], edges: Sequence[Edge]) -> str:
    """An SVG image that stands alone."""
    boxes, width, height = place(nodes, edges)
    explained = legend(nodes)
    lines = [
        *_svg_head(width, height),
        *[_svg_edge(e, curve(e, boxes)) for e in edges],
        *[line for n in nodes for line in _svg_node(n, boxes[n.name])],
        *[
            _svg_legend(look, height - LEGEND_LINE * (len(explained) - k))
            for k, look in enumerate(explained)
        ],
        '</svg>',
    ]
    return '\n'.join(lines)


def _svg_head(width: float, height: float) -> list[str]:
    size = f'width="{width:.0f}" height="{height:.0f}"'
    image = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" {size} '
        f'font-family="{FONT}" font-size="11">'
    )
    arrow_head = (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="{PLAIN}"/></marker></defs>'
    )
    return [image, arrow_head, f'<rect {size} fill="white"/>']


def _svg_edge(edge: Edge, points: Sequence[Point]) -> str:
    start, *others = [f'{x:.1f} {y:.1f}' for x, y in points]
    stroke = f'stroke="{PLAIN}"'
    if edge.past:
        stroke = f'stroke="{PAST}" stroke-dasharray="4 3"'
    elif edge.traced:
        stroke = f'stroke="{TRACED}" stroke-width="1.8"'
    path = f'M{start} C{" ".join(others)}'
    return f'<path d="{path}" fill="none" {stroke} marker-end="url(#head)"/>'


def _svg_node(node: Node, box: Box) -> list[str]:
    x, y, width, height = box
    corner = {'data': height / 2, 'weight': 7}.get(node.shape, 1)
    frame = (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'rx="{corner:.0f}" fill="{node.look.fill}" stroke="{node.look.border}" '
        f'stroke-width="{_border_width(node)}"/>'
    )
    text = [
        f'<text x="{box.middle[0]:.1f}" y="{y + LINE * (k + 1):.1f}" '
        f'text-anchor="middle" fill="{TEXT}">{escape(line)}</text>'
        for k, line in enumerate(node.lines)
    ]
    return [frame, *text]


def _svg_legend(look: Look, y: float) -> str:
    return (
        f'<rect x="10" y="{y - 9:.0f}" width="10" height="10" fill="{look.fill}" '
        f'stroke="{look.border}"/><text x="26" y="{y:.0f}" '
        f'fill="{LEGEND_TEXT}">{escape(look.legend)}</text>'
    )


def _border_width(node: Node) -> int:
    return 2 if node.shape == 'group' else 1


def matplotlib(nodes: Sequence[Node], edges: Sequence[Edge]) -> Any:
    """A matplotlib figure."""
    boxes, width, height = place(nodes, edges)
    figure = new_figure(max(width / PIXELS_PER_INCH, 3), max(height / PIXELS_PER_INCH, 2))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis('off')
    for e in edges:
        axes.add_patch(_arrow(e, curve(e, boxes)))
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


def _arrow(edge: Edge, points: Sequence[Point]) -> Any:
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    colour = PLAIN
    if edge.past:
        colour = PAST
    elif edge.traced:
        colour = TRACED
    return FancyArrowPatch(
        path=Path(points, [Path.MOVETO, *[Path.CURVE4] * 3]),
        arrowstyle='-|>',
        mutation_scale=8,
        color=colour,
        linestyle='--' if edge.past else '-',
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
        linewidth=_border_width(node),
    )
