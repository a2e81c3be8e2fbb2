"""D-RTRL: each weight remembers the unit it feeds.

    e_b = Q e_a + sum_k x_k (x) (Q_k df_k)        Q_k = D_K ... D_{k+1}, Q = Q_0, along position-wise paths
    dw  = lam_a . e_a + sum_k x_k (x) (df_k . mu_k + same-step credit of y_k)

`mu_k` is the credit of the state after step k that later steps of the block send back through the transitions, `mu_{k-1} = c_k + D_k^T mu_k`: credit from the
future travels only where the trace travels, so the result does not depend on how time is cut into blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from ..engine.loop import over_states, scan
from ..ops.axes import decay, gradient, outer, read
from ..plan.layout import Layout, Slot
from .carrier import Contribution, Credit, Entry, Traces
from .table_trace import KeptRows


@dataclass(frozen=True, eq=False)
class PositionWise:
    """The position-wise part of J for these relations. `dtype` stores the traces in another precision; `leak` stands for D (RFLO); of a table
    with more rows than `rows` a trace holds only so many, the last that were read."""

    layout: Layout
    chosen: frozenset[int]
    dtype: Any = None
    leak: float | None = None
    rows: int | None = None

    @property
    def slots(self) -> list[Slot]:
        return [s for s in self.layout.slots if s.feeds[0].relation in self.chosen]

    @property
    def _own_transition(self) -> bool:
        return self.leak is not None or self.layout.scope == 'coupled'

    def transition(self, window, g: int) -> Any:
        """`D[k, a, b, unit]` as this rule sees it."""
        if self.leak is not None:
            return self.leak * self.layout.identity(g, window.length)
        return window.diagonal(g) if self.layout.scope == 'coupled' else window.transition(g)

    def init(self) -> Traces:
        traces: Traces = {}
        for s in self.slots:
            kept, states = self._kept(s), len(self.layout.units[s.group].rows)
            traces |= (
                {s.name: jnp.zeros((states, *s.shape), self.dtype or s.dtype)}
                if kept is None
                else kept.init(s.name, states, self.dtype or s.dtype)
            )
        return traces

    def _kept(self, s: Slot) -> KeptRows | None:
        r = self.layout.relations[s.feeds[0].relation]
        large = (
            self.rows is not None
            and r.op.table is not None
            and r.op.table.size > self.rows
            and len(s.feeds) == 1
        )
        return KeptRows(r.op, r.y_var.aval.shape, self.rows) if large else None  # type: ignore[arg-type]

    def block(
        self, traces: Traces | None, window, credit: Credit, steps, keep: bool
    ) -> tuple[Contribution, Traces | None]:
        dy = {r: credit.y[r] for r in self.chosen}
        carried: dict[int, Any] = {}
        new: Traces = {}
        for g in {s.group: None for s in self.slots}:
            D = self.transition(window, g)
            if self._own_transition:
                c = over_states(self.layout.at_rows(g, credit.signals(), 1)[:, :, None] * D, 1)
            else:
                c = self.layout.at_rows(g, credit.hidden, 1)
            c = c if credit.past is None else c + self.layout.at_rows(g, credit.past, 1)
            mu, entry, Q, Q0 = back(D, c, keep)
            for s in self.slots:
                if s.group == g:
                    for f in s.feeds:
                        df = window.slope(f.relation, g, f.unit)
                        dy[f.relation] = dy[f.relation] + over_states(df * f.at_y(mu), 1)
                    if traces is not None:
                        carried[s.feeds[0].relation] = carried.get(
                            s.feeds[0].relation, 0
                        ) + self.read_slot(s, traces, entry)
                    if keep:
                        new |= self._advance(s, traces, window, Q, Q0)
        weights = {
            r: gradient(self.layout.relations[r].op, window.operands[r], d) + carried.get(r, 0)
            for r, d in dy.items()
        }
        return Contribution(weights), new if keep else None

    def read(self, traces: Traces, credit: Entry) -> Contribution:
        weights: dict[int, Any] = {}
        for s in self.slots:
            r = s.feeds[0].relation
            weights[r] = weights.get(r, 0) + self.read_slot(
                s, traces, self.layout.at_rows(s.group, credit.hidden, 0)
            )
        return Contribution(weights)

    def advance(self, traces: Traces, window) -> Traces:
        new: Traces = {}
        for g in {s.group: None for s in self.slots}:
            D = self.transition(window, g)
            _, _, Q, Q0 = back(D, jnp.zeros_like(D[:, 0]), True)
            for s in self.slots:
                new |= self._advance(s, traces, window, Q, Q0) if s.group == g else {}
        return {name: new[name] for name in traces}

    def read_slot(self, s: Slot, traces: Traces, lam: Any) -> Any:
        kept, at_y = self._kept(s), s.feeds[0].at_y(lam)
        if kept is not None:
            return kept.read(s.name, traces, at_y)
        return read(
            self.layout.relations[s.feeds[0].relation].op, at_y, traces[s.name].astype(lam.dtype)
        )

    def _advance(self, s: Slot, traces: Traces | None, window, Q: Any, Q0: Any) -> Traces:
        kept = self._kept(s)
        if kept is not None:
            [f] = s.feeds
            q = over_states(f.at_y(Q) * window.slope(f.relation, s.group, f.unit)[:, None], 2)
            old = kept.init(s.name, len(Q0), self.dtype or s.dtype) if traces is None else traces
            return kept.advance(s.name, old, f.at_y(Q0), window.operands[f.relation], q)
        op, at_y = self.layout.relations[s.feeds[0].relation].op, s.feeds[0].at_y
        new: Any = 0 if traces is None else decay(op, at_y(Q0), traces[s.name].astype(Q0.dtype))
        for f in s.feeds:
            q = over_states(f.at_y(Q) * window.slope(f.relation, s.group, f.unit)[:, None], 2)
            new = new + outer(self.layout.relations[f.relation].op, window.operands[f.relation], q)
        return {s.name: new.astype(self.dtype or s.dtype)}


def back(D: Any, c: Any, keep: bool) -> tuple[Any, Any, Any, Any]:
    """From the last step to the first: credit mu[k] after each step and at the entry; with `keep` also Q[k] = d h_end / d h_k and at the entry."""
    S = D.shape[1]
    eye = jnp.broadcast_to(
        jnp.eye(S, dtype=D.dtype).reshape(S, S, *[1] * (D.ndim - 3)), D.shape[1:]
    )

    def turn(carry, z):
        mu, Q = carry
        Dk, ck = z
        back = over_states(mu[:, None] * Dk, 0)
        return (ck + back, over_states(Q[:, :, None] * Dk, 1) if keep else None), (mu, Q)

    (entry, Q0), (mu, Q) = scan(
        turn, (jnp.zeros_like(c[0]), eye if keep else None), (D, c), len(c), reverse=True
    )
    return mu, entry, Q, Q0
