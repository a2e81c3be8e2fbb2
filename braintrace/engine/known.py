"""Values that are known of a step, since it was run before: they stand where they would be made,
with the derivative of what they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._jax import JaxprEqn, bind
from ..ops.op_rules import labels_of_product
from ..ops.terms import einsum_flat, new_label
from ..primitives import KnownPrimitive, batch_first
from .curves import SLOPES, slope_by_value


class Labels(NamedTuple):
    """The axes of the two operands of a product and of its output, and where an operand, by number,
    is made of parts along the axis that is summed over: the sizes of these."""

    operands: tuple[str, str]
    out: str
    parts: tuple[tuple[int, tuple[int, ...]], ...] = ()


def known(eqn: JaxprEqn, values: Sequence[Any], y: Any, parts: Mapping[int, Sequence[int]]) -> Any:
    """The output `y` of an equation, with its derivative by the operands.

    Args:
        eqn: the equation.
        values: of its operands.
        y: what it makes of them.
        parts: of a product, the operands that are parts side by side, and their sizes: no credit is
            computed for a part that asks for none.
    """
    if slope_by_value(eqn) is not None:
        return CURVE.bind(y, values[0], name=eqn.primitive.name)
    if eqn.primitive.name == 'dot_general' and _is_usual(eqn, values):
        *operands, out = labels_of_product(eqn)
        sizes = tuple((i, tuple(of)) for i, of in parts.items())
        return PRODUCT.bind(y, *values, labels=Labels((operands[0], operands[1]), out, sizes))
    return known_as(y, bind(eqn, values)[0])


def known_as(y: Any, like: Any) -> Any:
    """A value with the derivative of another."""
    return LIKE.bind(y, like)


def held_once(value: Any) -> Any:
    """A value without the derivative that is taken next. Derivatives of that one go through it."""
    return LIKE.bind(value) if jnp.issubdtype(jnp.result_type(value), jnp.inexact) else value


def _is_usual(eqn: JaxprEqn, values: Sequence[Any]) -> bool:
    """Whether labels say all of a product: its types are one, and nothing special is asked."""
    asked = eqn.params['precision'], eqn.params['out_sharding']
    types = {jnp.result_type(a) for a in values} | {eqn.outvars[0].aval.dtype}
    return asked == (None, None) and len(types) == 1


def _of_likeness(y: jax.Array, operands: Sequence[Any], tangents: Sequence[Any]) -> Any:
    return tangents[0]


def _of_curve(y: jax.Array, operands: Sequence[Any], tangents: Sequence[Any], *, name: str) -> Any:
    return jax.lax.mul(tangents[0], SLOPES[name](y))


def _of_product(
    y: jax.Array, operands: Sequence[Any], tangents: Sequence[Any], *, labels: Labels
) -> Any:
    parts, terms = dict(labels.parts), []
    for i, moving in enumerate(tangents):
        if moving is None:
            continue
        of_moving, of_other = labels.operands[i], labels.operands[1 - i]
        pairs = [(moving, operands[1 - i])]
        if i in parts:
            [summed] = [c for c in of_moving if c in of_other and c not in labels.out]
            pieces = [
                jax.lax.split(a, parts[i], of.index(summed))
                for a, of in ((moving, of_moving), (operands[1 - i], of_other))
            ]
            pairs = list(zip(*pieces, strict=True))
        written = f'{of_moving},{of_other}->{labels.out}'
        terms += [einsum_flat(a, b, labels=written) for a, b in pairs]
    return reduce(jax.lax.add, terms)


def _products_in_batches(
    args: Sequence[Any], axes: Sequence[Any], *, labels: Labels
) -> tuple[list[Any], dict[str, Any]]:
    """A weight that all of a batch share stays one; but one of the operands has the batch."""
    new = new_label(*labels.operands, labels.out)
    size = next(a.shape[k] for a, k in zip(args, axes, strict=True) if k is not None)
    operands, names = list(args[1:]), list(labels.operands)
    without = [axis is None for axis in axes[1:]]
    for i, axis in enumerate(axes[1:]):
        if not without[i] or (i == 0 and all(without)):
            operands[i], names[i] = batch_first(operands[i], axis, size), new + names[i]
    of_batch = Labels((names[0], names[1]), new + labels.out, labels.parts)
    return [batch_first(args[0], axes[0], size), *operands], {'labels': of_batch}


LIKE = KnownPrimitive('value_of', _of_likeness)
CURVE = KnownPrimitive('value_of_curve', _of_curve)
PRODUCT = KnownPrimitive('value_of_product', _of_product, _products_in_batches)
