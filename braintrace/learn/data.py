"""How inputs say whether they are one step or several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SingleStepData:
    """The input of one step (as is every input that is not wrapped).

    Example:
        >>> import braintrace
        >>> braintrace.SingleStepData(1.).data
        1.0
    """

    data: Any


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MultiStepData:
    """The inputs of several steps, with time as the first axis.

    Example:
        >>> import braintrace
        >>> len(braintrace.MultiStepData([1., 2.]).data)
        2
    """

    data: Any


def is_wrapped(x: Any) -> bool:
    """Whether data say themselves how many steps they are."""
    return isinstance(x, SingleStepData | MultiStepData)


def first_step(inputs: tuple) -> tuple:
    """The inputs of the first step, unwrapped."""
    return tuple(_first(x) for x in inputs)


def _first(x: Any) -> Any:
    if isinstance(x, MultiStepData):
        return jax.tree.map(lambda a: a[0], x.data)
    return x.data if isinstance(x, SingleStepData) else x


def over_steps(x: Any, length: int) -> list[jax.Array]:
    """The leaves of one input with so many steps first; what is given for one step stands for all
    of them."""
    if isinstance(x, MultiStepData):
        return [jnp.asarray(a) for a in jax.tree.leaves(x.data)]
    leaves = jax.tree.leaves(x.data if isinstance(x, SingleStepData) else x)
    return [jnp.broadcast_to(jnp.asarray(a), (length, *jnp.shape(a))) for a in leaves]
