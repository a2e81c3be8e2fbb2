"""Loops over the steps of a window, and a step as the body of one: what depends on the parameters
alone is computed once, before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._jax import Jaxpr, JaxprEqn, Var, new_jaxpr, prune, run_jaxpr
from ..ops.families import Family, family
from ..step import Step


class Turn(NamedTuple):
    """What one turn of the loop gives: the new state, the outputs, and the values of the variables
    that were wanted besides."""

    hidden: list
    other: list
    outs: list
    wanted: list


class Loop:
    """`before(captured, params)` once, then `body(that, hidden, other, inputs)` at each step.

    `each` are the equations of the body, `handed` the variables that it gets from before. A bias
    that is repeated for all samples is handed as it is: `repeats` are the equations that do that,
    where it is needed.
    """

    def __init__(self, step: Step, wanted: Sequence[Var]):
        given = [*step.captured_vars, *step.param_vars]
        known = {v for e in step.once for v in e.outvars}
        self.each = [e for e in step.jaxpr.eqns if known.isdisjoint(e.outvars)]
        self.repeats = _repeats(step.once, self.each)
        once = [e for e in step.once if e not in self.repeats]
        outs = [*step.jaxpr.outvars, *wanted]
        used = _taken([*self.repeats, *self.each]) | {a for a in outs if isinstance(a, Var)}
        made = [*given, *[v for e in once for v in e.outvars]]
        self.handed = handed = [v for v in dict.fromkeys(made) if v in used]
        moving = [*step.hidden_vars, *step.other_vars, *step.input_vars]
        self._before = new_jaxpr(given, handed, once)
        self._body = self.part([*handed, *moving], outs, self.each)
        self._cuts = len(step.hidden), len(step.hidden) + len(step.other), len(step.jaxpr.outvars)

    def part(self, given: Sequence[Var], outs: Sequence[Any], eqns: Sequence[JaxprEqn]) -> Jaxpr:
        """Some equations of the body as a program, with the repetitions that they need."""
        return new_jaxpr(given, outs, prune([*self.repeats, *eqns], outs))

    def before(self, captured: Sequence[Any], params: Sequence[Any]) -> list[Any]:
        """What the body needs of the captured values and the parameters."""
        return run_jaxpr(self._before, *captured, *params)

    def body(
        self,
        handed: Sequence[Any],
        hidden: Sequence[Any],
        other: Sequence[Any],
        inputs: Sequence[Any],
    ) -> Turn:
        """One step."""
        values = run_jaxpr(self._body, *handed, *hidden, *other, *inputs)
        a, b, c = self._cuts
        return Turn(values[:a], values[a:b], values[b:c], values[c:])


def _repeats(once: Sequence[JaxprEqn], each: Sequence[JaxprEqn]) -> list[JaxprEqn]:
    """Those equations that repeat a value along axes for element-wise equations of the body, which
    XLA does there without writing it down."""
    wanted = _taken(each)
    needed = _taken([e for e in each if family(e) is not Family.ELEMENTWISE])
    repeats: list[JaxprEqn] = []
    for eqn in reversed(once):
        [out, *_] = eqn.outvars
        if eqn.primitive.name == 'broadcast_in_dim' and out in wanted and out not in needed:
            repeats.append(eqn)
            wanted |= _taken([eqn])
        else:
            needed |= _taken([eqn])
    return repeats[::-1]


def _taken(eqns: Sequence[JaxprEqn]) -> set[Var]:
    return {a for e in eqns for a in e.invars if isinstance(a, Var)}


def scan(f: Callable, carry: Any, xs: Any, length: int, reverse: bool = False) -> tuple[Any, Any]:
    """`lax.scan`, without the loop when there is one step.

    Axes of length one stay outside: XLA would move data to lay them out.
    """
    if length == 1:
        carry, out = f(carry, jax.tree.map(lambda a: jnp.squeeze(a, 0), xs))
        return carry, jax.tree.map(lambda a: a[None], out)
    of_outs: Any = None

    def turn(carry, x):
        nonlocal of_outs
        carry, outs = f(_reshaped(carry, of_carry), _reshaped(x, of_xs))
        of_outs = jax.tree.map(jnp.shape, outs)
        return _squeezed(carry), _squeezed(outs)

    of_carry = jax.tree.map(jnp.shape, carry)
    of_xs = jax.tree.map(lambda a: jnp.shape(a)[1:], xs)
    start = _squeezed(carry)
    carry, outs = jax.lax.scan(turn, start, _squeezed(xs), length=length, reverse=reverse)
    return _reshaped(carry, of_carry), _reshaped(outs, of_outs, length)


def all_steps(f: Callable, length: int, *xs: Any) -> Any:
    """`f` at all steps at once: `jax.vmap`, without an axis when there is one step.

    What `f` computes again of a step that was run before then looks to XLA as it did there, and is
    computed once.
    """
    if length > 1:
        return jax.vmap(f)(*xs)
    out = f(*jax.tree.map(lambda a: jnp.squeeze(a, 0), xs))
    return jax.tree.map(lambda a: a[None], out)


def moved_up(before: Any, last: Any) -> Any:
    """What is there after each step, from what was there before each and after the last."""
    return jnp.concatenate([before[1:], last[None]])


def _squeezed(tree: Any) -> Any:
    return jax.tree.map(lambda a: jnp.reshape(a, [n for n in jnp.shape(a) if n != 1]), tree)


def _reshaped(tree: Any, shapes: Any, *lead: int) -> Any:
    return jax.tree.map(lambda a, shape: jnp.reshape(a, (*lead, *shape)), tree, shapes)


def over_states(a: jax.Array, b: jax.Array, axis: int) -> Any:
    """The sum of `a * b` over the few states of a unit, which lie on this axis of both, term by
    term.

    XLA fuses that with what is around it, but not a reduction, which on a CPU (jaxlib 0.10.2) can
    even come out wrong inside a loop.
    """

    def state(of: jax.Array, k: int) -> jax.Array:
        return jax.lax.index_in_dim(of, k, axis, keepdims=False)

    states = range(a.shape[axis])
    return inner([state(a, k) for k in states], [state(b, k) for k in states])


def inner(a: Sequence[Any], b: Sequence[Any]) -> Any:
    """The sum of the products of two lists, term by term (see `over_states`)."""
    terms = [x * y for x, y in zip(a, b, strict=True)]
    return sum(terms[1:], terms[0])


def stacked(states: Sequence[jax.Array]) -> jax.Array:
    """Arrays of the states of a unit on a first axis, as a trace has them. A batch of `vmap` stays
    in front, as it is in all other leaves that are carried; `jnp.stack` would move it."""
    return jnp.concatenate([a[None] for a in states])


def apart(a: jax.Array, axes: int) -> Any:
    """An array of `(K, states, ...)` as a list of its states, or of lists for two such axes.

    As the input of a loop, what is the same in all steps then need not be written down for each.
    """
    if axes == 0:
        return a
    return [apart(jax.lax.index_in_dim(a, k, 1, False), axes - 1) for k in range(a.shape[1])]
