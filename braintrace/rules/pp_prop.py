"""pp-prop (ES-D-RTRL): an input trace times an output trace instead of their product.

    ex_t = a_x ex_{t-1} + x_t                  ef_t = a_f D_t ef_{t-1} + (1 - a_f) df_t
    dw_t = ex_t (x) (s_t . ef_t) / (1 - a_f^(t+1))

`s_t` is a signal at the new states, where that is all the credit that y gets in a step. Else
`s_t . ef_t` is formed at the entry of the step: the credit of the old state along its transition
meets `ef_{t-1}`, the position-wise credit of y meets the rest. Same-step credit that reaches y in
another way has no trace and enters with x_t.

With multi-step credit, what arrives at a window's entry `a` meets the last step as it was, and the
product of averages only for what is older:

    J_a = x_a (x) df_a + ex_{a-1} (x) D_a ef_{a-1} / (1 - a_f^a)

It is that older part that is carried then, beside operand and slope of the last step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from ..engine.entries import Entries
from ..engine.factors import Factors
from ..engine.loop import inner, over_states, scan, stacked
from ..engine.window import Window
from ..graph.relations import Relation
from ..graph.samples import Samples
from ..ops.axes import Op, gradient, spread_gradient
from ..plan.kept import Passage, lost_between_units, relation_of
from ..plan.keys import OUTPUT, TraceKey, distinct, shared, trace_type
from ..plan.layout import Feed, Layout
from ..plan.slopes import constant_slope, is_leak
from ..plan.step_sizes import of_signals
from .averages import correction
from .carrier import BlockCarrier, Contribution, Credit, Entry, Traces
from .input_traces import InputTraces


class OutputTrace(NamedTuple):
    """A feed and the key of the output trace that serves it."""

    key: TraceKey
    group: int
    feed: Feed


@dataclass(frozen=True, eq=False)
class Factorised(BlockCarrier):
    """Input and output traces for some relations.

    Args:
        layout: the plan.
        chosen: the relations, by number.
        decay_x, decay_f: of the input and of the output traces.
        identity: leave D out of the output trace.
        leaky: the decay of the input trace stands for D (OTTT).
    """

    layout: Layout
    chosen: frozenset[int]
    decay_x: float
    decay_f: float
    identity: bool = False
    leaky: bool = False
    follows_relations: ClassVar[bool] = True
    mixes_states: ClassVar[bool] = False

    @property
    def asks_of(self) -> frozenset[int]:
        return self.chosen - self.signalled

    @property
    def step_bytes(self) -> int:
        return of_signals(self.layout, [(o.feed.relation, o.group) for o in self.own_outputs])

    @cached_property
    def outputs(self) -> list[OutputTrace]:
        """Every feed with its output trace; feeds whose outputs are added up before anything else
        share one."""
        layout = self.layout
        feeds = [(s, f) for s in layout.slots for f in s.feeds if f.relation in self.chosen]
        places = [
            (layout.shared_sums[layout.relations[f.relation].y_var], s.group, f.unit.tobytes())
            for s, f in feeds
        ]
        alike: dict[tuple, list[TraceKey]] = {}
        for place, (s, _) in zip(places, feeds, strict=True):
            alike.setdefault(place, []).append(s.key.of(OUTPUT))
        others = [s.key for s in layout.slots if s.relation not in self.chosen]
        keys = dict(zip(alike, distinct(map(shared, alike.values()), others), strict=True))
        return [
            OutputTrace(keys[place], s.group, f)
            for place, (s, f) in zip(places, feeds, strict=True)
        ]

    @cached_property
    def own_outputs(self) -> list[OutputTrace]:
        """One feed for each output trace."""
        by_key: dict[TraceKey, OutputTrace] = {}
        for o in self.outputs:
            by_key.setdefault(o.key, o)
        return list(by_key.values())

    @cached_property
    def alike(self) -> dict[int, int]:
        """For each relation the first whose outputs go into the same sum: credit meets the same in
        the output traces of both."""
        layout = self.layout
        first: dict[tuple, int] = {}
        ys = {r: layout.relations[r].y_var for r in sorted(self.chosen)}
        return {
            r: first.setdefault((layout.shared_sums[y], y.aval.shape), r) for r, y in ys.items()
        }

    @cached_property
    def averaged(self) -> InputTraces:
        """The input traces."""
        return InputTraces(self.layout, self.chosen, self.decay_x)

    @property
    def inputs(self) -> dict[int, TraceKey]:
        """The key of the input trace of each relation that has one."""
        return self.averaged.keys

    @property
    def groups(self) -> list[int]:
        return list(dict.fromkeys(o.group for o in self.outputs))

    def init(self) -> Traces:
        traces = self.averaged.init()
        for key, group, feed in self.own_outputs:
            y = self.layout.relations[feed.relation].y_var.aval
            shape = self.layout.units[group].states, *y.shape
            traces[key] = jnp.zeros(shape, trace_type(y.dtype))
        if self._keeps_last:
            traces |= {_last(key): trace for key, trace in traces.items()}
        return traces

    @property
    def _keeps_last(self) -> bool:
        """Whether the last step is kept as it was."""
        return self.layout.every_state and not self.identity and not self.leaky

    def block(
        self, traces: Traces | None, window: Window, credit: Credit, steps: Any, keep: bool
    ) -> tuple[Contribution, Traces | None]:
        old = self.init() if traces is None else traces
        impure = self.chosen - self.layout.pure
        direct = {r: credit.y[r] for r in self.asks_of}
        if impure:
            along = credit.along_units()
            direct |= {r: along[r] for r in impure}
        signals, late, new = self._met_by_credit(old, window, credit, direct, steps)
        followed, ex = self.averaged.over(old, window)
        of_inputs = {r: self.alike[r] for r in self.inputs}
        weights = self.averaged.gradients(signals, of_inputs, old, followed, window)
        for r in self.chosen - of_inputs.keys():
            weights[r] = signals[self.alike[r]].sum(0)
        for r, first in self.alike.items():
            if first in late:
                x = old[self.inputs[r]][None] if r in self.inputs else None
                weights[r] = weights[r] + spread_gradient(window.ops[r], x, late[first][:1])
        for r in impure:
            rest = credit.y[r] - direct[r]
            weights[r] = weights[r] + gradient(window.ops[r], window.operands[r], rest)
        return Contribution(weights), {**ex, **new} if keep else None

    @cached_property
    def signalled(self) -> frozenset[int]:
        """The relations whose credit in a step comes as signals: all that have a trace, or none."""
        traced = frozenset(o.feed.relation for o in self.outputs)
        return traced if self.layout.are_signalled(traced) else frozenset()

    def _met_by_credit(
        self, old: Traces, window: Window, credit: Credit, direct: dict[int, Any], steps: Any
    ) -> tuple[dict[int, Any], dict[int, Any], Traces]:
        """`s_k . ef_k`, corrected, for one of the relations that are alike, `(K, *y)`; what outputs
        take from the state before a step, which belongs to the step before; and the output traces
        at the end."""
        at_new = self.signalled or self.identity
        leaves = [credit.signals(False) if at_new else credit.hidden()]
        if credit.past is not None:
            leaves.append(credit.past)
        given = [self._by_state(of_leaves) for of_leaves in leaves]
        now = steps + jnp.arange(window.length)
        lacks = [correction(self.decay_f, now - late) for late in range(len(given))]
        at_y = {r: direct[r] for r in {*self.alike.values()} - self.signalled}

        def meet(before: Traces, after: Traces, x: tuple) -> list[dict]:
            at_y, [now, *past], lacks = x
            if self.signalled:
                signals = self._met_by_relation(after, now)
            else:
                met = self._met_by_relation(before, now)
                signals = {r: self.decay_f * a for r, a in met.items()}
            for r, a in at_y.items():
                signals[r] = (1 - self.decay_f) * a + signals.get(r, 0)
            late = [self._met_by_relation(before, credit) for credit in past]
            pairs = zip([signals, *late], lacks, strict=True)
            return [{r: a / lack.astype(a.dtype) for r, a in of.items()} for of, lack in pairs]

        made, new = self._output_traces(old, window, meet, (at_y, given, lacks))
        signals, late = made if len(made) > 1 else (*made, {})
        for r, a in late.items():
            signals[r] = signals[r].at[:-1].add(a[1:])
        return signals, late, new

    def _by_state(self, leaves: list[Any]) -> dict[int, list[Any]]:
        """Credit of hidden leaves at all steps, state by state for each group."""
        units = self.layout.units
        return {g: units[g].credit_by_state(leaves) for g in self.groups}

    def _met_by_relation(self, traces: Traces, credit: dict[int, list[Any]]) -> dict[int, Any]:
        """What credit of one step, state by state for each group, meets in the output traces, for
        one of the relations that are alike."""
        met: dict[int, Any] = {}
        for key, group, feed in self.outputs:
            r = feed.relation
            if self.alike[r] == r:
                at_y = [feed.at_y(a) for a in credit[group]]
                met[r] = met.get(r, 0) + inner(at_y, traces[key])
        return met

    def _transition(self, factors: Factors, group: int) -> Entries:
        """`D[a][b]` of a step as this rule sees it."""
        if self.identity:
            return self.layout.units[group].identity
        return factors.entries(group)

    def _output_traces(
        self,
        traces: Traces,
        window: Window,
        seen: Callable[[Traces, Traces, Any], Any],
        xs: Any = (),
    ) -> tuple[Any, Traces]:
        """What is `seen(before, after, x)` of the output traces before and after each step of a
        window, and the traces at its end."""

        def turn(old, at):
            moment, x = at
            factors, new = window.factors.in_step(moment), {}
            D = {group: self._transition(factors, group) for group in self.groups}
            for key, group, feed in self.own_outputs:
                df = factors.slopes(feed.relation, group, feed.unit)
                grown = [
                    self.decay_f * moved + (1 - self.decay_f) * slope
                    for moved, slope in zip(_moved_on(D[group], feed, old[key]), df, strict=True)
                ]
                new[key] = stacked(grown).astype(old[key].dtype)
            return new, seen(old, new, x)

        start = {o.key: traces[o.key] for o in self.own_outputs}
        new, made = scan(turn, start, (window.moments, xs), window.length)
        return made, new

    def sample_axes(self, samples: Samples) -> dict[TraceKey, int | None]:
        layout = self.layout
        axes = self.averaged.sample_axes(samples)
        for key, _, feed in self.own_outputs:
            axes[key] = layout.sample_axis_of_output(feed.relation, samples)
        return axes

    def read(self, traces: Traces, entry: Entry) -> Contribution:
        weights: dict[int, Any] = {}
        for key, group, feed in self.outputs:
            r, lam = feed.relation, self.layout.units[group].credit_of_leaves(entry.hidden, 0)
            signal = over_states(feed.at_y(lam), traces[key], 0)
            averaged = entry.steps - 1 if self._keeps_last else entry.steps
            signal = (signal / correction(self.decay_f, averaged - 1)).astype(signal.dtype)
            met = _meet(entry.ops[r], traces, self.inputs.get(r), signal)
            if self._keeps_last:
                signal = over_states(feed.at_y(lam), traces[_last(key)], 0)
                of_input = _last(self.inputs[r]) if r in self.inputs else None
                met = met + _meet(entry.ops[r], traces, of_input, signal)
            weights[r] = weights.get(r, 0) + met
        return Contribution(weights)

    def advance(self, traces: Traces, window: Window) -> Traces:
        if not self._keeps_last:
            new = self._output_traces(traces, window, _nothing)[1]
            return {**self.averaged.after(traces, self.averaged.inputs(window)), **new}
        whole = self._with_last(traces)
        x = self.averaged.inputs(window)
        new = self.averaged.after(whole, {key: a[:-1] for key, a in x.items()})
        new |= {_last(key): a[-1] for key, a in x.items()}
        before, _ = self._output_traces(whole, window, _before)
        last = window.factors.in_step(window.moment(-1))
        for key, group, feed in self.own_outputs:
            D = self._transition(last, group)
            new[key] = stacked(_moved_on(D, feed, before[key][-1]))
            new[_last(key)] = stacked(last.slopes(feed.relation, group, feed.unit))
        return {key: trace.astype(traces[key].dtype) for key, trace in new.items()}

    def _with_last(self, traces: Traces) -> Traces:
        """The averages with the last step in them."""
        whole: Traces = {}
        for key in self.inputs.values():
            whole[key] = self.decay_x * traces[key] + traces[_last(key)]
        for key, _, _ in self.own_outputs:
            whole[key] = self.decay_f * traces[key] + (1 - self.decay_f) * traces[_last(key)]
        return whole

    def loses(self, way: Passage) -> str | None:
        relation = relation_of(self.layout, way.use)
        if way.new is None and (relation is None or not way.single_step):
            return None  # its own step is left alone
        if relation is not None and self._is_linear_leak(relation):
            return lost_between_units(self.layout, way)
        return 'an average of inputs times an average of slopes stands for the average of products'

    def _is_linear_leak(self, relation: Relation) -> bool:
        """Whether a weight adds to states that leak by the decay of its input trace: then that
        trace times a slope that never changes is the whole of its influence."""
        analysis, ready = self.layout.graph.analysis, relation.axes.x is not None
        if self.decay_f or not ready or len(relation.groups) != 1:
            return False
        seed, [group] = analysis.seed_of(relation.use), relation.groups
        for s, row in enumerate(analysis.rows):
            if row not in group.rows:
                continue
            own = constant_slope(analysis, s, row.old, row)
            if len(group.rows) > 1 or not is_leak(own, self.decay_x):
                return False
            if constant_slope(analysis, seed, relation.y_var, row) is None:
                return False
        return True


def _nothing(before: Traces, after: Traces, x: Any) -> None:
    """Nothing is seen."""


def _before(before: Traces, after: Traces, x: Any) -> Traces:
    """The traces before each step."""
    return before


def _moved_on(D: Entries, feed: Feed, ef: jax.Array) -> list[jax.Array]:
    """`D ef` of one step, state by state."""
    return [inner([feed.at_y(d) for d in row], list(ef)) for row in D]


def _last(key: TraceKey) -> TraceKey:
    """The key of what the last step alone did."""
    return key.of(f'last {key.kind}')


def _meet(op: Op, traces: Traces, of_input: TraceKey | None, signal: jax.Array) -> Any:
    """What a signal at y gives with an input trace: a gradient of the weight."""
    x = None if of_input is None else traces[of_input][None]
    return spread_gradient(op, x, signal[None])
