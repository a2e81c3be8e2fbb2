"""The kappa filter of e-prop: credit meets a low-pass of the trace, which stands for the leak of the read-out.

    m_t = kappa m_{t-1} + e_t        dw_t = s_t . m_t

`e_t` is here the trace of the states that the rest of the model reads (a spike, rather than the membrane behind it). Over a block, by exchanging the sums,

    sum_t s_t . m_t = sum_k S_k . e_k + kappa S_1 . m_a        S_k = s_k + kappa S_{k+1}

so that what the filter adds to the plain rule is a signal `S_k - s_k` of its own. A leaky read-out has its leak in its own trace and is not filtered.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from .._jax import is_float
from ..engine.loop import over_states, scan
from ..graph.analysis import Row
from ..ops.axes import decay, outer, read
from ..plan.layout import Slot
from .carrier import Contribution, Credit, Entry, Traces
from .d_rtrl import PositionWise


@dataclass(frozen=True, eq=False)
class Filtered:
    """Position-wise traces and their low-pass."""

    inner: PositionWise
    kappa: float

    @cached_property
    def _slots(self) -> list[Slot]:
        return [
            s
            for s in self.inner.slots
            if not self.inner.layout.is_readout(s.group) and self._rows(s.group)
        ]

    def _rows(self, group: int) -> tuple[Row, ...]:
        return self.inner.layout.exposed(group)

    def _at(self, group: int, leaves: Any, axis: int) -> Any:
        """Values of leaves at the rows that are read."""
        where = {v: i for i, v in enumerate(self.inner.layout.graph.step.hidden_vars)}
        return jnp.stack([row.of(leaves[where[row.old]]) for row in self._rows(group)], axis)

    def _split(self, traces: Traces | None) -> tuple[Any, Any]:
        if traces is None:
            return None, None
        return {s.name: traces[s.name] for s in self.inner.slots}, {
            s.name: traces[f'kappa:{s.name}'] for s in self._slots
        }

    def init(self) -> Traces:
        filters = {
            f'kappa:{s.name}': jnp.zeros((len(self._rows(s.group)), *s.shape), s.dtype)
            for s in self._slots
        }
        return {**self.inner.init(), **filters}

    def block(
        self, traces: Traces | None, window, credit: Credit, steps, keep: bool
    ) -> tuple[Contribution, Traces | None]:
        plain, low = self._split(traces)
        groups = {s.group for s in self._slots}
        hidden = self.inner.layout.graph
        mine = {v for g in groups for v in hidden.hidden_groups[g].hidden_invars}
        s = [
            a if v in mine else jnp.zeros_like(a)
            for v, a in zip(hidden.step.hidden_vars, credit.signals(), strict=True)
        ]
        if credit.past is not None:  # signals of the step before
            s = [
                a.at[:-1].add(p[1:]) if v in mine and is_float(v) else a
                for v, a, p in zip(hidden.step.hidden_vars, s, credit.past, strict=True)
            ]
        late, more = scan(
            lambda late, now: (
                [n + self.kappa * a for n, a in zip(now, late, strict=True)],
                [self.kappa * a for a in late],
            ),
            [jnp.zeros_like(a[0]) for a in s],
            s,
            window.length,
            reverse=True,
        )
        dy, dh = window.from_signals(more)
        plus = lambda a, b: [
            x if x.dtype == jax.dtypes.float0 or y.dtype == jax.dtypes.float0 else x + y
            for x, y in zip(a, b, strict=True)
        ]
        total = Credit(
            plus(credit.y, dy),
            credit.direct,
            plus(credit.hidden, dh),
            lambda **how: plus(credit.signals(**how), more),
            credit.past,
        )
        found, new = self.inner.block(plain, window, total, steps, keep)
        if low is not None:
            for slot in self._slots:
                r = slot.feeds[0].relation
                lam = self._at(slot.group, [self.kappa * a for a in late], 0)
                found.weights[r] = found.weights[r] + self._read(slot, low[slot.name], lam)
                if credit.past is not None:
                    found.weights[r] = found.weights[r] + self._low_part(
                        slot, plain, low, [p[0] for p in credit.past]
                    )
        return found, {**(new or {}), **self._filter(plain, low, window)} if keep else None

    def _read(self, s: Slot, m: Any, lam: Any) -> Any:
        return read(
            self.inner.layout.relations[s.feeds[0].relation].op,
            s.feeds[0].at_y(lam),
            m.astype(lam.dtype),
        )

    def _filter(self, plain: Traces | None, low: Traces | None, window) -> Traces:
        """`m_b = kappa^K m_a + R_0 e_a + sum_j x_j (x) (R_j df_j + kappa^(K-j) df'_j)`, with `R_j = kappa^(K-j-1) D'_{j+1} + R_{j+1} D_{j+1}`."""
        K, new = window.length, {}
        weight = jnp.asarray(self.kappa) ** jnp.arange(K - 1, -1, -1)
        for g in {s.group: None for s in self._slots}:
            D, out = self.inner.transition(window, g), window.transition_out(g)

            def turn(R, z):
                D, out, w = z
                return w.astype(out.dtype) * out + over_states(R[:, :, None] * D, 1), R

            R0, R = scan(turn, jnp.zeros_like(out[0]), (D, out, weight), K, reverse=True)
            for s in [s for s in self._slots if s.group == g]:
                op, f = self.inner.layout.relations[s.feeds[0].relation].op, s.feeds[0]
                total: Any = (
                    0
                    if low is None or plain is None
                    else self.kappa**K * low[s.name]
                    + decay(op, f.at_y(R0), plain[s.name].astype(R0.dtype))
                )
                for f in s.feeds:
                    q = over_states(f.at_y(R) * window.slope(f.relation, g, f.unit)[:, None], 2)
                    q = q + window.slope_out(f.relation, g, f.unit) * weight.astype(
                        q.dtype
                    ).reshape(-1, *[1] * (q.ndim - 1))
                    total = total + outer(
                        self.inner.layout.relations[f.relation].op, window.operands[f.relation], q
                    )
                new[f'kappa:{s.name}'] = total.astype(s.dtype)
        return new

    def read(self, traces: Traces, credit: Entry) -> Contribution:
        plain, low = self._split(traces)
        found = self.inner.read(plain, credit)
        for s in self._slots:  # where there is a low-pass, credit meets it instead
            r = s.feeds[0].relation
            found.weights[r] = found.weights[r] + self._low_part(s, plain, low, credit.hidden)
        return found

    def _low_part(self, s: Slot, plain: Traces, low: Traces, leaves: Any) -> Any:
        """What credit of the state gets from the low-pass, less what it gets from the trace itself."""
        carried = self.inner.layout.units[s.group].rows
        lam = self._at(s.group, leaves, 0)
        both = jnp.stack(
            [
                lam[self._rows(s.group).index(row)]
                if row in self._rows(s.group)
                else jnp.zeros_like(lam[0])
                for row in carried
            ]
        )
        return self._read(s, low[s.name], lam) - self.inner.read_slot(s, plain, both)

    def advance(self, traces: Traces, window) -> Traces:
        plain, low = self._split(traces)
        return {**self.inner.advance(plain, window), **self._filter(plain, low, window)}
