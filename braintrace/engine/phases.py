"""The forward pass of a window in three phases, so that only what has to wait is in the loop:

    early    what the inputs alone decide, for all steps at once
    body     the states, step by step
    late     what no state waits for, outputs and losses, for all steps at once

A product over all steps is one large product, where the loop would have a small one at each turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .._jax import JaxprEqn, Var, prune, run_jaxpr
from ..ops.families import BY_OPERAND, Family, family
from ..step import Step
from .loop import Loop, all_steps, moved_up, scan

Values = Sequence[Any]
# Others may be kernels, callbacks or loops, which are best left as they are written.
OVER_STEPS = BY_OPERAND - {Family.SCATTER_ADD} | {Family.NO_DERIVATIVE, Family.CUSTOM}
COMPARISONS = frozenset('and argmax argmin eq ge gt is_finite le lt ne not or xor'.split())


class Phases:
    """The three parts of a step.

    Args:
        loop: the step as the body of a loop.
        step: the step itself.
        wanted: variables whose values are given besides the outputs.
    """

    def __init__(self, loop: Loop, step: Step, wanted: Sequence[Var]):
        self._before = loop.before
        self._states, self._outs = (len(step.hidden), len(step.other)), len(step.outs)
        state = [*step.hidden_vars, *step.other_vars]
        new = [*step.hidden_outs, *step.other_outs]
        early = _independent_of(state, loop.each)
        rest = [e for e in loop.each if e not in early]
        body = prune(rest, [*new, *_not_over_steps(rest)])
        late = [e for e in rest if e not in body]
        asked = [*step.outs, *wanted]
        given = [*loop.handed, *state, *step.input_vars]
        handed_on = _used_of(_made(early), [*body, *late], [*new, *asked])
        bridge = _used_of(_made(body), late, asked)
        # A new state is the old one of the next step: the loop has kept that already.
        again, kept = [v for v in bridge if v in new], [v for v in bridge if v not in new]
        self._again = [new.index(v) for v in again]
        self._early = loop.part([*loop.handed, *step.input_vars], handed_on, early)
        self._body = loop.part([*given, *handed_on], [*new, *kept], body)
        self._late = loop.part([*given, *handed_on, *again, *kept], asked, late)

    def run(
        self,
        captured: Values,
        params: Values,
        hidden: Values,
        other: Values,
        inputs: Values,
        length: int,
    ) -> tuple[tuple[list, list], tuple[list, list, list, list]]:
        """The state after all steps; and for all steps the hidden and other states before them,
        outputs, and what was wanted besides."""
        handed, (a, b) = self._before(captured, params), self._states

        def early(inputs):
            return run_jaxpr(self._early, *handed, *inputs)

        def turn(state, x):
            inputs, decided = x
            values = run_jaxpr(self._body, *handed, *state[0], *state[1], *inputs, *decided)
            return (values[:a], values[a : a + b]), (*state, values[a + b :])

        def late(hidden, other, inputs, decided, new, kept):
            return run_jaxpr(self._late, *handed, *hidden, *other, *inputs, *decided, *new, *kept)

        decided = all_steps(early, length, inputs)
        start = list(hidden), list(other)
        end, (before, before_other, kept) = scan(turn, start, (inputs, decided), length)
        last, old = [*end[0], *end[1]], [*before, *before_other]
        new = [moved_up(old[i], last[i]) for i in self._again]
        made = all_steps(late, length, before, before_other, inputs, decided, new, kept)
        return end, (before, before_other, made[: self._outs], made[self._outs :])


def _over_steps(eqn: JaxprEqn) -> bool:
    """Whether an equation may be evaluated for all steps at once."""
    known = family(eqn) in OVER_STEPS or eqn.primitive.name in COMPARISONS
    return known and not eqn.effects


def _independent_of(state: Iterable[Var], eqns: Sequence[JaxprEqn]) -> list[JaxprEqn]:
    """The equations that no state acts on, as far as they may be evaluated for all steps."""
    moved, found = set(state), []
    for eqn in eqns:
        if _over_steps(eqn) and moved.isdisjoint(a for a in eqn.invars if isinstance(a, Var)):
            found.append(eqn)
        else:
            moved.update(eqn.outvars)
    return found


def _not_over_steps(eqns: Iterable[JaxprEqn]) -> list[Var]:
    """What is made by equations that have to stay in the loop."""
    return [v for e in eqns if not _over_steps(e) for v in e.outvars]


def _made(eqns: Iterable[JaxprEqn]) -> set[Var]:
    return {v for e in eqns for v in e.outvars}


def _used_of(made: set[Var], eqns: Iterable[JaxprEqn], outs: Iterable[Any]) -> list[Var]:
    """Those that these equations and outputs take, each once."""
    taken = [a for e in eqns for a in e.invars] + list(outs)
    return list(dict.fromkeys(a for a in taken if isinstance(a, Var) and a in made))
