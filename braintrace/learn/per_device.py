"""Learners inside `jax.shard_map`, which by default checks where on a mesh values vary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .._jax import PER_DEVICE, varying_axes


def _said_to_vary(a: Any, axes: frozenset) -> Any:
    missing = tuple(sorted(axes - varying_axes(a)))
    return jax.lax.pcast(a, missing, to='varying') if missing else a


def per_device(f: Callable, *args: Any) -> Any:
    """`f(*args)`. Inside `jax.shard_map` that checks on which axes values vary, the results vary
    wherever some argument does, and `f` itself is not checked: it need not say for each value that
    it makes where that varies."""
    axes = varying_axes(args)
    if not axes:
        return f(*args)
    structure: dict[str, Any] = {}
    given, structure['in'] = jax.tree.flatten(args)
    leaves = [_said_to_vary(jnp.asarray(a), axes) for a in given]

    def flat(*leaves: Any) -> list[Any]:
        outs, structure['out'] = jax.tree.flatten(f(*structure['in'].unflatten(leaves)))
        return outs

    program = jax.make_jaxpr(flat)(*[jax.ShapeDtypeStruct(a.shape, a.dtype) for a in leaves])
    return structure['out'].unflatten(PER_DEVICE.bind(*leaves, program=program))
