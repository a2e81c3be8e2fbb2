"""D-RTRL: each weight remembers the unit it feeds.

    e_b = Q_0 e_a + sum_k x_k (x) (Q_k df_k)
    dw  = lam_a . e_a + sum_k x_k (x) (df_k . mu_k + same-step credit of y_k)

`D_k` and `df_k` are the slopes of the new state of step k by the old one and by the output of the
op, along position-wise paths, and `Q_k = D_K ... D_{k+1}` is what step k has become at the end.
`mu_k` is the credit of the state after step k that later steps of the block send back through the
transitions, `mu_{k-1} = c_k + D_k^T mu_k`: credit from the future travels only where the trace
travels, so the result does not depend on how time is cut into blocks.

Where all credit of a step comes by way of states that are carried, as signals `s_k` at their new
values, it joins that of later steps before it goes through the slopes:

    dw  = lam_a . e_a + sum_k x_k (x) df_k . (s_k + mu_k)         mu_{k-1} = D_k^T (s_k + mu_k)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ..engine.entries import Entries, back_through, whole
from ..engine.factors import diagonal
from ..engine.loop import apart, inner
from ..engine.window import Window
from ..graph.analysis import Row
from ..graph.relations import Relation
from ..graph.samples import Samples
from ..ops.axes import Block, gradient, renewed
from ..plan.kept import Passage, lost_between_units, relation_of
from ..plan.keys import TraceKey
from ..plan.layout import Layout, Scope, Slot
from ..plan.slopes import constant_slope, is_leak
from ..plan.step_sizes import of_an_output, of_credit, of_transitions
from .backwards import Backwards, UnitCredit, backwards
from .carrier import Contribution, Credit, Entry, PartCarrier, Traces
from .last_step import LastStep
from .leak import Leak
from .slot_trace import SlotTrace, WholeTrace
from .table_trace import TableTrace


@dataclass(frozen=True, eq=False)
class PositionWise(PartCarrier):
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
    def asks_of(self) -> frozenset[int]:
        return self.chosen - self.signalled

    @property
    def step_bytes(self) -> int:
        of_units = of_credit(self.layout, self.groups) + of_transitions(self.layout, self.groups)
        return of_an_output(self.layout, self.chosen) + of_units

    def slots_of(self, group: int) -> list[Slot]:
        """The traces it keeps for one group."""
        return [s for s in self.slots if s.group == group]

    def transition(self, window: Window, group: int) -> Entries:
        """`D[a][b]` as this rule sees it."""
        if self.leak is not None:
            return self.leak.transition(window, group)
        if self.layout.scope is Scope.COUPLED:
            return apart(diagonal(window, group), 2)
        return window.factors.least_entries(group)

    def kept(self, s: Slot) -> SlotTrace:
        """How the trace of a slot is kept."""
        if self._forgets(s.group):
            return LastStep(self.layout, s)
        if self._is_large_table(s):
            assert self.rows is not None
            return TableTrace(self.layout, s, self._stored(s), self.rows)
        return WholeTrace(self.layout, s, self._stored(s))

    def init(self) -> Traces:
        return {key: trace for s in self.slots for key, trace in self.kept(s).init().items()}

    def block(
        self, traces: Traces | None, window: Window, credit: Credit, steps: Any, keep: bool
    ) -> tuple[Contribution, Traces | None]:
        dy, backs = self._credit_of_outputs(window, credit, keep, {})
        from_before: dict[int, Any] = {}
        new: Traces = {}
        at_once: list[tuple[Slot, Backwards]] = []
        for s in self.slots:
            back = backs[s.group]
            if traces is not None and keep and self._renews(s):
                at_once.append((s, back))
                continue
            if traces is not None:
                met = self.kept(s).read(traces, back.mu_entry, window.ops)
                from_before[s.relation] = from_before.get(s.relation, 0) + met
            if keep:
                new |= self.kept(s).advance(traces, window, back)
        weights: dict[int, Any] = {}
        for s, back in at_once:
            weights[s.relation], new[s.key] = self._renewed(s, traces, window, back, dy)
        for r, d in dy.items():
            if r not in weights:
                weights[r] = gradient(window.ops[r], window.operands[r], d) + from_before.get(r, 0)
        return Contribution(weights), new if keep else None

    @property
    def at_end(self) -> dict[int, jax.Array]:
        units = {group: self.layout.units[group] for group in self.groups}
        return {g: jnp.zeros((u.states, *u.shape), u.dtype) for g, u in units.items()}

    def part(self, window: Window, credit: Credit, later: Any) -> tuple[Contribution, Any]:
        dy, backs = self._credit_of_outputs(window, credit, False, later)
        weights = {r: gradient(window.ops[r], window.operands[r], d) for r, d in dy.items()}
        earlier = {g: back.mu_entry.astype(later[g].dtype) for g, back in backs.items()}
        return Contribution(weights), earlier

    def _credit_of_outputs(
        self, window: Window, credit: Credit, keep: bool, later: Mapping[int, jax.Array]
    ) -> tuple[dict[int, Any], dict[int, Backwards]]:
        """The credit of the outputs of each relation at all steps, with that of later steps; and
        how this goes back in each group. `later` is what comes from after the window, if any."""
        dy = {r: [] if r in self.signalled else [credit.y[r]] for r in self.chosen}
        backs = {}
        for group in self.groups:
            D = self.transition(window, group)
            of_units = self._credit_of_units(credit, group, D)
            backs[group] = back = backwards(D, of_units, keep, later.get(group))
            for s in self.slots_of(group):
                for f in s.feeds:
                    df = window.factors.least_slopes(f.relation, group, f.unit)
                    dy[f.relation].append(inner([f.at_y(a) for a in back.mu], df))
        return {r: reduce(jnp.add, terms) for r, terms in dy.items()}, backs

    @cached_property
    def signalled(self) -> frozenset[int]:
        """The relations whose credit in a step comes as signals: all that have a trace, or none."""
        traced = frozenset(f.relation for s in self.slots for f in s.feeds)
        return traced if self.layout.are_signalled(traced) else frozenset()

    def _renews(self, s: Slot) -> bool:
        """Whether the op of a weight takes its trace through a block and reads it at once, and the
        weight has no other trace."""
        alone = [t for t in self.slots if t.relation == s.relation] == [s] and len(s.feeds) == 1
        op = self.layout.relations[s.relation].op
        return alone and op.renew is not None and not self._forgets(s.group)

    def _renewed(
        self, s: Slot, traces: Any, window: Window, back: Backwards, dy: dict[int, Any]
    ) -> tuple[Any, Any]:
        """The gradient of a weight and its trace after a block."""
        [f] = s.feeds
        arrived = back.arrived(f, window.factors.slopes(f.relation, s.group, f.unit))
        q = jnp.stack([f.at_all(a) for a in arrived], 1)
        units = self.layout.units[s.group]
        Q = f.at_y(whole(back.Q_entry, units.shape, 0, units.dtype))
        block = Block(dy[s.relation], f.at_y(back.mu_entry), Q, q)
        e = traces[s.key]
        dtype = jnp.result_type(e, *block)
        block = Block(*[a.astype(dtype) for a in block])
        met, new = renewed(
            window.ops[s.relation], window.operands[s.relation], block, e.astype(dtype)
        )
        return met, new.astype(self._stored(s))

    def _credit_of_units(self, credit: Credit, group: int, D: Entries) -> UnitCredit:
        """The credit of the states of a group in each step: signals, or that of the old states
        along the transition of this rule."""
        by_state = self.layout.units[group].credit_by_state
        past = None if credit.past is None else by_state(credit.past)
        if self.signalled:
            return UnitCredit(by_state(credit.signals(False)), past)
        if self.leak is not None or self.layout.scope is Scope.COUPLED:
            c = back_through(D, by_state(credit.signals(False)))
        else:
            c = by_state(credit.hidden())
        if past is not None:
            c = [a + more for a, more in zip(c, past, strict=True)]
        return UnitCredit(None, c)

    def read(self, traces: Traces, entry: Entry) -> Contribution:
        weights: dict[int, Any] = {}
        for s in self.slots:
            lam = self.layout.units[s.group].credit_of_leaves(entry.hidden, 0)
            met = self.kept(s).read(traces, lam, entry.ops)
            weights[s.relation] = weights.get(s.relation, 0) + met
        return Contribution(weights)

    def advance(self, traces: Traces, window: Window) -> Traces:
        new: Traces = {}
        for group in self.groups:
            D = self.transition(window, group)
            units = self.layout.units[group]
            none = jnp.zeros((window.length, *units.shape), units.dtype)
            back = backwards(D, UnitCredit(None, [none] * units.states), keep=True)
            for s in self.slots_of(group):
                new |= self.kept(s).advance(traces, window, back)
        return new

    def sample_axes(self, samples: Samples) -> dict[TraceKey, int | None]:
        axes: dict[TraceKey, int | None] = {}
        for s in self.slots:
            axes |= self.kept(s).sample_axes(samples)
        return axes

    def _stored(self, s: Slot) -> np.dtype:
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
        if any(map(self._is_large_table, mine)):
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

    def _is_large_table(self, s: Slot) -> bool:
        """Whether a weight is a table of more rows than a trace holds."""
        table = self.layout.relations[s.relation].op.table
        if self.rows is None or table is None or len(s.feeds) > 1:
            return False
        return table.size > self.rows
