"""Samples that lie apart on several devices, as inside `jax.shard_map`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp


@partial(jax.tree_util.register_dataclass, data_fields=['place'], meta_fields=['axes', 'devices'])
@dataclass(frozen=True)
class Split:
    """How the samples of a batch are cut, each device having as many as any other.

    Args:
        axes: the axes of the mesh along which they are, in its order; none where all are here.
        devices: how many parts there are.
        place: which of them is here.
    """

    axes: tuple[str, ...] = ()
    devices: int = 1
    place: Any = None

    def total(self, tree: Any) -> Any:
        """The sum over all devices of what each of them has."""
        if not self.axes:
            return tree
        varying = jax.tree.map(lambda a: jax.lax.pcast(a, self.axes, to='varying'), tree)
        return jax.lax.psum(varying, self.axes)

    def all(self, flag: jax.Array) -> jax.Array:
        """Whether it is so on all devices."""
        return self.total((~flag).astype(jnp.int32)) == 0 if self.axes else flag

    def here(self, draw: Callable[[tuple[int, ...]], jax.Array], shape: tuple[int, ...]) -> Any:
        """What `draw` gives for the samples here, the first axis of this shape: their part of what
        it gives for all samples."""
        if not self.axes:
            return draw(shape)
        count = shape[0] if shape else 1
        drawn = draw((self.devices * count, *shape[1:]))
        part = jax.lax.dynamic_slice_in_dim(drawn, self.place * count, count)
        return part.reshape(shape)


TOGETHER = Split()  # all samples on one device, or where XLA has put them
