"""A table of vectors."""

from __future__ import annotations

from typing import Any

import brainstate
import jax
import jax.numpy as jnp
import saiunit as u
from brainstate.nn import init

from ..ops.functions import embedding
from .initial import check_sizes

LECUN_UNIFORM = init.LecunUniform()


class Embedding(brainstate.nn.Embedding):  # type: ignore[misc]
    """Rows of a trainable table by their index.

    Args:
        num_embeddings, embedding_size: number of rows and shape of one.
        embedding_init: initial table, or a function of its shape.
        padding_idx: a row that starts at zero and gets no gradient.
        max_norm: a row longer than this, in the unit of the table, is used with this length. The
            table keeps its values, and the gradient is that of the row used.
        norm_type: p of the norm.
        scale_grad_by_freq: divide the gradient of a row by the number of times it occurs in the
            indices.
        freeze: no gradient at all.
        name, param_type: as in `Linear`.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> braintrace.nn.Embedding(5, 3, padding_idx=0)(jnp.array([0]))
        Array([[0., 0., 0.]], dtype=float32)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_size: Any,
        embedding_init: Any = LECUN_UNIFORM,
        padding_idx: int | None = None,
        *args: Any,
        **kwargs: Any,
    ):
        check_sizes(self, num_embeddings=num_embeddings, embedding_size=embedding_size)
        super().__init__(num_embeddings, embedding_size, embedding_init, None, *args, **kwargs)
        if not self.norm_type > 0:
            raise ValueError(f'`Embedding`: `norm_type` must be positive, got {self.norm_type}.')
        if padding_idx is not None:
            self._pad(int(padding_idx))

    def _pad(self, row: int) -> None:
        """Start a row at zero, whatever the unit of the table."""
        if not 0 <= row < self.num_embeddings:
            raise ValueError(
                f'`Embedding`: `padding_idx` must be in [0, {self.num_embeddings}), got {row}.'
            )
        self.padding_idx = row
        self.weight.value = jax.tree.map(lambda w: w.at[row].set(0), self.weight.value)

    def update(self, indices: Any) -> Any:
        stop, indices = jax.lax.stop_gradient, jnp.asarray(indices)

        def as_table(w: Any) -> Any:
            return (stop(w) if self.freeze else w).reshape(w.shape[0], -1)

        y = embedding(indices, self.weight.value, weight_fn=as_table)
        if self.max_norm is not None:
            y = y - stop(y * self._too_long(y))
        if self.padding_idx is not None:
            y = u.math.where((indices == self.padding_idx)[..., None], stop(y), y)
        if self.scale_grad_by_freq:
            share = 1 / _times(indices)[..., None]
            y = share * y + stop((1 - share) * y)
        return y.reshape((*indices.shape, *self.embedding_size))

    def _too_long(self, y: Any) -> jax.Array:
        """The share by which each row is longer than `max_norm`, `(..., 1)`."""
        rows = jax.lax.stop_gradient(_number(y))
        norm = jnp.linalg.norm(rows, self.norm_type, axis=-1, keepdims=True)
        longest = _number(self.max_norm, u.get_unit(y))
        return jnp.maximum(1 - longest / jnp.maximum(norm, 1e-12), 0)


def _times(indices: jax.Array) -> jax.Array:
    """How often each index occurs among all."""
    every = indices.ravel()
    return (every[:, None] == every).sum(1).reshape(indices.shape)


def _number(value: Any, unit: Any = None) -> Any:
    """A value without its unit: in this one, or in its own."""
    quantity = isinstance(value, u.Quantity)
    if quantity and unit is not None:
        value = value.in_unit(unit)
    return value.mantissa if quantity else value
