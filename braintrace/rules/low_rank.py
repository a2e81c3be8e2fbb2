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

from ..engine.split import Split
from ..engine.window import Window
from ..errors import NotSupportedError
from ..plan.kept import Passage
from ..plan.keys import TraceKey, distinct, trace_type
from ..plan.layout import Layout
from .carrier import Carrier, Contribution, Entry, Traces
from .random_bits import cheap_signs, norm
from .whole_state import FloatParam, WholeState

U, V, T = 'U', 'V', 'T'  # the kinds of the factors, and of the influence that is known
BOUND = TraceKey(kind='bound')

MORE_COLUMNS = 8  # of the basis, besides the r that stay
FOLLOWED = 16  # directions along which the true influence is known
PASSES = 2  # over a basis


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

    @cached_property
    def _leaves(self) -> list[TraceKey]:
        """The keys of U, leaf by leaf of the state."""
        return distinct(TraceKey(group=leaf.path, kind=U) for leaf in self.state.leaves)

    @property
    def shared(self) -> frozenset[TraceKey]:
        return frozenset({BOUND, *[p.key for p in self.params]})

    def init(self) -> Traces:
        r = min(self.rank, self.state.size)
        traces: Traces = {BOUND: jnp.zeros((), trace_type(self.state.dtype))}
        for key, v in zip(self._leaves, self.state.vars, strict=True):
            dtype = trace_type(v.aval.dtype)
            traces[key] = jnp.zeros((r, *v.aval.shape), dtype)
            traces[key.of(T)] = jnp.zeros((FOLLOWED, *v.aval.shape), dtype)
        for p in self.params:
            traces[p.key] = jnp.zeros((r, *p.var.aval.shape), trace_type(p.var.aval.dtype))
        return traces

    def read(self, traces: Traces, entry: Entry) -> Contribution:
        credit = [a[None] for a in self.state.of_entry(entry)]
        [lam] = _products(credit, [traces[key] for key in self._leaves])
        gradients = {}
        for p in self.params:
            met = jnp.tensordot(lam, traces[p.key], 1)
            gradients[p.number] = met.astype(p.var.aval.dtype)
        return self.state.to_params(gradients)

    def advance(self, traces: Traces, window: Window) -> Traces:
        if not self.params:
            return traces
        split, count = window.split, self._columns(window.split)
        old_U, old_V = [traces[key] for key in self._leaves], [traces[p.key] for p in self.params]
        followed, tried = self._random(FOLLOWED, seed=0), self._tried(old_V, count)
        old_T, along = [traces[key.of(T)] for key in self._leaves], _products(tried, old_V)
        state, changes = _rows(old_T, _mix(along, old_U)), _rows(followed, tried)
        pushed = self.state.push(window, self.params, state, changes)
        T_b, reached = [a[:FOLLOWED] for a in pushed], [a[FOLLOWED:] for a in pushed]
        Q = self._basis(reached, split)
        Phi, M = self.state.pull(window, self.params, [jnp.conj(q) for q in Q])
        moved, M = split.total((_products(Phi, old_U), M))
        J = [m + a for m, a in zip(M, _mix(moved, old_V), strict=True)]
        _, vectors = jnp.linalg.eigh(_squares(J))
        best = _turned(vectors[:, ::-1][:, : len(old_V[0])].T, J, followed)
        new_U, new_V = _mix(best, Q), _mix(best, J)
        kept = _mix(_products(followed, new_V), new_U)
        error = norm([a - b for a, b in zip(T_b, kept, strict=True)], split) / FOLLOWED**0.5
        new: Traces = {BOUND: 2 * error}
        for key, u, t in zip(self._leaves, new_U, T_b, strict=True):
            new |= {key: u, key.of(T): t}
        new |= {p.key: v for p, v in zip(self.params, new_V, strict=True)}
        return {key: a.astype(traces[key].dtype) for key, a in new.items()}

    def _columns(self, split: Split) -> int:
        """How many the basis has."""
        if split.axes and self.rank > self.state.size:
            raise NotSupportedError(
                f'`rank` is {self.rank}, and the state of the samples on one device of '
                f'`jax.shard_map` has {self.state.size} elements. Take a smaller rank, or place '
                'the learner by `shardings(mesh)`.'
            )
        return min(self.rank + MORE_COLUMNS, split.devices * self.state.size)

    def _basis(self, rows: list[jax.Array], split: Split) -> list[jax.Array]:
        """Orthonormal rows that span the same, as far as rounding lets one tell.

        From the products of all rows with all: rows of length one along the axes of their
        ellipsoid, where a short axis is made longer by as much as rounding allows. What is lost in
        two passes is below 1e-4 of the longest row in float32, and 1e-8 in float64.
        """
        if not split.axes and len(rows[0]) == self.state.size:
            return self.state.ones()
        for _ in range(PASSES):
            G = split.total(_squares(rows))
            lengths = jnp.sqrt(jnp.diagonal(G))
            scale = jnp.where(lengths > 0, 1 / jnp.where(lengths > 0, lengths, 1), 0)
            sizes, axes = jnp.linalg.eigh(G * scale * scale[:, None])
            least = len(G) * jnp.finfo(G.dtype).eps
            rows = _mix((axes * scale[:, None] / jnp.sqrt(jnp.maximum(sizes, least))).T, rows)
        return rows

    def _tried(self, V: Sequence[jax.Array], count: int) -> list[jax.Array]:
        """Directions of the parameters along which much is likely to be found: the rows of V, and
        random ones; these too in the place of rows that are zero yet. Each is as long as a random
        one. What they span does not depend on the signs of the rows, which are nobody's choice."""
        size = sum(p.var.aval.size for p in self.params)
        lengths = jnp.sqrt(jnp.diagonal(_squares(V)))
        scale = jnp.where(lengths > 0, (size**0.5) / jnp.where(lengths > 0, lengths, 1), 0)
        directions = []
        for v, drawn in zip(V, self._random(count, seed=1), strict=True):
            lead = -1, *[1] * (v.ndim - 1)
            # What J does to a change is Re(J change): it does most to the conjugate.
            row = (jnp.conj(v) * scale.reshape(lead)).astype(drawn.dtype)
            known = jnp.where(lengths.reshape(lead) > 0, row, drawn[: len(v)])
            directions.append(jnp.concatenate([known, drawn[len(v) :]]))
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


def _turned(best: jax.Array, J: Sequence[jax.Array], along: Sequence[jax.Array]) -> jax.Array:
    """The rows of `best` with such signs that what they make of J is positive along the first of
    these directions: those of eigenvectors are nobody's choice, and differ by rounding."""
    met = best @ _products(J, [a[:1] for a in along])
    return jnp.where(met < 0, -best, best)


def _rows(first: Sequence[jax.Array], second: Sequence[jax.Array]) -> list[jax.Array]:
    """The rows of both, leaf by leaf."""
    return [jnp.concatenate([a, b.astype(a.dtype)]) for a, b in zip(first, second, strict=True)]


def _mix(weights: jax.Array, rows: Sequence[jax.Array]) -> list[jax.Array]:
    """Sums of rows with these weights, `[sum, row]`, leaf by leaf."""
    return [jnp.tensordot(weights, a, 1) for a in rows]


def _products(a: Sequence[jax.Array], b: Sequence[jax.Array]) -> jax.Array:
    """The product of each row of a with each of b, summed over the leaves: `Re(a b)`."""
    total = jnp.zeros((), a[0].real.dtype)
    for x, y in zip(a, b, strict=True):
        inner = tuple(
            range(1, x.ndim)
        )  # as they are: axes that are not merged may lie apart on devices
        total = total + jnp.tensordot(x, y, (inner, inner), precision='highest').real
    return total


def _squares(rows: Sequence[jax.Array]) -> jax.Array:
    """The product of each row with each, where a complex number counts as its two parts."""
    return _products(rows, [jnp.conj(a) for a in rows])
