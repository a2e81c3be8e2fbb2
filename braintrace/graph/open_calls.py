"""How calls are opened: compiled functions, ops of the user's own, sparse products, functions with
a derivative of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .._jax import Atom, JaxprEqn, Traced, bind, is_float, open_jaxpr, trace
from ..ops.families import called_program
from ..ops.marker import marked
from ..ops.register import ETPPrimitive
from ..ops.sparse import is_kernel, plain_form
from .flags import DATA, is_weight
from .flat import Flat
from .influence import is_elementwise, linearised


def open_call(flat: Flat, eqn: JaxprEqn, ins: list[Atom], alive: Atom | None) -> list[Atom]:
    """The equations of the called program, but for a kernel, which is looked at from outside."""
    if is_kernel(eqn):
        return flat.emit(eqn, ins, alive)
    return flat.walk(open_jaxpr(eqn.params[called_program(eqn)]), ins, alive)


def open_function(flat: Flat, eqn: JaxprEqn, ins: list[Atom], alive: Atom | None) -> list[Atom]:
    """An op of the user's own, its weights marked: what it computes, or the op itself if a rule
    tells about it."""
    primitive = eqn.primitive
    assert isinstance(primitive, ETPPrimitive)
    weights = set(primitive.trainable(eqn.params).values())
    if primitive.op_rule is not None:
        ins = [flat.call(marked, a)[0] if i in weights else a for i, a in enumerate(ins)]
        return flat.emit(eqn, ins, alive)

    def program(*values):
        operands = [marked(v) if i in weights else v for i, v in enumerate(values)]
        return eqn.primitive.f(*operands, **eqn.params)

    return flat.walk(trace(program, *ins), ins, alive)


def open_sparse(flat: Flat, eqn: JaxprEqn, ins: list[Atom], alive: Atom | None) -> list[Atom]:
    """One of JAX's sparse products in a form that can be mapped over time, as one call."""
    f = plain_form(eqn, lambda a: flat.constant(ins[eqn.invars.index(a)]))
    if f is None:
        return flat.emit(eqn, ins, alive)
    [call] = trace(jax.jit(f), *ins).jaxpr.eqns
    return flat.emit(call, ins, alive)


def open_scatter(flat: Flat, eqn: JaxprEqn, ins: list[Atom], alive: Atom | None) -> list[Atom]:
    """`base.at[o].add(w * x[i])` with known indices is a sparse product, as one call, on top of its
    base."""
    base, places, added = ins
    product = _product_of_weights(flat, added)
    if product is None or flat.constant(places) is None:
        return flat.emit(eqn, ins, alive)

    def sparse_product(zeros, x, w, of_x, of_y):
        return bind(eqn, [zeros, of_y, product.make(x, of_x, w)])[0]

    [zeros] = flat.call(jnp.zeros_like, base)
    operands = [zeros, product.x, product.w, product.at, places]
    [call] = trace(jax.jit(sparse_product), *operands).jaxpr.eqns
    [made] = flat.emit(call.replace(source_info=eqn.source_info), operands, alive)
    return flat.call(jnp.add, base, made)


class _Gathered(NamedTuple):
    """`make(x, at, w) = w * x[at]`, with its operands."""

    x: Atom
    at: Atom
    w: Atom
    make: Callable[[Any, Any, Any], Any]


def _product_of_weights(flat: Flat, a: Atom) -> _Gathered | None:
    """A value as the product of a weight and of data at known indices, if it is one."""
    times = flat.made_by(a, 'mul')
    for k in (0, 1) if times is not None else ():
        assert times is not None
        w, gather = times.invars[k], flat.made_by(times.invars[1 - k], 'gather')
        if gather is None or not is_weight(flat.flag(w)) or not flat.flag(gather.invars[0]) & DATA:
            continue
        if flat.constant(gather.invars[1]) is None:
            continue
        return _gathered(flat, times, k, gather)
    return None


def _gathered(flat: Flat, times: JaxprEqn, k: int, gather: JaxprEqn) -> _Gathered:
    w = times.invars[k]
    spread = flat.made_by(w, 'broadcast_in_dim')  # samples beside the weights
    if spread is not None and spread.invars[0].aval.size == w.aval.size:
        w = spread.invars[0]
    else:
        spread = None

    def make(x: Any, at: Any, w: Any) -> Any:
        [picked] = bind(gather, [x, at])
        if spread is not None:
            [w] = bind(spread, [w])
        return bind(times, [w, picked] if k == 0 else [picked, w])[0]

    x, at = gather.invars
    return _Gathered(x, at, w, make)


def open_custom(flat: Flat, eqn: JaxprEqn, ins: list[Atom], alive: Atom | None) -> list[Atom]:
    """A custom derivative is kept. Where a weight meets data inside, `f(x, w)` becomes a constant
    with the slope of `df.(dx, dw)`."""
    flags = [flat.flag(a) for a in ins]
    weights = [i for i, f in enumerate(flags) if is_weight(f)]
    if not weights or not any(f & DATA for f in flags) or is_elementwise(eqn, weights):
        return flat.emit(eqn, ins, alive)
    linear = linearised(eqn)
    if linear is None:
        return flat.emit(eqn, ins, alive)
    return by_derivative(flat, eqn, ins, linear, alive)


def open_barrier(flat: Flat, eqn: JaxprEqn, ins: list[Atom], alive: Atom | None) -> list[Atom]:
    """What XLA may not move is of no interest here."""
    return ins


def by_derivative(
    flat: Flat, eqn: JaxprEqn, ins: list[Atom], linear: Traced, alive: Atom | None
) -> list[Atom]:
    """The equation's value without derivative, with the program `linear` of its tangents beside."""
    held = [flat.call(lax.stop_gradient, a)[0] if is_float(a) else a for a in ins]
    moved = [flat.call(_nothing_but_slope, a)[0] for a in ins if is_float(a)]
    values = flat.emit(eqn, held, alive)
    tangents = iter(flat.walk(linear, [*held, *moved], alive))
    return [flat.call(_with_slope, v, next(tangents))[0] if is_float(v) else v for v in values]


@jax.custom_jvp
def _nothing_but_slope(x):
    """Zero, with derivative one."""
    return jnp.zeros_like(x)


@_nothing_but_slope.defjvp
def _(primals, tangents):
    return _nothing_but_slope(*primals), tangents[0]


@jax.custom_jvp
def _with_slope(x, t):
    """The value of x with the derivatives of both; t's own value is never used, so it may be
    0 * inf."""
    return x


@_with_slope.defjvp
def _(primals, tangents):
    return _with_slope(*primals), tangents[0] + tangents[1]
