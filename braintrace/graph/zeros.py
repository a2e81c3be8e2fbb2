"""Where a weight is zero whatever the parameters are: a mask, the rest of a scattered block.

The program of the weights runs on patterns instead of numbers: ones where a value can be other than
zero. Products take the pattern of both sides, linear ops the sums of patterns, an element-wise
function is zero where it makes zero of zeros. Nothing is tried on numbers, so that a rectified or
pruned weight, zero here and there for some parameters, counts as one that can be anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._jax import Atom, JaxprEqn, Literal, Var, bind, is_float
from ..ops.families import Family, family, is_linear
from ..step import Step
from .constants import Const

Patterns = dict[Var, np.ndarray]


def patterns_of_weights(step: Step, const: Const) -> Patterns:
    """For each float value that depends on the parameters alone, ones where it can be other than
    zero."""
    patterns: Patterns = {v: np.ones(v.aval.shape) for v in step.param_vars if is_float(v)}
    alone: set[Var] = {*step.captured_vars, *step.param_vars}  # made of these
    with jax.ensure_compile_time_eval():
        for eqn in step.jaxpr.eqns:
            if eqn.effects or not all(isinstance(a, Literal) or a in alone for a in eqn.invars):
                continue
            alone.update(eqn.outvars)
            if any(isinstance(a, Var) and a in patterns for a in eqn.invars):
                made = _through(eqn, patterns, const)
                outs = zip(eqn.outvars, made, strict=True)
                patterns.update({v: p for v, p in outs if is_float(v)})
    return patterns


def _through(eqn: JaxprEqn, patterns: Patterns, const: Const) -> Sequence[np.ndarray]:
    """The patterns of an equation's outputs."""
    anything = [np.ones(v.aval.shape) for v in eqn.outvars]
    operands = [_pattern(a, patterns, const) for a in eqn.invars]
    here = [p for p in operands if p is not None]
    if eqn.primitive.name == 'select_n' and operands[0] is None:
        return [np.maximum.reduce([np.broadcast_to(p, anything[0].shape) for p in here])]
    if len(here) < len(operands):
        return anything
    if is_linear(eqn) or eqn.primitive.name in ('mul', 'select_n'):
        return [np.asarray(a != 0, float) for a in _bound(eqn, here)]
    if family(eqn) in (Family.ELEMENTWISE, Family.NO_DERIVATIVE):
        moving = [isinstance(a, Var) and a in patterns for a in eqn.invars]
        still: list[Any] = [
            jnp.zeros(a.aval.shape) if m else const(a)
            for a, m in zip(eqn.invars, moving, strict=True)
        ]
        if not any(a is None for a in still):
            at_zero = [np.asarray(a != 0, float) for a in _bound(eqn, still)]
            mine = [p for p, m in zip(here, moving, strict=True) if m]
            return [np.maximum.reduce(np.broadcast_arrays(a, *mine)) for a in at_zero]
    return anything


def _pattern(a: Atom, patterns: Patterns, const: Const) -> np.ndarray | None:
    """The pattern of a float operand, the value of any other; None if that is not known."""
    if isinstance(a, Var) and a in patterns:
        return patterns[a]
    value = const(a)
    if not is_float(a):
        return value
    return np.ones(a.aval.shape) if value is None else np.asarray(value != 0, float)


def _bound(eqn: JaxprEqn, values: Sequence[Any]) -> list[Any]:
    """The outputs of an equation for values of its operands."""
    typed = [jnp.asarray(value, a.aval.dtype) for value, a in zip(values, eqn.invars, strict=True)]
    return bind(eqn, typed)
