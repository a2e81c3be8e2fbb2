"""The trace of a large table: only the rows that were read lately, for each sample.

A trace has M places with the number of the row each of them holds and the time it was last read. A row that is read takes its own place, or that of the one
that was read longest ago, whose trace has decayed the most and is dropped. As long as a sample reads no more than M different rows, nothing is dropped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ..ops.axes import Op
from .carrier import Traces


@dataclass(frozen=True, eq=False)
class KeptRows:
    """A trace of `places` rows for an op with a table and an output of this shape."""

    op: Op
    y: tuple[int, ...]
    places: int

    @property
    def _sizes(self) -> tuple[int, int]:
        table = self.op.table
        assert table is not None
        return math.prod(self.y[a] for a in table.batch), math.prod(self.y[a] for a in table.width)

    def _flat(self, a: Any) -> Any:
        """Values at y with leading axes as (..., sample, width)."""
        table, lead = self.op.table, a.ndim - len(self.y)
        assert table is not None
        return a.transpose(
            [*range(lead), *[lead + k for k in (*table.batch, *table.width)]]
        ).reshape(*a.shape[:lead], *self._sizes)

    def init(self, name: str, states: int, dtype: Any) -> Traces:
        samples, width = self._sizes
        return {
            name: jnp.zeros((states, samples, self.places, width), dtype),
            f'{name}/row': jnp.full((samples, self.places), -1, jnp.int32),
            f'{name}/time': jnp.zeros((samples, self.places), jnp.int32),
        }

    def read(self, name: str, traces: Traces, lam: Any) -> Any:
        table = self.op.table
        assert table is not None
        found = jnp.einsum('sbd,sbmd->bmd', self._flat(lam), traces[name].astype(lam.dtype))
        rows = jnp.where(traces[f'{name}/row'] < 0, table.size, traces[f'{name}/row'])
        return (
            jnp.zeros((table.size, found.shape[-1]), found.dtype)
            .at[rows]
            .add(found, mode='drop')
            .reshape(self.op.w_shape)
        )

    def advance(self, name: str, traces: Traces, Q: Any, x: Any, q: Any) -> Traces:
        table, (samples, _) = self.op.table, self._sizes
        assert table is not None
        e = jnp.einsum('sabd,abmd->sbmd', self._flat(Q), traces[name].astype(Q.dtype))
        sample = jnp.arange(samples)

        def turn(carry, z):
            e, rows, time, now = carry
            row, q = z
            mine = rows == row[:, None]
            known, real = mine.any(-1), row < table.size
            place = jnp.where(known, mine.argmax(-1), time.argmin(-1))
            old = e[:, sample, place]
            new = jnp.where(real[:, None], jnp.where(known[:, None], old, 0) + q, old)
            e = e.at[:, sample, place].set(new)
            rows = rows.at[sample, place].set(jnp.where(real, row, rows[sample, place]))
            time = time.at[sample, place].set(jnp.where(real, now, time[sample, place]))
            return (e, rows, time, now + 1), None

        start = e, traces[f'{name}/row'], traces[f'{name}/time'], traces[f'{name}/time'].max() + 1
        (e, rows, time, _), _ = jax.lax.scan(
            turn, start, (jax.vmap(table.row)(x).reshape(len(x), samples), self._flat(q))
        )
        return {name: e.astype(traces[name].dtype), f'{name}/row': rows, f'{name}/time': time}
