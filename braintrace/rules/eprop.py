"""The kappa filter of e-prop: credit meets a low-pass of the trace, which stands for the leak of
the read-out.

    m_t = kappa m_{t-1} + e_t        dw_t = s_t . m_t

`e_t` is here the trace of the states that the rest of the model reads (a spike, rather than the
membrane behind it). Over a block, by exchanging the sums,

    sum_t s_t . m_t = sum_k S_k . e_k + kappa S_1 . m_a        S_k = s_k + kappa S_{k+1}

so that what the filter adds to the plain rule is a signal `S_k - s_k` of its own. A leaky read-out
has its leak in its own trace and is not filtered.

With multi-step credit a leaky read-out `y` is part of the window, and credit in it is exact. What
the filter stands for is the influence that `y` has at the entry, `dy_a/dw = B . m_a` for
`y_a = kappa y_{a-1} + B h_a`: credit of `y_a` goes back through B and meets the low-pass, that of
`h_a` itself meets the trace. Without a read-out that leaks there is nothing to stand for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from .._jax import Var, is_float
from ..engine.credit import from_signals
from ..engine.entries import whole
from ..engine.evaluate import is_inexact
from ..engine.loop import over_states, scan
from ..engine.window import Window
from ..graph.analysis import Row
from ..graph.relations import Relation
from ..graph.samples import Samples
from ..ops.axes import Op, decay, outer, read
from ..plan.kept import Passage, relation_of
from ..plan.keys import TraceKey
from ..plan.layout import Layout, Slot
from ..plan.leaky_readers import are_seen_through_leaks
from ..plan.step_sizes import of_matrices
from .carrier import BlockCarrier, Contribution, Credit, Entry, Traces
from .d_rtrl import PositionWise
from .slot_trace import alike

KAPPA = 'kappa'  # the kind of a low-pass


@dataclass(frozen=True, eq=False)
class Filtered(BlockCarrier):
    """Position-wise traces and their low-pass."""

    inner: PositionWise
    kappa: float
    follows_relations: ClassVar[bool] = True
    mixes_states: ClassVar[bool] = False

    @property
    def layout(self) -> Layout:  # type: ignore[override]
        return self.inner.layout

    @property
    def step_bytes(self) -> int:
        return self.inner.step_bytes + 2 * of_matrices(self.layout, self._groups)

    @cached_property
    def _slots(self) -> list[Slot]:
        """The traces that have a low-pass."""
        slots, layout = self.inner.slots, self.layout
        if layout.every_state and not self._read_outs:
            return []
        return [s for s in slots if not layout.is_readout(s.group) and self._rows(s.group)]

    @cached_property
    def _read_outs(self) -> list[int]:
        """The hidden leaves of read-outs that remember, by number."""
        layout = self.layout
        groups = [
            g for g in layout.units if layout.is_readout(g) and layout.graph.groups[g].carried
        ]
        return sorted({i for g in groups for i in layout.units[g].leaves})

    @property
    def _groups(self) -> list[int]:
        return list(dict.fromkeys(s.group for s in self._slots))

    @cached_property
    def _filtered_states(self) -> set[Var]:
        """The old hidden states of the groups that have a low-pass."""
        return {v for g in self._groups for v in self.layout.graph.groups[g].invars}

    def _rows(self, group: int) -> tuple[Row, ...]:
        return self.layout.exposed(group)

    def _of_leaves(self, group: int, leaves: Sequence[Any], axis: int) -> jax.Array:
        """Credit of hidden leaves as credit of the states that are read, stacked on an axis."""
        leaf_of = {v: i for i, v in enumerate(self.layout.graph.step.hidden_vars)}
        return jnp.stack([row.credit(leaves[leaf_of[row.old]]) for row in self._rows(group)], axis)

    def init(self) -> Traces:
        traces = self.inner.init()
        for s in self._slots:
            traces[s.key.of(KAPPA)] = jnp.zeros((len(self._rows(s.group)), *s.shape), s.dtype)
        return traces

    def sample_axes(self, samples: Samples) -> dict[TraceKey, int | None]:
        axes = self.inner.sample_axes(samples)
        low = {s.key.of(KAPPA): axes[s.key] for s in self._slots}
        return {**axes, **low}

    def block(
        self, traces: Traces | None, window: Window, credit: Credit, steps: Any, keep: bool
    ) -> tuple[Contribution, Traces | None]:
        signals = self._signals(credit)
        entry, more = self._future_signals(signals, window.length)
        dy, dh = from_signals(window, more)
        filtered = replace(
            credit,
            y=_plus(credit.y, dy),
            hidden=lambda: _plus(credit.hidden(), dh),
            signals=lambda together: _plus(credit.signals(together), more),
        )
        given, new = self.inner.block(traces, window, filtered, steps, keep)
        if traces is not None:
            for s in self._slots:
                lam = self._of_leaves(s.group, [self.kappa * a for a in entry], 0)
                met = self._read(s, traces[s.key.of(KAPPA)], lam, window.ops)
                if credit.past is not None:
                    past = [p[0] for p in credit.past]
                    met = met + self._low_part(s, traces, past, window.ops)
                given.weights[s.relation] = given.weights[s.relation] + met
        if not keep:
            return given, None
        return given, {**(new or {}), **self._low_passes(traces, window)}

    def _signals(self, credit: Credit) -> list[Any]:
        """The learning signals of the filtered groups, zero for all others; credit of the state
        before a step is a signal of the step before."""
        signals = []
        for i, (v, s) in enumerate(
            zip(self.layout.graph.step.hidden_vars, credit.signals(False), strict=True)
        ):
            if v not in self._filtered_states:
                s = jnp.zeros_like(s)
            elif credit.past is not None and is_float(v):
                s = s.at[:-1].add(credit.past[i][1:])
            signals.append(s)
        return signals

    def _future_signals(self, signals: list[Any], length: int) -> tuple[list[Any], list[Any]]:
        """`S_1`, and `S_k - s_k` at each step."""

        def turn(later, now):
            S = [s + self.kappa * a for s, a in zip(now, later, strict=True)]
            return S, [self.kappa * a for a in later]

        none = [jnp.zeros_like(s[0]) for s in signals]
        return scan(turn, none, signals, length, reverse=True)

    def _read(self, s: Slot, m: jax.Array, lam: jax.Array, ops: Sequence[Op]) -> Any:
        return read(ops[s.relation], *alike(s.feeds[0].at_y(lam), m))

    def _low_passes(self, traces: Traces | None, window: Window) -> Traces:
        """`m_b = kappa^K m_a + R_0 e_a + sum_j x_j (x) (R_j df_j + kappa^(K-j) df'_j)`, with
        `R_j = kappa^(K-j-1) D'_{j+1} + R_{j+1} D_{j+1}`, where D' and df' are of the states that
        are read."""
        K, new = window.length, {}
        powers = jnp.asarray(self.kappa) ** jnp.arange(K - 1, -1, -1)
        for group in self._groups:
            units = self.layout.units[group]
            D = whole(self.inner.transition(window, group), (K, *units.shape), 1, units.dtype)
            D_read = window.exposed_factors.transition(group)

            def turn(R, at):
                D, D_read, power = at
                moved = over_states(R[:, :, None], D[None], 1)
                return power.astype(D_read.dtype) * D_read + moved, R

            R_entry, R = scan(turn, jnp.zeros_like(D_read[0]), (D, D_read, powers), K, reverse=True)
            for s in [s for s in self._slots if s.group == group]:
                m: Any = 0
                if traces is not None:
                    R_at_y, e = alike(s.feeds[0].at_y(R_entry), traces[s.key])
                    moved = decay(window.ops[s.relation], R_at_y, e)
                    m = self.kappa**K * traces[s.key.of(KAPPA)] + moved
                for f in s.feeds:
                    df = window.factors.slope(f.relation, group, f.unit)
                    df_read = window.exposed_factors.slope(f.relation, group, f.unit)
                    arrived = over_states(f.at_y(R), df[:, None], 2)
                    power = powers.astype(arrived.dtype).reshape(-1, *[1] * (arrived.ndim - 1))
                    arrived = arrived + df_read * power
                    m = m + outer(window.ops[f.relation], window.operands[f.relation], arrived)
                new[s.key.of(KAPPA)] = m.astype(s.dtype)
        return new

    def read(self, traces: Traces, entry: Entry) -> Contribution:
        given = self.inner.read(traces, entry)
        if not self._slots:
            return given
        through = entry.through({i: entry.hidden[i] for i in self._read_outs})
        for s in self._slots:
            lam = self._of_leaves(s.group, through, 0)
            met = self._read(s, traces[s.key.of(KAPPA)], lam, entry.ops)
            given.weights[s.relation] = given.weights[s.relation] + met
        return given

    def _low_part(self, s: Slot, traces: Traces, leaves: Sequence[Any], ops: Sequence[Op]) -> Any:
        """What credit of the state gets from the low-pass, less what it gets from the trace
        itself."""
        read_rows, carried = self._rows(s.group), self.layout.units[s.group].rows
        lam = self._of_leaves(s.group, leaves, 0)
        none = jnp.zeros_like(lam[0])
        both = jnp.stack([lam[read_rows.index(r)] if r in read_rows else none for r in carried])
        low = self._read(s, traces[s.key.of(KAPPA)], lam, ops)
        return low - self.inner.kept(s).read(traces, both, ops)

    def advance(self, traces: Traces, window: Window) -> Traces:
        return {**self.inner.advance(traces, window), **self._low_passes(traces, window)}

    def loses(self, way: Passage) -> str | None:
        relation = relation_of(self.layout, way.use)
        filtered = {f.relation for s in self._slots for f in s.feeds}
        if relation is None or relation.number not in filtered:
            return self.inner.loses(way)
        if not self._stands_for_read_outs(relation, way):
            return f'credit meets a low-pass of the trace (kappa = {self.kappa:g})'
        units = relation.groups[0].rows
        is_inside = all(row is None or row in units for row in (way.old, way.new))
        return self.inner.loses(way) if is_inside else None

    def _stands_for_read_outs(self, relation: Relation, way: Passage) -> bool:
        """Whether the low-pass is that of the read-outs through which alone the units are seen."""
        if len(relation.groups) != 1:
            return False
        graph, [group] = self.layout.graph, relation.groups
        return are_seen_through_leaks(graph, group, relation.use.y, self.kappa, way.graded)


def _plus(leaves: Sequence[Any], more: Sequence[Any]) -> list[Any]:
    """Leaf by leaf; the credit of leaves that are not float stays as it is."""
    pairs = zip(leaves, more, strict=True)
    return [a + b if is_inexact(a) and is_inexact(b) else a for a, b in pairs]
