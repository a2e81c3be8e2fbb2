"""Averages over time of what multiplies the weights, `ex_t = a ex_{t-1} + x_t`, and gradients made
with them, `sum_k ex_k (x) g_k`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax.numpy as jnp

from ..engine.loop import all_steps, scan
from ..engine.window import Window
from ..graph.samples import Samples
from ..ops.axes import Op, gradient_from, gradients_of_one_credit, spread, spread_shape
from ..plan.keys import INPUT, TraceKey, distinct, shared, trace_type
from ..plan.layout import Layout
from .averages import average
from .carrier import Traces


@dataclass(frozen=True, eq=False)
class InputTraces:
    """The input traces of some relations.

    Args:
        layout: the plan.
        chosen: the relations, by number.
        decay: of the averages.
    """

    layout: Layout
    chosen: frozenset[int]
    decay: float

    @cached_property
    def keys(self) -> dict[int, TraceKey]:
        """The key of the input trace of each relation that has one; products of one x share it."""
        alike: dict[Any, list[int]] = {}
        for r in sorted(self.chosen):
            relation = self.layout.relations[r]
            if relation.axes.x is not None:
                is_product = relation.use.eqn.primitive.name == 'dot_general'
                x = relation.x_var if is_product else None
                alike.setdefault(r if x is None else x, []).append(r)
        asked = [shared([self._own_key(r) for r in of_x]) for of_x in alike.values()]
        keys = zip(alike.values(), distinct(asked), strict=True)
        return {r: key for of_x, key in keys for r in of_x}

    def _own_key(self, relation: int) -> TraceKey:
        leaves = [source.leaf for source in self.layout.relations[relation].sources]
        return TraceKey(tuple(leaves), kind=INPUT)

    def _op(self, relation: int) -> Op:
        return self.layout.relations[relation].op

    def init(self) -> Traces:
        """Averages of nothing."""
        traces: Traces = {}
        for r, key in self.keys.items():
            x = spread_shape(self._op(r), self.layout.relations[r].use.eqn.invars)
            traces[key] = jnp.zeros(x.shape, trace_type(x.dtype))
        return traces

    def sample_axes(self, samples: Samples) -> dict[TraceKey, int | None]:
        """The axis of samples of each."""
        return {key: self.layout.sample_axis_of_input(r, samples) for r, key in self.keys.items()}

    def inputs(self, window: Window) -> Traces:
        """What is averaged, at all steps."""
        return {
            key: all_steps(partial(spread, self._op(r)), window.length, window.operands[r])
            for r, key in self.keys.items()
        }

    def after(self, old: Traces, x: Traces) -> Traces:
        """The averages after some steps, with `x` of `(K, *x)` each."""
        return {key: average(self.decay, old[key], a) for key, a in x.items()}

    def over(self, old: Traces, window: Window) -> tuple[Traces, Traces]:
        """The averages at all steps, `(K, *x)`, of inputs that are arrays, and all of them at the
        end. An average of events, or of rows of a table, is far larger than they are, so that it is
        followed in windows of one step only."""
        relations = {key: r for r, key in self.keys.items()}
        x = self.inputs(window)
        arrays = {
            key: a
            for key, a in x.items()
            if window.length == 1 or self._op(relations[key]).takes_array
        }

        def turn(ex, x):
            ex = {key: (self.decay * ex[key] + a).astype(ex[key].dtype) for key, a in x.items()}
            return ex, ex

        end, followed = scan(turn, {key: old[key] for key in arrays}, arrays, window.length)
        rest = {key: a for key, a in x.items() if key not in arrays}
        return followed, {**end, **self.after(old, rest)}

    def gradients(
        self,
        signals: dict[int, Any],
        of_relation: dict[int, int],
        old: Traces,
        followed: Traces,
        window: Window,
    ) -> dict[int, Any]:
        """`sum_k ex_k (x) g_k` by relation: from the averages that were followed, or without.

        Args:
            signals: `g`, `(K, *y)` each.
            of_relation: which of these belongs to a relation.
            old: the averages before the window.
            followed: those at all steps, see `over`.
            window: the steps.
        """
        weights: dict[int, Any] = {}
        averaged = {r: n for r, n in of_relation.items() if self.keys[r] in followed}
        for number in dict.fromkeys(averaged.values()):
            alike = [r for r, n in averaged.items() if n == number]
            ops, xs = [window.ops[r] for r in alike], [followed[self.keys[r]] for r in alike]
            made = gradients_of_one_credit(ops, xs, signals[number])
            weights |= zip(alike, made, strict=True)
        others = {r: n for r, n in of_relation.items() if r not in averaged}
        if others:
            g = {number: signals[number] for number in others.values()}
            weights |= self._by_sums_of_credit(g, others, old, window)
        return weights

    def _by_sums_of_credit(
        self, g: dict[int, Any], of_relation: dict[int, int], old: Traces, window: Window
    ) -> dict[int, Any]:
        """`sum_j x_j (x) G_j + ex_a (x) a G_0`, where `G_j = g_j + a G_{j+1}`."""

        def turn(later, now):
            G = {n: now[n] + self.decay * later[n] for n in now}
            return G, G

        none = {n: jnp.zeros_like(signal[0]) for n, signal in g.items()}
        at_entry, G = scan(turn, none, g, window.length, reverse=True)
        weights = {}
        for r, n in of_relation.items():
            before = old[self.keys[r]], self.decay * at_entry[n]
            weights[r] = gradient_from(window.ops[r], before, window.operands[r], G[n])
        return weights
