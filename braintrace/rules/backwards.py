"""What goes back from the last step of a window to the first along the units' own transitions."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..engine.loop import apart, inner, scan
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
    states, length, entries = range(D.shape[1]), len(c), apart(D, 2)
    in_all_steps = jax.tree.map(lambda a: a[0], entries) if len(D) < length else None
    Q_end = None
    if keep:
        Q_end = [[jnp.full_like(D[0, a, b], float(a == b)) for b in states] for a in states]

    def turn(carry, at):
        (mu, Q), (D_k, c_k) = carry, at
        columns = list(zip(*(in_all_steps or D_k), strict=True))
        earlier = [c_k[b] + inner(mu, columns[b]) for b in states]
        Q_earlier = [[inner(row, column) for column in columns] for row in Q] if keep else None
        return (earlier, Q_earlier), (mu, Q)

    start = [jnp.zeros_like(c[0, a]) for a in states], Q_end
    each = None if in_all_steps else entries, apart(c, 1)
    (mu_entry, Q_entry), (mu, Q) = scan(turn, start, each, length, reverse=True)
    if not keep:
        return Backwards(jnp.stack(mu, 1), jnp.stack(mu_entry), None, None)
    of_steps, at_entry = [jnp.stack(row, 1) for row in Q], [jnp.stack(row) for row in Q_entry]
    return Backwards(
        jnp.stack(mu, 1), jnp.stack(mu_entry), jnp.stack(of_steps, 1), jnp.stack(at_entry)
    )
