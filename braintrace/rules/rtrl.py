"""RTRL: the whole of J. Exact for any model; a window of about n steps brings the price from n^4 to
n^3 a step (Schmidhuber 1992).

    J_b = Phi J_a + M        Phi = d h_b / d h_a,  M = d h_b / d theta at fixed h_a

both by one pull through the window for each element of the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import jax.numpy as jnp

from ..engine.window import Window
from ..graph.samples import sample_axes
from ..plan.kept import Passage
from ..plan.keys import TRACE, trace_type
from ..plan.layout import Layout
from .carrier import Carrier, Contribution, Entry, Traces
from .list_trace import AtEdge, ListTrace, OneCredit, read_and_renewed_of_one
from .neighbourhoods import all_elements
from .sample_state import SampleState
from .whole_state import FloatParam, WholeState


def rtrl(layout: Layout) -> Carrier:
    """The whole of J, sample by sample where the samples of a batch are independent."""
    if sample_axes(layout.graph.analysis) is not None:
        return RtrlOfSamples(layout)
    return Rtrl(layout)


@dataclass(frozen=True, eq=False)
class Rtrl(Carrier):
    """`dh/dtheta` for every float element of the state and every parameter."""

    layout: Layout
    mixes_states: ClassVar[bool] = False

    @cached_property
    def state(self) -> WholeState:
        return WholeState(self.layout.graph)

    @cached_property
    def params(self) -> list[FloatParam]:
        return self.state.params(TRACE)

    def init(self) -> Traces:
        n = self.state.size
        avals = {p.key: p.var.aval for p in self.params}
        return {k: jnp.zeros((n, *a.shape), trace_type(a.dtype)) for k, a in avals.items()}

    def read(self, traces: Traces, entry: Entry) -> Contribution:
        lam = self.state.credit_row(self.state.of_entry(entry))
        met = {p.number: jnp.tensordot(lam, traces[p.key], 1) for p in self.params}
        return self.state.to_params(
            {p.number: met[p.number].astype(p.var.aval.dtype) for p in self.params}
        )

    def advance(self, traces: Traces, window: Window) -> Traces:
        Phi, M = self.state.influence(window, self.params)
        new: Traces = {}
        for p, m in zip(self.params, M, strict=True):
            J = m + jnp.tensordot(Phi, traces[p.key], 1)
            new[p.key] = J.astype(traces[p.key].dtype)
        return new

    def loses(self, way: Passage) -> str | None:
        return None


@dataclass(frozen=True, eq=False)
class RtrlOfSamples(Carrier):
    """`dh/dw` for every element of a sample's state and every use of a weight, for each sample of a
    batch."""

    layout: Layout
    mixes_states: ClassVar[bool] = False

    @cached_property
    def state(self) -> SampleState:
        return SampleState(self.layout.graph)

    @property
    def window_step_bytes(self) -> int:
        return self.state.bytes_of_a_step

    @cached_property
    def _kept(self) -> list[ListTrace]:
        """The trace of each use, on all elements of the state."""
        n = self.state.size_of_one
        return [ListTrace(u, all_elements(n, u)) for u in self.state.uses]

    def init(self) -> Traces:
        return {kept.use.key: kept.init() for kept in self._kept}

    def read(self, traces: Traces, entry: Entry) -> Contribution:
        lam = self.state.rows(self.state.of_entry(entry))
        weights = [kept.read_state(lam, traces[kept.use.key]) for kept in self._kept]
        return self.state.weights_to_params(weights, entry.captured, entry.params)

    def advance(self, traces: Traces, window: Window) -> Traces:
        Phi, dys, xs = self.state.influence_of_uses(window)
        new: Traces = {}
        for kept, dy, x in zip(self._kept, dys, xs, strict=True):
            e = traces[kept.use.key]
            new[kept.use.key] = kept.renewed_together(Phi, e, x, jnp.moveaxis(dy, 0, 1))
        return new

    def read_and_advance(
        self, traces: Traces, entry: Entry, window: Window
    ) -> tuple[Contribution, Traces]:
        lam = self.state.rows(self.state.of_entry(entry))
        Phi, dys, xs = self.state.influence_of_uses(window)
        weights: dict[int, Any] = {}
        new: Traces = {}
        for uses in self.state.uses_of_one_credit:
            at_edge = [AtEdge(self._kept[n], traces[self._kept[n].use.key], xs[n]) for n in uses]
            credit = OneCredit(lam, Phi, jnp.moveaxis(dys[uses[0]], 0, 1))
            made = read_and_renewed_of_one(at_edge, credit)
            for n, (met, renewed) in zip(uses, made, strict=True):
                weights[n], new[self._kept[n].use.key] = met, renewed
        in_order = [weights[n] for n in range(len(weights))]
        return self.state.weights_to_params(in_order, entry.captured, entry.params), new

    def loses(self, way: Passage) -> str | None:
        return self.state.lost_outside_uses(way)
