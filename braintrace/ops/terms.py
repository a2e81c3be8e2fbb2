"""Sums of products in the form that suits a CPU.

Term by term: XLA makes one loop of a sum that is written out, together with what is around it, and
reads all of it once. For a product of matrices it first turns operands round; of a trace, that
costs more than the product.

Flat: a sum over several axes, those of steps and samples, that come first in both operands, is one
over a single axis; and axes that both keep, as the samples of a trace, come first, with rows left
as they lie. XLA would turn an operand round, and takes longer to compile that than five other
loops.

On several devices both stay einsums, which XLA can share among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from string import ascii_letters
from typing import Any, NamedTuple

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


def _sizes(a: Any, b: Any, labels: str) -> dict[str, int]:
    """The length of each axis; in one of the operands it may be one instead."""
    of_a, of_b, _ = _parts(labels)
    sizes = dict.fromkeys(of_a + of_b, 1)
    for c, n in zip(of_a + of_b, a.shape + b.shape, strict=True):
        sizes[c] = n if sizes[c] == 1 else sizes[c]
    return sizes


def _flat(a: jax.Array, b: jax.Array, *, labels: str) -> jax.Array:
    of_a, of_b, out = _parts(labels)
    sizes = _sizes(a, b, labels)
    shape = [sizes[c] for c in out]
    left, right = Labelled(of_a, a).squeezed(), Labelled(of_b, b).squeezed()
    both = [c for c in left.labels if c in right.labels]
    out = ''.join(c for c in out if c in left.labels + right.labels)
    over = ''.join(c for c in both if c not in out)
    if not {*left.labels, *right.labels} <= {*both, *out}:
        return einsum(a, b, labels=labels)  # sums over an axis of one alone
    if over and left.labels.startswith(over) and right.labels.startswith(over):
        left, right, over = left.merged(over), right.merged(over), over[0]
    each = ''.join(c for c in both if c in out)
    # A vector comes first: XLA would turn round the matrix before it.
    for x, y in sorted([(left, right), (right, left)], key=lambda pair: len(pair[0].labels)):
        if out == each + x.without(over + each) + y.without(over + each):
            return _product(x, y, each, over).reshape(shape)
    labels = f'{left.labels},{right.labels}->{out}'
    return einsum(left.values, right.values, labels=labels).reshape(shape)


class Labelled(NamedTuple):
    """An array and the labels of its axes."""

    labels: str
    values: jax.Array

    def first(self, labels: str) -> Labelled:
        """The same with these axes in front."""
        order = labels + self.without(labels)
        return Labelled(order, jax.lax.transpose(self.values, self.places(order)))

    def squeezed(self) -> Labelled:
        """The same without axes of length one."""
        of_one = [k for k, n in enumerate(self.values.shape) if n == 1]
        left = ''.join(c for k, c in enumerate(self.labels) if k not in of_one)
        return Labelled(left, jax.lax.squeeze(self.values, of_one))

    def merged(self, labels: str) -> Labelled:
        """The same with its first axes, which have these labels, as one."""
        shape, n = self.values.shape, len(labels)
        values = self.values.reshape(math.prod(shape[:n]), *shape[n:])
        return Labelled(labels[0] + self.labels.removeprefix(labels), values)

    def without(self, labels: str) -> str:
        """The labels that are not among these."""
        return ''.join(c for c in self.labels if c not in labels)

    def places(self, labels: str) -> list[int]:
        """Where these axes are."""
        return [self.labels.index(c) for c in labels]


def _product(a: Labelled, b: Labelled, each: str, over: str) -> jax.Array:
    """A product of matrices for each index of some axes, summed over others."""
    if each:
        a, b = a.first(each + over), b.first(each + over)
    summed, kept = ((a.places(axes), b.places(axes)) for axes in (over, each))
    return jax.lax.dot_general(a.values, b.values, (summed, kept))


def _in_terms(a: jax.Array, b: jax.Array, *, labels: str) -> jax.Array:
    of_a, of_b, out = _parts(labels)
    size = _sizes(a, b, labels)
    over = [c for c in size if c not in out]
    lead = [size[c] for c in over]
    nothing_twice = len(size) in (len(of_a), len(of_b))
    if 0 in size.values() or not (nothing_twice or math.prod(lead) <= FEW_TERMS):
        return einsum(a, b, labels=labels)

    rest = [size[c] for c in out]

    def terms(of: str, values: jax.Array) -> jax.Array:
        values = placed(of, values, [*over, *out])
        return jnp.broadcast_to(values, (*lead, *rest)).reshape(math.prod(lead), *rest)

    return _total(terms(of_a, a), terms(of_b, b))


def _total(a: jax.Array, b: jax.Array) -> jax.Array:
    """`sum_n a[n] * b[n]`."""
    if len(b) <= TERMS:
        terms = map(jax.lax.mul, *[jax.lax.split(c, [1] * len(b)) for c in (a, b)])
        return jax.lax.squeeze(reduce(jax.lax.add, terms), [0])
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

    def _shapes(self, a: Any, b: Any, *, labels: str) -> Any:
        sizes = _sizes(a, b, labels)
        return jax.core.ShapedArray(tuple(sizes[c] for c in _parts(labels)[2]), a.dtype)

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
