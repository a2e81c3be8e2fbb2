"""What the last step before a window's edge did to units that forget.

A unit that has no way of its own into the next step (a layer of tanh, D = 0) has nothing to carry
from step to step. But with multi-step credit the window's entry state gets its whole credit, and
that meets the influence of the last step, `x (x) df`. It is kept as it comes, as operand and slope:
in + out numbers instead of their product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ..engine.loop import over_states, stacked
from ..engine.window import Window
from ..graph.samples import Samples
from ..ops.axes import Op, spread, spread_gradient, spread_shape
from ..plan.keys import INPUT, OUTPUT, TraceKey, trace_type
from ..plan.layout import Layout, Slot
from .backwards import Backwards
from .carrier import Traces
from .slot_trace import SlotTrace


@dataclass(frozen=True, eq=False)
class LastStep(SlotTrace):
    """Operand and slope of the last step, for each feed of a slot."""

    layout: Layout
    slot: Slot

    def _keys(self, feed: int) -> tuple[TraceKey, TraceKey]:
        """Where the operand and the slope of one of the slot's feeds are kept."""
        last = f'last{feed}' if feed else 'last'
        return self.slot.key.of(f'{last} {INPUT}'), self.slot.key.of(f'{last} {OUTPUT}')

    def init(self) -> Traces:
        traces: Traces = {}
        for k, f in enumerate(self.slot.feeds):
            relation = self.layout.relations[f.relation]
            of_x, of_f = self._keys(k)
            if relation.axes.x is not None:
                x = spread_shape(relation.op, relation.use.eqn.invars)
                traces[of_x] = jnp.zeros(x.shape, trace_type(x.dtype))
            y, states = relation.y_var.aval, self.layout.units[self.slot.group].states
            traces[of_f] = jnp.zeros((states, *y.shape), trace_type(y.dtype))
        return traces

    def sample_axes(self, samples: Samples) -> dict[TraceKey, int | None]:
        axes: dict[TraceKey, int | None] = {}
        for k, f in enumerate(self.slot.feeds):
            of_x, of_f = self._keys(k)
            if self.layout.relations[f.relation].axes.x is not None:
                axes[of_x] = self.layout.sample_axis_of_input(f.relation, samples)
            axes[of_f] = self.layout.sample_axis_of_output(f.relation, samples)
        return axes

    def read(self, traces: Traces, lam: jax.Array, ops: Sequence[Op]) -> Any:
        total: Any = 0
        for k, f in enumerate(self.slot.feeds):
            of_x, of_f = self._keys(k)
            signal = over_states(f.at_y(lam), traces[of_f], 0)
            x = traces[of_x][None] if of_x in traces else None
            total = total + spread_gradient(ops[f.relation], x, signal[None])
        return total

    def advance(self, traces: Traces | None, window: Window, back: Backwards) -> Traces:
        last: Traces = {}
        factors = window.factors.in_step(window.moment(-1))
        for k, f in enumerate(self.slot.feeds):
            of_x, of_f = self._keys(k)
            x = window.operands[f.relation]
            if x is not None:
                x = spread(self.layout.relations[f.relation].op, x[-1])
                last[of_x] = x.astype(trace_type(x.dtype))
            slope = stacked(factors.slopes(f.relation, self.slot.group, f.unit))
            last[of_f] = slope.astype(trace_type(slope.dtype))
        return last
