"""Traces stored in half precision.

A trace changes a little in every step, and half precision drops what is less than half a unit in
its last place: a sum would stop growing, a decay would stop. So each number is stored as the
nearest one of the half type and, in one byte more, the rest in 254ths of the distance to the next:
three bytes, and about eight bits more than the type itself has. The rest is rounded up or down by
chance, so that sums of steps that are smaller still are right in the mean; the chance comes from
the number itself and from the count of steps, the same in every run. What is computed is computed
in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from ..engine.window import Window
from ..graph.samples import Samples
from ..plan.kept import Passage
from ..plan.keys import TRACE, TraceKey
from ..plan.layout import Layout
from .carrier import BlockCarrier, Contribution, Credit, Entry, Traces

REST = 'rest'  # the kind of what rounding leaves over
PARTS = 254  # of a unit in the last place, so that half of it is the largest number of a byte


def is_half(dtype: Any) -> bool:
    """Whether a type has too few digits to add small steps up."""
    return dtype is not None and jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize == 2


def rest_of(key: TraceKey) -> TraceKey:
    """Where the rest of a trace is kept."""
    return key.of(REST if key.kind == TRACE else f'{REST} {key.kind}')


@dataclass(frozen=True, eq=False)
class Stored(BlockCarrier):
    """A carrier whose traces are stored in a half type.

    Args:
        inner: the carrier itself.
        dtype: bfloat16 or float16.
    """

    inner: BlockCarrier
    dtype: np.dtype
    follows_relations: ClassVar[bool] = True
    mixes_states: ClassVar[bool] = False

    @property
    def layout(self) -> Layout:  # type: ignore[override]
        return self.inner.layout

    @property
    def step_bytes(self) -> int:
        return self.inner.step_bytes

    def loses(self, way: Passage) -> str | None:
        if way.new is not None:
            return f'the trace is stored as {self.dtype}'
        return self.inner.loses(way)

    @cached_property
    def _shapes(self) -> dict[TraceKey, Any]:
        return jax.eval_shape(self.inner.init)

    def _stored(self, traces: Traces, steps: Any = None) -> Traces:
        """Traces as they are stored after so many steps."""
        stored: Traces = {}
        for key, a in traces.items():
            if jnp.issubdtype(a.dtype, jnp.floating):
                stored[key], stored[rest_of(key)] = halve(a, self.dtype, steps)
            else:
                stored[key] = a
        return stored

    def _whole(self, stored: Traces) -> Traces:
        """Stored traces as the inner carrier has them."""
        whole: Traces = {}
        for key, like in self._shapes.items():
            a = stored[key]
            if jnp.issubdtype(like.dtype, jnp.floating):
                a = whole_again(a, stored[rest_of(key)], like.dtype)
            whole[key] = a
        return whole

    def init(self) -> Traces:
        return self._stored(self.inner.init())

    def block(
        self, traces: Traces | None, window: Window, credit: Credit, steps: Any, keep: bool
    ) -> tuple[Contribution, Traces | None]:
        before = None if traces is None else self._whole(traces)
        given, new = self.inner.block(before, window, credit, steps, keep)
        return given, None if new is None else self._stored(new, window.steps)

    def read(self, traces: Traces, entry: Entry) -> Contribution:
        return self.inner.read(self._whole(traces), entry)

    def advance(self, traces: Traces, window: Window) -> Traces:
        return self._stored(self.inner.advance(self._whole(traces), window), window.steps)

    @property
    def shared(self) -> frozenset[TraceKey]:
        shared = self.inner.shared
        return (shared | {rest_of(key) for key in shared}) & self._stored_keys

    def sample_axes(self, samples: Samples) -> dict[TraceKey, int | None]:
        axes = self.inner.sample_axes(samples)
        rest = {rest_of(key): a for key, a in axes.items() if rest_of(key) in self._stored_keys}
        return {**axes, **rest}

    @cached_property
    def _stored_keys(self) -> frozenset[TraceKey]:
        return frozenset(jax.eval_shape(self.init))


def halve(a: jax.Array, dtype: np.dtype, steps: Any = None) -> tuple[jax.Array, jax.Array]:
    """The nearest numbers of a half type, and what is left over in parts of their spacing: to the
    nearest part or, after so many steps, up or down by chance."""
    kind = jnp.finfo(dtype)
    a = a.astype(jnp.float32)
    near = jax.lax.reduce_precision(a, kind.nexp, kind.nmant)  # a cast there and back may be elided
    if kind.tiny > jnp.finfo(jnp.float32).tiny:  # it drops what is below, which float16 can hold
        least = float(kind.smallest_subnormal)
        near = jnp.where(jnp.abs(a) < float(kind.tiny), jnp.round(a / least) * least, near)
    rest = (a - near) / _spacing(near, dtype) * PARTS
    rest = jnp.round(rest) if steps is None else jnp.floor(rest + _chance(a, steps))
    return near.astype(dtype), jnp.where(jnp.isfinite(rest), rest, 0).astype(jnp.int8)


def _chance(a: jax.Array, steps: Any) -> jax.Array:
    """A number from 0 to below 1 for each of float32, another one in every step."""
    bits = jax.lax.bitcast_convert_type(a, jnp.uint32)
    bits = bits ^ (jnp.asarray(steps).astype(jnp.uint32) * jnp.uint32(0x9E3779B9))
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):  # the end of murmur3
        bits = (bits ^ (bits >> shift)) * jnp.uint32(factor)
    return (bits >> 16).astype(jnp.float32) * 2.0**-16


def whole_again(near: jax.Array, rest: jax.Array, dtype: Any) -> jax.Array:
    """The numbers that `halve` has taken apart."""
    wide = near.astype(jnp.float32)
    part = _spacing(wide, near.dtype) / PARTS
    return jnp.where(rest == 0, wide, wide + rest.astype(jnp.float32) * part).astype(dtype)


def _spacing(near: jax.Array, dtype: Any) -> jax.Array:
    """The distance between the numbers of a half type there, in float32."""
    kind = jnp.finfo(dtype)
    bits = jax.lax.bitcast_convert_type(near, jnp.int32) & 0x7F800000
    power = jax.lax.bitcast_convert_type(bits, jnp.float32)  # the power of two below
    least = float(kind.tiny)
    return jnp.maximum(power, least) * float(kind.eps)
