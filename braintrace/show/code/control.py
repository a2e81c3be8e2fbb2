"""A program of JAX as terms: calls are opened, loops and branches hold programs of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ..._jax import (
    Jaxpr,
    JaxprEqn,
    Literal,
    Traced,
    Var,
    bind,
    implementation,
    open_jaxpr,
    trace,
)
from ...errors import NotSupportedError
from ...primitives import FunctionPrimitive
from .algebra import Algebra
from .primitives import RULES, several
from .views import View, is_truth, number_of, whole

Call = Callable[[Sequence[Any], Sequence[Any]], list[Any]]  # (all arguments, new values of some)
CALLS = {  # primitives that call a program, and the parameter that it is
    'jit': 'jaxpr',
    'pjit': 'jaxpr',
    'closed_call': 'call_jaxpr',
    'core_call': 'call_jaxpr',
    'checkpoint': 'jaxpr',
    'remat2': 'jaxpr',
    'custom_jvp_call': 'call_jaxpr',
    'custom_vjp_call': 'call_jaxpr',
    'custom_vjp_call_jaxpr': 'fun_jaxpr',
}


@dataclass(frozen=True, eq=False)
class Block:
    """A program inside of a program: its arguments, and what it returns."""

    args: tuple[View, ...]
    outs: tuple[View, ...]


@dataclass(frozen=True, eq=False)
class Loop:
    """A scan: the body takes `carry` values and one of each sequence."""

    body: Block
    consts: int
    carry: int
    length: int
    reverse: bool


@dataclass(frozen=True, eq=False)
class While:
    """A while loop."""

    going_on: Block
    body: Block
    consts: int


@dataclass(frozen=True, eq=False)
class Branches:
    """One of several programs without arguments. `by_truth`: the operand is true or false, and the
    programs are for these, in this order; otherwise it is the number of one."""

    blocks: tuple[Block, ...]
    by_truth: bool


@dataclass(frozen=True, eq=False)
class WithDerivative:
    """A function with a derivative of its own. Without `back`, `forward` is its forward rule; with
    it, the first half of its backward rule, which returns the outputs and then what `back` needs
    of them."""

    f: Block
    forward: Block
    back: Block | None


class Reader:
    """Reads programs as terms.

    Args:
        terms: where they go.
        derivatives: whether the derivatives that functions bring along are kept (the first ones:
            inside of a rule, which often calls its function again, they are not).
    """

    def __init__(self, terms: Algebra, derivatives: bool = False):
        self.terms, self._derivatives = terms, derivatives

    def apply(self, f: Callable[..., Any], *args: Any) -> Any:
        """What a function of trees of arrays gives, in the same form, for trees of terms."""
        tree: Any
        views, tree = jax.tree.flatten(args, is_leaf=_is_view)
        forms: list[Any] = []

        def on_leaves(*leaves: Any) -> list[Any]:
            outs, form = jax.tree.flatten(f(*tree.unflatten(leaves)))
            forms.append(form)
            return outs

        avals = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in views]
        outs = self.open(trace(on_leaves, *avals), views)
        return forms[-1].unflatten(outs)

    def open(self, program: Traced, args: Sequence[View]) -> list[View]:
        """What a program returns; the values that it closes over are constants."""
        return self.read(program.jaxpr, [*self._closed_over(program), *args])

    def _closed_over(self, program: Traced) -> list[View]:
        pairs = zip(program.consts, program.jaxpr.invars, strict=False)
        return [self.constant(value, v.aval) for value, v in pairs]

    def read(
        self, jaxpr: Jaxpr, args: Sequence[View], at: dict[Var, View] | None = None
    ) -> list[View]:
        """What a program returns; all that it computes goes into `at`, if that is given."""
        at = {} if at is None else at
        at.update(zip(jaxpr.invars, args, strict=True))

        def value(atom: Any) -> View:
            if isinstance(atom, Literal):
                return self.constant(atom.val, atom.aval)
            return at[atom]

        for eqn in jaxpr.eqns:
            results = self._equation(eqn, [value(a) for a in eqn.invars])
            at.update(zip(eqn.outvars, results, strict=True))
        return [value(a) for a in jaxpr.outvars]

    def constant(self, value: Any, aval: Any) -> View:
        """A constant of a program."""
        if not jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):
            return self.terms.array(np.asarray(value).astype(aval.dtype))
        data = self.terms.array(np.asarray(jax.random.key_data(value)))
        impl = str(jax.random.key_impl(value))
        return self.terms.op('random_wrap', [data], impl, aval.shape, aval.dtype)

    def _equation(self, eqn: JaxprEqn, views: list[View]) -> list[View]:
        name = eqn.primitive.name
        if isinstance(eqn.primitive, FunctionPrimitive):
            f = functools.partial(eqn.primitive.f, **eqn.params)
            return self.open(trace(f, *eqn.invars), views)
        if name in CALLS:
            if name.startswith('custom_') and self._derivatives:
                return self._with_derivative(eqn, views)
            return self.open(open_jaxpr(eqn.params[CALLS[name]]), views)
        if name in FLOW:
            return FLOW[name](self, eqn, views)
        if name not in RULES:
            made_of = implementation(eqn)
            if made_of is not None:
                return self.open(made_of, views)
            raise NotSupportedError(
                f'`code` cannot write the primitive `{name}` down as Python. Keep it out of the '
                'program, or run the learner itself.'
            )
        made = RULES[name](self.terms, eqn, *views)
        return made if isinstance(made, list) else [made]

    # ---- programs inside of programs ----

    def block(self, program: Traced, outer: Sequence[View], hints: Sequence[str]) -> Block:
        """A program whose first inputs are values from outside; its own arguments will be called
        like `hints`."""
        given = [*self._closed_over(program), *[self._from_outside(v) for v in outer]]
        own = [v.aval for v in program.jaxpr.invars[len(given) :]]
        pairs = zip(hints, own, strict=True)
        args = [self.terms.argument(hint, a.shape, a.dtype) for hint, a in pairs]
        return Block(tuple(args), tuple(self.read(program.jaxpr, [*given, *args])))

    def _from_outside(self, v: View) -> View:
        """A value inside of a block as a name for it; constants are written again."""
        if v.node.op in ('const', 'array'):
            return v
        node = self.terms.node('outer', (), v.node, v.node.shape, v.node.dtype)
        return View(node, v.axes, v.shape)

    def scan(self, eqn: JaxprEqn, views: list[View]) -> list[View]:
        p = eqn.params
        n, m = p['num_consts'], p['num_carry']
        xs = len(views) - n - m
        hints = [*['c'] * m, *['x'] * xs]
        body = self.block(open_jaxpr(p['jaxpr']), views[:n], hints)
        info = Loop(body, n, m, p['length'], p['reverse'])
        given = [*[whole(v.node) for v in views[:n]], *views[n:]]
        return several(self.terms, 'scan', given, info, eqn)

    def while_loop(self, eqn: JaxprEqn, views: list[View]) -> list[View]:
        p = eqn.params
        n, m = p['cond_nconsts'], p['body_nconsts']
        start = views[n + m :]
        hints = ['c'] * len(start)
        going_on = self.block(open_jaxpr(p['cond_jaxpr']), views[:n], hints)
        body = self.block(open_jaxpr(p['body_jaxpr']), views[n : n + m], hints)
        given = [*[whole(v.node) for v in views[: n + m]], *start]
        return several(self.terms, 'while', given, While(going_on, body, n + m), eqn)

    def cond(self, eqn: JaxprEqn, views: list[View]) -> list[View]:
        which, *given = views
        branches = [open_jaxpr(branch) for branch in eqn.params['branches']]
        if number_of(which) is not None:
            chosen = min(max(int(number_of(which)), 0), len(branches) - 1)
            return self.open(branches[chosen], given)
        blocks = tuple(self.block(branch, given, []) for branch in branches)
        by_truth = is_truth(which) and len(blocks) == 2
        if by_truth:
            which, blocks = which.node.args[0], blocks[::-1]
        info = Branches(blocks, by_truth)
        return several(self.terms, 'cond', [which, *[whole(v.node) for v in given]], info, eqn)

    # ---- functions with derivatives of their own ----

    def _with_derivative(self, eqn: JaxprEqn, views: list[View]) -> list[View]:
        """A call of a function with a derivative of its own, the rule for that written beside it.
        `moving` are the numbers of the arguments that have derivatives."""
        avals = [a.aval for a in eqn.invars]
        moving = [i for i, a in enumerate(avals) if np.issubdtype(a.dtype, np.inexact)]
        f = self._function(open_jaxpr(eqn.params[CALLS[eqn.primitive.name]]), ['x'] * len(avals))

        def call(args: Sequence[Any], moved: Sequence[Any]) -> list[Any]:
            at = dict(zip(moving, moved, strict=True))
            return bind(eqn, [at.get(i, a) for i, a in enumerate(args)])

        has_tangents = eqn.primitive.name == 'custom_jvp_call'
        rule = self._forward_rule if has_tangents else self._backward_rule
        return several(self.terms, 'custom', views, rule(f, avals, moving, call), eqn)

    def _forward_rule(self, f: Block, avals: list, moving: list[int], call: Call) -> WithDerivative:
        def rule(*both: Any) -> list[Any]:
            args, tangents = both[: len(avals)], both[len(avals) :]
            at, moved = [args[i] for i in moving], [tangents[i] for i in moving]
            out, tangent = jax.jvp(lambda *m: call(args, m), at, moved)
            return [*out, *tangent]

        hints = [*['x'] * len(avals), *['dx'] * len(avals)]
        return WithDerivative(f, self._function(trace(rule, *avals, *avals), hints), None)

    def _backward_rule(
        self, f: Block, avals: list, moving: list[int], call: Call
    ) -> WithDerivative:
        forms: list[Any] = []

        def forward(*args: Any) -> list[Any]:
            out, pull = jax.vjp(lambda *m: call(args, m), *[args[i] for i in moving])
            residuals, form = jax.tree.flatten(pull)
            forms.append(form)
            return [*out, *residuals]

        made = trace(forward, *avals)
        outs = [v.aval for v in made.jaxpr.outvars]
        n = len(f.outs)

        def back(*given: Any) -> list[Any]:
            residuals, credit = given[: len(outs) - n], given[len(outs) - n :]
            pull = forms[-1].unflatten(residuals)
            at = dict(zip(moving, pull(list(credit)), strict=True))
            zeros = [jax.numpy.zeros(a.shape, a.dtype) for a in avals]
            return [at.get(i, zero) for i, zero in enumerate(zeros)]

        pulled = trace(back, *outs[n:], *outs[:n])
        hints = [*['r'] * (len(outs) - n), *['g'] * n]
        return WithDerivative(
            f, self._function(made, ['x'] * len(avals)), self._function(pulled, hints)
        )

    def _function(self, program: Traced, hints: Sequence[str]) -> Block:
        """A program that takes nothing from outside; derivatives in it are not kept."""
        return Reader(self.terms).block(program, (), hints)


def _is_view(a: Any) -> bool:
    return isinstance(a, View)


FLOW = {'scan': Reader.scan, 'while': Reader.while_loop, 'cond': Reader.cond}
