"""An identity that says of a weight whether it may have a trace, and products that let no gradient
through."""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Iterator
from typing import Any

import jax

from .._jax import Primitive
from ..primitives import identity_primitive


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


_stopping: contextvars.ContextVar[bool] = contextvars.ContextVar('stopping', default=False)


@contextlib.contextmanager
def stop_param_gradients(stop_or_not: bool = True) -> Iterator[None]:
    """Inside, products with a weight let no gradient through: what is left of the derivative of a
    step by its state is what a unit does to itself.

    Args:
        stop_or_not: whether they do; False undoes it for a part inside.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from braintrace.ops.functions import matmul
        >>> from braintrace.ops.marker import stop_param_gradients
        >>> with stop_param_gradients():
        ...     jax.jacobian(lambda h: 0.5 * h + matmul(h, jnp.ones((2, 2))))(jnp.ones(2))
        Array([[0.5, 0. ],
               [0. , 0.5]], dtype=float32)
    """
    token = _stopping.set(bool(stop_or_not))
    try:
        yield
    finally:
        _stopping.reset(token)


def stopped(y: Any) -> Any:
    """The output of a product; a constant where gradients are stopped."""
    return jax.lax.stop_gradient(y) if _stopping.get() else y
