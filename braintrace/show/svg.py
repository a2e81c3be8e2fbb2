"""Boxes and ways as an SVG image that stands alone, light or dark as the reader has it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .boxes import INKS, LINE, LOOKS, Edge, Ink, Look, Node, explained_boxes, explained_ways
from .placing import Placed, Segment, place, route

FONT = 'ui-monospace, Menlo, Consolas, monospace'
LEGEND_LINE = 19
LEAST_WIDTH = 430  # the legend needs it


def svg(nodes: Sequence[Node], edges: Sequence[Edge], with_legend: bool = True) -> str:
    """An SVG image. Boxes and ways tell more when pointed at."""
    placed = place(nodes, edges)
    explained = _legend(nodes, edges, placed.height) if with_legend else []
    width, height = max(placed.width, LEAST_WIDTH), placed.height + LEGEND_LINE * len(explained)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="bt" viewBox="0 0 {width:.0f} {height:.0f}"'
        f' width="{width:.0f}" height="{height:.0f}" font-family="{FONT}" font-size="11">',
        f'<style>{style()}</style>',
        f'<defs>{"".join(map(_arrow_head, INKS))}</defs>',
        f'<rect class="bt-paper" width="{width:.0f}" height="{height:.0f}"/>',
        *[_way(e, route(e, placed), nodes) for e in sorted(edges, key=_order)],
        *[line for n in nodes for line in _box(n, placed)],
        *explained,
        '</svg>',
    ]
    return '\n'.join(line for line in lines if line)


def style() -> str:
    """The colours of boxes and ways, by day and by night."""
    day = [
        '.bt-paper{fill:#fff}.bt text{fill:#111827}.bt path{fill:none}',
        *[_of_box(kind, look.fill, look.border) for kind, look in LOOKS.items()],
        *[_of_way(kind, ink.colour) for kind, ink in INKS.items()],
    ]
    night = [
        '.bt-paper{fill:#0b1020}.bt text{fill:#e5e7eb}',
        *[_of_box(kind, look.dark_fill, look.dark_border) for kind, look in LOOKS.items()],
        *[_of_way(kind, ink.dark) for kind, ink in INKS.items()],
    ]
    return ''.join([*day, '@media(prefers-color-scheme:dark){', *night, '}'])


def _of_box(kind: str, fill: str, border: str) -> str:
    return f'.bt-box-{kind} rect{{fill:{fill};stroke:{border}}}'


def _of_way(kind: str, colour: str) -> str:
    return f'.bt-way-{kind}{{stroke:{colour}}}.bt-head-{kind}{{fill:{colour}}}'


def _order(edge: Edge) -> int:
    """What matters most is drawn last, on top."""
    return list(INKS).index(edge.kind)


def _arrow_head(kind: str) -> str:
    return (
        f'<marker id="bt-{kind}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        'markerHeight="8" markerUnits="userSpaceOnUse" orient="auto">'
        f'<polygon class="bt-head-{kind}" points="0,0 8,4 0,8"/></marker>'
    )


def _way(edge: Edge, line: Sequence[Segment], nodes: Sequence[Node]) -> str:
    if not line:
        return ''
    names = {n.name: n.lines[0] for n in nodes}
    past = ' of the step before' if edge.past else ''
    told = f'{names[edge.source]}{past} \u2192 {names[edge.target]}: {edge.ink.legend}'
    return (
        f'<path class="bt-way bt-way-{edge.kind}" data-from="{edge.source}" '
        f'data-to="{edge.target}" d="{_path(line)}" {_stroke(edge.ink)} '
        f'marker-end="url(#bt-{edge.kind})">'
        f'<title>{escape(told)}</title></path>'
    )


def _path(line: Sequence[Segment]) -> str:
    def told(segment: Segment) -> str:
        letter, points = segment
        return letter + ' '.join(f'{x:.1f} {y:.1f}' for x, y in points)

    return ' '.join(map(told, line))


def _stroke(ink: Ink) -> str:
    dashes = f' stroke-dasharray="{ink.dashes}"' if ink.dashes else ''
    return f'stroke-width="{ink.width}"{dashes}'


def _box(node: Node, placed: Placed) -> list[str]:
    box = placed.boxes[node.name]
    below = f' data-on="{placed.on_op[node.name]}"' if node.name in placed.on_op else ''
    corner = {'data': box.height / 2, 'weight': 5, 'group': 6}.get(node.shape, 2)
    more = '\n'.join(f'{word}: {text}' for word, text in node.details)
    text = [
        f'<text x="{box.middle[0]:.1f}" y="{box.y + LINE * (k + 1):.1f}" text-anchor="middle"'
        f'{_weight_of_font(node, k)}>{escape(line)}</text>'
        for k, line in enumerate(node.lines)
    ]
    return [
        f'<g class="bt-box bt-box-{node.kind}" data-node="{node.name}"{below} tabindex="0">',
        f'<title>{escape(more)}</title>' if more else '',
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
        f'height="{box.height:.1f}" rx="{corner:.0f}" stroke-width="{border_width(node)}"/>',
        *text,
        '</g>',
    ]


def _weight_of_font(node: Node, line: int) -> str:
    is_name = line == 0 and node.shape in ('weight', 'group', 'data')
    return ' font-weight="600"' if is_name else ''


def border_width(node: Node) -> int:
    return 2 if node.shape == 'group' else 1


def _legend(nodes: Sequence[Node], edges: Sequence[Edge], top: float) -> list[str]:
    """A line for each kind of box and of way, from this height on."""
    boxes = [_legend_box(kind, look) for kind, look in explained_boxes(nodes).items()]
    ways = [_legend_way(kind, ink) for kind, ink in explained_ways(edges).items()]
    return [
        f'<g transform="translate(16 {top + LEGEND_LINE * k:.0f})">{line}</g>'
        for k, line in enumerate([*boxes, *ways])
    ]


def _legend_box(kind: str, look: Look) -> str:
    return (
        f'<g class="bt-box-{kind}"><rect width="14" height="10" rx="2"/></g>'
        f'<text x="36" y="9">{escape(look.legend)}</text>'
    )


def _legend_way(kind: str, ink: Ink) -> str:
    return (
        f'<path class="bt-way-{kind}" d="M0 5L28 5" {_stroke(ink)}/>'
        f'<text x="36" y="9">{escape(ink.legend)}</text>'
    )


def sample_of_box(kind: str) -> str:
    """A small box, for a legend outside of the image."""
    return _sample(f'bt-box-{kind}', '<rect x="1" y="1" width="26" height="12" rx="3"/>')


def sample_of_way(kind: str) -> str:
    """A small piece of a way, for a legend outside of the image."""
    return _sample(f'bt-way-{kind}', f'<path d="M0 7L28 7" {_stroke(INKS[kind])}/>')


def _sample(look: str, inner: str) -> str:
    return f'<svg class="bt {look}" width="28" height="14" aria-hidden="true">{inner}</svg>'
