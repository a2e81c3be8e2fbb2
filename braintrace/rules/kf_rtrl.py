"""KF-RTRL: an unbiased estimate of J by a random Kronecker product for each weight.

    J ~ u (x) A
    u <- c_0 p_0 u + sum_k c_k p_k x_k
    A <- c_0/p_0 Phi A + sum_k c_k/p_k dh_b/dy_k

The c are random signs. The p balance the norms of the two factors, which keeps the variance low.
Every sample has its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from string import ascii_lowercase
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from ..engine.split import Split
from ..engine.window import Window
from ..ops.axes import spread, spread_gradient, spread_shape
from ..plan.kept import Passage
from ..plan.keys import TraceKey, trace_type
from ..plan.layout import Layout
from .carrier import Carrier, Contribution, Entry, Traces
from .random_bits import KEY, Draw, as_key, root, signs, squares
from .sample_state import SampleState, TracedUse

U, A = 'u', 'A'  # the kinds of the two factors


@dataclass(frozen=True, eq=False)
class Kronecker(Carrier):
    """For each use of a weight an input factor u and an output factor A, for each sample."""

    layout: Layout
    seed: Any = 42
    eps: float = 1e-12
    draw: Draw = signs
    mixes_states: ClassVar[bool] = False

    @cached_property
    def state(self) -> SampleState:
        return SampleState(self.layout.graph)

    @property
    def window_step_bytes(self) -> int:
        return self.state.bytes_of_a_step

    @property
    def shared(self) -> frozenset[TraceKey]:
        return frozenset({KEY})

    def init(self) -> Traces:
        traces: Traces = {KEY: jax.random.key_data(as_key(self.seed))}
        for u in self.state.uses:
            shape = self.state.size_of_one, *u.y.aval.shape
            traces[u.key.of(A)] = jnp.zeros(shape, trace_type(u.y.aval.dtype))
            if u.op.axes.x is not None:
                x = spread_shape(u.op, u.use.eqn.invars)
                traces[u.key.of(U)] = jnp.zeros(x.shape, trace_type(x.dtype))
        return traces

    def read(self, traces: Traces, entry: Entry) -> Contribution:
        lam = self.state.rows(self.state.of_entry(entry))
        weights = []
        for u in self.state.uses:
            y, sample = _labels(u)
            dy = jnp.einsum(f'{sample}Z,Z{y}->{y}', lam, traces[u.key.of(A)])
            if u.op.axes.x is not None:
                dy = u.op.to_weight(spread_gradient(u.op, traces[u.key.of(U)][None], dy[None]))
            weights.append(dy)
        return self.state.weights_to_params(weights, entry.captured, entry.params)

    def advance(self, traces: Traces, window: Window) -> Traces:
        Phi, dys, xs = self.state.influence_of_uses(window)
        key, use_keys = jax.random.split(jax.random.wrap_key_data(traces[KEY]))
        new: Traces = {KEY: jax.random.key_data(key)}
        for i, u in enumerate(self.state.uses):
            y, sample = _labels(u)
            moved = jnp.einsum(f'Y{sample}Z,Z{y}->Y{y}', Phi, traces[u.key.of(A)])
            if u.op.axes.x is None:
                new[u.key.of(A)] = (moved + dys[i].sum(1)).astype(moved.dtype)
                continue
            factors = _Factors(self.state.operand_axis(u), u, traces[u.key.of(U)], moved)
            use_key = jax.random.fold_in(use_keys, i)
            new |= self._mixed(factors, xs[i], dys[i], use_key, window.split)
        return new

    def _mixed(self, old: _Factors, x: Any, dy: Any, key: Any, split: Split) -> Traces:
        """The two factors of a use after a window, from x, `(K, ...)`, and `(element, K, *y)`."""
        use, s = old.use, old.s
        x = jax.vmap(partial(spread, use.op))(x)

        def size(labels: str, a: jax.Array, kept: str) -> Any:
            """The norm for each sample; of all of them together where they are not told apart."""
            sums = jnp.einsum(f'{labels}->{kept}', squares(a))
            return root(sums if s else split.total(sums)) + self.eps

        p0 = jnp.sqrt(size(f'Y{old.y}', old.moved, s) / size(old.x, old.u, s))
        p = jnp.sqrt(size(f'YZ{old.y}', dy, f'Z{s}') / size(f'Z{old.x}', x, f'Z{s}'))
        c = self._signs(old, len(x) + 1, key, split)
        new_u = jnp.einsum(f'{s},{old.x}->{old.x}', c[0] * p0, old.u)
        new_u += jnp.einsum(f'Z{s},Z{old.x}->{old.x}', c[1:] * p, x)
        new_A = jnp.einsum(f'{s},Y{old.y}->Y{old.y}', c[0] / p0, old.moved)
        new_A += jnp.einsum(f'Z{s},YZ{old.y}->Y{old.y}', c[1:] / p, dy)
        return {
            use.key.of(U): new_u.astype(old.u.dtype),
            use.key.of(A): new_A.astype(old.moved.dtype),
        }

    def _signs(self, old: _Factors, count: int, key: Any, split: Split) -> jax.Array:
        """So many for each sample, `(count, samples)`; `(count,)` where they are not told apart."""
        if not old.s:
            return self.draw(key, (count,), self.state.dtype)
        samples = old.u.shape[old.x.index(old.s)]
        drawn = split.here(lambda shape: self.draw(key, shape, self.state.dtype), (samples, count))
        return drawn.T

    def loses(self, way: Passage) -> str | None:
        if way.use is None or way.new is None:
            return self.state.lost_outside_uses(way)
        if way.use.axes is not None and way.use.axes.x is None:
            return None  # there is one factor only, and no chance in it
        return 'a random product is kept, which is right on average'


def _labels(u: TracedUse) -> tuple[str, str]:
    """Labels of the axes of y, and that of the samples ('' for none)."""
    y = ascii_lowercase[: u.y.aval.ndim]
    return y, '' if u.sample_axis < 0 else y[u.sample_axis]


class _Factors:
    """The factors of a use before they are mixed, and the labels of their axes: `u` of `x`, `moved`
    of `Y` and `y`; `s` is the samples' in both, '' where `u` has none."""

    def __init__(self, axis: int, use: TracedUse, u: jax.Array, moved: jax.Array):
        self.use, self.u, self.moved = use, u, moved
        self.y, sample = _labels(use)
        self.s = sample if axis >= 0 else ''
        labels = list(ascii_lowercase[-u.ndim :] if u.ndim else '')
        if self.s:
            labels[axis] = self.s
        self.x = ''.join(labels)
