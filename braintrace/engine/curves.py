"""Functions whose slope follows from their value: where the value is known, a derivative needs
nothing else.

A gate, `sigmoid(x @ W + h @ U + b)`, is such a function of products. Its value stands for theirs:
the loop keeps the gate instead, and nothing computes it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import jax
from jax import lax

from .._jax import Atom, JaxprEqn, Var
from ..ops.families import Family, family
from ..step import Step

SUMS = frozenset({'add', 'add_any', 'convert_element_type', 'copy', 'neg', 'sub'})


def _of_exp(y: jax.Array) -> jax.Array:
    return y


def _of_logistic(y: jax.Array) -> jax.Array:
    return lax.mul(y, lax.sub(y.dtype.type(1), y))


def _of_tanh(y: jax.Array) -> jax.Array:
    return lax.sub(y.dtype.type(1), lax.integer_pow(y, 2))


SLOPES: dict[str, Callable[[jax.Array], jax.Array]] = {
    'exp': _of_exp,
    'logistic': _of_logistic,
    'tanh': _of_tanh,
}


def slope_by_value(eqn: JaxprEqn) -> Callable[[jax.Array], jax.Array] | None:
    """The slope of an equation as a function of its value; None where the value does not say."""
    return SLOPES.get(eqn.primitive.name)


def curves_of(step: Step, products: Iterable[Var]) -> list[Var]:
    """What such functions make of sums of these products that nothing else reads."""
    eqns = step.jaxpr.eqns
    summed = set(products)
    for eqn in eqns:
        if _is_sum(eqn) and not summed.isdisjoint(_variables(eqn.invars)):
            summed.update(eqn.outvars)
    read = set(_variables(step.jaxpr.outvars))
    for eqn in reversed(eqns):
        passed_on = _is_sum(eqn) and read.isdisjoint(eqn.outvars)
        if not passed_on and slope_by_value(eqn) is None:
            read.update(_variables(eqn.invars))
    only_here = summed - read
    curves = [e for e in eqns if slope_by_value(e) is not None]
    return [e.outvars[0] for e in curves if not only_here.isdisjoint(_variables(e.invars))]


def _is_sum(eqn: JaxprEqn) -> bool:
    """Whether an equation only adds up or moves elements, so that its slope asks for no value."""
    return eqn.primitive.name in SUMS or family(eqn) is Family.LAYOUT


def _variables(atoms: Iterable[Atom]) -> list[Var]:
    return [a for a in atoms if isinstance(a, Var)]
