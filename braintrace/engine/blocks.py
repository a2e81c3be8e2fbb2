"""A sequence cut into blocks of steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

MOST_STEPS = 128  # a longer block gains little speed and costs memory in proportion


def in_blocks(
    f: Callable, carry: Any, xs: Any, length: int, window: int, reverse: bool = False
) -> tuple[Any, Any]:
    """Scan `f(carry, xs of a block) -> (carry, outs)` over blocks of `window` steps, from the last
    to the first with `reverse`; the last one may be shorter. `f` sees and gives arrays with the
    steps of its block first."""
    whole, rest = divmod(length, window)

    def part(start: Any, steps: int) -> Any:
        if steps == length:
            return xs
        return jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, steps), xs)

    def whole_blocks(carry: Any) -> tuple[Any, Any]:
        if whole == 1:
            return f(carry, part(0, window))
        carry, out = jax.lax.scan(
            lambda c, i: f(c, part(i * window, window)), carry, jnp.arange(whole), reverse=reverse
        )
        return carry, jax.tree.map(lambda a: a.reshape(whole * window, *a.shape[2:]), out)

    pieces: list[Callable] = [whole_blocks] if whole else []
    if rest:
        pieces.append(lambda carry: f(carry, part(length - rest, rest)))
    outs = []
    for piece in reversed(pieces) if reverse else pieces:
        carry, out = piece(carry)
        outs.append(out)
    if len(outs) == 1:
        return carry, outs[0]
    in_order = reversed(outs) if reverse else outs
    return carry, jax.tree.map(lambda *parts: jnp.concatenate(parts), *in_order)


def pick_window(length: int, bytes_per_step: int, budget: int) -> int:
    """A block as long as the budget allows, of equal lengths if there are several."""
    most = max(1, min(MOST_STEPS, budget // max(bytes_per_step, 1)))
    blocks = -(-length // most)
    return -(-length // blocks)
