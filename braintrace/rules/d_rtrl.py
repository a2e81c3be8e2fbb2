"""D-RTRL: each weight remembers the unit it feeds.

    e_b = Q_0 e_a + sum_k x_k (x) (Q_k df_k)
    dw  = lam_a . e_a + sum_k x_k (x) (df_k . mu_k + same-step credit of y_k)

`D_k` and `df_k` are the slopes of the new state of step k by the old one and by the output of the
op, along position-wise paths, and `Q_k = D_K ... D_{k+1}` is what step k has become at the end.
`mu_k` is the credit of the state after step k that later steps of the block send back through the
transitions, `mu_{k-1} = c_k + D_k^T mu_k`: credit from the future travels only where the trace
travels, so the result does not depend on how time is cut into blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..engine.factors import diagonal
from ..engine.loop import over_states, scan
from ..engine.window import Window
from ..graph.analysis import Row
from ..graph.relations import Relation
from ..graph.samples import Samples
from ..ops.axes import Op, decay, gradient, outer, read
from ..plan.kept import Passage, lost_between_units, relation_of
from ..plan.keys import TraceKey, trace_type
from ..plan.layout import Feed, Layout, Scope, Slot
from ..plan.slopes import constant_slope, is_leak
from .carrier import BlockCarrier, Contribution, Credit, Entry, Traces
from .last_step import LastStep
from .leak import Leak
from .table_trace import TableTrace


@dataclass(frozen=True, eq=False)
class PositionWise(BlockCarrier):
    """The position-wise part of J for some relations.

    Args:
        layout: the plan.
        chosen: the relations, by number.
        dtype: stores the traces in another precision.
        leak: stands for D (RFLO).
        rows: of a table with more rows than that, a trace holds only so many, the last that were
            read.
    """

    layout: Layout
    chosen: frozenset[int]
    dtype: np.dtype | None = None
    leak: Leak | None = None
    rows: int | None = None
    follows_relations: ClassVar[bool] = True
    mixes_states: ClassVar[bool] = False

    @property
    def slots(self) -> list[Slot]:
        """The traces it keeps."""
        return [s for s in self.layout.slots if s.relation in self.chosen]

    @property
    def groups(self) -> list[int]:
        """The groups its traces follow."""
        return list(dict.fromkeys(s.group for s in self.slots))

    @property
    def step_bytes(self) -> int:
        return 0

    def slots_of(self, group: int) -> list[Slot]:
        """The traces it keeps for one group."""
        return [s for s in self.slots if s.group == group]

    def transition(self, window: Window, group: int) -> jax.Array:
        """`D[k, a, b, unit]` as this rule sees it."""
        if self.leak is not None:
            return self.leak.transition(window, group)
        if self.layout.scope is Scope.COUPLED:
            return diagonal(window, group)
        return window.factors.transition(group)

    def init(self) -> Traces:
        traces: Traces = {}
        for s in self.slots:
            states, dtype = self.layout.units[s.group].states, self._stored(s)
            table = self._table(s)
            if self._forgets(s.group):
                traces |= LastStep(self.layout, s).init()
            elif table is None:
                traces[s.key] = jnp.zeros((states, *s.shape), dtype)
            else:
                traces |= table.init(s.key, states, dtype)
        return traces

    def block(
        self, traces: Traces | None, window: Window, credit: Credit, steps: Any, keep: bool
    ) -> tuple[Contribution, Traces | None]:
        dy = {r: credit.y[r] for r in self.chosen}
        from_before: dict[int, Any] = {}
        new: Traces = {}
        for group in self.groups:
            D = self.transition(window, group)
            back = backwards(D, self._credit_of_units(credit, group, D), keep)
            for s in self.slots_of(group):
                for f in s.feeds:
                    df = window.factors.slope(f.relation, group, f.unit)
                    dy[f.relation] = dy[f.relation] + over_states(df * f.at_y(back.mu), 1)
                if traces is not None:
                    met = self.read_slot(s, traces, back.mu_entry, window.ops)
                    from_before[s.relation] = from_before.get(s.relation, 0) + met
                if keep:
                    new |= self._advance(s, traces, window, back)
        weights = {
            r: gradient(window.ops[r], window.operands[r], d) + from_before.get(r, 0)
            for r, d in dy.items()
        }
        return Contribution(weights), new if keep else None

    def _credit_of_units(self, credit: Credit, group: int, D: jax.Array) -> jax.Array:
        """The credit `c[k, state, unit]` of each step's old state along the transition of this
        rule."""
        units = self.layout.units[group]
        if self.leak is not None or self.layout.scope is Scope.COUPLED:
            signals = units.credit_of_leaves(credit.signals(False), 1)
            c = over_states(signals[:, :, None] * D, 1)
        else:
            c = units.credit_of_leaves(credit.hidden, 1)
        return c if credit.past is None else c + units.credit_of_leaves(credit.past, 1)

    def read(self, traces: Traces, entry: Entry) -> Contribution:
        weights: dict[int, Any] = {}
        for s in self.slots:
            lam = self.layout.units[s.group].credit_of_leaves(entry.hidden, 0)
            met = self.read_slot(s, traces, lam, entry.ops)
            weights[s.relation] = weights.get(s.relation, 0) + met
        return Contribution(weights)

    def advance(self, traces: Traces, window: Window) -> Traces:
        new: Traces = {}
        for group in self.groups:
            D = self.transition(window, group)
            back = backwards(D, jnp.zeros_like(D[:, 0]), keep=True)
            for s in self.slots_of(group):
                new |= self._advance(s, traces, window, back)
        return new

    def sample_axes(self, samples: Samples) -> dict[TraceKey, int | None]:
        axes: dict[TraceKey, int | None] = {}
        for s in self.slots:
            if self._forgets(s.group):
                axes |= LastStep(self.layout, s).sample_axes(samples)
            elif self._table(s) is None:
                axes[s.key] = self.layout.sample_axis_of_trace(s.relation, samples)
            else:
                axes |= TableTrace.sample_axes(s.key, self.layout.relations[s.relation], samples)
        return axes

    def read_slot(self, s: Slot, traces: Traces, lam: jax.Array, ops: Sequence[Op]) -> Any:
        """What credit `lam[state, unit]` gives with one trace: a gradient of the weight."""
        if self._forgets(s.group):
            return LastStep(self.layout, s).read(traces, lam, ops)
        table, at_y = self._table(s), s.feeds[0].at_y(lam)
        if table is not None:
            return table.read(s.key, traces, at_y)
        return read(ops[s.relation], *alike(at_y, traces[s.key]))

    def _advance(self, s: Slot, traces: Traces | None, window: Window, back: Backwards) -> Traces:
        """The trace of one slot at the end of a window."""
        if self._forgets(s.group):
            return LastStep(self.layout, s).advance(window)
        table = self._table(s)
        if table is not None:
            old = self.init() if traces is None else traces
            return self._advance_table(s, table, old, window, back)
        new: Any = 0
        if traces is not None:
            Q, before = alike(s.feeds[0].at_y(back.Q_entry), traces[s.key])
            new = decay(window.ops[s.relation], Q, before)
        for f in s.feeds:
            arrived = self._arrived(f, s.group, window, back)
            arrived = arrived.astype(trace_type(arrived.dtype))
            new = new + outer(window.ops[f.relation], window.operands[f.relation], arrived)
        return {s.key: new.astype(self._stored(s))}

    def _advance_table(
        self, s: Slot, table: TableTrace, traces: Traces, window: Window, back: Backwards
    ) -> Traces:
        [f] = s.feeds
        arrived = self._arrived(f, s.group, window, back)
        Q, x = f.at_y(back.Q_entry), window.operands[f.relation]
        return table.advance(s.key, traces, Q, x, arrived)

    def _arrived(self, f: Feed, group: int, window: Window, back: Backwards) -> Any:
        """`Q_k df_k`, what an output of step k has become at the end of the window: (K, states,
        *y)."""
        df = window.factors.slope(f.relation, group, f.unit)
        return over_states(f.at_y(back.Q) * df[:, None], 2)

    def _stored(self, s: Slot) -> Any:
        """The type a trace is stored in."""
        if self.dtype is None or not jnp.issubdtype(s.dtype, jnp.complexfloating):
            return self.dtype or s.dtype
        return jnp.promote_types(self.dtype, jnp.complex64)

    def loses(self, way: Passage) -> str | None:
        lost = lost_between_units(self.layout, way)
        relation = relation_of(self.layout, way.use)
        if lost is not None or relation is None:
            return lost
        crosses = way.single_step or way.new is not None
        if self.leak is not None and crosses and not self._all_leak(relation):
            return 'a leak stands for what the unit does'
        if way.new is None:
            return None
        mine = [s for s in self.slots if any(f.relation == relation.number for f in s.feeds)]
        if any(self._table(s) is not None for s in mine):
            return f'of a table only the last {self.rows} rows that were read have a trace'
        return None

    def _all_leak(self, relation: Relation) -> bool:
        """Whether all states of the units that a weight feeds keep of themselves, and of nothing
        else, just what the leak says."""
        analysis = self.layout.graph.analysis
        rows = [row for g in relation.groups for row in g.rows]
        for new in rows:
            for old in rows:
                seed = analysis.rows.index(old)
                if analysis.of_row(new).seeds >> seed & 1 and old != new:
                    return False
        return all(self._leaks(g.index, row) for g in relation.groups for row in g.rows)

    def _leaks(self, group: int, row: Row) -> bool:
        """Whether a state keeps of itself just what the leak says."""
        if self.leak is None or group not in self.leak.of_group:
            return False
        leak = self.leak.of_group[group]
        if leak is None:  # the model's own
            return True
        analysis = self.layout.graph.analysis
        slope = constant_slope(analysis, analysis.rows.index(row), row.old, row)
        return is_leak(slope, leak)

    def _forgets(self, group: int) -> bool:
        """Whether all that a group's units know of the past is what the last step did."""
        return self.leak is None and not self.layout.units[group].remembers

    def _table(self, s: Slot) -> TableTrace | None:
        """How the trace of a large table is kept; None for an ordinary one."""
        r = self.layout.relations[s.relation]
        if self.rows is None or r.op.table is None or len(s.feeds) > 1:
            return None
        if r.op.table.size <= self.rows:
            return None
        return TableTrace(r.op, r.op.table, r.y_var.aval.shape, self.rows)


def alike(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two arrays in the more precise of their types."""
    dtype = jnp.promote_types(a.dtype, b.dtype)
    return a.astype(dtype), b.astype(dtype)


class Backwards(NamedTuple):
    """What goes from the last step of a window to the first: credit `mu[k]` after each step, (K,
    states, *units), and at the entry; `Q[k] = d h_end / d h_k`, (K, states, states, *units), and at
    the entry, or None."""

    mu: jax.Array
    mu_entry: jax.Array
    Q: Any
    Q_entry: Any


def backwards(D: jax.Array, c: jax.Array, keep: bool) -> Backwards:
    """`mu_{k-1} = c_k + D_k^T mu_k` and, with `keep`, `Q_{k-1} = Q_k D_k`."""
    states = D.shape[1]
    eye = jnp.eye(states, dtype=D.dtype).reshape(states, states, *[1] * (D.ndim - 3))
    Q_end = jnp.broadcast_to(eye, D.shape[1:]) if keep else None

    def turn(carry, at):
        (mu, Q), (D_k, c_k) = carry, at
        earlier = c_k + over_states(mu[:, None] * D_k, 0)
        Q_earlier = over_states(Q[:, :, None] * D_k, 1) if keep else None
        return (earlier, Q_earlier), (mu, Q)

    start = jnp.zeros_like(c[0]), Q_end
    (mu_entry, Q_entry), (mu, Q) = scan(turn, start, (D, c), len(c), reverse=True)
    return Backwards(mu, mu_entry, Q, Q_entry)
