"""Sums of products in the form that suits a CPU.

Term by term: XLA makes one loop of a sum that is written out, together with what is around it, and
reads all of it once. For a product of matrices it first turns operands round; of a trace, that
costs more than the product.

Flat: a sum over several axes, those of steps and samples, that come first in both operands, is one
over a single axis. XLA would turn an operand round for it, and takes longer to compile that than
five other loops.

On several devices both stay einsums, which XLA can share among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from string import ascii_letters

import jax
import jax.numpy as jnp

from ..primitives import BilinearPrimitive

FEW_TERMS = 4  # of more, a product of matrices is faster, unless nothing is read twice
TERMS = 32  # of a sum that is written out; longer ones are cut


def einsum(a: jax.Array, b: jax.Array, *, labels: str) -> jax.Array:
    """`jnp.einsum`, part by part where only one of the two is complex."""
    if jnp.iscomplexobj(a) == jnp.iscomplexobj(b):
        return jnp.einsum(labels, a, b)
    if jnp.iscomplexobj(a):
        return jax.lax.complex(*[jnp.einsum(labels, of, b) for of in (a.real, a.imag)])
    return jax.lax.complex(*[jnp.einsum(labels, a, of) for of in (b.real, b.imag)])


def total(a: jax.Array) -> jax.Array:
    """The sum over the first axis; of complex numbers a product with ones, since XLA adds them up
    one by one on a CPU."""
    if not jnp.iscomplexobj(a):
        return a.sum(0)
    return jnp.tensordot(jnp.ones(len(a), a.dtype), a, 1)


def einsum_in_terms(a: jax.Array, b: jax.Array, *, labels: str) -> jax.Array:
    """`einsum`, written out on a CPU where each element is a sum of few, or where one of the two
    has all axes there are, so that nothing is read twice."""
    return IN_TERMS(a, b, labels=labels)


def einsum_flat(a: jax.Array, b: jax.Array, *, labels: str) -> jax.Array:
    """`einsum`, on a CPU with one axis for those that come first in both and are summed over."""
    return FLAT(a, b, labels=labels)


def new_label(*labels: str) -> str:
    """A label that is not among these."""
    return next(c for c in ascii_letters if c not in ''.join(labels))


def _parts(labels: str) -> tuple[str, str, str]:
    given, out = labels.split('->')
    of_a, of_b = given.split(',')
    return of_a, of_b, out


def _flat(a: jax.Array, b: jax.Array, *, labels: str) -> jax.Array:
    of_a, of_b, out = _parts(labels)
    over = ''.join(c for c in of_a if c in of_b and c not in out)
    if over and of_a.startswith(over) and of_b.startswith(over):
        n = len(over)
        a, b = (c.reshape(math.prod(c.shape[:n]), *c.shape[n:]) for c in (a, b))
        of_a, of_b = (over[0] + of.removeprefix(over) for of in (of_a, of_b))
    return einsum(a, b, labels=f'{of_a},{of_b}->{out}')


def _in_terms(a: jax.Array, b: jax.Array, *, labels: str) -> jax.Array:
    of_a, of_b, out = _parts(labels)
    size = dict(zip(of_a + of_b, a.shape + b.shape, strict=True))
    over = [c for c in size if c not in out]
    lead = [size[c] for c in over]
    nothing_twice = len(size) in (len(of_a), len(of_b))
    if 0 in size.values() or not (nothing_twice or math.prod(lead) <= FEW_TERMS):
        return einsum(a, b, labels=labels)

    def terms(of: str, values: jax.Array) -> jax.Array:
        values = placed(of, values, [*over, *out])
        rest = values.shape[len(over) :]
        return jnp.broadcast_to(values, (*lead, *rest)).reshape(math.prod(lead), *rest)

    return _total(terms(of_a, a), terms(of_b, b))


def _total(a: jax.Array, b: jax.Array) -> jax.Array:
    """`sum_n a[n] * b[n]`."""
    if len(b) <= TERMS:
        return reduce(jnp.add, [a[n] * b[n] for n in range(len(b))])
    rest = len(b) % TERMS
    x, y = (c[rest:].reshape(-1, TERMS, *c.shape[1:]) for c in (a, b))
    total = reduce(jnp.add, [x[:, n] * y[:, n] for n in range(TERMS)]).sum(0)
    return total + _total(a[:rest], b[:rest]) if rest else total


def placed(labels: str, a: jax.Array, order: Sequence[str]) -> jax.Array:
    """An array with its axes in another order, and of length one where it has none."""
    a = a.transpose([labels.index(c) for c in order if c in labels])
    return jnp.expand_dims(a, [k for k, c in enumerate(order) if c not in labels])


class Einsum(BilinearPrimitive):
    """`einsum` with the form that it takes on one CPU."""

    def __init__(self, name: str, on_cpu: Callable):
        super().__init__(name, einsum, on_cpu, self._to_first, self._to_second, self._in_batches)

    def __call__(self, a: jax.Array, b: jax.Array, *, labels: str) -> jax.Array:
        if a.dtype != b.dtype:
            return einsum(a, b, labels=labels)
        return self.bind(a, b, labels=labels)

    def _to_first(self, credit: jax.Array, b: jax.Array, *, labels: str) -> jax.Array:
        of_a, of_b, out = _parts(labels)
        return self(credit, b, labels=f'{out},{of_b}->{of_a}')

    def _to_second(self, credit: jax.Array, a: jax.Array, *, labels: str) -> jax.Array:
        of_a, of_b, out = _parts(labels)
        return self(credit, a, labels=f'{out},{of_a}->{of_b}')

    def _in_batches(
        self, a: jax.Array, b: jax.Array, at_a: int | None, at_b: int | None, *, labels: str
    ) -> jax.Array:
        new = new_label(labels)
        parts, given = [*_parts(labels)], [a, b]
        for k, axis in enumerate((at_a, at_b)):
            if axis is not None:
                parts[k], given[k] = new + parts[k], jnp.moveaxis(given[k], axis, 0)
        return self(*given, labels=f'{parts[0]},{parts[1]}->{new}{parts[2]}')


IN_TERMS = Einsum('einsum_in_terms', _in_terms)
FLAT = Einsum('einsum_flat', _flat)
