"""Where weights meet data.

A value `w = phi(theta)` that depends on weights only and enters an equation beside run-time data is a *use*, `y = op(x, w)`. Takes a flat Step, gives an
equal one in which every use has a variable y of its own, and the list of uses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from .._jax import ClosedJaxpr, JaxprEqn, Literal, Var, is_float, new_jaxpr, source_line, trace
from ..ops.axes import Axes, Op, elementwise
from ..ops.op_rules import RULES
from ..step import Step
from .flatten import DATA, flow, is_weight, seed_flags
from .index_maps import LAYOUT
from .influence import ELEMENTWISE, Constants, is_elementwise


class Use(NamedTuple):
    """`y = op(x, w)`: equation `eqn` makes `y` from the weight `w`, its operand number `operand`. `op` is None where no rule describes it.

    Where the use is element by element, w is y: the weight broadcast to the shape it is used in. `meets` is the equation in which it meets data.
    """

    eqn: JaxprEqn
    operand: int
    w: Var
    y: tuple[Var, ...]
    op: Op | None
    meets: JaxprEqn

    @property
    def axes(self) -> Axes | None:
        return None if self.op is None else self.op.axes

    @property
    def place(self) -> str:
        return f'`{self.meets.primitive.name}` at {source_line(self.meets)}'

    @property
    def x_var(self) -> Var | None:
        """What multiplies the weight, if it is one variable."""
        others = [
            a for i, a in enumerate(self.eqn.invars) if i != self.operand and isinstance(a, Var)
        ]
        return others[0] if self.axes is not None and self.axes.x is not None and others else None


def expose(
    step: Step, traced: Callable[[tuple], bool] | str = 'all'
) -> tuple[Step, tuple[Use, ...]]:
    """An equal step in which each use of a weight ends in a variable of its own, and those uses in program order."""
    jaxpr = step.jaxpr.jaxpr
    flags = seed_flags(step, traced)
    flag = lambda a: 0 if isinstance(a, Literal) else flags.get(a, 0)
    const = Constants(step.jaxpr)
    eqns: list[JaxprEqn] = []
    uses: list[Use] = []
    for eqn in jaxpr.eqns:
        f = flow(eqn, [flag(a) for a in eqn.invars])
        flags.update({v: f if is_float(v) else f & DATA for v in eqn.outvars})
        weights = [i for i, a in enumerate(eqn.invars) if is_weight(flag(a))]
        if (
            weights
            and f & DATA
            and (
                eqn.primitive.name in (ELEMENTWISE | LAYOUT) - RULES.keys()
                or eqn.primitive.name.startswith('custom_')
                and is_elementwise(eqn, weights)
            )
        ):
            shape = eqn.outvars[0].aval.shape if eqn.primitive.name not in LAYOUT else None
            for i in weights:
                made = _as_used(eqn.invars[i], shape, eqn)
                [y] = made.outvars
                eqns.append(made)
                eqn = eqn.replace(invars=[y if j == i else a for j, a in enumerate(eqn.invars)])
                flags[y] = flag(made.invars[0])
                uses.append(Use(made, 0, y, (y,), elementwise(y.aval.shape), eqn))
        elif weights and f & DATA:
            rule = getattr(eqn.primitive, 'op_rule', None) or RULES.get(eqn.primitive.name)
            outs = tuple(v for v in eqn.outvars if is_float(v))
            for i in weights if outs else ():
                op = NotImplemented if rule is None else rule(eqn, i, const)
                uses.append(
                    Use(eqn, i, eqn.invars[i], outs, None if op is NotImplemented else op, eqn)
                )
        eqns.append(eqn)
    results = list(jaxpr.outvars)
    for k, v in enumerate([*step.hidden_outs, *step.other_outs]):
        if is_weight(flag(v)):  # a new state made of weights alone
            made = _as_used(v, None, eqns[-1])
            eqns.append(made)
            [results[k]] = made.outvars
            uses.append(Use(made, 0, results[k], (results[k],), elementwise(v.aval.shape), made))
    closed = ClosedJaxpr(new_jaxpr(jaxpr.invars, results, eqns, jaxpr.constvars), step.jaxpr.consts)
    return Step(closed, step.params, step.hidden, step.other), tuple(uses)


def _as_used(w: Var, shape: tuple[int, ...] | None, near: JaxprEqn) -> JaxprEqn:
    """An equation that makes the weight at the shape it is used in."""

    def f(a):
        return (
            jnp.copy(a)
            if shape is None or a.shape == shape
            else lax.broadcast_in_dim(a, shape, range(len(shape)) if a.ndim else ())
        )

    jaxpr = trace(f, w).jaxpr
    return jaxpr.eqns[0].replace(
        invars=[w], outvars=[Var(jaxpr.outvars[0].aval)], source_info=near.source_info
    )
