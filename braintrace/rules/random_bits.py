"""The random streams of the rules that draw: kept among the traces, so that a run that is resumed
goes on with the same bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..engine.split import TOGETHER, Split
from ..plan.keys import TraceKey

KEY = TraceKey(kind='key')  # where a stream is kept

Draw = Callable[[Any, tuple[int, ...], Any], jax.Array]  # (key, shape, dtype) -> signs


def signs(key: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Plus or minus one, each with probability one half; of a complex type, for both parts."""
    if not jnp.issubdtype(dtype, jnp.complexfloating):
        return jax.random.rademacher(key, shape).astype(dtype)
    real, imaginary = jax.random.rademacher(key, (2, *shape))
    return (real + 1j * imaginary).astype(dtype)


def cheap_signs(key: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """As `signs`, with a bit for each of them and not a word."""
    if jnp.issubdtype(dtype, jnp.complexfloating):
        real, imaginary = cheap_signs(key, (2, *shape), jnp.float32)
        return (real + 1j * imaginary).astype(dtype)
    count = math.prod(shape)
    words = jax.random.bits(key, (-(-count // 32), 1), jnp.uint32)
    bits = (words >> jnp.arange(32, dtype=jnp.uint32)) & 1
    return (2 * bits.ravel()[:count].astype(dtype) - 1).reshape(shape)


def as_key(seed: Any) -> Any:
    """A random key from a key, its data, or a number."""
    if hasattr(seed, 'dtype') and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        return seed
    if jnp.ndim(seed):
        return jax.random.wrap_key_data(jnp.asarray(seed))
    return jax.random.key(seed)


def norm(leaves: Sequence[Any], split: Split = TOGETHER) -> Any:
    """The Euclidean norm of all leaves together, on all devices over which they are cut."""
    return root(split.total(sum(squares(a).sum() for a in leaves)))


def root(a: Any) -> Any:
    """The square root, with a slope of zero at zero: traces that are zero at first stay it, however
    the weights change."""
    return jnp.where(a == 0, 0, jnp.sqrt(jnp.where(a == 0, 1, a)))


def squares(a: jax.Array) -> jax.Array:
    """The square of each number; of a complex one the sum of those of its parts."""
    return a.real**2 + a.imag**2 if jnp.iscomplexobj(a) else a**2
