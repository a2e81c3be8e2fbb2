"""No carrier: J = 0 at every window's entry. Truncated BPTT, or BPTT when the window is the sequence."""

from __future__ import annotations

from dataclasses import dataclass

from ..plan.layout import Layout
from .carrier import Contribution, Credit, Entry, Traces


@dataclass(frozen=True, eq=False)
class Nothing:
    """Nothing crosses the edge of a window."""

    layout: Layout

    def init(self) -> Traces:
        return {}

    def block(self, traces: Traces | None, window, credit: Credit, steps, keep: bool):
        raise NotImplementedError("BPTT has no single-step form: use vjp_method='multi-step'.")

    def read(self, traces: Traces, credit: Entry) -> Contribution:
        return Contribution()

    def advance(self, traces: Traces, window) -> Traces:
        return {}
