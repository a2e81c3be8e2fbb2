"""What goes back from the last step of a window to the first along the units' own transitions."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..engine.loop import apart, inner, over_states, scan
from ..plan.layout import Feed


class Backwards(NamedTuple):
    """What goes from the last step of a window to the first: credit `mu[k]` after each step, (K,
    states, *units), and at the entry; `Q[k] = d h_end / d h_k`, (K, states, states, *units), and at
    the entry, or None. An axis of units is of length one in `Q` where it is in `D`."""

    mu: jax.Array
    mu_entry: jax.Array
    Q: Any
    Q_entry: Any

    def arrived(self, f: Feed, df: jax.Array) -> Any:
        """`Q_k df_k`, what an output of step k has become at the end of the window, (K, states,
        *y), from its slopes `df`, of the same shape."""
        Q, slopes = apart(self.Q, 2), apart(df, 1)
        return jnp.stack([inner([f.at_y(q) for q in row], slopes) for row in Q], 1)


def backwards(D: jax.Array, c: jax.Array, keep: bool) -> Backwards:
    """`mu_{k-1} = c_k + D_k^T mu_k` and, with `keep`, `Q_{k-1} = Q_k D_k`.

    `c` is (K, states, *units). `D` is (K, states, states, *units), with an axis of length one where
    it is the same in all steps, or for all samples.
    """
    in_all_steps = D[0] if len(D) < len(c) else None

    def turn(carry, at):
        (mu, Q), (D_k, c_k) = carry, at
        D_k = in_all_steps if D_k is None else _together(D_k)
        earlier = c_k + over_states(mu[:, None], D_k, 0)
        Q_earlier = None if Q is None else over_states(Q[:, :, None], D_k[None], 1)
        return (earlier, Q_earlier), carry

    start = jnp.zeros_like(c[0]), _identity(D[0]) if keep else None
    each = apart(D, 2) if in_all_steps is None else None, c
    (mu_entry, Q_entry), (mu, Q) = scan(turn, start, each, len(c), reverse=True)
    return Backwards(mu, mu_entry, Q, Q_entry)


def _together(entries: list[list[jax.Array]]) -> jax.Array:
    """The entries of a matrix for each unit as one array: see `apart`."""
    return jnp.stack([jnp.stack(row) for row in entries])


def _identity(D: jax.Array) -> jax.Array:
    """Each state stays as it is, like `D` of (states, states, *units)."""
    one = jnp.eye(len(D), dtype=D.dtype).reshape(*D.shape[:2], *[1] * (D.ndim - 2))
    return jnp.broadcast_to(one, D.shape)
