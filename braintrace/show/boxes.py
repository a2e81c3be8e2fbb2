"""A graph as boxes and curves on a plane: what the boxes are, where they stand, how the curves run.

Lengths are in pixels, x to the right and y downwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np


class Look(NamedTuple):
    """The colours of a kind of box, and what the legend says about it."""

    fill: str
    border: str
    legend: str


LOOKS = {
    'input': Look('#f3f4f6', '#6b7280', 'input'),
    'group': Look('#dbeafe', '#1d4ed8', 'hidden group'),
    'traced': Look('#dcfce7', '#15803d', 'traced'),
    'partly': Look('#fef9c3', '#a16207', 'traced in part, the rest in-window'),
    'untraced': Look(
        '#fee2e2', '#b91c1c', 'reaches the state without a trace: in-window gradient only'
    ),
    'readout': Look('#f3e8ff', '#7e22ce', 'read-out: needs no trace'),
    'output': Look('#f3f4f6', '#6b7280', 'output'),
}
WITHOUT_LEGEND = ('input', 'output')

CHARACTER, LINE = 6.7, 15  # width of a character and height of a line
PADDING_X, PADDING_Y = 16, 8  # of the text in its box
GAP_X, GAP_Y = 60, 14  # between columns, and between the boxes of one
MARGIN = 20
LEGEND_LINE = 16
LEAST_WIDTH = 430  # the legend needs it


class Node(NamedTuple):
    """A box: `kind` is a key of `LOOKS`, `shape` one of 'data', 'group', 'weight', 'op'."""

    name: str
    lines: tuple[str, ...]
    kind: str
    shape: str

    @property
    def look(self) -> Look:
        return LOOKS[self.kind]

    @property
    def width(self) -> float:
        """What the text needs."""
        return CHARACTER * max(map(len, self.lines)) + PADDING_X

    @property
    def height(self) -> float:
        """What the text needs."""
        return LINE * len(self.lines) + PADDING_Y


class Edge(NamedTuple):
    """Who feeds whom: `past` with the value of the step before, `traced` if a trace follows."""

    source: str
    target: str
    past: bool = False
    traced: bool = False


class Box(NamedTuple):
    """The place of a node: its upper left corner and its size."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height

    @property
    def middle(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y + self.height / 2


class Placed(NamedTuple):
    """The box of each node by name, and the size of the whole with its legend."""

    boxes: dict[str, Box]
    width: float
    height: float


Point = tuple[float, float]


def legend(nodes: Sequence[Node]) -> list[Look]:
    """What the legend explains: the kinds that occur, but for inputs and outputs."""
    used = {n.kind for n in nodes}
    return [LOOKS[kind] for kind in LOOKS if kind in used and kind not in WITHOUT_LEGEND]


def place(nodes: Sequence[Node], edges: Sequence[Edge]) -> Placed:
    """Boxes in columns from left to right, along what happens within a step."""
    sources = _sources_within_step(nodes, edges)
    column = _columns(nodes, edges, sources)
    columns = [[n for n in nodes if column[n.name] == k] for k in range(max(column.values()) + 1)]
    tallest = max(map(_stacked_height, columns))
    boxes: dict[str, Box] = {}

    def height_of_sources(node: Node) -> float:
        placed = [boxes[source].y for source in sources[node.name] if source in boxes]
        return float(np.mean(placed or [0.0]))

    x = float(MARGIN)
    for members in columns:
        width = max((n.width for n in members), default=0)
        y = MARGIN + (tallest - _stacked_height(members)) / 2
        for n in sorted(members, key=height_of_sources):
            boxes[n.name] = Box(x, y, width, n.height)
            y += n.height + GAP_Y
        x += width + GAP_X
    height = tallest + 50 + LEGEND_LINE * len(legend(nodes))
    return Placed(boxes, max(x - GAP_X + MARGIN, LEAST_WIDTH), height)


def _stacked_height(column: Sequence[Node]) -> float:
    return sum(n.height + GAP_Y for n in column)


def _sources_within_step(nodes: Sequence[Node], edges: Sequence[Edge]) -> dict[str, list[str]]:
    """By node, the others that feed it in the same step."""
    sources: dict[str, list[str]] = {n.name: [] for n in nodes}
    for e in edges:
        if not e.past and e.source != e.target:
            sources[e.target].append(e.source)
    return sources


def _columns(
    nodes: Sequence[Node], edges: Sequence[Edge], sources: Mapping[str, Sequence[str]]
) -> dict[str, int]:
    """The column of each node: right of all that feeds it."""
    column: dict[str, int] = {}

    def depth(name: str, above: frozenset[str] = frozenset()) -> int:
        if name not in column:
            above = above | {name}
            before = [depth(source, above) for source in sources[name] if source not in above]
            column[name] = 1 + max(before, default=-1)
        return column[name]

    for n in nodes:
        depth(n.name)

    # Weights, biases and inputs stand right before what they feed.
    free = [n.name for n in nodes if all(s.startswith('w') for s in sources[n.name])]
    for name in sorted(free, key=lambda name: -column[name]):
        fed = [column[e.target] for e in edges if e.source == name and not e.past]
        column[name] = min(fed, default=1) - 1
    return column


def curve(edge: Edge, boxes: Mapping[str, Box]) -> list[Point]:
    """The four points of the Bezier curve of an edge.

    It runs from the right side of one box to the left side of another. What comes from the step
    before goes back underneath.
    """
    source, target = boxes[edge.source], boxes[edge.target]
    if target.x > source.x:
        return _forwards(source, target)
    if edge.source == edge.target:
        return _to_itself(source)
    low = max(source.bottom, target.bottom) + 30
    start, end = source.middle[0], target.middle[0]
    return [(start, source.bottom), (start, low), (end, low), (end, target.bottom)]


def _forwards(source: Box, target: Box) -> list[Point]:
    start, end = source.middle[1], target.middle[1]
    bend = max((target.x - source.x - source.width) / 2, 20)
    return [
        (source.right, start),
        (source.right + bend, start),
        (target.x - bend, end),
        (target.x, end),
    ]


def _to_itself(box: Box) -> list[Point]:
    start, end, low = box.x + box.width * 0.7, box.x + box.width * 0.3, box.bottom + 26
    return [(start, box.bottom), (start, low), (end, low), (end, box.bottom)]
