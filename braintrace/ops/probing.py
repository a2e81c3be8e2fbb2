"""The connections of a sparse product about which nothing can be read, found by running it on index
bits.

The pull of ones at y gives each weight its factor, which is a bit of i(p) when x holds that bit of
its own index, and likewise for o(p) with cotangents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .connections import EVENTS, Connections


def probe(f: Callable, x: Any, w: Any, y: Any) -> Connections | None:
    """The connections of `y = f(x, w)`, from the shapes and dtypes of the three; None if it has
    none of that form."""
    probing = _Probe(f, x, w, y)
    try:
        count = probing.factors(probing.ones, np.ones(y.shape))
    except Exception:  # a kernel that cannot run here has no structure to find
        return None
    used = count > 0.5
    of_y = [probing.index_at_y(a, count, used) if n > 1 else None for a, n in enumerate(y.shape)]
    samples = [a for a, m in enumerate(of_y) if m is None]
    one = probing.factors(probing.ones, _sample(y.shape, samples, None))
    if not np.allclose(one[used], 1, rtol=0, atol=1e-2):
        return None
    of_x: list[np.ndarray | int] = []
    for a in range(len(x.shape)):
        there = probing.axis_of_x(a, samples, one, used)
        if there is None:
            return None
        of_x.append(there)
    for event in EVENTS:
        links = Connections(of_x, of_y, event, None if used.all() else used)
        if probing.agrees(links, used):
            return links
    return None


class _Probe:
    """Runs of an op `y = f(x, w)` on chosen inputs."""

    def __init__(self, f: Callable, x: Any, w: Any, y: Any):
        self.f, self.x, self.w, self.y = f, x, w, y
        self.ones = np.ones(x.shape, x.dtype)
        self._pull = jax.jit(self._gradient)

    def _gradient(self, x: jax.Array, ct: jax.Array) -> jax.Array:
        _, pull = jax.vjp(lambda w: self.f(x, w), jnp.ones(self.w.shape, self.w.dtype))
        return pull(ct)[0]

    def factors(self, x: np.ndarray, ct: np.ndarray) -> np.ndarray:
        """What multiplies each weight, summed over the elements of y with weights `ct`."""
        with jax.ensure_compile_time_eval():
            pulled = self._pull(jnp.asarray(x), jnp.asarray(ct, self.y.dtype))
            return np.asarray(pulled, float)

    def _index(
        self, bits: Callable[[int], np.ndarray], size: int, total: np.ndarray, used: np.ndarray
    ) -> np.ndarray | None:
        """The index that every weight in use has on an axis, from the share of each bit in `total`;
        None if there is no single one."""
        index = np.zeros(self.w.shape, np.int64)
        for bit in range(max(size - 1, 1).bit_length()):
            share = np.where(used, bits(bit) / np.where(used, total, 1), 0)
            whole = (np.abs(share - share.round()) <= 1e-2).all()
            if not whole or not ((share > -0.1) & (share < 1.1)).all():
                return None
            index += share.round().astype(np.int64) << bit
        return index

    def index_at_y(self, a: int, count: np.ndarray, used: np.ndarray) -> np.ndarray | None:
        """The index of every weight on axis `a` of y; `count` are the factors over all of y."""
        shape = self.y.shape

        def bits(b: int) -> np.ndarray:
            return self.factors(self.ones, _bit(shape, a, b))

        return self._index(bits, shape[a], count, used)

    def axis_of_x(
        self, a: int, samples: Sequence[int], one: np.ndarray, used: np.ndarray
    ) -> np.ndarray | int | None:
        """The index of every weight on axis `a` of x, or the axis of y that it goes with; None if
        there is no single one. `one` are the factors at the first sample."""
        shape, first = self.x.shape, _sample(self.y.shape, samples, None)

        def bits(b: int) -> np.ndarray:
            return self.factors(_bit(shape, a, b).astype(self.x.dtype), first)

        index = self._index(bits, shape[a], one, used)
        if index is None:
            return None
        n = shape[a]
        along = []
        for s in samples:
            if self.y.shape[s] == n > 1 and not index.any():
                last = _at_end(shape, a).astype(self.x.dtype)
                moved = self.factors(last, _sample(self.y.shape, samples, s))
                if (moved[used] > 0.5).all():
                    along.append(s)
        if len(along) > 1:
            return None
        return along[0] if along else index

    def agrees(self, links: Connections, used: np.ndarray) -> bool:
        """Whether the connections, which were found through derivatives, also make the value: how x
        counts, as it is or as an event."""
        y = self.y
        size = int(np.prod(self.x.shape))
        x = np.where(np.arange(size) % 3, 0.5, -1).reshape(self.x.shape).astype(self.x.dtype)
        weights = (np.arange(self.w.size) % 7 - 2.5).reshape(self.w.shape).astype(self.w.dtype)
        weights = weights * used
        with jax.ensure_compile_time_eval():
            true = self.f(jnp.asarray(x), jnp.asarray(weights))
            if not links.samples_in_order:
                return all(y.shape[a] == 1 for a in links.samples)
            counted = links.event(jnp.asarray(x)).astype(weights.dtype)
            made = links.multiply(counted, jnp.asarray(weights), y)
            return np.allclose(true, made, atol=1e-3)


def _sample(shape: tuple[int, ...], samples: Sequence[int], last: int | None) -> np.ndarray:
    """Ones at one sample of y: the first, or the last along one of its axes."""
    ones = np.ones(shape)
    for a in samples:
        ones = ones * (np.indices(shape)[a] == (shape[a] - 1 if a == last else 0))
    return ones


def _bit(shape: tuple[int, ...], axis: int, bit: int) -> np.ndarray:
    """That bit of each element's index on an axis."""
    return (np.indices(shape)[axis] >> bit & 1).astype(float)


def _at_end(shape: tuple[int, ...], axis: int) -> np.ndarray:
    """Ones at the last index of an axis."""
    return (np.indices(shape)[axis] == shape[axis] - 1).astype(float)
