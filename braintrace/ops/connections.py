"""The connections of a sparse product, `y[o(p)] += w[p] event(x)[i(p)]`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .stored_sums import Pattern


def as_it_is(x: Any) -> Any:
    """x counts as a value."""
    return x


def positive(x: Any) -> Any:
    """x counts as an event where it is positive."""
    return x > 0


def nonzero(x: Any) -> Any:
    """x counts as an event where it is not zero."""
    return x != 0


EVENTS = (as_it_is, positive, nonzero)


class Connections(NamedTuple):
    """`y[o(p)] += w[p] event(x)[i(p)]`.

    `of_x` has for each axis of x the weights' index there, or the number of the axis of y it goes
    with; `of_y` for each axis of y the weights' index, or None where it counts samples. `used`
    tells which weights are used at all (None: all of them).
    """

    of_x: Sequence[np.ndarray | int]
    of_y: Sequence[np.ndarray | None]
    event: Callable[[Any], Any] = as_it_is
    used: np.ndarray | None = None

    @property
    def samples(self) -> list[int]:
        """The axes of y that count samples."""
        return [a for a, m in enumerate(self.of_y) if m is None]

    @property
    def samples_in_order(self) -> bool:
        """Whether x has the samples of y, in the order of y."""
        return [m for m in self.of_x if isinstance(m, int)] == self.samples

    def multiply(self, x: jax.Array, w: jax.Array, y: Any) -> jax.Array:
        """The product in ordinary operations; `y` has its shape and dtype."""
        axes = range(len(self.of_x))
        with_y = [a for a in axes if isinstance(self.of_x[a], int)]
        fixed = [a for a in axes if not isinstance(self.of_x[a], int)]
        front = [*sorted(with_y, key=lambda a: self.of_x[a]), *fixed]
        x = x.transpose(front)[(..., *[self.of_x[a] for a in fixed])]
        order = [*self.samples, *[a for a, m in enumerate(self.of_y) if m is not None]]
        out = jnp.zeros([y.shape[a] for a in order], y.dtype)
        at = (..., *[m for m in self.of_y if m is not None])
        return out.at[at].add((x * w).astype(y.dtype)).transpose(np.argsort(order))

    def pattern(self, x: tuple[int, ...], y: tuple[int, ...]) -> Pattern:
        """The weights in a list by input, for x and y of these shapes; inputs and outputs are
        numbered over all axes that the weights determine."""
        into, inputs = _numbered(self.of_x, x)
        out, _ = _numbered(self.of_y, y)
        return Pattern.of(into, out, inputs)


def _numbered(maps: Sequence, shape: tuple[int, ...]) -> tuple[np.ndarray, int]:
    """One flat index for those on several axes, and how many values it may have."""
    fixed = [(m, n) for m, n in zip(maps, shape, strict=True) if isinstance(m, np.ndarray)]
    sizes = tuple(n for _, n in fixed)
    flat = fixed[0][0] if len(fixed) == 1 else np.ravel_multi_index([m for m, _ in fixed], sizes)
    return flat.ravel(), int(np.prod(sizes))
