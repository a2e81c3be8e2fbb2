"""What happens inside lists of units over a whole block of steps at once.

A weight whose influence is kept on one list of units alone needs of `Phi` only the block from that
list to itself, `P_k`. So what goes step by step is as small as the lists are, and the trace, which
is as large as the weight, moves once a block:

    Q_{k-1} = Q_k P_k            mu_{k-1} = (mu_k + s_k) P_k + p_k
    e_b = Q_0 e_a + sum_k x_k (x) Q_k d_k
    dw  = mu_0 . e_a + sum_k x_k (x) (mu_k . d_k)

`d_k` is what the output of step k does to the list in that step, `s_k` the credit of the new state,
which meets what came from before, and `p_k` that of the state before the step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..engine.loop import over_states, scan
from ..ops.axes import FEW_STATES, Op, decay, gradient
from .list_trace import ListTrace
from .neighbourhoods import Lists
from .sample_state import TracedUse


class BackInLists(NamedTuple):
    """Credit `mu`, `(K, samples, lists, number)`, and `Q`, `(K, samples, lists, number, number)`,
    after each step, and both at the entry, without the K."""

    mu: jax.Array
    Q: jax.Array
    mu_entry: jax.Array
    Q_entry: jax.Array


def back_in_lists(P: jax.Array, s: jax.Array, p: jax.Array | None) -> BackInLists:
    """From the last step to the first.

    Args:
        P: `(K, samples, lists, number, number)`.
        s, p: `(K, samples, lists, number)`; p is None where outputs do not read the state before.
    """

    def turn(carry, at):
        (mu, Q), (P_k, s_k, p_k) = carry, at
        earlier = _product((mu + s_k)[..., None, :], P_k)[..., 0, :]
        earlier = earlier if p_k is None else earlier + p_k
        return (earlier, _product(Q, P_k)), (mu, Q)

    eye = jnp.broadcast_to(jnp.eye(P.shape[-1], dtype=P.dtype), P.shape[1:])
    (mu_entry, Q_entry), (mu, Q) = scan(
        turn, (jnp.zeros_like(s[0]), eye), (P, s, p), len(P), reverse=True
    )
    return BackInLists(mu, Q, mu_entry, Q_entry)


class AtOnce(NamedTuple):
    """A use of a weight over a block.

    Args:
        kept: the trace of the use.
        lists: of the units that its outputs reach.
        x: what multiplies the weight, `(K, ...)`.
        d: what each output does to its list in its own step, `(K, number, *y)`.
    """

    kept: ListTrace
    lists: Lists
    x: Any
    d: jax.Array

    def gradient(self, back: BackInLists, e: jax.Array) -> jax.Array:
        """What the credit of the block gives with the trace at its entry, and inside of it."""
        inside = _product(self._by_list(self._flat(self.d)), back.mu[..., None])
        dy = self._of_outputs(inside, 1)[:, 0]
        at_entry = back.mu_entry[:, :, None]
        at_entry = jnp.broadcast_to(at_entry, self._spread_shape(at_entry))
        met = self.kept.read(self._of_outputs(at_entry[None], 1)[0], e)
        return gradient(_op_as_written(self.kept.use), self.x, dy) + met

    def trace(self, back: BackInLists, e: jax.Array) -> jax.Array:
        """The trace at the end."""
        q = _product(self._by_list(self._flat(self.d)), jnp.swapaxes(back.Q, -1, -2))
        return self._moved(back.Q_entry, e) + self.kept.outer(self.x, self._of_outputs(q, 1))

    def _moved(self, Q: jax.Array, e: jax.Array) -> jax.Array:
        """`Q e`."""
        op = self.kept.use.op
        if op.line_up_y is None and Q.shape[-1] > FEW_STATES:
            return self.kept.pushed_by_list(self.lists, Q, e)
        at = jnp.broadcast_to(Q[:, :, None], self._spread_shape(Q[:, :, None]))
        return decay(op, self._of_outputs(at[None], 2)[0], e)

    def _spread_shape(self, a: jax.Array) -> tuple[int, ...]:
        """The shape of values of lists, `(samples, lists, 1, ...)`, beside all members."""
        return *a.shape[:2], self.lists.members.shape[1], *a.shape[3:]

    def _flat(self, a: jax.Array) -> jax.Array:
        """From `(K, number, *y)` to `(K, samples, elements of y, number)`."""
        axis = self.kept.use.sample_axis
        a = jnp.moveaxis(a, 2 + axis, 1) if axis >= 0 else a[:, None]
        return jnp.moveaxis(a.reshape(*a.shape[:3], -1), 2, 3)

    def _by_list(self, a: jax.Array) -> jax.Array:
        """From `(K, samples, elements of y, number)` to `(K, samples, lists, members, number)`."""
        a = self.lists.together(a, 2)
        return a.reshape(*a.shape[:2], *self.lists.members.shape, a.shape[-1])

    def _of_outputs(self, a: jax.Array, lead: int) -> jax.Array:
        """From `(K, samples, lists, members, *numbers)` to `(K, *numbers, *y)`, where there are
        `lead` axes of numbers."""
        numbers = a.shape[4:]
        a = self.lists.apart(a.reshape(*a.shape[:2], -1, *numbers), 2)
        a = a.reshape(*a.shape[:2], *self.kept.use.inner_shape, *numbers)
        a = jnp.moveaxis(a, range(a.ndim - lead, a.ndim), range(1, 1 + lead))
        axis = self.kept.use.sample_axis
        if axis < 0:
            return jnp.squeeze(a, 1 + lead)
        return jnp.moveaxis(a, 1 + lead, 1 + lead + axis)


def _op_as_written(u: TracedUse) -> Op:
    """The op with all its weights, those that are masked out too."""
    assert u.use.op is not None
    return u.use.op


def _product(a: jax.Array, b: jax.Array) -> jax.Array:
    """A product of matrices, of small ones term by term: see `over_states`."""
    if a.shape[-1] > FEW_STATES:
        return a @ b
    return over_states(a[..., :, :, None], b[..., None, :, :], -2)
