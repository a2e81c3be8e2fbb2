"""UORO: an unbiased estimate of J by one random rank-one product.

    J ~ s (x) th       s <- r0 Phi s + r1 nu,     th <- th / r0 + nu M / r1        nu random signs

The r balance the norms of the two factors, which keeps the variance low. One jvp and one vjp of the
window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from .._jax import Var
from ..engine.split import Split
from ..engine.window import Window
from ..ops.axes import gradient
from ..plan.kept import Passage
from ..plan.keys import TraceKey, distinct, trace_type
from ..plan.layout import Layout
from .carrier import (
    MULTI_STEP,
    SINGLE_STEP,
    BlockCarrier,
    Contribution,
    Credit,
    Entry,
    Traces,
)
from .random_bits import KEY, Draw, as_key, norm, signs
from .whole_state import FloatParam, WholeState

S, THETA = 's', 'theta'  # the kinds of the two factors


@dataclass(frozen=True, eq=False)
class RankOne(BlockCarrier):
    """One random product over all float states and parameters. `draw` gives the signs, from a
    stream of its own."""

    layout: Layout
    seed: Any = 42
    eps: float = 1e-12
    draw: Draw = signs
    credit: ClassVar[tuple[str, ...]] = (MULTI_STEP, SINGLE_STEP)

    @cached_property
    def state(self) -> WholeState:
        return WholeState(self.layout.graph)

    @cached_property
    def params(self) -> list[FloatParam]:
        return self.state.params(THETA)

    @cached_property
    def _states(self) -> list[TraceKey]:
        """The keys of the state's factor, leaf by leaf."""
        return distinct(TraceKey(group=leaf.path, kind=S) for leaf in self.state.leaves)

    @property
    def shared(self) -> frozenset[TraceKey]:
        return frozenset({KEY, *[p.key for p in self.params]})

    @property
    def step_bytes(self) -> int:
        return 0

    def init(self) -> Traces:
        traces: Traces = {KEY: jax.random.key_data(as_key(self.seed))}
        for key, v in zip(self._states, self.state.vars, strict=True):
            traces[key] = jnp.zeros(v.aval.shape, trace_type(v.aval.dtype))
        for p in self.params:
            traces[p.key] = jnp.zeros(p.var.aval.shape, trace_type(p.var.aval.dtype))
        return traces

    def read(self, traces: Traces, entry: Entry) -> Contribution:
        pairs = zip(self.state.of_entry(entry), self._states, strict=True)
        size = sum(_met(lam, traces[key]) for lam, key in pairs)
        return self.state.to_params(
            {p.number: (size * traces[p.key]).astype(traces[p.key].dtype) for p in self.params}
        )

    def advance(self, traces: Traces, window: Window) -> Traces:
        key, use = jax.random.split(jax.random.wrap_key_data(traces[KEY]))
        keys = jax.random.split(use, len(self._states))
        pairs = zip(keys, self.state.vars, strict=True)
        nu = [self._signs(window.split, k, v) for k, v in pairs]
        moved = self._moved(traces, window)
        # Credit and change of a complex value are conjugate: both have nu as their parts.
        pulled = window.reverse(self.state.cotangents([jnp.conj(a) for a in nu]))
        M = window.split.total([pulled.params[p.number] for p in self.params])
        old = [traces[p.key] for p in self.params]
        r0 = jnp.sqrt((norm(old) + self.eps) / (norm(moved, window.split) + self.eps))
        r1 = jnp.sqrt((norm(M) + self.eps) / (norm(nu, window.split) + self.eps))
        new: Traces = {KEY: jax.random.key_data(key)}
        for state, a, b in zip(self._states, moved, nu, strict=True):
            new[state] = (r0 * a + r1 * b).astype(traces[state].dtype)
        for p, a, b in zip(self.params, old, M, strict=True):
            new[p.key] = (a / r0 + b / r1).astype(a.dtype)
        return new

    def _signs(self, split: Split, key: Any, v: Var) -> jax.Array:
        """Those of the samples here."""
        return split.here(lambda shape: self.draw(key, shape, v.aval.dtype), v.aval.shape)

    def _moved(self, traces: Traces, window: Window) -> list[Any]:
        """`Phi s`."""
        pairs = zip(self._states, self.state.vars, strict=True)
        s = [traces[key].astype(v.aval.dtype) for key, v in pairs]
        return self.state.changed(window, s)

    def block(
        self, traces: Traces | None, window: Window, credit: Credit, steps: Any, keep: bool
    ) -> tuple[Contribution, Traces | None]:
        """Step by step: `dw_t = same-step gradient + (s_t . Phi s) th`."""
        signal = self.state.of_hidden(credit.signals(True))
        past = None if credit.past is None else self.state.of_hidden(credit.past)

        def meet(credit: Sequence[Any], leaves: Sequence[Any], k: Any) -> Any:
            pairs = zip(credit, leaves, strict=True)
            return sum(
                _met(jax.lax.dynamic_index_in_dim(c, k, keepdims=False), a) for c, a in pairs
            )

        def turn(carry, k):
            traces, total = carry
            step = window.step(k)
            size = meet(signal, self._moved(traces, step)[: self.state.hidden], k)
            if past is not None:
                hidden = [traces[key] for key in self._states[: self.state.hidden]]
                size = size + meet(past, hidden, k)
            more = [t + size * traces[p.key] for t, p in zip(total, self.params, strict=True)]
            return (self.advance(traces, step), more), None

        old = self.init() if traces is None else traces
        start = old, [jnp.zeros_like(old[p.key]) for p in self.params]
        (new, total), _ = jax.lax.scan(turn, start, jnp.arange(window.length))
        gradients = {p.number: t for p, t in zip(self.params, total, strict=True)}
        same_step = {
            r: gradient(window.ops[r], window.operands[r], credit.y[r])
            for r in range(len(self.layout.relations))
        }
        params = self.state.to_params(gradients).params
        return Contribution(same_step, params), new if keep else None

    def loses(self, way: Passage) -> str | None:
        return None if way.new is None else 'one random product is kept, which is right on average'


def _met(credit: jax.Array, change: jax.Array) -> jax.Array:
    """What the loss changes by: `Re(credit . change)`, summed over the elements."""
    return jnp.vdot(jnp.conj(credit), change).real
