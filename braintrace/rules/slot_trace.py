"""How the trace of one slot is kept: a weight, and the units it feeds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..engine.entries import Entries, whole
from ..engine.loop import stacked
from ..engine.window import Window
from ..graph.samples import Samples
from ..ops.axes import FEW_STATES, Op, beside, decay, outer_by_state, read
from ..plan.keys import TraceKey, trace_type
from ..plan.layout import Layout, Slot
from .backwards import Backwards
from .carrier import Traces


class SlotTrace(ABC):
    """The trace of one slot, in the form that it is kept in."""

    @abstractmethod
    def init(self) -> Traces:
        """Zero influence."""

    @abstractmethod
    def sample_axes(self, samples: Samples) -> dict[TraceKey, int | None]:
        """The axis of samples of each array that is kept, None for one without."""

    @abstractmethod
    def read(self, traces: Traces, lam: jax.Array, ops: Sequence[Op]) -> Any:
        """What credit of the units, `(states, *units)`, gives: a gradient of the weight."""

    @abstractmethod
    def advance(self, traces: Traces | None, window: Window, back: Backwards) -> Traces:
        """The trace at the end of a window; `traces` is None where nothing came before."""


@dataclass(frozen=True, eq=False)
class WholeTrace(SlotTrace):
    """All of it, `(states, *trace)`: `e_b = Q e_a + sum_k x_k (x) (Q_k df_k)`.

    Args:
        layout: the plan.
        slot: the weight and its units.
        dtype: of the trace.
    """

    layout: Layout
    slot: Slot
    dtype: np.dtype

    def init(self) -> Traces:
        states = self.layout.units[self.slot.group].states
        return {self.slot.key: jnp.zeros((states, *self.slot.shape), self.dtype)}

    def sample_axes(self, samples: Samples) -> dict[TraceKey, int | None]:
        return {self.slot.key: self.layout.sample_axis_of_trace(self.slot.relation, samples)}

    def read(self, traces: Traces, lam: jax.Array, ops: Sequence[Op]) -> Any:
        at_y, e = alike(self.slot.feeds[0].at_y(lam), traces[self.slot.key])
        return read(ops[self.slot.relation], at_y, e)

    def advance(self, traces: Traces | None, window: Window, back: Backwards) -> Traces:
        s = self.slot
        rows: list[Any] = [0] * self.layout.units[s.group].states
        if traces is not None:
            rows = self._moved_on(traces[s.key], window.ops[s.relation], back.Q_entry)
        for f in s.feeds:
            op = window.ops[f.relation]
            df = window.factors.least_slopes(f.relation, s.group, f.unit)
            arrived = [a if op.plain else f.at_all(a) for a in back.arrived(f, df)]
            arrived = [a.astype(trace_type(a.dtype)) for a in arrived]
            added = outer_by_state(op, window.operands[f.relation], arrived)
            rows = [row + more for row, more in zip(rows, added, strict=True)]
        e = stacked([jnp.broadcast_to(row, s.shape) for row in rows])
        return {s.key: e.astype(self.dtype)}

    def _moved_on(self, e: jax.Array, op: Op, Q: Entries) -> list[Any]:
        """`Q e`, state by state."""
        [f, *_] = self.slot.feeds
        if len(e) > FEW_STATES:
            units = self.layout.units[self.slot.group]
            dense = whole(Q, units.shape, 0, units.dtype)
            return list(decay(op, *alike(f.at_y(dense), e)))

        def of_state(row: list[Any]) -> Any:
            ways = [alike(f.at_all(f.at_y(q)), e[b]) for b, q in enumerate(row) if q is not None]
            return reduce(jnp.add, [beside(op, q) * old for q, old in ways])

        return [of_state(row) for row in Q]


def alike(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two arrays in the more precise of their types."""
    dtype = jnp.promote_types(a.dtype, b.dtype)
    return a.astype(dtype), b.astype(dtype)
