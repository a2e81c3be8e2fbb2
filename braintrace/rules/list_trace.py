"""The trace of a weight on lists of elements of the state, and how it lies in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..ops.axes import FEW_STATES, outer, read
from ..ops.by_sample import LARGE, Labels, read_and_renewed
from ..plan.keys import trace_type
from .neighbourhoods import Lists, Neighbours, taken
from .sample_state import TracedUse


class ListTrace(NamedTuple):
    """The trace of one use of a weight: the axes of a trace, and one for the elements of a list,
    labelled S.

    On few elements, and where the op has a form of its own, S comes first. Otherwise the axes lie
    as the products take them that move a trace on, so that nothing has to be turned round:

        (samples, S, inputs, outputs)    one list for all outputs: one `Phi` moves all of a sample
        (samples, outputs, S, inputs)    lists that differ: each output has a block of `Phi`
    """

    use: TracedUse
    near: Neighbours

    @property
    def labels(self) -> str:
        """The axes as they lie."""
        op, samples = self.use.op, self.use.sample_label
        if op.line_up_y is not None or len(self.near.units) <= FEW_STATES:
            return f'S{op.axes.trace}'
        outputs, rest = self._outputs, self._rest
        return samples + (f'S{rest}{outputs}' if self.near.alike else f'{outputs}S{rest}')

    @property
    def _outputs(self) -> str:
        """The axes of y but that of samples."""
        return ''.join(c for c in self.use.op.axes.y if c != self.use.sample_label)

    @property
    def _rest(self) -> str:
        """The axes of a trace that y has not."""
        axes = self.use.op.axes
        return ''.join(c for c in axes.trace if c not in axes.y)

    @property
    def _as_labelled(self) -> bool:
        return self.labels == f'S{self.use.op.axes.trace}'

    @property
    def shape(self) -> tuple[int, ...]:
        op = self.use.op
        size = dict(zip(op.axes.trace, op.trace_shape(self.use.y.aval.shape), strict=True))
        size['S'] = len(self.near.units)
        return tuple(size[c] for c in self.labels)

    def init(self) -> jax.Array:
        return jnp.zeros(self.shape, trace_type(self.use.use.w.aval.dtype))

    def outer(self, x: Any, q: jax.Array) -> jax.Array:
        """What a block adds, from `q` of `(steps, S, *y)`."""
        return outer(self.use.op, x, q, self.labels)

    def read(self, lam: jax.Array, e: jax.Array) -> jax.Array:
        """What credit at the lists of the outputs, `(S, *y)`, gives: a gradient of the weight."""
        op, samples = self.use.op, self.use.sample_label
        if self._as_labelled:
            return read(op, lam, e)
        of_lam = f'S{op.axes.y}'
        if not self.near.alike:
            return self._met(of_lam, lam, e)
        # The trace is zero outside of a neighbourhood: one credit for all outputs.
        one = lam[tuple(slice(None) if c in f'S{samples}' else 0 for c in of_lam)]
        return self._met(f'S{samples}', one, e)

    def read_state(self, lam: jax.Array, e: jax.Array) -> jax.Array:
        """What credit of the state, `((samples,) elements)`, gives: a gradient of the weight."""
        if self.near.alike and not self._as_labelled:
            return self._met(f'{self.use.sample_label}S', taken(lam, self.near.first, -1), e)
        at = lam[..., self.near.units] * self.near.there
        if self.use.sample_axis >= 0:
            at = jnp.moveaxis(at, 0, 1 + self.use.sample_axis)
        return self.read(at, e)

    def _met(self, of_lam: str, lam: jax.Array, e: jax.Array) -> jax.Array:
        op, samples = self.use.op, self.use.sample_label
        left = ''.join(c for c in self.labels if c in op.axes.w + samples)
        met = jnp.einsum(f'{of_lam},{self.labels}->{left}', lam, e)
        if samples and samples not in op.axes.w:
            met, left = met.sum(0), left[1:]
        return self.to_weight(met, left)

    def to_weight(self, met: jax.Array, labels: str) -> jax.Array:
        """What was read, with these axes, as a gradient of the weight."""
        op = self.use.op
        return op.to_weight(met.transpose([labels.index(c) for c in op.axes.w]))

    def pushed_together(self, Phi: jax.Array, e: jax.Array) -> jax.Array:
        """`Phi e` where all outputs have one list; `Phi` is `(S, (samples,) S)`."""
        old, new = self.labels.replace('S', 'Z'), self.labels.replace('S', 'Y')
        grown = jnp.einsum(f'Y{self.use.sample_label}Z,{old}->{new}', Phi, e)
        return grown if self.near.there.all() else grown * self._at_trace(self.near.there)

    def renewed_together(self, Phi: jax.Array, e: jax.Array, x: Any, q: jax.Array) -> jax.Array:
        """The trace after a block, `Phi e + sum_k x_k (x) q_k`, where all outputs have one list;
        `q` is `(steps, S, *y)`."""
        return (self.pushed_together(Phi, e) + self.outer(x, q)).astype(e.dtype)

    def is_large(self, e: jax.Array) -> bool:
        """Whether it is worth a pass sample by sample, each a product of labelled axes."""
        axes, samples = self.use.op.axes, self.use.sample_label
        if e.nbytes < LARGE or not samples or not self.labels.startswith(samples):
            return False
        by_labels = self.use.op.outer is None and axes.x is not None and samples in axes.x
        return by_labels and samples not in axes.w and bool(self.near.there.all())

    def _at_trace(self, values: np.ndarray) -> np.ndarray:
        """Values of one sample at the lists, `(S, *y)`, beside a trace."""
        given = f'S{self._outputs}'
        values = values.transpose([given.index(c) for c in self.labels if c in given])
        return np.expand_dims(values, [k for k, c in enumerate(self.labels) if c not in given])

    def pushed_by_list(self, lists: Lists, blocks: jax.Array, e: jax.Array) -> jax.Array:
        """A trace times the block of the list that each output has,
        `(samples, lists, number, number)`."""
        order = [self.labels.index(c) for c in self._by_output]
        shape = [e.shape[a] for a in order]
        number, many, most = blocks.shape[-1], *lists.members.shape
        flat = e.transpose(order).reshape(len(blocks), lists.place.size, number, -1)
        # All outputs with one list beside each other.
        together = lists.together(flat, 1).reshape(len(blocks), many, most, number, -1)
        if most == 1:
            grown = blocks @ jnp.squeeze(together, 2)
        else:
            grown = jnp.einsum('blrs,blmsi->blmri', blocks, together)
        grown = lists.apart(grown.reshape(len(blocks), many * most, number, -1), 1)
        return grown.reshape(shape).transpose(np.argsort(order))

    @property
    def _by_output(self) -> str:
        return f'{self.use.sample_label}{self._outputs}S{self._rest}'


Pairs = list[tuple[jax.Array, jax.Array]]


class AtEdge(NamedTuple):
    """The trace of a weight where a block ends: as it was before the block, and what multiplied the
    weight in its steps."""

    kept: ListTrace
    e: jax.Array
    x: Any


class OneCredit(NamedTuple):
    """What is the same for all weights whose outputs get one credit: the credit `lam` of the state
    before the block, the transition `Phi` through it, and the slopes `q` of the outputs,
    `(steps, S, *y)`."""

    lam: jax.Array
    Phi: jax.Array
    q: jax.Array


def read_and_renewed_of_one(weights: Sequence[AtEdge], credit: OneCredit) -> Pairs:
    """What the credit reads of each trace, and the trace after the block; of large traces in one
    pass over all of them."""
    large: dict[str, list[int]] = {}
    made: dict[int, tuple[jax.Array, jax.Array]] = {}
    for n, (kept, e, x) in enumerate(weights):
        if kept.is_large(e) and not any(map(jnp.iscomplexobj, (*credit, e, x))):
            large.setdefault(kept.use.op.axes.y, []).append(n)
        else:
            new = kept.renewed_together(credit.Phi, e, x, credit.q)
            made[n] = kept.read_state(credit.lam, e), new
    for alike in large.values():
        pairs = _in_one_pass([weights[n] for n in alike], credit)
        made |= zip(alike, pairs, strict=True)
    return [made[n] for n in range(len(weights))]


def _in_one_pass(weights: Sequence[AtEdge], credit: OneCredit) -> Pairs:
    """The same for large traces whose outputs have the same axes."""
    traces, es, xs = zip(*weights, strict=True)
    samples, of_y = traces[0].use.sample_label, traces[0].use.op.axes.y
    of_es = tuple(trace.labels for trace in traces)
    of_xs = tuple(f'Y{trace.use.op.axes.x}' for trace in traces)
    labels = Labels(samples, f'{samples}S', f'S{samples}Z', f'YS{of_y}', of_es, of_xs)
    operands = [trace.use.op.at_x(x) for trace, x in zip(traces, xs, strict=True)]
    lam = taken(credit.lam, traces[0].near.first, -1)
    made = read_and_renewed(lam, credit.Phi, credit.q, es, operands, labels)
    gradients = [
        trace.to_weight(met, labels.left(n))
        for n, (trace, met) in enumerate(zip(traces, made.read, strict=True))
    ]
    return list(zip(gradients, made.traces, strict=True))
