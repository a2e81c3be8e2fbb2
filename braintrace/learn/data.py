"""How inputs say whether they are one step or several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax


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


def first_step(inputs: tuple) -> tuple:
    """The inputs of the first step, unwrapped."""
    return tuple(
        jax.tree.map(lambda a: a[0], x.data)
        if isinstance(x, MultiStepData)
        else x.data
        if isinstance(x, SingleStepData)
        else x
        for x in inputs
    )
