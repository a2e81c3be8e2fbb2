"""pp-prop (ES-D-RTRL): an input trace times an output trace instead of their product.

    ex_t = a_x ex_{t-1} + x_t                  ef_t = a_f D_t ef_{t-1} + (1 - a_f) df_t
    dw_t = ex_t (x) (s_t . ef_t) / (1 - a_f^(t+1))

`s_t . ef_t` is formed at the entry of the step: the credit of the old state along its transition meets `ef_{t-1}`, the position-wise credit of y meets
the rest. Same-step credit that reaches y in another way has no trace and enters with x_t.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from .carrier import Contribution, Credit, Entry, Traces, weight_gradient
from .slots import Feed, Layout, Slot


@dataclass(frozen=True, eq=False)
class Factorised:
    """Input and output traces for these relations, with their decays."""
    layout: Layout
    chosen: frozenset[int]
    decay_x: float
    decay_f: float

    def _feeds(self) -> list[tuple[str, Slot, Feed]]:
        return [(f'{s.name}/{k}' if k else s.name, s, f) for s in self.layout.slots for k, f in enumerate(s.feeds) if f.relation in self.chosen]

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
            avals = [jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype) for a in relation.use.eqn.invars]
            x = jax.eval_shape(lambda *v, relation=relation: relation.operand(v), *avals)
            traces[self._x_name(r)] = jnp.zeros(x.shape, x.dtype)
        for name, s, f in self._feeds():
            y = self.layout.relations[f.relation].y_var.aval
            traces[name] = jnp.zeros((len(self.layout.units[s.group].rows), *y.shape), y.dtype)
        return traces

    def block(self, traces: Traces | None, window, credit: Credit, steps, keep: bool) -> tuple[Contribution, Traces | None]:
        old = self.init() if traces is None else traces
        direct = credit.direct()
        at_step = steps + jnp.arange(window.length)
        xs, before, new = self._over(old, window)
        weights = {}
        for r in sorted(self.chosen):
            axes, dtype = self.layout.relations[r].axes, direct[r].dtype
            scale = 1 / _correction(self.decay_f, at_step, dtype).reshape(-1, *[1] * (direct[r].ndim - 1))
            signal = (1 - self.decay_f) * direct[r]
            for name, s, f in self._feeds():
                if f.relation == r:
                    units = self.layout.units[s.group]
                    c = jnp.stack([row.of(credit.hidden[i]) for row, i in zip(units.rows, units.leaves, strict=True)], 1)
                    signal = signal + self.decay_f * (f.at_y(c) * before[name]).sum(1)
            weights[r] = weight_gradient(axes, xs.get(r), signal * scale)
            weights[r] = weights[r] + weight_gradient(axes, window.operands[r], credit.y[r] - direct[r])
        return Contribution(weights), new if keep else None

    def _over(self, traces: Traces, window) -> tuple[dict[int, Any], Traces, Traces]:
        """The input traces after each step, the output traces before each step, and all at the end."""
        feeds, with_x = self._feeds(), self._with_x()
        D = {g: window.transition(g) for g in {s.group: None for _, s, _ in feeds}}
        df = {name: window.slope(f.relation, s.group, f.unit, f.at_y) for name, s, f in feeds}

        def turn(carry, z):
            D, df, xs = z
            moved = {name: self.decay_f * (f.at_y(D[s.group]) * carry[name][None]).sum(1) + (1 - self.decay_f) * df[name] for name, s, f in feeds}
            inputs = {self._x_name(r): self.decay_x * carry[self._x_name(r)] + x for r, x in xs.items()}
            return {**inputs, **moved}, ({r: inputs[self._x_name(r)] for r in with_x}, {name: carry[name] for name, _, _ in feeds})

        operands = {r: window.operands[r] for r in with_x}
        new, (xs, before) = jax.lax.scan(turn, traces, (D, df, operands), length=window.length)
        return xs, before, new

    def read(self, traces: Traces, credit: Entry) -> Contribution:
        weights: dict[int, Any] = {}
        for name, s, f in self._feeds():
            units, r = self.layout.units[s.group], f.relation
            lam = jnp.stack([row.of(credit.hidden[i]) for row, i in zip(units.rows, units.leaves, strict=True)])
            signal = (f.at_y(lam) * traces[name]).sum(0) / _correction(self.decay_f, credit.steps - 1, traces[name].dtype)
            x = None if r not in self._with_x() else traces[self._x_name(r)][None]
            weights[r] = weights.get(r, 0) + weight_gradient(self.layout.relations[r].axes, x, signal[None])
        return Contribution(weights)

    def advance(self, traces: Traces, window) -> Traces:
        return self._over(traces, window)[2]


def _correction(decay: float, step: Any, dtype: Any) -> Any:
    """The bias of an average over `step + 1` terms that started from zero."""
    return jnp.maximum(1 - jnp.asarray(decay, dtype) ** (step + 1), 1e-8).astype(dtype)
