"""A compiled step as functions: as the body of a loop, and in several environments at once.

`cut` sees the old hidden state as a constant; `pw` follows position-wise paths only. A value that arrives at a new hidden state joins `cut`, so that from there
credit flows on freely: to the read-out, the loss, the next layer in the same step. What outputs take from the old hidden state without passing through a new
one (a spike before its reset, a read-out of the old state) is credit of the step before, and is asked for by itself (`run` with `hold_new`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .._jax import JaxprEqn, Literal, Var, bind, is_float
from ..plan.layout import Layout
from ..plan.self_paths import Detour
from .loop import Loop

Values = Sequence[Any]


class Known(NamedTuple):
    """What is known of a step: the products with traced weights, and what a unit's change comes back as over each bridge of two products."""

    products: Values
    scales: Values = ()


class Program:
    """The flat program of a graph, ready to be evaluated step by step or over a whole block of steps."""

    def __init__(self, layout: Layout, graded: Sequence[int] | None = None, hidden: bool = False):
        self.layout = layout
        self.step = layout.graph.step
        self.found = layout.graph.found
        self._hidden = set(self.step.hidden_outs)
        self._graded = (
            [i for i, a in enumerate(self.step.outs) if is_float(a)]
            if graded is None
            else list(graded)
        )
        self._graded_hidden = (
            [i for i, v in enumerate(self.step.hidden_vars) if is_float(v)] if hidden else []
        )
        self.detours = [
            b for over in layout.bridges.values() for b in over if isinstance(b, Detour)
        ]
        self.products = list(
            dict.fromkeys(
                [r.y_var for r in layout.relations if r.axes.x is not None]
                + [d.first.y[0] for d in self.detours]
            )
        )
        self._weight_at = {u.y[0]: u.operand for u in self.found.uses}
        self._relation_at: dict[Var, int] = {r.y_var: i for i, r in enumerate(layout.relations)}

    @cached_property
    def loop(self) -> Loop:
        """The step as the body of a loop, giving also the products with traced weights, which are costly to compute again."""
        return Loop(self.step, self.products)

    def _start(
        self, params: Values, hidden: Values, other: Values, inputs: Values
    ) -> dict[Var, Any]:
        """The values of all variables that no equation makes."""
        step = self.step
        given = [
            *step.param_vars,
            *step.hidden_vars,
            *step.other_vars,
            *step.input_vars,
            *step.jaxpr.jaxpr.constvars,
        ]
        return dict(
            zip(given, [*params, *hidden, *other, *inputs, *step.jaxpr.consts], strict=True)
        )

    def dual(
        self,
        params: Values,
        hidden: Values,
        other: Values,
        inputs: Values,
        *,
        moving: Values,
        everywhere: Values | None = None,
        along: Values | None = None,
        known: Known | None = None,
        join: bool = True,
        feedback: Mapping[Var, Any] | None = None,
        cuts: Mapping[int, frozenset[int]] | None = None,
    ) -> tuple[list, list, list]:
        """New hidden state, graded outputs and the operand x of each relation.

        `moving` is the old hidden state that position-wise paths start from. `everywhere` is added to the output y of each relation, whose weight is
        then a constant; `along` is added on position-wise paths only. `known` has what need not be computed again. Without `join` paths end
        at the new hidden state. `feedback` has the weights that credit takes instead of those of the product that makes a variable. `cuts` says where
        position-wise paths end: those of the states unless given.
        """
        step, cuts = self.step, self.found.cuts if cuts is None else cuts
        cut = self._start(params, hidden, other, inputs)
        pw = dict(zip(step.hidden_vars, moving, strict=True))
        given = dict(zip(self.products, known.products, strict=True)) if known is not None else {}
        scales = (
            dict(zip(self.detours, known.scales, strict=True))
            if known is not None and known.scales
            else {}
        )
        xs: list[Any] = [None] * len(self.layout.relations)

        def read(env: dict, a: Any) -> Any:
            return a.val if isinstance(a, Literal) else env[a] if a in env else cut[a]

        def run(eqn: JaxprEqn, values: list, relations: list[int]) -> list:
            if everywhere is not None:
                for r in relations:
                    use = self.layout.relations[r].use
                    values[use.operand] = lax.stop_gradient(values[use.operand])
            made = _run(eqn, values, given, feedback or {}, self._weight_at)
            if everywhere is not None:
                for r in relations:
                    made[0] = made[0] + everywhere[r]
            return made

        for k, eqn in enumerate(self.found.eqns):
            if not eqn.outvars:
                continue  # an effect: it had its turn in the loop
            relations = [self._relation_at[v] for v in eqn.outvars if v in self._relation_at]
            values = [read(cut, a) for a in eqn.invars]
            for r in relations:
                xs[r] = self.layout.relations[r].operand(values)
            live = [
                i
                for i, a in enumerate(eqn.invars)
                if isinstance(a, Var) and a in pw and i not in cuts.get(k, ())
            ]
            made = run(eqn, list(values), relations)
            followed = (
                run(
                    eqn,
                    [
                        pw[a] if i in live else v
                        for i, (a, v) in enumerate(zip(eqn.invars, values, strict=True))
                    ],
                    relations,
                )
                if live
                else None
            )
            for bridge in () if live else self.layout.bridges.get(eqn.outvars[0], ()):
                if bridge.x in pw and (bridge in scales or not isinstance(bridge, Detour)):
                    scale = (
                        scales[bridge]
                        if bridge in scales
                        else values[self.layout.relations[relations[0]].use.operand][bridge.weight]
                    )
                    followed = list(made) if followed is None else followed
                    followed[0] = followed[0] + bridge(
                        pw[bridge.x] - cut[bridge.x], lax.stop_gradient(scale)
                    )
            if along is not None and relations:
                followed = list(made) if followed is None else followed
                for r in relations:
                    followed[0] = followed[0] + along[r]
            cut.update(zip(eqn.outvars, made, strict=True))
            if followed is not None:
                pw.update(zip(eqn.outvars, followed, strict=True))
            if join:
                for v in eqn.outvars:
                    if v in self._hidden:
                        cut[v] = pw.pop(v, cut[v])
        new = [read(pw, v) for v in step.hidden_outs]
        return new, self.graded([read(cut, a) for a in step.outs], new), xs

    def run(
        self,
        params: Values,
        hidden: Values,
        other: Values,
        inputs: Values,
        known: Known | None = None,
        feedback: Mapping[Var, Any] | None = None,
        hold_new: bool = False,
    ) -> tuple[list, list, list]:
        """Graded outputs and the new state, credit taking the way of `feedback`; with `hold_new` outputs see a new hidden state that is held fixed."""
        step, given = (
            self.step,
            dict(zip(self.products, known.products, strict=True)) if known is not None else {},
        )
        env = self._start(params, hidden, other, inputs)
        read = lambda a: a.val if isinstance(a, Literal) else env[a]
        for eqn in self.found.eqns:
            made = (
                _run(eqn, [read(a) for a in eqn.invars], given, feedback or {}, self._weight_at)
                if eqn.outvars
                else []
            )
            env.update(
                (v, _hold(a) if hold_new and v in self._hidden else a)
                for v, a in zip(eqn.outvars, made, strict=True)
            )
        new = [_hold(read(v)) if hold_new else read(v) for v in step.hidden_outs]
        return (
            self.graded([read(a) for a in step.outs], new),
            new,
            [read(v) for v in step.other_outs],
        )

    def outputs(
        self,
        params: Values,
        hidden: Values,
        other: Values,
        inputs: Values,
        added: Mapping[Var, Any],
        known: Known | None = None,
        feedback: Mapping[Var, Any] | None = None,
    ) -> list:
        """Graded outputs as a function of what is `added` to the new hidden states of one group, which do not see each other's change."""
        step = self.step
        env = self._start(params, hidden, other, inputs)
        moved: dict[Var, Any] = {}
        given = dict(zip(self.products, known.products, strict=True)) if known is not None else {}
        read = lambda env, a: a.val if isinstance(a, Literal) else env[a]
        for eqn in self.found.eqns:
            if not eqn.outvars:
                continue
            values = [read(env, a) for a in eqn.invars]
            if any(isinstance(a, Var) and a in moved for a in eqn.invars):
                there = [
                    moved[a] if isinstance(a, Var) and a in moved else v
                    for a, v in zip(eqn.invars, values, strict=True)
                ]
                moved.update(
                    zip(
                        eqn.outvars,
                        _run(eqn, there, given, feedback or {}, self._weight_at),
                        strict=True,
                    )
                )
            env.update(
                zip(
                    eqn.outvars,
                    [given[v] for v in eqn.outvars]
                    if eqn.outvars[0] in given
                    else bind(eqn, values),
                    strict=True,
                )
            )
            moved.update({v: env[v] + added[v] for v in eqn.outvars if v in added})
        latest = lambda a: moved[a] if isinstance(a, Var) and a in moved else read(env, a)
        return self.graded([latest(a) for a in step.outs], [latest(v) for v in step.hidden_outs])

    def graded(self, outs: Sequence[Any], hidden: Sequence[Any]) -> list[Any]:
        """What credit comes from: outputs, and new hidden states where they may be read directly."""
        return [*[outs[i] for i in self._graded], *[hidden[i] for i in self._graded_hidden]]


def _run(
    eqn: JaxprEqn,
    values: list,
    given: Mapping[Var, Any],
    feedback: Mapping[Var, Any],
    weight_at: Mapping[Var, int],
) -> list:
    """The outputs of an equation; the product of a known value is not computed again, and credit goes back through feedback weights where there are any."""
    y = eqn.outvars[0] if eqn.outvars else None
    if y in feedback:
        i = weight_at[y]
        [forward] = bind(eqn, [v if k == i else _hold(v) for k, v in enumerate(values)])
        [back] = bind(eqn, [feedback[y] if k == i else v for k, v in enumerate(values)])
        return [forward + (back - lax.stop_gradient(back))]
    return [_as_known(eqn, values, given[y])] if y in given else bind(eqn, values)


def _hold(v: Any) -> Any:
    return lax.stop_gradient(v) if jnp.issubdtype(jnp.result_type(v), jnp.inexact) else v


def _as_known(eqn: JaxprEqn, values: Values, y: Any) -> Any:
    """The output of an equation whose value is known; only its derivative is computed, if it is asked for."""
    floats = {i: v for i, v in enumerate(values) if jnp.issubdtype(jnp.result_type(v), jnp.inexact)}
    run = lambda moving: bind(eqn, [moving.get(i, v) for i, v in enumerate(values)])[0]
    if (
        eqn.primitive.name == 'dot_general'
    ):  # by a forward rule: its transpose sums over the steps inside the product
        linear = jax.custom_jvp(lambda moving, y: y)
        linear.defjvp(lambda at, along: (at[1], jax.jvp(run, at[:1], along[:1])[1]))
        return linear(floats, y)
    f = jax.custom_vjp(lambda moving, y: y)

    def backward(kept, ct):
        moving, y = kept
        return jax.vjp(run, moving)[1](ct)[0], jnp.zeros_like(y)

    f.defvjp(lambda moving, y: (y, (moving, y)), backward)
    return f(floats, y)
