"""The parts of a drawn graph: boxes, the ways between them, their colours and the legend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Look(NamedTuple):
    """The colours of a kind of box, by day and by night, and what the legend says about it."""

    fill: str
    border: str
    dark_fill: str
    dark_border: str
    legend: str


LOOKS = {
    'input': Look('#f3f4f6', '#6b7280', '#1f2937', '#9ca3af', 'input'),
    'group': Look('#dbeafe', '#1d4ed8', '#172554', '#60a5fa', 'hidden group'),
    'traced': Look('#dcfce7', '#15803d', '#052e16', '#4ade80', 'weight with a trace'),
    'partly': Look(
        '#fef9c3', '#a16207', '#3a2c06', '#facc15', 'traced in part, the rest in-window'
    ),
    'untraced': Look(
        '#fee2e2',
        '#b91c1c',
        '#450a0a',
        '#f87171',
        'reaches the state without a trace: in-window gradient only',
    ),
    'readout': Look('#f3e8ff', '#7e22ce', '#3b0764', '#c084fc', 'read-out: needs no trace'),
    'output': Look('#f3f4f6', '#6b7280', '#1f2937', '#9ca3af', 'output'),
}
WITHOUT_LEGEND = ('input', 'output')


class Ink(NamedTuple):
    """How the ways of a kind are drawn, by day and by night, and what the legend says of them."""

    colour: str
    dark: str
    width: float
    dashes: str
    legend: str


INKS = {
    'plain': Ink('#9ca3af', '#6b7280', 1.2, '', 'feeds, in the same step'),
    'past': Ink('#1d4ed8', '#60a5fa', 1.2, '5 3', 'value of the step before'),
    'traced': Ink('#15803d', '#4ade80', 2.2, '', 'a trace follows this way'),
    'dropped': Ink('#dc2626', '#f87171', 1.6, '2 3', 'dropped or only estimated'),
}

CHARACTER, LINE = 6.7, 15  # width of a character and height of a line
PADDING_X, PADDING_Y = 18, 8  # of the text in its box


class Node(NamedTuple):
    """A box: `kind` is a key of `LOOKS`, `shape` one of 'data', 'group', 'weight', 'op'. `details`
    are pairs of a word and a text about it, for those who ask."""

    name: str
    lines: tuple[str, ...]
    kind: str
    shape: str
    details: tuple[tuple[str, str], ...] = ()

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
    """Who feeds whom: `past` with the value of the step before, `traced` if a trace follows,
    `dropped` if influence that goes this way has to be carried on and no trace follows it."""

    source: str
    target: str
    past: bool = False
    traced: bool = False
    dropped: bool = False

    @property
    def kind(self) -> str:
        """A key of `INKS`."""
        if self.dropped:
            return 'dropped'
        if self.traced:
            return 'traced'
        return 'past' if self.past else 'plain'

    @property
    def ink(self) -> Ink:
        return INKS[self.kind]


def explained_boxes(nodes: Sequence[Node]) -> dict[str, Look]:
    """What the legend explains of boxes: the kinds that occur, but for inputs and outputs."""
    used = {n.kind for n in nodes}
    return {k: v for k, v in LOOKS.items() if k in used and k not in WITHOUT_LEGEND}


def explained_ways(edges: Sequence[Edge]) -> dict[str, Ink]:
    """What the legend explains of ways: the kinds that occur."""
    used = {e.kind for e in edges}
    return {k: v for k, v in INKS.items() if k in used}
