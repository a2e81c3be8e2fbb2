"""One window of a learner as a differentiable function, for use inside somebody's own gradient.

Its past is a constant: the traces speak for it. So a loop of calls gives the sum of their online
gradients, never a double count.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from ..engine.evaluate import floats_of, is_inexact
from ..rules.signals import NO_EXTRA, Extra
from .core import KEEP, Core
from .records import Carried, Weights


class Moves(NamedTuple):
    """Tangents, or credit, of the parameters and the inputs of a window, by number."""

    params: dict[int, Any]
    inputs: dict[int, Any]


class Made(NamedTuple):
    """Tangents, or credit, of the outputs and the last hidden state of a window, by number."""

    outs: dict[int, Any]
    hidden: dict[int, Any]


def call(
    core: Core,
    weights: Weights,
    carried: Carried,
    inputs: Sequence[Any],
    length: int,
    extra: Extra = NO_EXTRA,
) -> tuple[list[Any], Carried]:
    """The outputs of one window, with the steps first, and what is carried on."""
    weights = weights._replace(captured=_not_differentiated(list(weights.captured)))
    forward = partial(_forward, core, length)
    f: Any
    if core.signal.linear and core.nonfinite == KEEP:
        # given as its own transpose: JAX turns it back, and what is mapped over samples is summed
        # inside the products
        f = jax.custom_jvp(forward)
        f.defjvp(partial(_tangents, core, length), symbolic_zeros=True)
    else:
        f = jax.custom_vjp(forward)
        f.defvjp(lambda *given: (forward(*given), given), partial(_backward, core, length))
    return f(list(weights.captured), list(weights.params), carried, list(inputs), extra)


def _forward(core, length, captured, params, carried, inputs, extra):
    return core.forward(Weights(captured, params), carried, inputs, length)


def _tangents(core: Core, length: int, primals: tuple, tangents: tuple) -> tuple:
    """The forward rule: the transpose of the online gradient."""
    made = _forward(core, length, *primals)
    captured, params, carried, inputs, extra = _once(primals) if core.single_step else primals
    moved = Moves(_real_tangents(tangents[1]), _real_tangents(tangents[3]))
    outs, hidden = made[0], made[1].hidden
    credited = Made(floats_of(outs), floats_of(hidden))

    def online(credit: Made) -> Moves:
        at_outs = [credit.outs.get(i) for i in range(len(outs))]
        at_hidden = [credit.hidden.get(i) for i in range(len(hidden))]
        weights = Weights(captured, params)
        dp, dx = core.online(weights, carried, inputs, length, extra, at_outs, at_hidden)
        return Moves({i: dp[i] for i in moved.params}, {i: dx[i] for i in moved.inputs})

    tangent_of = Made({}, {})
    if moved.params or moved.inputs:
        [tangent_of] = jax.linear_transpose(online, credited)(moved)
    of_outs = [tangent_of.outs.get(i, _still(a)) for i, a in enumerate(outs)]
    of_hidden = [tangent_of.hidden.get(i, _still(a)) for i, a in enumerate(hidden)]
    of_carried = jax.tree.map(_still, made[1])._replace(hidden=of_hidden)
    return made, (of_outs, of_carried)


def _backward(core: Core, length: int, given: tuple, cotangents: tuple) -> tuple:
    """The reverse rule, for signals that are not linear in the credit."""
    captured, params, carried, inputs, extra = given
    at_outs = [a if is_inexact(a) else None for a in cotangents[0]]
    at_hidden = [a if is_inexact(a) else None for a in cotangents[1].hidden]
    weights = Weights(captured, params)
    dp, dx = core.online(weights, carried, inputs, length, extra, at_outs, at_hidden)
    dp = _once(dp) if core.single_step else dp
    return None, dp, None, [dx.get(i) for i in range(len(inputs))], None


def _real_tangents(leaves: Sequence[Any]) -> dict[int, Any]:
    return {
        i: t
        for i, t in enumerate(leaves)
        if not isinstance(t, SymbolicZero) and jnp.issubdtype(t.dtype, jnp.inexact)
    }


def _still(a: Any) -> Any:
    """No tangent."""
    return jnp.zeros_like(a) if is_inexact(a) else np.zeros(a.shape, jax.dtypes.float0)


@jax.custom_jvp
def _once(given: Any) -> Any:
    """What an online gradient is made from: it may not be differentiated again."""
    return given


@_once.defjvp
def _not_twice(primals, tangents):
    raise NotImplementedError(
        'The gradient of a classical (single-step) rule is not the derivative of a function: it '
        "cannot be differentiated again. Use vjp_method='multi-step', 'rtrl' or 'bptt'."
    )


@jax.custom_jvp
def _not_differentiated(captured: list[Any]) -> list[Any]:
    """What a step closes over, which gets no gradient: to ask for one is an error."""
    return captured


def _refuse_captured(primals, tangents):
    if _real_tangents(tangents[0]):
        raise NotImplementedError(
            'The step closes over a value that is being differentiated, and a learner gives '
            'gradients to parameters and inputs only. Make that value a parameter of the model, '
            'or an input of the step.'
        )
    return primals[0], [_still(a) for a in primals[0]]


_not_differentiated.defjvp(_refuse_captured, symbolic_zeros=True)
