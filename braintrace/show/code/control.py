"""A program of JAX as terms: calls are opened, loops and branches hold programs of their own."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ..._jax import FunctionPrimitive, Jaxpr, JaxprEqn, Literal, Var, bind, open_jaxpr, trace
from ...errors import NotSupportedError
from .algebra import Algebra
from .primitives import RULES, several
from .terms import View, number_of, whole

CALLS = {
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
    """A function with a derivative of its own: `forward` is its forward rule, or the first half of
    its backward rule, which then returns the outputs and so many things more for `back`."""

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
        self.terms, self._derivatives, self._count = terms, derivatives, 0

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
            at.update(zip(eqn.outvars, self._equation(eqn, [value(a) for a in eqn.invars])))  # noqa: B905
        return [value(a) for a in jaxpr.outvars]

    def constant(self, value: Any, aval: Any) -> View:
        """A constant of a program."""
        if not jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):
            return self.terms.array(np.asarray(value).astype(aval.dtype))
        data = self.terms.array(np.asarray(jax.random.key_data(value)))
        impl = str(jax.random.key_impl(value))
        return self.terms.op('random_wrap', [data], impl, aval.shape, aval.dtype)

    def argument(self, hint: str, aval: Any) -> View:
        """A new name."""
        self._count += 1
        info = Hint(hint, self._count)
        return whole(self.terms.node('name', (), info, aval.shape, aval.dtype))

    def _equation(self, eqn: JaxprEqn, views: list[View]) -> list[View]:
        name = eqn.primitive.name
        if isinstance(eqn.primitive, FunctionPrimitive):
            f = functools.partial(eqn.primitive.f, **eqn.params)
            return self._open(trace(f, *eqn.invars), views)
        if name in CALLS:
            if name.startswith('custom_') and self._derivatives:
                return self._with_derivative(eqn, views)
            return self._open(open_jaxpr(eqn.params[CALLS[name]]), views)
        if name in FLOW:
            return FLOW[name](self, eqn, views)
        if name not in RULES:
            raise NotSupportedError(
                f'`code` cannot write the primitive `{name}` down as Python. Keep it out of the '
                'program, or run the learner itself.'
            )
        made = RULES[name](self.terms, eqn, *views)
        return made if isinstance(made, list) else [made]

    def _open(self, program: Any, views: Sequence[View]) -> list[View]:
        """The results of a program that is written where it is called."""
        jaxpr, consts = program
        first = [self.constant(c, v.aval) for c, v in zip(consts, jaxpr.invars, strict=False)]
        return self.read(jaxpr, [*first, *views])

    # ---- programs inside of programs ----

    def block(self, program: Any, outer: Sequence[View], hints: Sequence[str]) -> Block:
        """A program whose first inputs are values from outside."""
        jaxpr, consts = open_jaxpr(program)
        first = [self.constant(c, v.aval) for c, v in zip(consts, jaxpr.invars, strict=False)]
        inside = [self._from_outside(v) for v in outer]
        own = jaxpr.invars[len(first) + len(inside) :]
        args = [self.argument(hint, v.aval) for hint, v in zip(hints, own, strict=True)]
        return Block(tuple(args), tuple(self.read(jaxpr, [*first, *inside, *args])))

    def _from_outside(self, v: View) -> View:
        if v.node.op in ('const', 'array'):
            return v
        node = self.terms.node('outer', (), v.node, v.node.shape, v.node.dtype)
        return View(node, v.axes, v.shape)

    def scan(self, eqn: JaxprEqn, views: list[View]) -> list[View]:
        p = eqn.params
        n, m = p['num_consts'], p['num_carry']
        xs = len(views) - n - m
        hints = [*['c'] * m, *['x'] * xs]
        body = self.block(p['jaxpr'], views[:n], hints)
        info = Loop(body, n, m, p['length'], p['reverse'])
        given = [*[whole(v.node) for v in views[:n]], *views[n:]]
        return several(self.terms, 'scan', given, info, eqn)

    def while_loop(self, eqn: JaxprEqn, views: list[View]) -> list[View]:
        p = eqn.params
        n, m = p['cond_nconsts'], p['body_nconsts']
        start = views[n + m :]
        going_on = self.block(p['cond_jaxpr'], views[:n], ['c'] * len(start))
        body = self.block(p['body_jaxpr'], views[n : n + m], ['c'] * len(start))
        given = [*[whole(v.node) for v in views[: n + m]], *start]
        return several(self.terms, 'while', given, While(going_on, body, n + m), eqn)

    def cond(self, eqn: JaxprEqn, views: list[View]) -> list[View]:
        which, *given = views
        branches = eqn.params['branches']
        if number_of(which) is not None:
            chosen = min(max(int(number_of(which)), 0), len(branches) - 1)
            return self._open(open_jaxpr(branches[chosen]), given)
        blocks = tuple(self.block(b, given, []) for b in branches)
        truth = which.node.op == 'cast' and which.node.args[0].dtype == np.bool_
        if truth and len(blocks) == 2:
            which, blocks = which.node.args[0], blocks[::-1]
        info = Branches(blocks, truth and len(blocks) == 2)
        return several(self.terms, 'cond', [which, *[whole(v.node) for v in given]], info, eqn)

    # ---- functions with derivatives of their own ----

    def _with_derivative(self, eqn: JaxprEqn, views: list[View]) -> list[View]:
        avals = [a.aval for a in eqn.invars]
        moving = [i for i, a in enumerate(avals) if np.issubdtype(a.dtype, np.inexact)]
        jaxpr, consts = open_jaxpr(eqn.params[CALLS[eqn.primitive.name]])
        f = self._block_of(jaxpr, consts, ['x'] * len(avals))

        def call(args: Sequence[Any], moved: Sequence[Any]) -> list[Any]:
            at = dict(zip(moving, moved, strict=True))
            return bind(eqn, [at.get(i, a) for i, a in enumerate(args)])

        if eqn.primitive.name == 'custom_jvp_call':

            def rule(*both: Any) -> list[Any]:
                args, tangents = both[: len(avals)], both[len(avals) :]
                at = [args[i] for i in moving]
                moved = [tangents[i] for i in moving]
                out, tangent = jax.jvp(lambda *m: call(args, m), at, moved)
                return [*out, *tangent]

            program = trace(rule, *avals, *avals)
            forward = self._block_of(*program, [*['x'] * len(avals), *['dx'] * len(avals)])
            info = WithDerivative(f, forward, None)
        else:
            info = self._backward_rule(f, avals, moving, call)
        return several(self.terms, 'custom', views, info, eqn)

    def _backward_rule(self, f: Block, avals: list, moving: list[int], call: Any) -> WithDerivative:
        kept: dict[str, Any] = {}

        def forward(*args: Any) -> list[Any]:
            out, pull = jax.vjp(lambda *m: call(args, m), *[args[i] for i in moving])
            residuals, kept['tree'] = jax.tree.flatten(pull)
            return [*out, *residuals]

        made = trace(forward, *avals)
        outs = [v.aval for v in made.jaxpr.outvars]
        n = len(f.outs)

        def back(*given: Any) -> list[Any]:
            residuals, credit = given[: len(outs) - n], given[len(outs) - n :]
            at = dict(zip(moving, kept['tree'].unflatten(residuals)(list(credit)), strict=True))
            zeros = [jax.numpy.zeros(a.shape, a.dtype) for a in avals]
            return [at.get(i, zero) for i, zero in enumerate(zeros)]

        program = trace(back, *outs[n:], *outs[:n])
        hints = [*['r'] * (len(outs) - n), *['g'] * n]
        return WithDerivative(
            f, self._block_of(*made, ['x'] * len(avals)), self._block_of(*program, hints)
        )

    def _block_of(self, jaxpr: Jaxpr, consts: Sequence[Any], hints: Sequence[str]) -> Block:
        first = [self.constant(c, v.aval) for c, v in zip(consts, jaxpr.invars, strict=False)]
        own = jaxpr.invars[len(first) :]
        args = [self.argument(hint, v.aval) for hint, v in zip(hints, own, strict=True)]
        plain = Reader(self.terms)
        plain._count = self._count
        outs = plain.read(jaxpr, [*first, *args])
        self._count = plain._count
        return Block(tuple(args), tuple(outs))


FLOW = {'scan': Reader.scan, 'while': Reader.while_loop, 'cond': Reader.cond}


@dataclass(frozen=True)
class Hint:
    """What an argument may be called, and a number that tells it from others."""

    name: str
    number: int
