"""Where the boxes of a drawn graph stand and how the ways between them run.

Columns go from left to right along what happens within a step. A weight stands on top of the op
that it enters. Ways into the next column are curves; others run above all boxes, and what comes
from the step before runs back below them. Lengths are in pixels, x to the right and y downwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .boxes import Edge, Node

GAP_X, GAP_Y = 64, 16  # between columns, and between the boxes of one
MARGIN = 24
LANE = 9  # between two ways that run above or below all boxes
BEND = 8  # radius of their corners


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
    """The box and the column of each node by name, the op under each weight (`on_op`), the size of
    the whole, and for what feeds others from afar the height at which its ways run (`lanes`, by
    source and `past`)."""

    boxes: dict[str, Box]
    column: dict[str, int]
    on_op: dict[str, str]
    lanes: dict[tuple[str, bool], float]
    width: float
    height: float


Point = tuple[float, float]
Segment = tuple[str, tuple[Point, ...]]  # 'M', 'L', 'Q' or 'C' as in SVG, and its points


def place(nodes: Sequence[Node], edges: Sequence[Edge]) -> Placed:
    """Boxes in columns, the weights on top of their ops."""
    on_op = _op_of_weights(nodes, edges)
    column = _columns(nodes, edges, on_op)
    above = _lanes_needed(edges, column, on_op, past=False)
    below = _lanes_needed(edges, column, on_op, past=True)
    top = MARGIN + LANE * len(above)
    boxes = _boxes(nodes, edges, column, on_op, top)
    lowest = max(box.bottom for box in boxes.values())
    lanes: dict[tuple[str, bool], float]
    lanes = {key: MARGIN + LANE * k for k, key in enumerate(above)}
    lanes |= {key: lowest + GAP_Y + LANE * k for k, key in enumerate(below)}
    width = max(box.right for box in boxes.values()) + MARGIN
    height = max([lowest, *lanes.values()]) + MARGIN
    return Placed(boxes, column, on_op, lanes, width, height)


def _op_of_weights(nodes: Sequence[Node], edges: Sequence[Edge]) -> dict[str, str]:
    """The first op that each weight enters."""
    weights = {n.name for n in nodes if n.shape == 'weight'}
    first: dict[str, str] = {}
    for e in edges:
        if e.source in weights:
            first.setdefault(e.source, e.target)
    return first


def _columns(
    nodes: Sequence[Node], edges: Sequence[Edge], on_op: Mapping[str, str]
) -> dict[str, int]:
    """The column of each node: as far right as what it feeds allows."""
    fed: dict[str, list[str]] = {n.name: [] for n in nodes}
    for e in edges:
        if not e.past and e.source != e.target:
            fed[e.source].append(e.target)
    behind: dict[str, int] = {}  # columns that must follow

    def columns_behind(name: str, above: frozenset[str] = frozenset()) -> int:
        if name not in behind:
            above = above | {name}
            further = [columns_behind(other, above) for other in fed[name] if other not in above]
            behind[name] = 1 + max(further, default=-1)
        return behind[name]

    last = max((columns_behind(n.name) for n in nodes if n.name not in on_op), default=0)
    inputs = {n.name for n in nodes if n.kind == 'input'}
    column = {name: 0 if name in inputs else last - k for name, k in behind.items()}
    return column | {weight: column.get(op, 0) for weight, op in on_op.items()}


def _lanes_needed(
    edges: Sequence[Edge], column: Mapping[str, int], on_op: Mapping[str, str], past: bool
) -> list[tuple[str, bool]]:
    """Who feeds others from afar."""
    far = [
        (e.source, e.past)
        for e in edges
        if e.past == past and _is_far(e, column) and on_op.get(e.source) != e.target
    ]
    return list(dict.fromkeys(far))


def _is_far(edge: Edge, column: Mapping[str, int]) -> bool:
    if edge.source == edge.target:
        return False
    return edge.past or column[edge.target] != column[edge.source] + 1


def _boxes(
    nodes: Sequence[Node],
    edges: Sequence[Edge],
    column: Mapping[str, int],
    on_op: Mapping[str, str],
    top: float,
) -> dict[str, Box]:
    stacks = [_stack(n, nodes, on_op) for n in nodes if n.name not in on_op]
    columns = [
        [s for s in stacks if column[s[-1].name] == k] for k in range(1 + max(column.values()))
    ]
    tallest = max(map(_stacked_height, columns))
    boxes: dict[str, Box] = {}
    sources: dict[str, list[str]] = {n.name: [] for n in nodes}
    for e in edges:
        sources[e.target].append(e.source)

    def height_of_sources(stack: Sequence[Node]) -> float:
        placed = [boxes[s].y for s in sources[stack[-1].name] if s in boxes]
        return float(np.mean(placed or [0.0]))

    x = float(MARGIN)
    for members in columns:
        width = max((n.width for stack in members for n in stack), default=0)
        y = top + GAP_Y + (tallest - _stacked_height(members)) / 2
        for stack in sorted(members, key=height_of_sources):
            for n in stack:
                boxes[n.name] = Box(x, y, width, n.height)
                y += n.height
            y += GAP_Y
        x += width + GAP_X
    return boxes


def _stack(node: Node, nodes: Sequence[Node], on_op: Mapping[str, str]) -> list[Node]:
    """A node and the weights on top of it."""
    return [*[n for n in nodes if on_op.get(n.name) == node.name], node]


def _stacked_height(column: Sequence[Sequence[Node]]) -> float:
    return sum(sum(n.height for n in stack) + GAP_Y for stack in column)


def route(edge: Edge, placed: Placed) -> list[Segment]:
    """The line of an edge; empty for a weight that stands on its op."""
    source, target = placed.boxes[edge.source], placed.boxes[edge.target]
    if placed.on_op.get(edge.source) == edge.target:
        return []
    if edge.source == edge.target:
        return _to_itself(source)
    if (edge.source, edge.past) not in placed.lanes or not _is_far(edge, placed.column):
        return _forwards(source, target)
    lane = placed.lanes[edge.source, edge.past]
    return list(_around(source, target, lane, edge.past))


def _forwards(source: Box, target: Box) -> list[Segment]:
    start, end = source.middle[1], target.middle[1]
    bend = max((target.x - source.right) / 2, 20)
    curve = (source.right + bend, start), (target.x - bend, end), (target.x, end)
    return [('M', ((source.right, start),)), ('C', curve)]


def _to_itself(box: Box) -> list[Segment]:
    start, end, high = box.x + box.width * 0.72, box.x + box.width * 0.28, box.y - 24
    return [('M', ((start, box.y),)), ('C', ((start, high), (end, high), (end, box.y)))]


def _around(source: Box, target: Box, lane: float, past: bool) -> Iterator[Segment]:
    """To a lane, along it to the gap before the target, and into its left side."""
    down = target.x - GAP_X * (0.42 if past else 0.62)
    end = target.middle[1]
    if past:
        start = source.middle[0]
        yield 'M', ((start, source.bottom),)
    else:
        start = source.right + GAP_X * 0.3
        yield 'M', ((source.right, source.middle[1]),)
        yield from _corner((start, source.middle[1]), (-1, 0), (0, _sign(lane, source.middle[1])))
    vertical = _sign(lane, source.middle[1])
    along = _sign(down, start)
    yield from _corner((start, lane), (0, -vertical), (along, 0))
    yield from _corner((down, lane), (-along, 0), (0, _sign(end, lane)))
    yield from _corner((down, end), (0, -_sign(end, lane)), (1, 0))
    yield 'L', ((target.x, end),)


def _sign(a: float, b: float) -> int:
    return 1 if a > b else -1


def _corner(at: Point, before: tuple[int, int], after: tuple[int, int]) -> Iterator[Segment]:
    """A line to shortly before a corner, and round it; `before` and `after` point away from it."""
    yield 'L', ((at[0] + BEND * before[0], at[1] + BEND * before[1]),)
    yield 'Q', (at, (at[0] + BEND * after[0], at[1] + BEND * after[1]))
