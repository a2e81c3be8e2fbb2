"""The random streams of the rules that draw: kept among the traces, so that a run that is resumed
goes on with the same bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..plan.keys import TraceKey

KEY = TraceKey(kind='key')  # where a stream is kept

Draw = Callable[[Any, tuple[int, ...], Any], jax.Array]  # (key, shape, dtype) -> signs


def signs(key: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Plus or minus one, each with probability one half."""
    return jax.random.rademacher(key, shape).astype(dtype)


def as_key(seed: Any) -> Any:
    """A random key from a key, its data, or a number."""
    if hasattr(seed, 'dtype') and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        return seed
    if jnp.ndim(seed):
        return jax.random.wrap_key_data(jnp.asarray(seed))
    return jax.random.key(seed)


def norm(leaves: Sequence[Any]) -> Any:
    """The Euclidean norm of all leaves together."""
    return jnp.sqrt(sum((a**2).sum() for a in leaves))
