"""What layers share: initial values, initial states, and checks of sizes.

The initial values are functions of a shape, in a form that brainstate does not have.
"""

from __future__ import annotations

import math
from typing import Any

import brainstate
import jax.numpy as jnp
import numpy as np
from brainstate.nn import init


def kaiming_normal(shape: tuple[int, ...]) -> Any:
    """Normal, of variance 2 / inputs."""
    fan_in = shape[0] if len(shape) == 2 else math.prod(shape[1:])
    return brainstate.random.randn(*shape) * math.sqrt(2 / fan_in)


def xavier_normal(shape: tuple[int, int]) -> Any:
    """Normal, of variance 2 / (inputs + outputs)."""
    return brainstate.random.randn(*shape) * math.sqrt(2 / sum(shape))


def lecun_normal(shape: tuple[int, int]) -> Any:
    """Normal, of variance 1 / inputs."""
    return brainstate.random.randn(*shape) / math.sqrt(shape[0])


def orthogonal(shape: tuple[int, int]) -> Any:
    """Orthonormal rows or columns, whichever are shorter in number."""
    a = brainstate.random.randn(*shape)
    tall = shape[0] >= shape[1]
    q, r = jnp.linalg.qr(a if tall else a.T)
    q = q * jnp.sign(jnp.diag(r))
    return q if tall else q.T


class WithStates:
    """A module whose hidden states have a shape and initial values: `_initial` by name."""

    _initial: dict[str, Any]

    def _values(self, batch_size: int | None) -> dict[str, Any]:
        return {
            name: init.param(value, self._state_size, batch_size)
            for name, value in self._initial.items()
        }

    @property
    def _state_size(self) -> tuple[int, ...]:
        return self.out_size  # type: ignore[attr-defined]

    def init_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        for name, value in self._values(batch_size).items():
            setattr(self, name, brainstate.HiddenState(value))

    def reset_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        for name, value in self._values(batch_size).items():
            getattr(self, name).value = value


def check_sizes(layer: Any, **sizes: Any) -> None:
    """Positive integers, or tuples of them."""
    for name, size in sizes.items():
        entries = size if isinstance(size, tuple | list) else (size,)
        if not entries or not all(map(_is_positive_integer, entries)):
            raise ValueError(
                f'`{type(layer).__name__}`: `{name}` must be a positive integer or a tuple of '
                f'them, got {size!r}.'
            )


def _is_positive_integer(n: Any) -> bool:
    return isinstance(n, int | np.integer) and not isinstance(n, bool) and int(n) >= 1


def check_input(layer: Any, x: Any) -> None:
    """The input ends in the axes of `in_size`."""
    wanted, shape = tuple(layer.in_size), jnp.shape(x)
    lead = len(shape) - len(wanted)
    if lead < 0 or shape[lead:] != wanted:
        raise ValueError(
            f'`{type(layer).__name__}`: the input must end in the axes {wanted} of `in_size`, '
            f'got shape {shape}.'
        )
