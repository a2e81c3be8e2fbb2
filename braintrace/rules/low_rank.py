"""RTRL in low rank: J ~ U V with r columns, compressed once a window to the best such product, and a bound of what that has cost.

    J_b = Phi U V + M        U <- its first r left singular vectors,  V <- U^T J_b        bound <- |Phi| bound + |what was dropped|

The bound is on the Frobenius norm of the error of J, so the gradient of a window is off by no more than |lambda_a| times it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from .._jax import Var, is_float
from ..plan.layout import Layout
from .carrier import Contribution, Credit, Entry, Traces
from .rtrl import Exactly


@dataclass(frozen=True, eq=False)
class LowRank(Exactly):
    """A factor of J of rank `rank`, over all float states and parameters."""

    layout: Layout
    rank: int

    @property
    def _params(self) -> list[tuple[str, Var]]:
        step = self.layout.graph.step
        return [
            (f'V:{i}:{leaf.name}', v)
            for i, (leaf, v) in enumerate(zip(step.params, step.param_vars, strict=True))
            if is_float(v)
        ]

    def _size(self) -> int:
        return sum(v.aval.size for v in self.state)

    def init(self) -> Traces:
        n, dtype = self._size(), self.state[0].aval.dtype
        r = min(self.rank, n)
        return {
            'U': jnp.zeros((n, r), dtype),
            'bound': jnp.zeros((), dtype),
            **{name: jnp.zeros((r, *p.aval.shape), p.aval.dtype) for name, p in self._params},
        }

    def read(self, traces: Traces, credit: Entry) -> Contribution:
        lam = jnp.concatenate([a.ravel() for a in self.moving(credit)]) @ traces['U']
        found = {
            p: jnp.tensordot(lam, traces[name], 1).astype(p.aval.dtype) for name, p in self._params
        }
        return Contribution(params=[found.get(p) for p in self.layout.graph.step.param_vars])

    def advance(self, traces: Traces, window) -> Traces:
        Phi, M = self.whole(window)
        moved = Phi @ traces['U']
        J = [
            m + jnp.tensordot(moved, traces[name], 1)
            for (name, _), m in zip(self._params, M, strict=True)
        ]
        gram: Any = sum(a.reshape(len(a), -1) @ a.reshape(len(a), -1).T for a in J)
        size, vectors = jnp.linalg.eigh(gram)
        r = traces['U'].shape[1]
        U = vectors[:, ::-1][:, :r]
        dropped = jnp.sqrt(jnp.maximum(size[: len(size) - r], 0).sum())
        bound = jnp.linalg.norm(Phi, 2) * traces['bound'] + dropped
        return {
            'U': U,
            'bound': bound,
            **{
                name: jnp.tensordot(U.T, a, 1).astype(a.dtype)
                for (name, _), a in zip(self._params, J, strict=True)
            },
        }

    def block(self, traces: Traces | None, window, credit: Credit, steps, keep: bool):
        raise NotImplementedError(
            "Low-rank RTRL takes its credit inside windows: use vjp_method='multi-step'."
        )
