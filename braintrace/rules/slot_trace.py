"""How the trace of one slot is kept: a weight, and the units it feeds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..engine.window import Window
from ..graph.samples import Samples
from ..ops.axes import Op, decay, outer, read
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
        e: Any = 0
        if traces is not None:
            Q, before = alike(s.feeds[0].at_all(s.feeds[0].at_y(back.Q_entry)), traces[s.key])
            e = decay(window.ops[s.relation], Q, before)
        for f in s.feeds:
            op = window.ops[f.relation]
            arrived = back.arrived(f, window.factors.least_slope(f.relation, s.group, f.unit))
            arrived = arrived.astype(trace_type(arrived.dtype))
            arrived = arrived if op.plain else f.at_all(arrived)
            e = e + outer(op, window.operands[f.relation], arrived)
        return {s.key: jnp.broadcast_to(e, (len(e), *s.shape)).astype(self.dtype)}


def alike(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two arrays in the more precise of their types."""
    dtype = jnp.promote_types(a.dtype, b.dtype)
    return a.astype(dtype), b.astype(dtype)
