"""RTRL in low rank: J ~ U V with r columns, compressed once a window, and what that has cost.

    J_b = Phi U V + M                          at the window's exit
    Q <- a basis of J_b D                      D: the rows of V, and random directions
    U V <- the best r columns of Q (Q^T J_b)   Q^T J_b by one pull for each column of Q

The whole of `J_b` is never made. What it does to a change of the parameters is one push through the
window, and along the rows of V, where it was large before, it is most likely large again.

    T <- Phi T + M P                           P: a few random directions, always the same ones
    bound <- 2 |T - U V P| / sqrt(columns of P)

`T` is the true influence along `P`, so the last line compares what is kept with the truth. Without
the factor of two it is right on average for the Frobenius norm of the error of J; with it, it is
hardly ever less. The gradient of a window is off by no more than |lambda_a| times that norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp

from ..engine.window import Window
from ..plan.kept import Passage
from ..plan.keys import TraceKey, trace_type
from ..plan.layout import Layout
from .carrier import Carrier, Contribution, Entry, Traces
from .random_bits import cheap_signs, norm
from .whole_state import FloatParam, WholeState

U, V, BOUND = TraceKey(kind='U'), 'V', TraceKey(kind='bound')
T = TraceKey(kind='T')

MORE_COLUMNS = 8  # of the basis, besides the r that stay
FOLLOWED = 16  # directions along which the true influence is known


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
        traces: Traces = {
            U: jnp.zeros((n, r), dtype),
            T: jnp.zeros((FOLLOWED, n), dtype),
            BOUND: jnp.zeros((), dtype),
        }
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
        if not self.params:
            return traces
        old_U, old_V = traces[U], [traces[p.key] for p in self.params]
        n, r = old_U.shape
        followed = self._random(FOLLOWED, seed=0)
        tried = self._tried(old_V, min(r + MORE_COLUMNS, n))
        state = jnp.concatenate([traces[T], _products(tried, old_V) @ old_U.T])
        pairs = zip(followed, tried, strict=True)
        pushed = self.state.push(
            window, self.params, state, [jnp.concatenate(pair) for pair in pairs]
        )
        T_b, reached = pushed[:FOLLOWED], pushed[FOLLOWED:]
        Q = _basis(reached)
        Phi, M = self.state.pull(window, self.params, Q)
        moved = Phi @ old_U
        J = [m + jnp.tensordot(moved, v, 1) for m, v in zip(M, old_V, strict=True)]
        _, vectors = jnp.linalg.eigh(_squares(J))
        best = vectors[:, ::-1][:, :r]
        new_U, new_V = Q.T @ best, [jnp.tensordot(best.T, a, 1) for a in J]
        error = norm([T_b - _products(followed, new_V) @ new_U.T]) / FOLLOWED**0.5
        new: Traces = {U: new_U, T: T_b, BOUND: 2 * error}
        new |= {p.key: v for p, v in zip(self.params, new_V, strict=True)}
        return {key: a.astype(traces[key].dtype) for key, a in new.items()}

    def _tried(self, V: Sequence[jax.Array], count: int) -> list[jax.Array]:
        """Directions of the parameters along which much is likely to be found: the rows of V, each
        of the length of a random direction, and random ones."""
        size = sum(p.var.aval.size for p in self.params)
        lengths = jnp.sqrt(jnp.diagonal(_squares(V)))
        scale = jnp.where(lengths > 0, (size**0.5) / jnp.where(lengths > 0, lengths, 1), 0)
        directions = []
        for v, drawn in zip(V, self._random(count, seed=1), strict=True):
            # What J does to a change is Re(J change): it does most to the conjugate.
            row = jnp.conj(v) * scale.reshape(-1, *[1] * (v.ndim - 1))
            directions.append(drawn.at[: len(v)].add(row.astype(drawn.dtype)))
        return directions

    def _random(self, count: int, seed: int) -> list[jax.Array]:
        """So many random directions of all parameters, the same ones at every time."""
        keys = jax.random.split(jax.random.key(seed), len(self.params))
        pairs = zip(keys, self.params, strict=True)
        return [cheap_signs(k, (count, *p.var.aval.shape), p.var.aval.dtype) for k, p in pairs]

    def loses(self, way: Passage) -> str | None:
        if way.new is None or self.rank >= self.state.size:
            return None
        return f'{self.rank} of {self.state.size} directions of the state are kept'


def _basis(rows: jax.Array) -> jax.Array:
    """Orthonormal rows that span the same."""
    if rows.shape[0] == rows.shape[1]:
        return jnp.eye(len(rows), dtype=rows.dtype)
    return jnp.linalg.qr(rows.T)[0].T


def _products(a: Sequence[jax.Array], b: Sequence[jax.Array]) -> jax.Array:
    """The product of each row of a with each of b, summed over the leaves: `Re(a b)`."""
    pairs = zip(a, b, strict=True)
    flat = [(x.reshape(len(x), -1), y.reshape(len(y), -1)) for x, y in pairs]
    return sum([(x @ y.T).real for x, y in flat], start=jnp.zeros((), a[0].real.dtype))


def _squares(rows: Sequence[jax.Array]) -> jax.Array:
    """The product of each row with each, where a complex number counts as its two parts."""
    return _products(rows, [jnp.conj(a) for a in rows])
