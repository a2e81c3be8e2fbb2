"""Arrays with units, known by what they offer: `mantissa`, `unit` and `to_decimal`.

No library of units is imported: who brings a quantity brings its class along.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Operand(NamedTuple):
    """An array without its unit, and the quantity that it came in; None for a plain array."""

    value: jax.Array
    quantity: Any = None


def operand(op: str, name: str, a: Any) -> Operand:
    """Argument `name` of the operator `op`, taken apart."""
    if hasattr(a, 'mantissa'):
        return Operand(jnp.asarray(a.mantissa), a)
    if hasattr(a, 'value') and hasattr(a, 'dtype'):  # events: an array in a wrapper
        return operand(op, name, a.value)
    try:
        return Operand(jnp.asarray(a))
    except (TypeError, ValueError):
        raise TypeError(f'`{op}`: `{name}` must be an array, got {type(a).__name__}.') from None


class ProductUnit(NamedTuple):
    """The unit of a product, and the class of quantities that brought it."""

    unit: Any
    quantity: type


def unit_of_product(operands: Sequence[Operand]) -> ProductUnit | None:
    """The product of the units; None if all operands are plain."""
    quantities = [a.quantity for a in operands if a.quantity is not None]
    if not quantities:
        return None
    unit = functools.reduce(operator.mul, [q.unit for q in quantities])
    return ProductUnit(unit, type(quantities[0]))


def with_unit(value: jax.Array, unit: ProductUnit | None) -> Any:
    """The quantity; a plain array where there is no unit or its dimensions cancel."""
    if unit is None:
        return value
    quantity = unit.quantity(value, unit=unit.unit)
    return quantity.to_decimal() if quantity.dim.is_dimensionless else quantity


def in_unit(op: str, name: str, a: Any, unit: ProductUnit | None) -> jax.Array:
    """Argument `name` of the operator `op` as a plain array, in the unit of the product."""
    value, quantity = operand(op, name, a)
    if quantity is None:
        if unit is None:
            return value
        quantity = unit.quantity(value)
    wanted = type(quantity.unit)() if unit is None else unit.unit  # a unit of nothing is one
    try:
        return jnp.asarray(quantity.to_decimal(wanted))
    except Exception as mismatch:  # its class is that of the library of units
        raise type(mismatch)(
            f'`{op}`: `{name}` has unit {quantity.unit}, the product has {wanted}. Give the {name} '
            'a unit that converts to it.'
        ) from None
