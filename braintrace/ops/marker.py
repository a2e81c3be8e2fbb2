"""An identity that says of a weight whether it may have a trace."""

from __future__ import annotations

import functools
from typing import Any

import jax

from .._jax import Primitive, identity_primitive


@functools.cache
def marker() -> Primitive:
    """The primitive `trace_mark`, with a parameter `traced`."""
    return identity_primitive('trace_mark')


def marked(w: Any) -> Any:
    """Mark a weight as one to trace: with `trace='marked'` only such weights have a trace.

    Example:
        >>> import jax.numpy as jnp
        >>> from braintrace.ops.marker import marked
        >>> float(marked(jnp.float32(2.)))
        2.0
    """
    return jax.tree.map(lambda a: marker().bind(a, traced=True), w)


def untraced(w: Any) -> Any:
    """Keep a weight out of the traces at this place. It still gets its in-window gradient.

    Example:
        >>> import jax.numpy as jnp
        >>> from braintrace.ops.marker import untraced
        >>> float(untraced(jnp.float32(2.)))
        2.0
    """
    return jax.tree.map(lambda a: marker().bind(a, traced=False), w)
