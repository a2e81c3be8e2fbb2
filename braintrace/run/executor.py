"""Online gradients over a sequence, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..rules.carrier import Carrier, Contribution, Credit, Entry
from .program import Program
from .window import Window

MOST_STEPS = 128  # a longer block gains little speed and costs memory in proportion


class Carried(NamedTuple):
    """All that goes from one block to the next: the leaves of the model's state, the traces by name, the number of steps done."""
    hidden: list
    other: list
    traces: dict
    steps: Any


@dataclass(frozen=True)
class Executor:
    """A program, the carrier of its influence, and how credit is taken: `single_step` is the classical rule, otherwise credit is exact inside a window."""
    program: Program
    carrier: Carrier
    single_step: bool

    def start(self, hidden: Sequence[Any], other: Sequence[Any]) -> Carried:
        return Carried(list(hidden), list(other), self.carrier.init(), jnp.zeros((), jnp.int32))

    def grad(self, params: Sequence[Any], carried: Carried, inputs: Sequence[Any], cotangents: Sequence[Any], length: int, window: int, fresh: bool
             ) -> tuple[list, list, Carried]:
        """Gradients of the parameters summed over the steps, all outputs, and what is carried on.

        `cotangents` weighs the graded outputs of each step. With `fresh` the traces start from zero and are not kept.
        """
        if fresh:
            carried = carried._replace(traces=self.carrier.init(), steps=jnp.zeros((), jnp.int32))
        alone = fresh and window >= length
        zero = [jnp.zeros(p.shape, p.dtype) for p in params], [jnp.zeros(r.w_var.aval.shape, r.w_var.aval.dtype) for r in self.program.layout.relations]

        def block(state, x):
            (carried, (gp, gw)), (inputs, cotangents) = state, x
            carried, found, outs = self._block(params, carried, inputs, cotangents, alone)
            gp = [a + b for a, b in zip(gp, found.params or (0,) * len(gp), strict=True)]
            gw = [a + found.weights.get(r, 0) for r, a in enumerate(gw)]
            return (carried, (gp, gw)), outs

        (carried, (gp, gw)), outs = in_blocks(block, (carried, zero), (list(inputs), list(cotangents)), length, window)
        _, pull = jax.vjp(lambda p: self.program.layout.graph.weights(p), list(params))
        [through] = pull(gw)
        return [a + b for a, b in zip(gp, through, strict=True)], outs, carried

    def _block(self, params: Sequence[Any], carried: Carried, inputs: list, cotangents: list, alone: bool) -> tuple[Carried, Contribution, list]:
        length = len(cotangents[0])
        w = Window(self.program, params, carried.hidden, carried.other, inputs, length)
        if self.single_step:
            gp, y, hidden = w.same_step(cotangents)
            found, traces = self.carrier.block(None if alone else carried.traces, w, Credit(y, lambda: w.direct(cotangents), hidden), carried.steps, not alone)
        else:
            gp, hidden, other = w.pull(outs=cotangents)
            found = self.carrier.read(carried.traces, Entry(hidden, other, carried.steps)) if not alone else Contribution()
            traces = self.carrier.advance(carried.traces, w) if not alone else None
        if found.params is not None:
            gp = [a + b for a, b in zip(gp, found.params, strict=True)]
        found = Contribution(found.weights, gp)
        return Carried(w.hidden, w.other, carried.traces if traces is None else traces, carried.steps + length), found, w.outs

    def evolve(self, params: Sequence[Any], carried: Carried, inputs: Sequence[Any], length: int, window: int) -> tuple[list, Carried]:
        """Outputs and what is carried on, without a gradient."""
        def block(carried, inputs):
            [inputs, n] = inputs
            w = Window(self.program, params, carried.hidden, carried.other, inputs, len(n))
            return Carried(w.hidden, w.other, self.carrier.advance(carried.traces, w), carried.steps + len(n)), w.outs

        carried, outs = in_blocks(block, carried, (list(inputs), jnp.zeros(length)), length, window)
        return outs, carried


def in_blocks(f, carry, xs, length: int, window: int):
    """Scan `f` over blocks of `window` steps; the last one may be shorter. `f` sees and gives arrays with the steps of its block first."""
    whole, rest = divmod(length, window)
    outs = []
    if whole > 1:
        cut = jax.tree.map(lambda a: a[:whole * window].reshape(whole, window, *a.shape[1:]), xs)
        carry, out = jax.lax.scan(f, carry, cut)
        outs.append(jax.tree.map(lambda a: a.reshape(whole * window, *a.shape[2:]), out))
    elif whole:
        carry, out = f(carry, jax.tree.map(lambda a: a[:window], xs))
        outs.append(out)
    if rest:
        carry, out = f(carry, jax.tree.map(lambda a: a[length - rest:], xs))
        outs.append(out)
    return carry, outs[0] if len(outs) == 1 else jax.tree.map(lambda *a: jnp.concatenate(a), *outs)


def pick_window(length: int, bytes_per_step: int, budget: int) -> int:
    """A block as long as the budget allows, of equal lengths if there are several."""
    most = max(1, min(MOST_STEPS, budget // max(bytes_per_step, 1)))
    blocks = -(-length // most)
    return -(-length // blocks)


def bytes_per_step(program: Program) -> int:
    """What one step keeps in a block: its states and, for each relation, x, the credit of y and its slopes."""
    size = lambda v: v.aval.size * v.aval.dtype.itemsize
    layout = program.layout
    total = sum(size(v) for v in [*program.step.hidden_vars, *program.step.other_vars]) * 2
    for r in layout.relations:
        rows = sum(len(layout.units[g.index].rows) for g in r.hidden_groups if g.index in layout.units)
        total += size(r.y_var) * (2 + 2 * rows) + (size(r.x_var) if r.x_var is not None else 0)
    return total
