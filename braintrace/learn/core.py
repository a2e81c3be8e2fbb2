"""Online gradients over a sequence, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from ..engine.evaluate import Program
from ..engine.window import Window
from ..rules.carrier import Carrier, Contribution, Entry
from ..rules.signals import NO_EXTRA, Extra, Signal
from .progress import advance

MOST_STEPS = 128  # a longer block gains little speed and costs memory in proportion


class Carried(NamedTuple):
    """All that goes from one block to the next: the leaves of the model's state, the traces by name, the number of steps done."""

    hidden: list
    other: list
    traces: dict
    steps: Any


@dataclass(frozen=True, eq=False)
class Executor:
    """A program, the carrier of its influence, and how credit is taken: `single_step` is the classical rule, otherwise credit is exact inside a window."""

    program: Program
    carrier: Carrier
    single_step: bool
    signal: Signal = Signal()

    def init(self, params: Sequence[Any] | None = None) -> dict:
        """Zero traces, and what the signal keeps."""
        return {**self.carrier.init(), **self.signal.init(params)}

    @cached_property
    def shapes(self) -> dict:
        """The shapes of the traces."""
        return jax.eval_shape(self.init)

    def _own(self, traces: dict) -> dict:
        return {k: traces[k] for k in jax.eval_shape(self.carrier.init)}

    def grad(
        self,
        params: Sequence[Any],
        carried: Carried,
        inputs: Sequence[Any],
        cotangents: Sequence[Any],
        length: int,
        window: int,
        fresh: bool,
        progress: bool = False,
        extra: Extra = NO_EXTRA,
    ) -> tuple[list, list, Carried]:
        """Gradients of the parameters summed over the steps, all outputs, and what is carried on.

        `cotangents` weighs the graded outputs of each step. With `fresh` the traces start from zero and are not kept. `progress` shows a bar. `extra` is
        for the signal.
        """
        if fresh:
            carried = carried._replace(
                traces={**carried.traces, **self.carrier.init()}, steps=jnp.zeros((), jnp.int32)
            )
        alone = fresh and window >= length
        zero = (
            [jnp.zeros(p.shape, p.dtype) for p in params],
            [
                jnp.zeros(r.w_var.aval.shape, r.w_var.aval.dtype)
                for r in self.program.layout.relations
            ],
        )

        def block(state, x):
            (carried, (gp, gw)), (inputs, cotangents, per_step) = state, x
            carried, found, outs = self._block(
                params, carried, inputs, cotangents, alone, extra._replace(steps=per_step)
            )
            gp = add(gp, found.params)
            gw = add(gw, [found.weights.get(r) for r in range(len(gw))])
            if progress:
                advance(len(cotangents[0]), length)
            return (carried, (gp, gw)), outs

        (carried, (gp, gw)), outs = in_blocks(
            block, (carried, zero), (list(inputs), list(cotangents), extra.steps), length, window
        )
        return add(gp, self.to_params(params, gw)), outs, carried

    def call(
        self,
        params: Sequence[Any],
        carried: Carried,
        inputs: Sequence[Any],
        length: int,
        extra: Extra = NO_EXTRA,
    ) -> tuple[list, Carried]:
        """One window as a differentiable function of parameters and inputs, for use inside somebody's own gradient.

        Its past is a constant: the traces speak for it. So a loop of calls gives the sum of their online gradients, never a double count.
        """

        def forward(params, carried, inputs, extra):
            w = Window(self.program, params, carried.hidden, carried.other, inputs, length)
            return w.outs, Carried(
                w.hidden, w.other, self._advance(carried, w), carried.steps + length
            )

        def tangents(at, along):
            made = forward(*at)
            kept = _once(at) if self.single_step else at
            leaves = dict(enumerate((made[0], made[1].hidden)))
            credited = {(k, i): a for k in leaves for i, a in enumerate(leaves[k]) if _moves(a)}
            moved = {
                (k, i): t
                for k in (0, 2)
                for i, t in enumerate(along[k])
                if not isinstance(t, SymbolicZero) and _moves(t)
            }

            def online(credit):
                dp, dx = self._online(
                    length,
                    *kept,
                    *([credit.get((k, i)) for i in range(len(leaves[k]))] for k in leaves),
                )
                return {(k, i): dp[i] if k == 0 else dx[i] for k, i in moved}

            [to] = jax.linear_transpose(online, credited)(moved) if moved else [{}]
            still = lambda a: (
                jnp.zeros_like(a) if _moves(a) else np.zeros(a.shape, jax.dtypes.float0)
            )
            outs, hidden = (
                [to[k, i] if (k, i) in to else still(a) for i, a in enumerate(leaves[k])]
                for k in leaves
            )
            return made, (outs, jax.tree.map(still, made[1])._replace(hidden=hidden))

        def backward(kept, cotangents):
            outs, hidden = (
                [a if _moves(a) else None for a in leaves]
                for leaves in (cotangents[0], cotangents[1].hidden)
            )
            dp, dx = self._online(length, *kept, outs, hidden)
            return (
                (_once(dp) if self.single_step else dp),
                None,
                [dx.get(i) for i in range(len(inputs))],
                None,
            )

        f: Any
        if self.signal.linear:  # given as its own transpose: JAX turns it back, and what is mapped over samples is summed inside the products
            f = jax.custom_jvp(forward)
            f.defjvp(tangents, symbolic_zeros=True)
        else:
            f = jax.custom_vjp(forward)
            f.defvjp(lambda *a: (forward(*a), a), backward)
        return f(list(params), carried, list(inputs), extra)

    def _online(
        self,
        length: int,
        params: Sequence[Any],
        carried: Carried,
        inputs: Sequence[Any],
        extra: Extra,
        outs: Sequence[Any],
        hidden: Sequence[Any],
    ) -> tuple[list, dict[int, Any]]:
        """Gradients of the parameters and of the inputs of one window, by credit of its outputs and of its last hidden state."""
        w = Window(self.program, params, carried.hidden, carried.other, inputs, length)
        at_end = [
            h if h is None else jnp.zeros((length, *h.shape), h.dtype).at[-1].set(h) for h in hidden
        ]
        found, _, dx = self.credit(
            w, carried, self.program.graded(outs, at_end), extra, alone=False, keep=False
        )
        zero = [
            jnp.zeros(r.w_var.aval.shape, r.w_var.aval.dtype) for r in self.program.layout.relations
        ]
        gw = add(zero, [found.weights.get(r) for r in range(len(zero))])
        return add(found.params or [], self.to_params(params, gw)), dx

    def _advance(self, carried: Carried, w: Window) -> dict:
        return {**carried.traces, **self.carrier.advance(self._own(carried.traces), w)}

    def _block(
        self,
        params: Sequence[Any],
        carried: Carried,
        inputs: list,
        cotangents: list,
        alone: bool,
        extra: Extra,
    ) -> tuple[Carried, Contribution, list]:
        w = Window(self.program, params, carried.hidden, carried.other, inputs, len(cotangents[0]))
        found, traces, _ = self.credit(w, carried, cotangents, extra, alone=alone, keep=not alone)
        return (
            Carried(
                w.hidden, w.other, {**carried.traces, **(traces or {})}, carried.steps + w.length
            ),
            found,
            w.outs,
        )

    def credit(
        self,
        w: Window,
        carried: Carried,
        cotangents: Sequence[Any],
        extra: Extra,
        *,
        alone: bool,
        keep: bool,
    ) -> tuple[Contribution, dict | None, dict[int, Any]]:
        """What a window adds to the gradient, its traces if they are to be kept, and the credit of its inputs. `alone`: nothing came before."""
        own = self._own(carried.traces)
        if self.single_step:
            gp, credit, inputs = self.signal.same_step(w, cotangents, carried.traces, extra)
            found, traces = self.carrier.block(
                None if alone else own, w, credit, carried.steps, keep
            )
        else:
            gp, hidden, other, inputs = w.pull(outs=cotangents)
            hidden = self.signal.entry(w, cotangents, hidden, carried.traces)
            found = (
                self.carrier.read(own, Entry(hidden, other, carried.steps, list(w.params)))
                if not alone
                else Contribution()
            )
            traces = self.carrier.advance(own, w) if keep else None
            gp = add(gp, self.signal.beyond(w, extra))
        return (
            Contribution(found.weights, gp if found.params is None else add(gp, found.params)),
            traces,
            inputs,
        )

    def to_params(self, params: Sequence[Any], weights: Sequence[Any]) -> list:
        """Gradients of the weights, as their ops take them, to gradients of the parameters."""
        _, pull = jax.vjp(lambda p: self.program.layout.graph.weights(p), list(params))
        return pull(list(weights))[0]

    def evolve(
        self,
        params: Sequence[Any],
        carried: Carried,
        inputs: Sequence[Any],
        length: int,
        window: int,
    ) -> tuple[list, Carried]:
        """Outputs and what is carried on, without a gradient."""

        def block(carried, inputs):
            [inputs, n] = inputs
            w = Window(self.program, params, carried.hidden, carried.other, inputs, len(n))
            return Carried(
                w.hidden, w.other, self._advance(carried, w), carried.steps + len(n)
            ), w.outs

        carried, outs = in_blocks(block, carried, (list(inputs), jnp.zeros(length)), length, window)
        return outs, carried


def _moves(a: Any) -> bool:
    return jnp.issubdtype(a.dtype, jnp.inexact)


@jax.custom_jvp
def _once(given: Any) -> Any:
    """What an online gradient is made from: it may not be differentiated again."""
    return given


@_once.defjvp
def _not_twice(primals, tangents):
    raise NotImplementedError(
        'The gradient of a classical (single-step) rule is not the derivative of a function: it cannot be differentiated again. '
        "Use vjp_method='multi-step', 'rtrl' or 'bptt'."
    )


def add(total: Sequence[Any], more: Sequence[Any] | None) -> list[Any]:
    """Sums in the types of the first; None and the gradients of integers add nothing."""
    nothing = lambda b: b is None or b.dtype == jax.dtypes.float0
    return [
        a if nothing(b) else a + b.astype(a.dtype)
        for a, b in zip(total, more or [None] * len(total), strict=True)
    ]


def in_blocks(f, carry, xs, length: int, window: int):
    """Scan `f` over blocks of `window` steps; the last one may be shorter. `f` sees and gives arrays with the steps of its block first."""
    whole, rest = divmod(length, window)
    take = lambda start, n: jax.tree.map(
        lambda a: a if n == length else jax.lax.dynamic_slice_in_dim(a, start, n), xs
    )
    outs = []
    if whole > 1:
        carry, out = jax.lax.scan(
            lambda c, i: f(c, take(i * window, window)), carry, jnp.arange(whole)
        )
        outs.append(jax.tree.map(lambda a: a.reshape(whole * window, *a.shape[2:]), out))
    elif whole:
        carry, out = f(carry, take(0, window))
        outs.append(out)
    if rest:
        carry, out = f(carry, take(length - rest, rest))
        outs.append(out)
    return carry, outs[0] if len(outs) == 1 else jax.tree.map(lambda *a: jnp.concatenate(a), *outs)


def pick_window(length: int, bytes_per_step: int, budget: int) -> int:
    """A block as long as the budget allows, of equal lengths if there are several."""
    most = max(1, min(MOST_STEPS, budget // max(bytes_per_step, 1)))
    blocks = -(-length // most)
    return -(-length // blocks)


def memory_of(executor: Executor, budget: int) -> dict[str, int]:
    """What a run costs: the bytes of all traces, the steps of the longest block that `window='auto'` takes, and its bytes."""
    step = bytes_per_step(executor)
    steps = pick_window(MOST_STEPS, step, budget)
    return dict(
        trace_bytes=sum(v.size * v.dtype.itemsize for v in executor.shapes.values()),
        block_steps=steps,
        block_bytes=steps * step,
    )


def bytes_per_step(executor: Executor) -> int:
    """What one step keeps in a block: its states and, for each relation, x, the credit of y and its slopes; and what the carrier itself keeps."""
    size = lambda v: v.aval.size * v.aval.dtype.itemsize
    program, layout = executor.program, executor.program.layout
    total = sum(size(v) for v in [*program.step.hidden_vars, *program.step.other_vars]) * 2
    total += getattr(executor.carrier, 'step_bytes', 0) if executor.single_step else 0
    for r in layout.relations:
        rows = sum(
            len(layout.units[g.index].rows) for g in r.hidden_groups if g.index in layout.units
        )
        total += size(r.y_var) * (2 + 2 * rows) + (size(r.x_var) if r.x_var is not None else 0)
    return total
