"""RTRL: the whole of J. Exact for any model; a window of about n steps brings the price from n^4 to n^3 a step (Schmidhuber 1992).

    J_b = Phi J_a + M        Phi = d h_b / d h_a,  M = d h_b / d theta at fixed h_a, both by one pull through the window for each element of the state
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from .._jax import is_float
from .carrier import Contribution, Credit, Entry, Traces
from .slots import Layout


@dataclass(frozen=True, eq=False)
class Full:
    """dh/dtheta for every float element of the state and every parameter."""
    layout: Layout

    def _leaves(self) -> tuple[list, list]:
        step = self.layout.graph.step
        return [v for v in [*step.hidden_vars, *step.other_vars] if is_float(v)], list(step.param_vars)

    @property
    def _names(self) -> list[str]:
        return [f'{i}:{leaf.name}' for i, leaf in enumerate(self.layout.graph.step.params)]

    def init(self) -> Traces:
        state, params = self._leaves()
        n = sum(v.aval.size for v in state)
        return {name: jnp.zeros((n, *p.aval.shape), p.aval.dtype) for name, p in zip(self._names, params, strict=True)}

    def block(self, traces: Traces | None, window, credit: Credit, steps, keep: bool):
        raise NotImplementedError("RTRL has no single-step form of its own: use vjp_method='multi-step'.")

    def read(self, traces: Traces, credit: Entry) -> Contribution:
        lam = jnp.concatenate([a.ravel() for a in (*credit.hidden, *credit.other)])
        return Contribution(params=[jnp.tensordot(lam, traces[name], 1) for name in self._names])

    def advance(self, traces: Traces, window) -> Traces:
        state, _ = self._leaves()
        sizes = [v.aval.size for v in state]
        n, cuts = sum(sizes), np.cumsum(sizes)[:-1]
        hidden = sum(is_float(v) for v in self.layout.graph.step.hidden_vars)

        def pull(unit):
            parts = [p.reshape(v.aval.shape).astype(v.aval.dtype) for p, v in zip(jnp.split(unit, cuts), state, strict=True)]
            dp, dh, ds, _ = window.pull(hidden=parts[:hidden], other=parts[hidden:])
            return jnp.concatenate([a.ravel() for a in (*dh, *ds)]), dp

        Phi, M = jax.vmap(pull)(jnp.eye(n, dtype=state[0].aval.dtype))
        return {name: m + jnp.tensordot(Phi, traces[name], 1) for name, m in zip(self._names, M, strict=True)}
