"""A large trace of all elements of the state, read and renewed sample by sample.

For all samples at once, `Phi e`, what a block adds, and their sum are three arrays of the size of
the trace, in memory that is new to every call; touching it takes longer than the products. Sample
by sample on one CPU, the trace is renewed where it lies, and read in the same loop, as XLA would
copy one that is read elsewhere. On several devices there is one product for all samples, which XLA
can share among them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..primitives import CpuPrimitive

LARGE = 1 << 25  # bytes of a trace from which on new memory costs more than a loop


class Labels(NamedTuple):
    """The label of the samples, which come first in a trace, and the axes of all operands. S labels
    the elements of the state, Z the old ones in `Phi`, and Y the steps."""

    samples: str
    lam: str
    Phi: str
    e: str
    q: str
    x: str

    @property
    def left(self) -> str:
        """The axes of what is read."""
        return ''.join(c for c in self.e if c not in f'S{self.samples}')

    @property
    def of_one(self) -> Labels:
        """The same of one sample."""
        return Labels(*[labels.replace(self.samples, '') for labels in self])


def read_and_renewed(
    lam: jax.Array, Phi: jax.Array, e: jax.Array, q: jax.Array, x: jax.Array, labels: Labels
) -> tuple[jax.Array, jax.Array]:
    """`lam . e` of all samples, with the axes `labels.left`, and `Phi e + sum_k x_k (x) q_k`."""
    read, new = RENEWED.bind(lam, Phi, e, q, x, labels=labels)
    return read, new


def _at_once(lam: Any, Phi: Any, e: Any, q: Any, x: Any, *, labels: Labels) -> tuple[Any, Any]:
    of = labels
    # Credit is one more row of `Phi`.
    rows = jnp.concatenate([Phi, lam[None]])
    both = jnp.einsum(f'{of.Phi},{of.e.replace("S", "Z")}->{of.e}', rows, e)
    moved, read = jnp.split(both, [len(Phi)], of.e.index('S'))
    # The rows of `q` stay as they are, and then it need not be turned round.
    first = ''.join(c for c in of.e if c in of.x)
    out = first + ''.join(c for c in of.e if c not in first)
    added = jnp.einsum(f'{of.x},{of.q}->{out}', x, q).transpose([out.index(c) for c in of.e])
    over = tuple(k for k, c in enumerate(of.e) if c not in of.left)
    return read.sum(over), (moved + added).astype(e.dtype)


def _one_by_one(lam: Any, Phi: Any, e: Any, q: Any, x: Any, *, labels: Labels) -> tuple[Any, Any]:
    def one(n: Any, sums: tuple[Any, Any]) -> tuple[Any, Any]:
        read, e = sums
        of_sample = [
            jax.lax.dynamic_index_in_dim(a, n, axes.index(labels.samples), keepdims=False)
            for a, axes in zip((lam, Phi, e, q, x), labels[1:], strict=True)
        ]
        met, new = _at_once(*of_sample, labels=labels.of_one)
        return read + met, jax.lax.dynamic_update_index_in_dim(e, new, n, 0)

    size = dict(zip(labels.e, e.shape, strict=True))
    nothing = jnp.zeros([size[c] for c in labels.left], jnp.result_type(lam, e))
    return jax.lax.fori_loop(0, len(e), one, (nothing, e))


RENEWED = CpuPrimitive('read_and_renewed', _at_once, _one_by_one, several=True)
