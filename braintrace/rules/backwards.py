"""What goes back from the last step of a window to the first along the units' own transitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..engine.entries import (
    Entries,
    apart_again,
    back_through,
    filled,
    identity,
    of_all_steps,
    of_each_step,
    product,
    together,
)
from ..engine.loop import scan
from ..plan.layout import Feed


class Backwards(NamedTuple):
    """What goes from the last step of a window to the first: credit `mu` after each step, (K,
    *units) for each state, with the signals of that step where there are some, and at the entry,
    (states, *units); the entries of `Q[k] = d h_end / d h_k` at all steps and at the entry, or
    None."""

    mu: list[jax.Array]
    mu_entry: jax.Array
    Q: Any
    Q_entry: Any

    def arrived(self, f: Feed, df: list[Any]) -> list[jax.Array]:
        """`Q_k df_k`, what an output of step k has become at the end of the window, from its slopes
        `df`; all (K, *y) for each state. An axis along which it does not change has length one."""

        def of_state(row: list[Any]) -> jax.Array:
            ways = [f.at_y(q) * d for q, d in zip(row, df, strict=True) if q is not None]
            return reduce(jnp.add, ways)

        return [of_state(row) for row in self.Q]


class UnitCredit(NamedTuple):
    """The credit of a group in each step, (K, *units) for each state: of the new states (the
    signals `s_k`), and of the old ones (`c_k`); None for none."""

    new: Sequence[jax.Array] | None
    old: Sequence[jax.Array] | None


def backwards(
    D: Entries, credit: UnitCredit, keep: bool, later: jax.Array | None = None
) -> Backwards:
    """`mu_{k-1} = c_k + D_k^T (s_k + mu_k)` and, with `keep`, `Q_{k-1} = Q_k D_k`. `later`,
    (states, *units), is the credit after the last step, none by default."""
    like = credit.new or credit.old
    assert like is not None, 'a group has credit of one kind at least'
    length = len(like[0])
    in_each, in_all = of_each_step(D, length), of_all_steps(D, length)
    end = [jnp.zeros_like(a[0]) for a in like] if later is None else list(later)
    last = identity(D, end)

    def credit_before(mu, at):
        D_k, credit_k = at
        if credit_k.new is not None:
            mu = [a + s for a, s in zip(mu, credit_k.new, strict=True)]
        return back_through(filled(D_k, in_all), mu, credit_k.old), mu

    def from_before(Q, D_k):
        return together(product(apart_again(Q, last, 0), filled(D_k, in_all)), last), Q

    def both_before(carry, at):
        mu, Q = carry
        mu_before, mu = credit_before(mu, at)
        Q_before, Q = from_before(Q, at[0])
        return (mu_before, Q_before), (mu, Q)

    def going_back(turn: Callable, carry: Any, at: Any) -> tuple[Any, Any]:
        return scan(turn, carry, at, length, reverse=True)

    if not keep:
        mu_entry, mu = going_back(credit_before, end, (in_each, credit))
        return Backwards(mu, jnp.stack(mu_entry), None, None)
    ones = together(last, last)
    if jax.tree.leaves(in_each):
        (mu_entry, Q_entry), (mu, Q) = going_back(both_before, (end, ones), (in_each, credit))
    else:  # nothing of a step is read twice: two loops, and XLA is faster with small ones
        mu_entry, mu = going_back(credit_before, end, (in_each, credit))
        Q_entry, Q = going_back(from_before, ones, in_each)
    every, entry = apart_again(Q, last, 1), apart_again(Q_entry, last, 0)
    return Backwards(mu, jnp.stack(mu_entry), every, entry)
