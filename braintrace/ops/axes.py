"""Op rules: labels for the axes of x, w and y, so that `y = einsum('x,w->y')`.

A label that y has and w has not is a batch axis; one that w and x share and y has not is summed over. With `x=None` the weight enters element by element
and y is the weight itself, broadcast to where it is used. A rule answers `NotImplemented` for a use it cannot describe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from string import ascii_letters
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._jax import JaxprEqn


class Axes(NamedTuple):
    """The labels of the axes of x, w and y, one letter for each axis."""
    x: str | None
    w: str
    y: str

    @property
    def trace(self) -> str:
        """Labels of a trace that remembers for each weight the one unit it feeds: y's batch axes, then w's axes."""
        return ''.join(c for c in self.y if c not in self.w) + self.w


class OpRule(NamedTuple):
    """`axes(eqn, i)` labels the use of operand `i` as a weight; `x(eqn, i, values)` is what multiplies it."""
    axes: Callable[[JaxprEqn, int], Axes]
    x: Callable[[JaxprEqn, int, Sequence[Any]], Any]


def elementwise(ndim: int) -> Axes:
    return Axes(None, ascii_letters[:ndim], ascii_letters[:ndim])


def _dot_axes(eqn: JaxprEqn, i: int) -> Axes:
    contract, batch = eqn.params['dimension_numbers']
    letters = iter(ascii_letters)
    labels = [[''] * a.aval.ndim for a in eqn.invars]
    for pairs in (batch, contract):
        for p, q in zip(*pairs, strict=True):
            labels[0][p] = labels[1][q] = next(letters)
    free: list[list[str]] = [[], []]
    for side, axes in enumerate(labels):
        for p, c in enumerate(axes):
            if not c:
                axes[p] = next(letters)
                free[side].append(axes[p])
    y = [labels[0][p] for p in batch[0]] + free[0] + free[1]
    return Axes(''.join(labels[1 - i]), ''.join(labels[i]), ''.join(y))


def _gather_axes(eqn: JaxprEqn, i: int) -> Axes:
    """Rows of a table, picked by data: x is the one-hot form of the indices."""
    n = eqn.params['dimension_numbers']
    table, index = (a.aval for a in eqn.invars)
    rows = n.start_index_map
    whole = all(size == (1 if a in rows else table.shape[a]) for a, size in enumerate(eqn.params['slice_sizes']))
    if i or not whole or n.operand_batching_dims or sorted(n.collapsed_slice_dims) != sorted(rows):
        return NotImplemented
    w = ascii_letters[:table.ndim]
    batch = ascii_letters[table.ndim:table.ndim + index.ndim - 1]
    kept, picked = iter(c for a, c in enumerate(w) if a not in rows), iter(batch)
    y = ''.join(next(kept) if a in n.offset_dims else next(picked) for a in range(eqn.outvars[0].aval.ndim))
    return Axes(batch + ''.join(w[a] for a in rows), w, y)


def _one_hot(eqn: JaxprEqn, i: int, values: Sequence[Any]) -> Any:
    table, index = values
    rows = eqn.params['dimension_numbers'].start_index_map
    clip = 'CLIP' in str(eqn.params['mode'])
    batch = index.shape[:-1]
    x = jnp.ones(batch, table.dtype)
    for k, a in enumerate(rows):
        size = table.shape[a]
        at = jnp.clip(index[..., k], 0, size - 1) if clip else index[..., k]
        x = x[..., None] * jax.nn.one_hot(at, size, dtype=table.dtype).reshape(batch + (1,) * k + (size,))
    return x


RULES: dict[str, OpRule] = {
    'dot_general': OpRule(_dot_axes, lambda eqn, i, values: values[1 - i]),
    'gather': OpRule(_gather_axes, _one_hot),
}
