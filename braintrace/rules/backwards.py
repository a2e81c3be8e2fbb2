"""What goes back from the last step of a window to the first along the units' own transitions."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..engine.loop import over_states, scan
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
        return over_states(f.at_y(self.Q), df[:, None], 2)


def backwards(D: jax.Array, c: jax.Array, keep: bool) -> Backwards:
    """`mu_{k-1} = c_k + D_k^T mu_k` and, with `keep`, `Q_{k-1} = Q_k D_k`.

    `c` is (K, states, *units). `D` is (K, states, states, *units), with an axis of length one where
    it is the same in all steps, or for all samples.
    """
    states, length = D.shape[1], len(c)
    eye = jnp.eye(states, dtype=D.dtype).reshape(states, states, *[1] * (D.ndim - 3))
    Q_end = jnp.broadcast_to(eye, D.shape[1:]) if keep else None
    is_steady = len(D) < length

    def turn(carry, at):
        (mu, Q), (D_k, c_k) = carry, at
        D_k = D[0] if is_steady else D_k
        earlier = c_k + over_states(mu[:, None], D_k, 0)
        Q_earlier = over_states(Q[:, :, None], D_k[None], 1) if keep else None
        return (earlier, Q_earlier), (mu, Q)

    start = jnp.zeros_like(c[0]), Q_end
    each = (None if is_steady else D), c
    (mu_entry, Q_entry), (mu, Q) = scan(turn, start, each, length, reverse=True)
    return Backwards(mu, mu_entry, Q, Q_entry)
