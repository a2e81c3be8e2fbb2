"""One step of a core with all that can be seen of it: the loss, the learning signal of the hidden
states and the gradients of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._jax import is_float
from ..engine.credit import of_new_state
from ..rules.signals import Extra
from .core import Core
from .records import Block, Carried, Run, Weights


class Seen(NamedTuple):
    """The loss of a step, the credit of the new hidden leaves (by number), the gradients of the
    parameters, and what is carried on."""

    loss: jax.Array
    credit: dict[int, jax.Array]
    grads: list[Any]
    carried: Carried


def watch_step(
    core: Core,
    weights: Weights,
    carried: Carried,
    inputs: Sequence[Any],
    loss_of: Callable[[list[Any]], Any],
    extra: Extra,
) -> Seen:
    """A step in a window of its own.

    Args:
        core: of a step without a loss.
        weights, carried: as they are before the step.
        inputs: the leaves of the step's inputs.
        loss_of: gives the loss, one number, from the leaves of the step's outputs.
        extra: what the signal takes from outside, with one step as first axis.
    """
    inputs = [a[None] for a in inputs]
    window = core.window(Block(weights, inputs, 1), carried)
    outs = [a[0] for a in window.outs]
    loss, pull = jax.vjp(loss_of, outs)
    [at_outs] = pull(jnp.ones_like(loss))
    # No credit comes to the hidden states but through the outputs.
    at_hidden = [jnp.zeros((1, *h.shape), h.dtype) for h in window.hidden]
    cotangents = core.program.graded([a[None] for a in at_outs], at_hidden)
    grads, _, after = core.grad(weights, carried, inputs, cotangents, Run(1, 1), extra)
    return Seen(loss, _learning_signal(core, window, carried, cotangents, extra), grads, after)


def _learning_signal(
    core: Core, window: Any, carried: Carried, cotangents: list[Any], extra: Extra
) -> dict[int, jax.Array]:
    """Credit of each new hidden leaf inside its step, as the rule's signal gives it; with
    multi-step credit, which is exact inside a window, it is the gradient."""
    if core.single_step:
        step = core.signal.same_step(window, cotangents, carried.traces, extra)
        signals = step.credit.signals(False)
    else:
        signals = of_new_state(window, cotangents)
    floats = [i for i, v in enumerate(core.program.step.hidden_vars) if is_float(v)]
    return {i: signals[i][0] for i in floats}
