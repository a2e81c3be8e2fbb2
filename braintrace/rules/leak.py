"""RFLO: a leak in the place of the Jacobian.

    e <- decay e + x (x) df

The leak is a number, an array with one for each unit, or the model's own: what each state of a unit
keeps of itself from step to step, `dh_i/dh_i` along position-wise paths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..engine.entries import Entries
from ..engine.window import Window
from ..plan.layout import Layout
from ..step import dotted
from .options import OWN_LEAK, leaks


@dataclass(frozen=True, eq=False)
class Leak:
    """What a unit's trace keeps from step to step: by group an array that broadcasts to its units,
    or None for the model's own leak."""

    of_group: Mapping[int, np.ndarray | None]

    def transition(self, window: Window, group: int) -> Entries:
        """`D[a][b]`, with nothing between different states of a unit."""
        units, leak = window.layout.units[group], self.of_group[group]
        states = range(units.states)
        if leak is None:
            own = window.factors.least_entries(group)
            return [[own[a][b] if a == b else None for b in states] for a in states]
        number = jnp.asarray(leak, units.dtype)
        of_one_step = number.reshape(*[1] * (1 + len(units.shape) - number.ndim), *number.shape)
        return [[of_one_step if a == b else None for b in states] for a in states]


def leak_of(layout: Layout, decay: Any) -> Leak:
    """The leak of each group of a layout, from the option `decay` of a rule."""
    return Leak({group: _of_group(layout, group, decay) for group in layout.units})


def _of_group(layout: Layout, group: int, decay: Any) -> np.ndarray | None:
    if isinstance(decay, str) and decay == OWN_LEAK:
        return None
    path, units = layout.graph.groups[group].paths[0], layout.units[group].shape
    if callable(decay):
        return _of_group(layout, group, leaks('decay', decay(path)))
    leak = np.asarray(decay)
    try:
        fits = np.broadcast_shapes(leak.shape, units) == units
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f'`decay` has shape {leak.shape}, which does not broadcast to the units {units} of '
            f'{dotted(path) or "the state"}. Give one leak for each unit, or a function of the '
            "hidden state's path where there are several layers."
        )
    return leak
