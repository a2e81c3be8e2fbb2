"""A step as the body of a loop: what depends on the parameters alone is computed once, before it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from .._jax import JaxprEqn, Literal, Var, eval_jaxpr, new_jaxpr
from ..step import Step


class Loop:
    """`before(params)` once, then `body(that, hidden, other, inputs)` at each step, which also gives the values of the variables `wanted`."""

    def __init__(self, step: Step, wanted: Sequence[Var]):
        jaxpr = step.jaxpr.jaxpr
        self._consts = step.jaxpr.consts
        fixed: set[Var] = {*step.param_vars, *jaxpr.constvars}
        before: list[JaxprEqn] = []
        body: list[JaxprEqn] = []
        for eqn in jaxpr.eqns:
            once = not eqn.effects and all(isinstance(a, Literal) or a in fixed for a in eqn.invars)
            (before if once else body).append(eqn)
            fixed.update(eqn.outvars if once else ())
        outs = [*jaxpr.outvars, *wanted]
        used = {a for e in body for a in e.invars if isinstance(a, Var)} | {
            a for a in outs if isinstance(a, Var)
        }
        handed = [
            v
            for v in dict.fromkeys([*step.param_vars, *[v for e in before for v in e.outvars]])
            if v in used
        ]
        self._before = new_jaxpr(step.param_vars, handed, before, jaxpr.constvars)
        self._body = new_jaxpr(
            [*handed, *step.hidden_vars, *step.other_vars, *step.input_vars],
            outs,
            body,
            jaxpr.constvars,
        )
        self._cuts = len(step.hidden), len(step.hidden) + len(step.other), len(jaxpr.outvars)

    def before(self, params: Sequence[Any], held: Collection[Var] = ()) -> list[Any]:
        """What the body needs of the parameters; the variables `held` are constants."""
        values = eval_jaxpr(self._before, self._consts, *params)
        return [
            lax.stop_gradient(a) if v in held else a
            for a, v in zip(values, self._before.outvars, strict=True)
        ]

    def body(
        self,
        handed: Sequence[Any],
        hidden: Sequence[Any],
        other: Sequence[Any],
        inputs: Sequence[Any],
    ) -> tuple[list, list, list, list]:
        """New hidden state, new other state, outputs, wanted values."""
        out = eval_jaxpr(self._body, self._consts, *handed, *hidden, *other, *inputs)
        a, b, c = self._cuts
        return out[:a], out[a:b], out[b:c], out[c:]


def over_states(a: Any, axis: int) -> Any:
    """The sum over the few states of a unit, term by term: XLA fuses that with what is around it, but not a reduction, which on a CPU (jaxlib 0.10.2) can
    even come out wrong inside a loop."""
    return sum(jax.lax.index_in_dim(a, k, axis, keepdims=False) for k in range(a.shape[axis]))


def scan(f: Callable, carry: Any, xs: Any, length: int, reverse: bool = False) -> tuple[Any, Any]:
    """`lax.scan`, without the loop when there is one step. Axes of length one stay outside: XLA would move data to lay them out."""
    if length == 1:
        carry, out = f(carry, jax.tree.map(lambda a: a[0], xs))
        return carry, jax.tree.map(lambda a: a[None], out)
    of_outs: Any = None

    def turn(carry, x):
        nonlocal of_outs
        carry, outs = f(_reshaped(carry, of_carry), _reshaped(x, of_xs))
        of_outs = jax.tree.map(jnp.shape, outs)
        return _squeezed(carry), _squeezed(outs)

    of_carry, of_xs = jax.tree.map(jnp.shape, carry), jax.tree.map(lambda a: jnp.shape(a)[1:], xs)
    carry, outs = jax.lax.scan(
        turn, _squeezed(carry), _squeezed(xs), length=length, reverse=reverse
    )
    return _reshaped(carry, of_carry), _reshaped(outs, of_outs, length)


def _squeezed(tree: Any) -> Any:
    return jax.tree.map(lambda a: jnp.reshape(a, [n for n in jnp.shape(a) if n != 1]), tree)


def _reshaped(tree: Any, shapes: Any, *lead: int) -> Any:
    return jax.tree.map(lambda a, shape: jnp.reshape(a, (*lead, *shape)), tree, shapes)
