"""Where weights meet data.

A value `w = phi(theta)` that depends on weights only and enters an equation beside run-time data is
a *use*, `y = op(x, w)`. Takes a flat Step, gives an equal one in which every use has a variable y
of its own, and the list of uses.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._jax import Atom, JaxprEqn, Literal, Var, is_float, new_jaxpr, trace
from ..ops.axes import Axes, Op, elementwise
from ..ops.families import Family, family
from ..ops.op_rules import RULES
from ..step import Step
from .constants import Const, constants
from .flags import DATA, Trace, flow, is_weight, of_output, seed_flags
from .influence import is_elementwise
from .lines import place_of


@dataclass(frozen=True, eq=False)
class Use:
    """`y = op(x, w)`: equation `eqn` makes `y` from the weight `w`, its operand number `operand`.
    `op` is None where no rule describes it.

    Where the use is element by element, w is y: the weight broadcast to the shape it is used in.
    `meets` is the equation in which it meets data. `links` are the captured variables that hold the
    op's arrays.
    """

    eqn: JaxprEqn
    operand: int
    w: Var
    y: tuple[Var, ...]
    op: Op | None
    meets: JaxprEqn
    links: tuple[Var, ...] = ()

    @property
    def axes(self) -> Axes | None:
        """How the axes of x, w and y line up, if that is known."""
        return None if self.op is None else self.op.axes

    @property
    def place(self) -> str:
        """The primitive and the user's line, for messages."""
        return place_of(self.meets)

    @property
    def x_var(self) -> Var | None:
        """What multiplies the weight, if it is one variable; integers only where nothing else does
        (a table), as those beside it are indices of connections."""
        if self.axes is None or self.axes.x is None:
            return None
        operands = enumerate(self.eqn.invars)
        others = [a for i, a in operands if i != self.operand and isinstance(a, Var)]
        data = [a for a in others if not jnp.issubdtype(a.aval.dtype, jnp.integer)]
        return next(iter([*data, *others]), None)


def expose(step: Step, traced: Trace = 'all', shared: bool = True) -> tuple[Step, tuple[Use, ...]]:
    """An equal step in which each use of a weight ends in a variable of its own, and those uses in
    program order. With `shared` a weight that enters several equations element by element, in one
    shape, is one use."""
    step = _without_repetition(step, traced)
    flags = seed_flags(step, traced)

    def flag(a: Atom) -> int:
        return 0 if isinstance(a, Literal) else flags.get(a, 0)

    const = constants(step)
    captured = dict(zip(step.captured_vars, step.captured, strict=True))
    eqns: list[JaxprEqn] = []
    uses: list[Use] = []
    copies: dict[tuple, Var] = {}  # of a weight, in a shape
    for eqn in step.jaxpr.eqns:
        f = flow(eqn, [flag(a) for a in eqn.invars])
        flags.update({v: of_output(v, f) for v in eqn.outvars})
        weights = [i for i, a in enumerate(eqn.invars) if is_weight(flag(a))]
        if weights and f & DATA and _takes_each_element(eqn, weights):
            made, eqn = _element_by_element(eqn, weights, copies if shared else {})
            flags.update({use.y[0]: flag(use.eqn.invars[0]) for use in made})
            eqns += [use.eqn for use in made]
            uses += made
        elif weights and f & DATA:
            uses += _as_operands(eqn, weights, const, captured)
        eqns.append(eqn)
    results = list(step.jaxpr.outvars)
    for k, v in enumerate([*step.hidden_outs, *step.other_outs]):
        if isinstance(v, Var) and is_weight(flag(v)):  # a new state made of weights alone
            copy = _as_used(v, None, eqns[-1])
            eqns.append(copy)
            [y] = copy.outvars
            results[k] = y
            uses.append(Use(copy, 0, y, (y,), elementwise(v.aval.shape), copy))
    inputs = [*captured, *step.jaxpr.invars[len(step.captured) :]]
    program = new_jaxpr(inputs, results, eqns)
    return step.with_program(program, tuple(captured.values())), tuple(uses)


def _takes_each_element(eqn: JaxprEqn, weights: Sequence[int]) -> bool:
    """Whether the weights enter an equation element by element, each at one place."""
    kind = family(eqn)
    if kind is Family.CUSTOM:
        return is_elementwise(eqn, weights)
    return kind in (Family.ELEMENTWISE, Family.LAYOUT) and eqn.primitive.name not in RULES


def _element_by_element(
    eqn: JaxprEqn, weights: Sequence[int], copies: dict[tuple, Var]
) -> tuple[list[Use], JaxprEqn]:
    """The new uses of these operands, each by an equation of its own, and the equation that takes
    what they make. `copies` has what was made before, by weight and shape."""
    wide = None if family(eqn) is Family.LAYOUT else eqn.outvars[0].aval.shape
    made, invars = [], list(eqn.invars)
    for i in weights:
        w = invars[i]
        key = w, w.aval.shape if wide is None else wide
        if key not in copies:
            made.append(_as_used(w, wide, eqn))
            [copies[key]] = made[-1].outvars
        invars[i] = copies[key]
    eqn = eqn.replace(invars=invars)
    ys = [copy.outvars[0] for copy in made]
    uses = [
        Use(copy, 0, y, (y,), elementwise(y.aval.shape), eqn)
        for copy, y in zip(made, ys, strict=True)
    ]
    return uses, eqn


def _without_repetition(step: Step, traced: Trace) -> Step:
    """An equal step in which what is made of weights alone is made once: a weight that is broadcast
    in two places is one value."""
    flags, eqns = seed_flags(step, traced), []
    first: dict[Hashable, list[Var]] = {}  # the meaning of an equation -> what it made
    same: dict[Var, Var] = {}  # a variable -> the one before it that is equal
    for eqn in step.jaxpr.eqns:
        invars = [same.get(a, a) if isinstance(a, Var) else a for a in eqn.invars]
        eqn = eqn.replace(invars=invars)
        f = flow(eqn, [0 if isinstance(a, Literal) else flags.get(a, 0) for a in invars])
        key = _meaning(eqn) if is_weight(f) else None
        if key is not None and key in first:
            same.update(zip(eqn.outvars, first[key], strict=True))
            continue
        if key is not None:
            first[key] = eqn.outvars
        flags.update({v: of_output(v, f) for v in eqn.outvars})
        eqns.append(eqn)
    outs = [same.get(a, a) if isinstance(a, Var) else a for a in step.jaxpr.outvars]
    return step.with_program(new_jaxpr(step.jaxpr.invars, outs, eqns), step.captured)


def _meaning(eqn: JaxprEqn) -> Hashable | None:
    """What an equation computes, as a key; None where that is not known to be the same twice."""
    operands = [
        (np.asarray(a.val).tobytes(), a.aval) if isinstance(a, Literal) else a for a in eqn.invars
    ]
    key = eqn.primitive, tuple(sorted(eqn.params.items())), tuple(operands)
    try:
        hash(key)
    except TypeError:
        return None
    return None if eqn.effects else key


def _as_operands(
    eqn: JaxprEqn, weights: Sequence[int], const: Const, captured: dict[Var, Any]
) -> list[Use]:
    """The uses of these operands as the equation's rule describes them. Arrays of an op are
    captured by the step."""
    rule = getattr(eqn.primitive, 'op_rule', None) or RULES.get(eqn.primitive.name)
    outs = tuple(v for v in eqn.outvars if is_float(v))
    if not outs:
        return []
    uses = []
    for i in weights:
        op = NotImplemented if rule is None else rule(eqn, i, const)
        if op is NotImplemented:
            uses.append(Use(eqn, i, eqn.invars[i], outs, None, eqn))
        else:
            links = tuple(_captured(a, captured) for a in op.arrays)
            uses.append(Use(eqn, i, eqn.invars[i], outs, op, eqn, links))
    return uses


def _captured(array: Any, captured: dict[Var, Any]) -> Var:
    """The variable of an array that the step captures, now if it did not before. The indices of a
    large matrix are not kept twice."""
    for v, value in captured.items():
        if value is array or _is_equal(value, array):
            return v
    new = Var(jax.core.ShapedArray(array.shape, array.dtype))
    captured[new] = jnp.asarray(array)
    return new


def _is_equal(value: Any, array: Any) -> bool:
    """Whether a captured value is known and has these numbers."""
    if isinstance(value, jax.core.Tracer) or not isinstance(array, np.ndarray):
        return False
    alike = getattr(value, 'dtype', None) == array.dtype and value.shape == array.shape
    return alike and np.array_equal(value, array)


def _as_used(w: Var, shape: tuple[int, ...] | None, near: JaxprEqn) -> JaxprEqn:
    """An equation that makes the weight at the shape it is used in."""

    def f(a: jax.Array) -> jax.Array:
        if shape is None or a.shape == shape:
            return jnp.copy(a)
        return lax.broadcast_in_dim(a, shape, range(len(shape)) if a.ndim else ())

    jaxpr = trace(f, w).jaxpr
    return jaxpr.eqns[0].replace(
        invars=[w], outvars=[Var(jaxpr.outvars[0].aval)], source_info=near.source_info
    )
