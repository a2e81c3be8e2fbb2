"""Primitives of our own, with the rules that JAX asks of one.

What leans on internals, and what breaks if it goes:

- `jax.interpreters.mlir.register_lowering`, `lower_fun`; `ad.deflinear2`, `ad.primitive_jvps`,
  `ad.instantiate_zeros`; `batching.defvectorized`, `batching.primitive_batchers`:
  `identity_primitive`, `KnownPrimitive`, `FunctionPrimitive`. Marks, known values and ops of the
  interface would have no rules under jit, grad and vmap; `custom_jvp` with a named `jit` inside is
  the way around.
- `ad.defbilinear`, and `num_devices` of `ctx.module_context.axis_context` in a lowering rule:
  `BilinearPrimitive`, `CpuPrimitive`. Without the second, sums are never written out and large
  traces are renewed all at once, which is slower.
- Tangents that are symbolic zeros (`ad.Zero`): `KnownPrimitive`, which passes them over, and
  `FunctionPrimitive`, where they are made into arrays of zeros, which XLA removes; without
  `instantiate_zeros`, ask `type(t)` and make them by hand.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ._jax import Primitive


def identity_primitive(name: str) -> Primitive:
    """A primitive that returns its operand, with any parameters, under jit, grad and vmap."""
    from jax.interpreters import ad, batching, mlir

    p = Primitive(name)
    p.def_impl(lambda x, **_: x)
    p.def_abstract_eval(lambda x, **_: x)
    mlir.register_lowering(p, lambda ctx, x, **_: [x])
    ad.deflinear2(p, lambda ct, x, **params: [p.bind(ct, **params)])
    batching.defvectorized(p)
    return p


class KnownPrimitive(Primitive):
    """A primitive of `(y, *operands)` with the value of `y` and the derivative of something that is
    made of the operands. That itself is never computed, and its derivative only if it is asked for.
    Where that is done, `y` stands alone: what it was made of is not needed any more.

    Args:
        name: of the primitive.
        tangent: `(y, operands, their tangents, **params)` to that of the output; a tangent is None
            for an operand that does not move.
        batched: `(args, their axes of a batch or None, **params)` to `y` and operands with the
            batch first, and parameters that fit them; by default all get a batch.
    """

    def __init__(self, name: str, tangent: Callable, batched: Callable | None = None):
        from jax.interpreters import ad, batching, mlir

        super().__init__(name)
        to_batches = _each_in_batches if batched is None else batched

        def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
            y, *operands = primals
            moving = [None if type(t) is ad.Zero else t for t in tangents[1:]]
            if all(t is None for t in moving):
                return y, jnp.zeros_like(y)
            return y, tangent(y, operands, moving, **params)

        def in_batches(args: Sequence[Any], axes: Sequence[Any], **params: Any) -> tuple[Any, int]:
            args, params = to_batches(args, axes, **params)
            return self.bind(*args, **params), 0

        self.def_impl(lambda y, *_, **params: y)
        self.def_abstract_eval(lambda y, *_, **params: y)
        mlir.register_lowering(self, lambda ctx, y, *_, **params: [y])
        ad.primitive_jvps[self] = jvp
        batching.primitive_batchers[self] = in_batches


def _each_in_batches(
    args: Sequence[Any], axes: Sequence[Any], **params: Any
) -> tuple[list[Any], dict[str, Any]]:
    size = next(a.shape[k] for a, k in zip(args, axes, strict=True) if k is not None)
    return [batch_first(a, k, size) for a, k in zip(args, axes, strict=True)], params


def batch_first(a: Any, axis: int | None, size: int) -> Any:
    """An array with its axis of a batch in front; one without gets it."""
    if axis is None:
        return jax.lax.broadcast(a, [size])
    return a if axis == 0 else jnp.moveaxis(a, axis, 0)


class FunctionPrimitive(Primitive):
    """A primitive that computes a function `f(*operands, **params)`; everything else JAX needs is
    derived from it. With `several`, the function gives a tuple of arrays."""

    def __init__(self, name: str, f: Callable, several: bool = False):
        from jax.interpreters import ad, batching, mlir

        super().__init__(name)
        self.f, self.multiple_results = f, several
        self.def_impl(lambda *a, **params: jax.jit(functools.partial(self.bind, **params))(*a))
        self.def_abstract_eval(self._shapes)
        mlir.register_lowering(self, mlir.lower_fun(f, multiple_results=several))
        ad.primitive_jvps[self] = self._jvp
        batching.primitive_batchers[self] = self._batched

    def _shapes(self, *avals: Any, **params: Any) -> Any:
        out = jax.eval_shape(
            functools.partial(self.f, **params),
            *[jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals],
        )
        return jax.tree.map(lambda a: jax.core.ShapedArray(a.shape, a.dtype), out)

    def _batched(self, args: Sequence[Any], axes: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        out = jax.vmap(functools.partial(self.f, **params), axes)(*args)
        return out, jax.tree.map(lambda _: 0, out)

    def _jvp(self, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        from jax.interpreters import ad

        return jax.jvp(
            functools.partial(self.f, **params),
            tuple(primals),
            tuple(ad.instantiate_zeros(t) for t in tangents),
        )


class CpuPrimitive(FunctionPrimitive):
    """A primitive that computes a function, and on one CPU in another form.

    Args:
        name: of the primitive.
        f: the function; XLA can share it among devices, and derivatives are those of this.
        on_cpu: what runs in its place on one CPU, and gives the same.
        several: whether they give a tuple of arrays.
    """

    def __init__(self, name: str, f: Callable, on_cpu: Callable, several: bool = False):
        from jax.interpreters import mlir

        super().__init__(name, f, several)
        usual, alone = (mlir.lower_fun(g, multiple_results=several) for g in (f, on_cpu))

        def lower(ctx: Any, *args: Any, **params: Any) -> Any:
            devices = getattr(ctx.module_context.axis_context, 'num_devices', None)
            return (alone if devices == 1 else usual)(ctx, *args, **params)

        mlir.register_lowering(self, lower, platform='cpu')


class BilinearPrimitive(CpuPrimitive):
    """A primitive that computes a function of two operands, linear in each.

    Args:
        name, f, on_cpu: as of any primitive with a form of its own on one CPU.
        to_first, to_second: `(credit, the other operand, **params)` to credit of an operand.
        batched: `(a, b, their axes of a batch or None, **params)` to the results, batch first.
    """

    def __init__(
        self,
        name: str,
        f: Callable,
        on_cpu: Callable,
        to_first: Callable,
        to_second: Callable,
        batched: Callable,
    ):
        from jax.interpreters import ad, batching

        super().__init__(name, f, on_cpu)

        def credit_of_first(credit: Any, _: Any, b: Any, **params: Any) -> Any:
            return to_first(credit, b, **params)

        def credit_of_second(credit: Any, a: Any, _: Any, **params: Any) -> Any:
            return to_second(credit, a, **params)

        def in_batches(args: Sequence[Any], axes: Sequence[Any], **params: Any) -> tuple[Any, int]:
            return batched(*args, *axes, **params), 0

        ad.defbilinear(self, credit_of_first, credit_of_second)
        batching.primitive_batchers[self] = in_batches
