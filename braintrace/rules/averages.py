"""Averages over time that fade, from any start, and what they lack at their beginning."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def average(decay: float, before: jax.Array, x: jax.Array) -> jax.Array:
    """`a <- decay a + x_k` over all steps k, from `before`."""
    K = len(x)
    late = (decay ** np.arange(K - 1, -1, -1)).astype(before.dtype)
    return decay**K * before + jnp.tensordot(late, x, 1)


def correction(decay: float, step: Any) -> Any:
    """The bias of an average over `step + 1` terms that started from zero."""
    return jnp.maximum(1 - jnp.asarray(decay, jnp.result_type(float)) ** (step + 1), 1e-8)
