"""A large trace of all elements of the state, read and renewed sample by sample.

For all samples at once, `Phi e`, what a block adds, and their sum are three arrays of the size of
the trace, in memory that is new to every call; touching it takes longer than the products. Sample
by sample on one CPU, the trace is renewed where it lies, and read in the same loop, as XLA would
copy one that is read elsewhere. Weights whose outputs get the same credit are in one loop, which
takes a sample's part of that credit once. On several devices there is one product for all samples,
which XLA can share among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..primitives import CpuPrimitive

LARGE = 1 << 25  # bytes of a trace from which on new memory costs more than a loop


class Labels(NamedTuple):
    """The label of the samples, which come first in a trace, and the axes of all operands; for each
    weight those of its trace and of what multiplies it. S labels the elements of the state, Z the
    old ones in `Phi`, and Y the steps."""

    samples: str
    lam: str
    Phi: str
    q: str
    es: tuple[str, ...]
    xs: tuple[str, ...]

    def left(self, weight: int) -> str:
        """The axes of what is read of a trace."""
        return ''.join(c for c in self.es[weight] if c not in f'S{self.samples}')

    @property
    def of_operands(self) -> tuple[str, ...]:
        """The axes of all operands in their order."""
        return self.lam, self.Phi, self.q, *self.es, *self.xs

    @property
    def of_one(self) -> Labels:
        """The same of one sample."""
        lam, Phi, q, *rest = (axes.replace(self.samples, '') for axes in self.of_operands)
        return Labels('', lam, Phi, q, tuple(rest[: len(self.es)]), tuple(rest[len(self.es) :]))


class Renewed(NamedTuple):
    """What credit reads of each trace, and the traces after a block."""

    read: list[Any]
    traces: list[Any]


def read_and_renewed(
    lam: jax.Array,
    Phi: jax.Array,
    q: jax.Array,
    es: Sequence[jax.Array],
    xs: Sequence[jax.Array],
    labels: Labels,
) -> Renewed:
    """`lam . e` of all samples, with the axes `labels.left`, and `Phi e + sum_k x_k (x) q_k`, for
    weights whose outputs get the same credit `q`."""
    made = RENEWED.bind(lam, Phi, q, *es, *xs, labels=labels)
    return Renewed(made[: len(es)], made[len(es) :])


def _at_once(lam: Any, Phi: Any, q: Any, *operands: Any, labels: Labels) -> list[Any]:
    # Credit is one more row of `Phi`.
    rows, weights = jnp.concatenate([Phi, lam[None]]), len(labels.es)
    read, new = [], []
    for n, (e, x) in enumerate(zip(operands[:weights], operands[weights:], strict=True)):
        of_e, of_x = labels.es[n], labels.xs[n]
        both = jnp.einsum(f'{labels.Phi},{of_e.replace("S", "Z")}->{of_e}', rows, e)
        moved, met = jnp.split(both, [len(Phi)], of_e.index('S'))
        # The rows of `q` stay as they are, and then it need not be turned round.
        first = ''.join(c for c in of_e if c in of_x)
        out = first + ''.join(c for c in of_e if c not in first)
        added = jnp.einsum(f'{of_x},{labels.q}->{out}', x, q)
        added = added.transpose([out.index(c) for c in of_e])
        over = tuple(k for k, c in enumerate(of_e) if c not in labels.left(n))
        read.append(met.sum(over))
        new.append((moved + added).astype(e.dtype))
    return [*read, *new]


def _one_by_one(lam: Any, Phi: Any, q: Any, *operands: Any, labels: Labels) -> list[Any]:
    weights = len(labels.es)
    es, xs = list(operands[:weights]), operands[weights:]

    def one(n: Any, sums: tuple[list, list]) -> tuple[list, list]:
        read, es = sums
        of_sample = [
            jax.lax.dynamic_index_in_dim(a, n, axes.index(labels.samples), keepdims=False)
            for a, axes in zip((lam, Phi, q, *es, *xs), labels.of_operands, strict=True)
        ]
        made = _at_once(*of_sample, labels=labels.of_one)
        read = [a + b for a, b in zip(read, made[:weights], strict=True)]
        pairs = zip(es, made[weights:], strict=True)
        return read, [jax.lax.dynamic_update_index_in_dim(e, new, n, 0) for e, new in pairs]

    shapes = jax.eval_shape(lambda: _at_once(lam, Phi, q, *operands, labels=labels)[:weights])
    nothing = [jnp.zeros(a.shape, a.dtype) for a in shapes]
    read, new = jax.lax.fori_loop(0, len(es[0]), one, (nothing, es))
    return [*read, *new]


RENEWED = CpuPrimitive('read_and_renewed', _at_once, _one_by_one, several=True)
