"""Flax Linen: its variables are a pytree like any other; a module alone is not a model yet."""

from __future__ import annotations

from typing import Any

from flax import linen


def advice_for(model: Any) -> str | None:
    """What to write instead of a module alone."""
    if not isinstance(model, linen.Module):
        return None
    return (
        f'`model` is the Linen module {type(model).__name__}, which holds no arrays. Give the '
        'step, the variables and the state too: `compile(step, rule, variables, state, *inputs)`, '
        'where `step(variables, state, *inputs)` calls `module.apply(variables, ...)` and returns '
        '`(state, out)`.'
    )
