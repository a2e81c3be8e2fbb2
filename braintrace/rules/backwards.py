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
    steady, start = len(D) < len(c), jnp.zeros_like(c[0])
    if steady:

        def with_same(mu, c_k):
            return _credit_before(mu, D[0], c_k), mu

        mu_entry, mu = scan(with_same, start, c, len(c), reverse=True)
        Q_entry, Q = _powers(D[0], len(c)) if keep else (None, None)
        return Backwards(mu, mu_entry, Q, Q_entry)

    def turn(carry, at):
        (mu, Q), (D_k, c_k) = carry, at
        earlier = None if Q is None else _product(Q, D_k)
        return (_credit_before(mu, D_k, c_k), earlier), carry

    Q_end = _identity(D[0]) if keep else None
    (mu_entry, Q_entry), (mu, Q) = scan(turn, (start, Q_end), (D, c), len(c), reverse=True)
    return Backwards(mu, mu_entry, Q, Q_entry)


def _credit_before(mu: jax.Array, D: jax.Array, c: jax.Array) -> jax.Array:
    """`c + D^T mu`, (states, *units)."""
    return c + over_states(mu[:, None], D, 0)


def _product(Q: jax.Array, D: jax.Array) -> jax.Array:
    """`Q D` for each unit, both (states, states, *units)."""
    return over_states(Q[:, :, None], D[None], 1)


def _identity(D: jax.Array) -> jax.Array:
    """Each state stays as it is, like `D` of (states, states, *units)."""
    one = jnp.eye(len(D), dtype=D.dtype).reshape(*D.shape[:2], *[1] * (D.ndim - 2))
    return jnp.broadcast_to(one, D.shape)


def _powers(D: jax.Array, length: int) -> tuple[jax.Array, jax.Array]:
    """`D^length`, and `D^(length - 1 - k)` for each step k: each half of them from the other."""
    powers, leap = _identity(D)[None], D
    while len(powers) <= length:
        powers = jnp.concatenate([powers, over_states(leap[None, :, :, None], powers[:, None], 2)])
        leap = _product(leap, leap)
    return powers[length], powers[length - 1 :: -1]
