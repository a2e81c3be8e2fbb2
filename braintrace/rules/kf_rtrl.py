"""KF-RTRL: an unbiased estimate of J by a random Kronecker product for each weight.

    J ~ u (x) A
    u <- c_0 p_0 u + sum_k c_k p_k x_k
    A <- c_0/p_0 Phi A + sum_k c_k/p_k dh_b/dy_k

The c are random signs. The p balance the norms of the two factors, which keeps the variance low.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from string import ascii_lowercase
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from ..engine.window import Window
from ..ops.axes import spread, spread_gradient, spread_shape
from ..plan.kept import Passage
from ..plan.keys import trace_type
from ..plan.layout import Layout
from .carrier import Carrier, Contribution, Entry, Traces
from .random_bits import KEY, Draw, as_key, norm, signs, squares
from .whole_state import SampleState, TracedUse

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
        key, use_key = jax.random.split(jax.random.wrap_key_data(traces[KEY]))
        new: Traces = {KEY: jax.random.key_data(key)}
        for i, u in enumerate(self.state.uses):
            y, sample = _labels(u)
            moved = jnp.einsum(f'Y{sample}Z,Z{y}->Y{y}', Phi, traces[u.key.of(A)])
            if u.op.axes.x is None:
                new[u.key.of(A)] = (moved + dys[i].sum(1)).astype(moved.dtype)
                continue
            shape = (window.length + 1,)
            c = self.draw(jax.random.fold_in(use_key, i), shape, self.state.dtype)
            new |= self._mixed(u, traces[u.key.of(U)], moved, xs[i], dys[i], c)
        return new

    def _mixed(self, u: TracedUse, old_u: Any, moved: Any, x: Any, dy: Any, c: Any) -> Traces:
        """The two factors of a use after a window, with the signs `c`, (K + 1,)."""
        x = jax.vmap(partial(spread, u.op))(x)
        p0 = jnp.sqrt((norm([moved]) + self.eps) / (norm([old_u]) + self.eps))
        p = jnp.sqrt((_norm_along(dy, 1) + self.eps) / (_norm_along(x, 0) + self.eps))
        new_u = c[0] * p0 * old_u + jnp.tensordot(c[1:] * p, x, 1)
        new_A = c[0] / p0 * moved + jnp.tensordot(c[1:] / p, jnp.moveaxis(dy, 1, 0), 1)
        return {
            u.key.of(U): new_u.astype(old_u.dtype),
            u.key.of(A): new_A.astype(moved.dtype),
        }

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


def _norm_along(a: jax.Array, axis: int) -> jax.Array:
    """The norm of each slice along an axis."""
    return jnp.sqrt(squares(a).sum(axis=tuple(i for i in range(a.ndim) if i != axis)))
