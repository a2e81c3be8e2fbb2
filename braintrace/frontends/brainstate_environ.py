"""brainstate itself, and what surrounds a step of one of its modules."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import numpy as np

from .base import Surroundings

_double = jax.config.read('jax_enable_x64')
import brainstate  # noqa: E402
from brainstate._state import TRACE_CONTEXT  # noqa: E402, F401

if _double and not jax.config.read('jax_enable_x64'):
    # importing brainstate resets the precision; the user's choice stands
    brainstate.environ.set(precision=64)

MOVING = 't', 'i'  # of `brainstate.environ`: they change from step to step


def surroundings() -> Surroundings:
    """What a step may read from `brainstate.environ`: the settings it is compiled for, and values
    that move with time (`t`, `i` and arrays)."""
    settings, moving = [], {}
    for name, value in brainstate.environ.all().items():
        if isinstance(value, str | int) and name not in MOVING:
            settings.append((name, value))
            continue
        leaves, tree = jax.tree.flatten(value)
        if name in MOVING or any(isinstance(a, jax.Array | np.ndarray) for a in leaves):
            moving[name] = value
        else:
            known = [a if isinstance(a, Hashable) else id(a) for a in leaves]
            settings.append((name, tree, *known))
    return Surroundings(tuple(settings), moving)


def within(moving: Mapping[str, Any]) -> AbstractContextManager:
    """`brainstate.environ` with these values of what moves."""
    return brainstate.environ.context(**moving) if moving else nullcontext()
