"""The state in which a learner of brainstate models keeps its traces."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ..frontends.brainstate_own import OwnState


class EligibilityTrace(OwnState):
    """The influence of the weights on the present, carried on from step to step."""


class Part:
    """One entry of a state that holds a dict, with a `value` of its own: one state is cheaper to
    pass through `jit` than many."""

    def __init__(self, state: Any, *keys: str):
        self._state, self._keys = state, keys

    @property
    def value(self) -> Any:
        """The present value."""
        value = self._state.value
        for k in self._keys:
            value = value[k]
        return value

    @value.setter
    def value(self, new: Any) -> None:
        old = self.value
        new = jnp.asarray(new, old.dtype) if isinstance(new, int | float) else new
        if (jnp.shape(new), jnp.result_type(new)) != (old.shape, old.dtype):
            raise ValueError(
                f'{".".join(self._keys)} is {old.dtype}{list(old.shape)} and cannot become '
                f'{jnp.result_type(new)}{list(jnp.shape(new))}. Cast it, or compile the learner '
                'for the shapes it comes from.'
            )
        self._state.value = _with_entry(self._state.value, self._keys, new)


def _with_entry(tree: dict, keys: tuple, new: Any) -> dict:
    first, *rest = keys
    return {**tree, first: _with_entry(tree[first], tuple(rest), new) if rest else new}
