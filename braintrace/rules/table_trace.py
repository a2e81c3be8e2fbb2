"""The trace of a large table: only the rows that were read lately, for each sample.

A trace has M places with the number of the row each of them holds and the time it was last read. A
row that is read takes its own place, or that of the one that was read longest ago, whose trace has
decayed the most and is dropped. As long as a sample reads no more than M different rows, nothing is
dropped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from .._jax import with_precision
from ..ops.axes import Op, Table
from ..plan.keys import TraceKey
from .carrier import Traces

ROW, TIME = 'row', 'time'  # kinds of what is kept beside a trace


@dataclass(frozen=True, eq=False)
class TableTrace:
    """A trace of `places` rows for an op with a table and an output of shape `y`."""

    op: Op
    table: Table
    y: tuple[int, ...]
    places: int

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

    def init(self, key: TraceKey, states: int, dtype: Any) -> Traces:
        """No row yet."""
        places = self._samples, self.places
        return {
            key: jnp.zeros((states, *places, self._width), dtype),
            key.of(ROW): jnp.full(places, -1, jnp.int32),
            key.of(TIME): jnp.zeros(places, jnp.int32),
        }

    def read(self, key: TraceKey, traces: Traces, lam: jax.Array) -> jax.Array:
        """What credit at y, (states, *y), gives with the rows that are there: a gradient of the
        table."""
        met = jnp.einsum('sbd,sbmd->bmd', self._flat(lam), with_precision(traces[key], lam))
        rows = jnp.where(traces[key.of(ROW)] < 0, self.table.size, traces[key.of(ROW)])
        gradient = jnp.zeros((self.table.size, met.shape[-1]), met.dtype)
        return gradient.at[rows].add(met, mode='drop').reshape(self.op.w_shape)

    def advance(
        self, key: TraceKey, traces: Traces, Q: jax.Array, x: jax.Array, arrived: jax.Array
    ) -> Traces:
        """The trace at the end of a window: `Q` takes the old one there, (states, states, *y); step
        k reads the rows of `x[k]`, to which `arrived[k]`, (states, *y), is added."""
        e = jnp.einsum('sabd,abmd->sbmd', self._flat(Q), with_precision(traces[key], Q))
        sample = jnp.arange(self._samples)

        def turn(carry, at):
            e, rows, time, now = carry
            row, added = at
            mine = rows == row[:, None]
            known, real = mine.any(-1), row < self.table.size
            place = jnp.where(known, mine.argmax(-1), time.argmin(-1))
            old = e[:, sample, place]
            grown = jnp.where(known[:, None], old, 0) + added
            e = e.at[:, sample, place].set(jnp.where(real[:, None], grown, old))
            rows = rows.at[sample, place].set(jnp.where(real, row, rows[sample, place]))
            time = time.at[sample, place].set(jnp.where(real, now, time[sample, place]))
            return (e, rows, time, now + 1), None

        times = traces[key.of(TIME)]
        read_at = jax.vmap(self.table.row)(x).reshape(len(x), self._samples)
        start = e, traces[key.of(ROW)], times, times.max() + 1
        (e, rows, times, _), _ = jax.lax.scan(turn, start, (read_at, self._flat(arrived)))
        return {key: e.astype(traces[key].dtype), key.of(ROW): rows, key.of(TIME): times}
