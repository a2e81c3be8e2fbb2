"""pp-prop (ES-D-RTRL): an input trace times an output trace instead of their product.

    ex_t = a_x ex_{t-1} + x_t                  ef_t = a_f D_t ef_{t-1} + (1 - a_f) df_t
    dw_t = ex_t (x) (s_t . ef_t) / (1 - a_f^(t+1))

`s_t . ef_t` is formed at the entry of the step: the credit of the old state along its transition meets `ef_{t-1}`, the position-wise credit of y meets
the rest. Same-step credit that reaches y in another way has no trace and enters with x_t.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp

from ..engine.loop import over_states, scan
from ..ops.axes import gradient, spread, spread_gradient
from ..plan.layout import Feed, Layout, Slot
from .carrier import Contribution, Credit, Entry, Traces


@dataclass(frozen=True, eq=False)
class Factorised:
    """Input and output traces for these relations, with their decays. With `identity` D is left out of the output trace."""

    layout: Layout
    chosen: frozenset[int]
    decay_x: float
    decay_f: float
    identity: bool = False

    @cached_property
    def _feeds(self) -> list[tuple[str, Slot, Feed]]:
        """Name of the output trace, slot and feed; feeds whose outputs are added up before anything else share a trace."""
        names: dict[tuple, str] = {}
        feeds = []
        for s in self.layout.slots:
            for k, f in enumerate(s.feeds):
                if f.relation in self.chosen:
                    alike = (
                        self.layout.sums[self.layout.relations[f.relation].y_var],
                        s.group,
                        f.unit.tobytes(),
                    )
                    feeds.append((names.setdefault(alike, f'{s.name}/{k}' if k else s.name), s, f))
        return feeds

    @cached_property
    def _own_feeds(self) -> list[tuple[str, Slot, Feed]]:
        """One feed for each output trace."""
        return list({name: (name, s, f) for name, s, f in reversed(self._feeds)}.values())[::-1]

    def _with_x(self) -> list[int]:
        return [r for r in sorted(self.chosen) if self.layout.relations[r].axes.x is not None]

    def _x_name(self, r: int) -> str:
        name = lambda i: self.layout.relations[i].name.split(':', 1)[1]
        again = sum(name(i) == name(r) for i in self._with_x() if i < r)
        return f'x:{name(r)}#{again}' if again else f'x:{name(r)}'

    def init(self) -> Traces:
        traces: Traces = {}
        for r in self._with_x():
            relation = self.layout.relations[r]
            avals = [
                jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype) for a in relation.use.eqn.invars
            ]
            x = jax.eval_shape(lambda *v, r=relation: spread(r.op, r.operand(v)), *avals)
            traces[self._x_name(r)] = jnp.zeros(x.shape, x.dtype)
        for name, s, f in self._own_feeds:
            y = self.layout.relations[f.relation].y_var.aval
            traces[name] = jnp.zeros((len(self.layout.units[s.group].rows), *y.shape), y.dtype)
        return traces

    def block(
        self, traces: Traces | None, window, credit: Credit, steps, keep: bool
    ) -> tuple[Contribution, Traces | None]:
        old = self.init() if traces is None else traces
        impure = self.chosen - self.layout.pure
        direct = dict(enumerate(credit.y)) | (
            {r: d for r, d in enumerate(credit.direct()) if r in impure} if impure else {}
        )
        before, new = self._outputs(old, window)
        signals, late = self._signals(window.length, credit, direct, before, steps)
        ex = self._inputs(old, window) if keep or window.length == 1 else {}
        weights = self._weights(signals, old, ex, window)
        for r, signal in late.items():
            weights[r] = weights[r] + spread_gradient(
                self.layout.relations[r].op,
                old[self._x_name(r)][None] if r in self._with_x() else None,
                signal[:1],
            )
        for r in impure:
            weights[r] = weights[r] + gradient(
                self.layout.relations[r].op, window.operands[r], credit.y[r] - direct[r]
            )
        return Contribution(weights), {**ex, **new} if keep else None

    def _signals(
        self, length: int, credit: Credit, direct: dict[int, Any], before: Traces, steps: Any
    ) -> tuple[dict[int, Any], dict[int, Any]]:
        """`s_k . ef_k`, corrected, for each relation; and what outputs take from the state before a step, which belongs to the step before."""
        late = {}
        c = {
            g: self.layout.at_rows(g, credit.signals() if self.identity else credit.hidden, 1)
            for g in {s.group: None for _, s, _ in self._feeds}
        }
        signals = {r: (1 - self.decay_f) * direct[r] for r in sorted(self.chosen)}
        for name, s, f in self._feeds:
            signals[f.relation] += self.decay_f * over_states(f.at_y(c[s.group]) * before[name], 1)
        for r, signal in signals.items():
            signals[r] = signal / _correction(self.decay_f, steps + jnp.arange(length)).astype(
                signal.dtype
            ).reshape(-1, *[1] * (signal.ndim - 1))
            if credit.past is not None:
                late[r] = self._of_past(
                    r, credit.past, before, steps + jnp.arange(length) - 1, jnp.zeros_like(signal)
                )
                signals[r] = signals[r].at[:-1].add(late[r][1:])
        return signals, late

    def _weights(self, signals: dict[int, Any], old: Traces, ex: Traces, window) -> dict[int, Any]:
        """`sum_k ex_k (x) g_k = sum_j x_j (x) G_j + ex_a (x) a_x G_0`, with `G_j = g_j + a_x G_{j+1}`; in one step, ex_b is at hand."""
        op = lambda r: self.layout.relations[r].op
        g = {r: signals[r] for r in self._with_x()}
        weights = {r: signal.sum(0) for r, signal in signals.items() if r not in g}
        if window.length == 1:
            return weights | {
                r: spread_gradient(op(r), ex[self._x_name(r)][None], signal)
                for r, signal in g.items()
            }
        first, G = scan(
            lambda late, g: 2 * ({r: g[r] + self.decay_x * late[r] for r in g},),
            {r: jnp.zeros_like(v[0]) for r, v in g.items()},
            g,
            window.length,
            reverse=True,
        )
        return weights | {
            r: gradient(op(r), window.operands[r], G[r])
            + spread_gradient(op(r), old[self._x_name(r)][None], self.decay_x * first[r][None])
            for r in g
        }

    def _of_past(self, r: int, past: list, before: Traces, steps: Any, found: Any) -> Any:
        """The signal of output traces before each step, by credit of the state before it."""
        for name, s, f in self._feeds:
            if f.relation == r:
                found = found + over_states(
                    f.at_y(self.layout.at_rows(s.group, past, 1)) * before[name], 1
                )
        return found / _correction(self.decay_f, steps).astype(found.dtype).reshape(
            -1, *[1] * (found.ndim - 1)
        )

    def _inputs(self, traces: Traces, window) -> Traces:
        """The input traces at the end of a window."""
        K, new = window.length, {}
        for r in self._with_x():
            x = jax.vmap(partial(spread, self.layout.relations[r].op))(window.operands[r])
            late = self.decay_x ** jnp.arange(K - 1, -1, -1, dtype=x.dtype)
            new[self._x_name(r)] = self.decay_x**K * traces[self._x_name(r)] + jnp.tensordot(
                late, x, 1
            )
        return new

    def _transition(self, window, g: int) -> Any:
        return self.layout.identity(g, window.length) if self.identity else window.transition(g)

    def _outputs(self, traces: Traces, window) -> tuple[Traces, Traces]:
        """The output traces before each step of a window, and at its end."""
        feeds = self._own_feeds
        D = {g: self._transition(window, g) for g in {s.group: None for _, s, _ in feeds}}
        df = {name: window.slope(f.relation, s.group, f.unit) for name, s, f in feeds}

        def turn(old, z):
            D, df = z
            new = {
                name: self.decay_f * over_states(f.at_y(D[s.group]) * old[name][None], 1)
                + (1 - self.decay_f) * df[name]
                for name, s, f in feeds
            }
            return {name: v.astype(old[name].dtype) for name, v in new.items()}, old

        new, before = scan(
            turn, {name: traces[name] for name, _, _ in feeds}, (D, df), window.length
        )
        return before, new

    def read(self, traces: Traces, credit: Entry) -> Contribution:
        weights: dict[int, Any] = {}
        for name, s, f in self._feeds:
            r, lam = f.relation, self.layout.at_rows(s.group, credit.hidden, 0)
            signal = over_states(f.at_y(lam) * traces[name], 0)
            signal = (signal / _correction(self.decay_f, credit.steps - 1)).astype(signal.dtype)
            x = None if r not in self._with_x() else traces[self._x_name(r)][None]
            weights[r] = weights.get(r, 0) + spread_gradient(
                self.layout.relations[r].op, x, signal[None]
            )
        return Contribution(weights)

    def advance(self, traces: Traces, window) -> Traces:
        return {**self._inputs(traces, window), **self._outputs(traces, window)[1]}


def _correction(decay: float, step: Any) -> Any:
    """The bias of an average over `step + 1` terms that started from zero."""
    return jnp.maximum(1 - jnp.asarray(decay, jnp.result_type(float)) ** (step + 1), 1e-8)
