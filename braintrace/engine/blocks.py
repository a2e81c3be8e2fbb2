"""A sequence cut into blocks of steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

MOST_STEPS = 128  # a longer block gains little speed and costs memory in proportion


def in_blocks(f: Callable, carry: Any, xs: Any, length: int, window: int) -> tuple[Any, Any]:
    """Scan `f(carry, xs of a block) -> (carry, outs)` over blocks of `window` steps; the last one
    may be shorter. `f` sees and gives arrays with the steps of its block first."""
    whole, rest = divmod(length, window)

    def part(start: Any, steps: int) -> Any:
        if steps == length:
            return xs
        return jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, steps), xs)

    outs = []
    if whole > 1:
        carry, out = jax.lax.scan(
            lambda c, i: f(c, part(i * window, window)), carry, jnp.arange(whole)
        )
        outs.append(jax.tree.map(lambda a: a.reshape(whole * window, *a.shape[2:]), out))
    elif whole:
        carry, out = f(carry, part(0, window))
        outs.append(out)
    if rest:
        carry, out = f(carry, part(length - rest, rest))
        outs.append(out)
    if len(outs) == 1:
        return carry, outs[0]
    return carry, jax.tree.map(lambda *parts: jnp.concatenate(parts), *outs)


def pick_window(length: int, bytes_per_step: int, budget: int) -> int:
    """A block as long as the budget allows, of equal lengths if there are several."""
    most = max(1, min(MOST_STEPS, budget // max(bytes_per_step, 1)))
    blocks = -(-length // most)
    return -(-length // blocks)
