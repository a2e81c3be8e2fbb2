"""Equinox modules as arguments of a step: inexact arrays are the parameters, as for
`eqx.filter_grad`."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax

from .forms import TreeSkeleton, is_inexact, take_tree_apart


def is_argument(model: Any) -> bool:
    """Whether this is a module of Equinox, or a tree with one in it."""
    parts = jax.tree.leaves(model, is_leaf=lambda a: isinstance(a, eqx.Module))
    return any(isinstance(a, eqx.Module) for a in parts)


def take_apart(model: Any) -> tuple[list[Any], TreeSkeleton]:
    """The inexact arrays of a model, and the rest of it, Python numbers included."""
    return take_tree_apart(model, is_inexact)


def advice_for(model: Any) -> str | None:
    """What to write instead of a module alone."""
    if not isinstance(model, eqx.Module) or not any(map(is_inexact, jax.tree.leaves(model))):
        return None  # functions that Equinox has wrapped are modules too
    return (
        f'`model` is the Equinox module {type(model).__name__}, which holds no state. Give the '
        'step and the state too: `compile(step, rule, module, state, *inputs)`, where '
        '`step(module, state, *inputs)` returns `(state, out)`.'
    )
