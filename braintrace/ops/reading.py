"""The connections of a sparse product, read from the index arrays among its operands.

Formats differ in how they write indices, and a kernel does not say which format it takes. But there
are few ways, so each that fits the shapes is tried, and the one that makes the same product as the
kernel, on numbers for which sums are exact, is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .connections import EVENTS, Connections


class WeightEnds(NamedTuple):
    """The two ends of each weight, of the weights' shape: which of them is the input is not
    said."""

    first: np.ndarray
    second: np.ndarray


class Places(NamedTuple):
    """Which of the axes of x and y are those of the units; all others count samples."""

    x: int
    y: int


def read_connections(
    f: Callable, arrays: Sequence[np.ndarray], x: Any, w: Any, y: Any
) -> Connections | None:
    """The connections of `y = f(x, w)`, from the values of its other operands and the shapes and
    dtypes of the three; None if no way to read them makes this product."""
    indices = [
        a.reshape(w.shape) if a.shape == (*w.shape, 1) else a
        for a in arrays
        if np.issubdtype(a.dtype, np.integer) and a.size > 1
    ]
    if not indices or x.ndim != y.ndim or x.ndim == 0:
        return None
    trial = None
    for ends in _ways(indices, w.shape):
        for into, out in ((ends.first, ends.second), (ends.second, ends.first)):
            for at in _places(x.shape, y.shape):
                if not (_inside(into, x.shape[at.x]) and _inside(out, y.shape[at.y])):
                    continue
                if trial is None:
                    trial = Trial.of(f, x, w)
                    if trial is None:
                        return None
                for event in EVENTS:
                    if trial.makes(event, into, out, at):
                        return _connections(into, out, at, event, x.ndim)
    return None


def _inside(index: np.ndarray, size: int) -> bool:
    return index.min(initial=0) >= 0 and index.max(initial=0) < size


def _places(x: tuple[int, ...], y: tuple[int, ...]) -> Iterator[Places]:
    """The axes that may be those of units: the first or the last, if the others agree."""
    ends = sorted({0, len(x) - 1}, reverse=True)
    for a in ends:
        for b in ends:
            if np.array_equal(np.delete(x, a), np.delete(y, b)):
                yield Places(a, b)


def _ways(indices: Sequence[np.ndarray], shape: tuple[int, ...]) -> Iterator[WeightEnds]:
    """The ends of all weights, in every way that the shapes of the index arrays allow."""
    stored = int(np.prod(shape))
    alike = [a for a in indices if a.shape == shape]
    for a in indices:
        if a.shape == (*shape, 2):  # pairs
            yield WeightEnds(a[..., 0], a[..., 1])
    if len(shape) == 2:
        for a in alike:  # a list for each row
            yield WeightEnds(np.broadcast_to(np.arange(shape[0])[:, None], shape), a)
    if len(shape) != 1:
        return
    for k, a in enumerate(alike):  # rows and columns
        for b in alike[k + 1 :]:
            yield WeightEnds(a, b)
    for starts in indices:
        if not _are_starts(starts, stored):
            continue
        line = np.repeat(np.arange(len(starts) - 1, dtype=np.int32), np.diff(starts))
        for a in alike:  # rows compressed
            yield WeightEnds(line, a)
        for a in alike:
            for order in alike:  # rows compressed, the weights in another order
                if order is not a and _is_order(order):
                    ends = WeightEnds(np.empty_like(line), np.empty_like(a))
                    ends.first[order], ends.second[order] = line, a
                    yield ends


def _are_starts(a: np.ndarray, stored: int) -> bool:
    return a.ndim == 1 and a[0] == 0 and a[-1] == stored and bool((np.diff(a) >= 0).all())


def _is_order(a: np.ndarray) -> bool:
    return _inside(a, len(a)) and bool((np.bincount(a, minlength=len(a)) == 1).all())


class Trial(NamedTuple):
    """A product on numbers for which sums are exact: x, w, and what came out."""

    x: np.ndarray
    w: np.ndarray
    y: np.ndarray

    @classmethod
    def of(cls, f: Callable, x: Any, w: Any) -> Trial | None:
        """The kernel's own product; None where it does not run here."""
        rng = np.random.default_rng(0)
        values = rng.choice(np.array([-1.0, 0.5, 2.0, 0.0]), x.shape).astype(x.dtype)
        weights = rng.integers(-3, 4, w.shape, np.int8).astype(w.dtype)
        try:
            with jax.ensure_compile_time_eval():
                made = np.asarray(f(jnp.asarray(values), jnp.asarray(weights)))
        except Exception:  # a kernel that cannot run here has no structure to find
            return None
        return cls(values, weights.ravel(), made)

    def makes(self, event: Callable, into: np.ndarray, out: np.ndarray, at: Places) -> bool:
        """Whether these connections make the first and the last sample of the product."""
        n = self.y.shape[at.y]
        x = np.moveaxis(event(self.x).astype(self.w.dtype), at.x, -1).reshape(
            -1, self.x.shape[at.x]
        )
        y = np.moveaxis(self.y, at.y, -1).reshape(-1, n)
        for sample in {0, len(y) - 1}:
            terms = self.w * x[sample][into.ravel()]
            if not np.array_equal(np.bincount(out.ravel(), terms, n), y[sample]):
                return False
        return True


def _connections(
    into: np.ndarray, out: np.ndarray, at: Places, event: Callable, ndim: int
) -> Connections:
    of_y: list[np.ndarray | None] = [None] * ndim
    of_y[at.y] = out
    samples = iter([a for a in range(ndim) if a != at.y])
    of_x = [into if a == at.x else next(samples) for a in range(ndim)]
    return Connections(of_x, of_y, event)
