"""What a user says about a run: how sequences are cut, masked and weighed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp


def sequence_length(sequences: Sequence[Any]) -> int:
    """The common first axis of all leaves."""
    lengths = set()
    for i, tree in enumerate(sequences):
        leaves = jax.tree.leaves(tree)
        if not leaves:
            raise ValueError(f'Sequence {i} is empty: it has no array.')
        for leaf in leaves:
            if jnp.ndim(leaf) == 0:
                raise ValueError(
                    f'Sequence {i} has a scalar: every array needs time as its first axis.'
                )
            lengths.add(jnp.shape(leaf)[0])
    if not lengths:
        raise ValueError('Give at least one sequence.')
    if len(lengths) > 1:
        raise ValueError(
            f'The sequences have different lengths {sorted(lengths)}: time is the first axis of '
            'every array.'
        )
    [length] = lengths
    if not length:
        raise ValueError('The sequences have length 0.')
    return length


def first_of(sequences: Any) -> Any:
    """The data of the first step."""
    return jax.tree.map(lambda a: a[0], sequences)


def shapes_of_one_step(sequences: Any) -> Any:
    """The shapes of one step's data."""

    def one(a):
        return jax.ShapeDtypeStruct(jnp.shape(a)[1:], jnp.result_type(a))

    return jax.tree.map(one, sequences)


def per_step(modulator: Any, length: int) -> Any:
    """A modulator with the steps as first axis: a number stands for all of them."""

    def one(m):
        m = jnp.asarray(m)
        if m.ndim and m.shape[0] != length:
            raise ValueError(
                f'`modulator` has shape {m.shape}: it must be a number, or have the {length} '
                'steps as its '
                'first axis.'
            )
        return m if m.ndim else jnp.broadcast_to(m, (length,))

    if modulator is None:
        return None
    if isinstance(modulator, list | tuple):
        raise TypeError('`modulator` must be an array, or a dict of arrays by group number.')
    if isinstance(modulator, dict):
        return {g: one(m) for g, m in modulator.items()}
    return one(modulator)


def spread_mask(mask: Any, losses: tuple[int, ...], dtype: Any) -> jax.Array:
    """The mask at each loss, for losses of shape (T,) or (T, batch); ones if there is none."""
    if mask is None:
        return jnp.ones(losses, dtype)
    mask = jnp.asarray(mask, dtype)
    if mask.shape not in (losses[:1], losses):
        also = '; a mask by sample needs a step that returns one loss for each sample'
        if len(losses) > 1:
            also = f' or {losses}'
        raise ValueError(f'`mask` has shape {mask.shape}, but the losses need {losses[:1]}{also}.')
    mask = mask.reshape(mask.shape + (1,) * (len(losses) - mask.ndim))
    return jnp.broadcast_to(mask, losses)


def weigh(mask: jax.Array, reduction: str) -> jax.Array:
    """The weight of each loss in the objective."""
    if reduction not in ('mean', 'sum'):
        raise ValueError(f"`reduction` must be 'mean' or 'sum', got {reduction!r}.")
    if reduction == 'sum':
        return mask
    return mask / jnp.maximum(mask.sum(), 1)
