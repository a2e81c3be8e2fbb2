"""BPTT: nothing is carried, `J = 0` at every window's entry. Truncated, unless the window is the
sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..engine.window import Window
from ..plan.kept import Passage
from ..plan.layout import Layout
from .carrier import Carrier, Contribution, Entry, Traces


@dataclass(frozen=True, eq=False)
class Bptt(Carrier):
    """Nothing crosses the edge of a window."""

    layout: Layout
    whole_sequence: ClassVar[bool] = True
    mixes_states: ClassVar[bool] = False

    def init(self) -> Traces:
        return {}

    def read(self, traces: Traces, entry: Entry) -> Contribution:
        return Contribution()

    def advance(self, traces: Traces, window: Window) -> Traces:
        return {}

    def loses(self, way: Passage) -> str | None:
        return None if way.new is None else 'nothing crosses the edge of a window'
