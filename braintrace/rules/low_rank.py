"""RTRL in low rank: J ~ U V with r columns, compressed once a window to the best such product, and
a bound of what that has cost.

    J_b = Phi U V + M
    U <- the first r left singular vectors of J_b,  V <- U^T J_b
    bound <- |Phi| bound + |what was dropped|

The bound is on the Frobenius norm of the error of J, so the gradient of a window is off by no more
than |lambda_a| times it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp

from ..engine.window import Window
from ..plan.kept import Passage
from ..plan.keys import TraceKey, trace_type
from ..plan.layout import Layout
from .carrier import Carrier, Contribution, Entry, Traces
from .whole_state import FloatParam, WholeState

U, V, BOUND = TraceKey(kind='U'), 'V', TraceKey(kind='bound')


@dataclass(frozen=True, eq=False)
class LowRank(Carrier):
    """A factor of J of rank `rank`, over all float states and parameters."""

    layout: Layout
    rank: int

    @cached_property
    def state(self) -> WholeState:
        return WholeState(self.layout.graph)

    @cached_property
    def params(self) -> list[FloatParam]:
        return self.state.params(V)

    def init(self) -> Traces:
        n, dtype = self.state.size, trace_type(self.state.dtype)
        r = min(self.rank, n)
        traces: Traces = {U: jnp.zeros((n, r), dtype), BOUND: jnp.zeros((), dtype)}
        for p in self.params:
            traces[p.key] = jnp.zeros((r, *p.var.aval.shape), trace_type(p.var.aval.dtype))
        return traces

    def read(self, traces: Traces, entry: Entry) -> Contribution:
        lam = self.state.credit_row(self.state.of_entry(entry)) @ traces[U]
        gradients = {}
        for p in self.params:
            met = jnp.tensordot(lam, traces[p.key], 1)
            gradients[p.number] = met.astype(p.var.aval.dtype)
        return self.state.to_params(gradients)

    def advance(self, traces: Traces, window: Window) -> Traces:
        Phi, M = self.state.influence(window, self.params)
        moved = Phi @ traces[U]
        pairs = zip(self.params, M, strict=True)
        J = {p.key: m + jnp.tensordot(moved, traces[p.key], 1) for p, m in pairs}
        products = [_products(a.reshape(len(a), -1)) for a in J.values()]
        gram = sum(products, start=jnp.zeros_like(Phi))
        squares, vectors = jnp.linalg.eigh(gram)
        r = traces[U].shape[1]
        new_U = vectors[:, ::-1][:, :r]
        dropped = jnp.sqrt(jnp.maximum(squares[: len(squares) - r], 0).sum())
        new: Traces = {U: new_U, BOUND: jnp.linalg.norm(Phi, 2) * traces[BOUND] + dropped}
        for key, a in J.items():
            new[key] = jnp.tensordot(new_U.T, a, 1).astype(a.dtype)
        return new

    def loses(self, way: Passage) -> str | None:
        if way.new is None or self.rank >= self.state.size:
            return None
        return f'{self.rank} of {self.state.size} directions of the state are kept'


def _products(rows: jax.Array) -> jax.Array:
    """The product of each row with each, where a complex number counts as its two parts."""
    return (rows @ rows.conj().T).real
