"""The trace of a large table: only the rows that were read lately, for each sample.

A trace has M places with the number of the row each of them holds and the time it was last read. A
row that is read takes its own place, or that of the one that was read longest ago, whose trace has
decayed the most and is dropped. As long as a sample reads no more than M different rows, nothing is
dropped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from ..engine.entries import whole
from ..engine.window import Window
from ..graph.relations import Relation
from ..graph.samples import Samples
from ..ops.axes import Op, Table
from ..plan.keys import TraceKey
from ..plan.layout import Layout, Slot
from .backwards import Backwards
from .carrier import Traces
from .slot_trace import SlotTrace

LATE = 2**30  # a time that is counted no further
ROW, TIME = 'row', 'time'  # kinds of what is kept beside a trace


@dataclass(frozen=True, eq=False)
class TableTrace(SlotTrace):
    """A trace of so many rows of a table for each sample.

    Args:
        layout: the plan.
        slot: the table and its units; one feed.
        dtype: of the trace.
        places: how many rows it holds.
    """

    layout: Layout
    slot: Slot
    dtype: np.dtype
    places: int

    @property
    def _relation(self) -> Relation:
        return self.layout.relations[self.slot.relation]

    @property
    def table(self) -> Table:
        """The table."""
        assert self._relation.op.table is not None
        return self._relation.op.table

    @property
    def y(self) -> tuple[int, ...]:
        """The shape of the op's output."""
        return self._relation.y_var.aval.shape

    @property
    def _samples(self) -> int:
        return math.prod(self.y[a] for a in self.table.batch)

    @property
    def _width(self) -> int:
        return math.prod(self.y[a] for a in self.table.width)

    def _flat(self, a: jax.Array) -> jax.Array:
        """Values at y with leading axes as (..., samples, width)."""
        lead = a.ndim - len(self.y)
        order = [lead + k for k in (*self.table.batch, *self.table.width)]
        flat = *a.shape[:lead], self._samples, self._width
        return a.transpose([*range(lead), *order]).reshape(flat)

    def init(self) -> Traces:
        key, places = self.slot.key, (self._samples, self.places)
        states = self.layout.units[self.slot.group].states
        return {
            key: jnp.zeros((states, *places, self._width), self.dtype),
            key.of(ROW): jnp.full(places, -1, jnp.int32),
            key.of(TIME): jnp.zeros(places, jnp.int32),
        }

    def sample_axes(self, samples: Samples) -> dict[TraceKey, int | None]:
        key = self.slot.key
        alone = samples.axes.get(self._relation.y_var) is None or len(self.table.batch) > 1
        axis = None if alone else 0
        return {key: None if alone else 1, key.of(ROW): axis, key.of(TIME): axis}

    def read(self, traces: Traces, lam: jax.Array, ops: Sequence[Op]) -> jax.Array:
        key, at_y = self.slot.key, self.slot.feeds[0].at_y(lam)
        met = jnp.einsum('sbd,sbmd->bmd', self._flat(at_y), traces[key])
        rows = jnp.where(traces[key.of(ROW)] < 0, self.table.size, traces[key.of(ROW)])
        gradient = jnp.zeros((self.table.size, met.shape[-1]), met.dtype)
        return gradient.at[rows].add(met, mode='drop').reshape(self._relation.op.w_shape)

    def advance(self, traces: Traces | None, window: Window, back: Backwards) -> Traces:
        key, [f] = self.slot.key, self.slot.feeds
        traces = self.init() if traces is None else traces
        x = window.operands[f.relation]
        slopes = window.factors.slopes(f.relation, self.slot.group, f.unit)
        arrived = jnp.stack([f.at_all(a) for a in back.arrived(f, slopes)], 1)
        units = self.layout.units[self.slot.group]
        Q = f.at_y(whole(back.Q_entry, units.shape, 0, units.dtype))
        e = jnp.einsum('sabd,abmd->sbmd', self._flat(Q), traces[key])
        sample = jnp.arange(self._samples)

        def turn(carry, at):
            e, rows, time, now = carry
            row, added = at
            mine = rows == row[:, None]
            known, real = mine.any(-1), row < self.table.size
            place = jnp.where(known, mine.argmax(-1), time.argmin(-1))
            old = e[:, sample, place]
            grown = jnp.where(known[:, None], old, 0) + added.astype(old.dtype)
            e = e.at[:, sample, place].set(jnp.where(real[:, None], grown, old))
            rows = rows.at[sample, place].set(jnp.where(real, row, rows[sample, place]))
            time = time.at[sample, place].set(jnp.where(real, now, time[sample, place]))
            return (e, rows, time, now + 1), None

        times = _without_wrapping(traces[key.of(TIME)])
        read_at = jax.vmap(self.table.row)(x).reshape(len(x), self._samples)
        start = e, traces[key.of(ROW)], times, times.max() + 1
        (e, rows, times, _), _ = jax.lax.scan(turn, start, (read_at, self._flat(arrived)))
        return {key: e.astype(traces[key].dtype), key.of(ROW): rows, key.of(TIME): times}


def _without_wrapping(times: jax.Array) -> jax.Array:
    """Times of reading, as ranks once they have become large: only their order counts."""

    def ranks() -> jax.Array:
        return jnp.argsort(jnp.argsort(times, -1), -1).astype(times.dtype)

    return jax.lax.cond(times.max() > LATE, ranks, lambda: times)
