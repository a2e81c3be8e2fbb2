"""Sums of products at the stored weights of a sparse matrix, the one thing that a gradient and a
trace of sparse connections are made of:

    sums[l, p] = sum_k x[l, k, into[p]] g[l, k, out[p]]

Where few of the x are other than zero (spikes), only those are walked over, step by step, in the
way of the product itself: a spike of input i adds a row of g to the weights of i. Where x are
values, each weight takes the product of two rows, `x[:, into[p]]` and `g[:, out[p]]`, with the
units first so that a row lies in one piece. Which of the two is chosen when it runs, by counting.
On a CPU where XLA can call what numba compiles it is a kernel; elsewhere it is plain JAX.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..frontends.base import numba_bridge

FEW = 8  # spikes are few if less than one in so many
CHUNK = 1 << 16  # weights that take their products at once


class Pattern(NamedTuple):
    """The stored weights in a list by input.

    Args:
        out: `(stored,)`, the output that each weight of the list adds to.
        starts: `(inputs + 1,)`, where the weights of each input begin.
        place: `(stored,)`, where in the list each weight stands as it is stored; of length 0 where
            the list is as they are stored.
    """

    out: Any
    starts: Any
    place: Any

    @classmethod
    def of(cls, into: np.ndarray, out: np.ndarray, inputs: int) -> Pattern:
        """The pattern of weights with these inputs and outputs, both `(stored,)`."""
        starts = np.concatenate([[0], np.cumsum(np.bincount(into, minlength=inputs))])
        place = np.zeros(0, np.int32)
        if (np.diff(into) < 0).any():
            by_input = np.argsort(into, kind='stable')
            out, place = out[by_input], np.empty(len(into), np.int32)
            place[by_input] = np.arange(len(into))
        return cls(np.asarray(out, np.int32), starts.astype(np.int32), place)

    @property
    def stored(self) -> int:
        """How many weights there are."""
        return self.out.shape[0]

    def into(self) -> jax.Array:
        """The input of each weight of the list, `(stored,)`."""
        lengths = jnp.diff(self.starts)
        inputs = jnp.arange(len(lengths), dtype=jnp.int32)
        return jnp.repeat(inputs, lengths, total_repeat_length=self.stored)

    def as_stored(self, listed: jax.Array) -> jax.Array:
        """Values of the list, `(..., stored)`, in the order in which the weights are stored."""
        return listed[..., self.place] if self.place.shape[0] else listed


class Steps(NamedTuple):
    """Some steps of a product: x of `(samples, steps, inputs)` and g of `(lead, steps, outputs)`;
    `lead` counts samples last, so that row l of g belongs to sample `l % samples`."""

    x: Any
    g: Any


def stored_sums(now: Steps, pattern: Pattern, before: Steps | None = None) -> jax.Array:
    """The sums over all steps, `(lead, stored)`, and over a few of any values before them."""
    x, g = now
    if before is None:
        before = Steps(x[:, :0], g[:, :0])
    of_before = before.x.astype(g.dtype), before.g
    operands = x.astype(g.dtype), g, *of_before, pattern.out, pattern.starts
    if g.dtype in (jnp.float32, jnp.float64) and numba_bridge() is not None:
        listed = lax.platform_dependent(*operands, cpu=_by_kernel, default=_plain)
    else:
        listed = _plain(*operands)
    return pattern.as_stored(listed)


# ---- plain JAX -----------------------------------------------------------------------------------


def _plain(x, g, x_before, g_before, out, starts) -> jax.Array:
    samples, lead = len(x), len(g)
    most = max(1, len(out) // FEW)  # weights that the spikes of one step may touch
    touched = (x != 0).astype(jnp.int32) @ jnp.diff(starts)

    def one(at: tuple[jax.Array, jax.Array]) -> jax.Array:
        sample, g = at
        few = touched[sample].max() <= most
        of_spikes = functools.partial(_of_spikes, most)
        return lax.cond(few, of_spikes, _of_values, x[sample], g, out, starts)

    at = jnp.arange(lead) % samples
    sums = lax.map(one, (at, g))
    if not x_before.size:
        return sums
    return sums + lax.map(lambda a: _of_values(x_before[a[0]], a[1], out, starts), (at, g_before))


def _of_spikes(
    most: int, x: jax.Array, g: jax.Array, out: jax.Array, starts: jax.Array
) -> jax.Array:
    """The sums for x of `(steps, inputs)`, of which the nonzero ones touch at most so many weights
    in a step."""
    stored, lengths = len(out), jnp.diff(starts)
    turn = jnp.arange(most)

    def step(sums, at):
        x, g = at
        active = jnp.where(x != 0, lengths, 0)
        ends = jnp.cumsum(active)
        row = jnp.repeat(jnp.arange(len(x)), active, total_repeat_length=most)
        p = jnp.where(turn < ends[-1], starts[row] + turn - (ends - active)[row], stored)
        return sums.at[p].add(x[row] * g[out.at[p].get(mode='clip')], mode='drop'), None

    return lax.scan(step, jnp.zeros(stored, g.dtype), (x, g))[0]


def _of_values(x: jax.Array, g: jax.Array, out: jax.Array, starts: jax.Array) -> jax.Array:
    """The sums for any x of `(steps, inputs)`, some weights at a time."""
    rows, cols, into = x.T, g.T, Pattern(out, starts, ()).into()

    def some(at: tuple[jax.Array, jax.Array]) -> jax.Array:
        into, out = at
        return (rows[into] * cols[out]).sum(-1)

    whole = len(out) // CHUNK * CHUNK
    chunks = into[:whole].reshape(-1, CHUNK), out[:whole].reshape(-1, CHUNK)
    rest = some((into[whole:], out[whole:]))
    return jnp.concatenate([lax.map(some, chunks).reshape(-1), rest])


# ---- kernels for the CPU -------------------------------------------------------------------------


def _by_kernel(x, g, x_before, g_before, out, starts) -> jax.Array:
    from . import cpu_kernels

    bridge = numba_bridge()
    assert bridge is not None
    kernel = cpu_kernels.stored_sums.for_weights(len(out))
    sums = jax.ShapeDtypeStruct((len(g), len(out)), g.dtype)
    return bridge.numba_call(kernel, [sums])(x, g, x_before, g_before, out, starts)[0]


class Renewal(NamedTuple):
    """A block of steps at the stored weights: x `(samples, steps, inputs)`, dy `(samples, steps,
    outputs)`, lam `(states, samples, outputs)`, Q `(states, states, samples, outputs)`, q `(states,
    samples, steps, outputs)`, and the trace e `(states, samples, stored)`."""

    x: Any
    dy: Any
    lam: Any
    Q: Any
    q: Any
    e: Any


def renewed(at: Renewal, pattern: Pattern) -> tuple[jax.Array, jax.Array]:
    """The gradient `(stored,)` and the trace after a block, which is read and written once where
    there is a kernel for that. Without samples that share weights, and without a list in another
    order than the weights are stored in."""
    operands = (*at, pattern.out, pattern.starts)
    if (
        at.e.dtype in (jnp.float32, jnp.float64)
        and numba_bridge() is not None
        and not pattern.place.shape[0]
    ):
        return lax.platform_dependent(
            *operands, cpu=_renewed_by_kernel, default=functools.partial(_renewed, pattern)
        )
    return _renewed(pattern, *operands)


def _renewed(pattern: Pattern, x, dy, lam, Q, q, e, out, starts) -> tuple[jax.Array, jax.Array]:
    """`renewed` in plain JAX."""
    pattern = Pattern(out, starts, pattern.place)
    states, samples, steps, outputs = q.shape
    index = pattern.as_stored(out)

    def at_weights(a: jax.Array) -> jax.Array:
        return a.at[..., index].get(mode='promise_in_bounds', wrap_negative_indices=False)

    [met] = stored_sums(Steps(x.reshape(1, -1, x.shape[-1]), dy.reshape(1, -1, outputs)), pattern)
    gradient = met + (at_weights(lam) * e).sum((0, 1))
    added = stored_sums(Steps(x, q.reshape(-1, steps, outputs)), pattern)
    kept: Any = sum(at_weights(Q[:, b]) * e[b] for b in range(states))
    return gradient, kept + added.reshape(e.shape)


def _renewed_by_kernel(x, dy, lam, Q, q, e, out, starts) -> tuple[jax.Array, jax.Array]:
    from . import cpu_kernels

    states, samples, _, outputs = q.shape
    g = jnp.concatenate([dy[None], q])
    factors = jnp.concatenate([lam, Q.reshape(-1, samples, outputs)])
    made = [jax.ShapeDtypeStruct(shape, e.dtype) for shape in (out.shape, e.shape)]
    bridge = numba_bridge()
    assert bridge is not None
    kernels, end = (cpu_kernels.renewed_two, -1) if states == 2 else (cpu_kernels.renewed, 1)
    call = bridge.numba_call(kernels.for_weights(len(out)), made)
    return tuple(call(x, jnp.moveaxis(g, 0, end), jnp.moveaxis(factors, 0, end), e, out, starts))
