"""The learner of a plain function: three pure functions over pytrees."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..frontends.function import moving, trace
from ..graph.etrace_graph import ETraceGraph, compile_step
from ..graph.flatten import ControlFlowPolicy
from ..learn.core import Carried, Executor, memory_of
from ..learn.options import (
    BUDGET,
    executor_of,
    per_step,
    resolve,
    sequence_length,
    weigh,
    window_length,
)
from ..rules.signals import Extra


class Carry(NamedTuple):
    """What goes on from call to call: the model's state, the traces by name, the number of steps done."""

    state: Any
    traces: dict[str, Any]
    steps: Any


class PureLearner:
    """Online gradients of `step(params, state, *inputs) -> (state, out)`; made by `braintrace.compile`.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> def leaky(p, h, x):
        ...     h = 0.9 * h + x @ p['W']
        ...     return h, h
        >>> params, state, xs = {'W': jnp.ones((3, 2))}, jnp.zeros(2), jnp.ones((5, 3))
        >>> learner = braintrace.compile(leaky, 'd_rtrl', params, state, xs[0])
        >>> carry = learner.init(params, state)
        >>> (grads, losses), carry = learner.grad(lambda out, y: ((out - y) ** 2).sum(), params, carry, xs, jnp.zeros((5, 2)))
        >>> grads['W'].shape, losses.shape, int(carry.steps)
        ((3, 2), (5,), 5)
    """

    def __init__(
        self,
        step: Callable,
        rule: Any,
        params: Any,
        state: Any,
        *inputs: Any,
        vjp_method: str | None = None,
        trace: Any = 'all',
        control_flow: ControlFlowPolicy | None = None,
        memory_budget: int = BUDGET,
        **options: Any,
    ):
        self.rule, self._single_step = resolve(rule, vjp_method, options)
        self._step, self._options, self._budget = step, options, memory_budget
        self._policy, self._trace, self._inputs = control_flow, trace, len(inputs)
        self._made: dict[Any, tuple[Executor, Any]] = {}
        self._jitted: dict[Any, Callable] = {}
        self._example = params, state, inputs
        self.graph: ETraceGraph = self._executor(None, params, state, inputs, ())[
            0
        ].program.layout.graph

    @cached_property
    def report(self):
        """What the compiler decided."""
        from ..show.report import CompilationReport

        executor, _ = self._executor(None, *self._example, ())
        return CompilationReport(self.graph, memory_of(executor, self._budget))

    def _executor(
        self, loss_fn: Callable | None, params: Any, state: Any, inputs: tuple, targets: tuple
    ) -> tuple[Executor, Any]:
        leaves, tree = jax.tree.flatten((params, state, inputs, targets))
        key = loss_fn, tree, tuple((jnp.shape(a), jnp.result_type(a)) for a in leaves)
        if key not in self._made:

            def program(params, state, inputs, *targets):
                state, out = self._step(params, state, *inputs)
                return state, out if loss_fn is None else loss_fn(out, *targets)

            step, out_tree = trace(program, params, state, inputs, *targets)
            graph = compile_step(step, policy=self._policy, trace=self._trace, perturbed=False)
            self._made[key] = (
                executor_of(
                    graph,
                    self.rule,
                    self._single_step,
                    self._options,
                    None if loss_fn is None else (0,),
                ),
                out_tree,
            )
        return self._made[key]

    def init(self, params: Any, state: Any) -> Carry:
        """The carry at the beginning: this state, no influence yet."""
        inputs = self._example[2]
        executor, _ = self._executor(None, params, state, inputs, ())
        return Carry(state, executor.init(jax.tree.leaves(params)), jnp.zeros((), jnp.int32))

    def grad(
        self,
        loss_fn: Callable,
        params: Any,
        carry: Carry,
        xs: Any,
        *targets: Any,
        window: Any = 'auto',
        mask: Any = None,
        reduction: str = 'mean',
        fresh: bool = False,
        progress: bool = False,
        modulator: Any = None,
        signal: Any = None,
    ) -> tuple[tuple[Any, Any], Carry]:
        """Online gradient of `loss_fn(out, *target)` over a sequence, and the losses of its steps.

        Args:
            loss_fn: the loss of one step, a scalar or one for each sample.
            params: the parameters.
            carry: from `init` or the last call.
            xs: the inputs, with time as first axis; a tuple if the step takes several.
            targets: further sequences, given to `loss_fn`.
            window: steps in a block, or 'auto'.
            mask: weights of the losses, `(T,)` or `(T, batch)`.
            reduction: 'mean' or 'sum' over the (weighted) losses.
            fresh: the sequence stands alone: it starts from zero traces and leaves none.
            progress: show a progress bar.
            modulator: for the rules that take one: a number, an array with time as first axis, or one of these for each group by number.
            signal: what the rule's signal takes from outside (for 'dni' the parameters of the guess).

        Returns:
            `((grads, losses), carry)`.
        """
        self.rule.check_modulator(modulator)
        inputs = self._split(xs)
        length = sequence_length([*inputs, *targets])
        key = loss_fn, window, reduction, fresh, progress
        if key not in self._jitted:
            self._jitted[key] = jax.jit(
                lambda *a: self._grad(loss_fn, window, reduction, fresh, progress, *a),
                static_argnums=(0,),
            )
        return self._jitted[key](
            length, params, carry, inputs, targets, mask, Extra(signal, per_step(modulator, length))
        )

    def _grad(
        self,
        loss_fn,
        window,
        reduction,
        fresh,
        progress,
        length,
        params,
        carry,
        inputs,
        targets,
        mask,
        extra,
    ):
        first = lambda t: jax.tree.map(lambda a: a[0], t)
        executor, _ = self._executor(loss_fn, params, carry.state, first(inputs), first(targets))
        [loss] = self._scalar_or_by_sample(executor.program.step.outs)
        weights, _ = weigh(mask, (length, *loss.aval.shape), loss.aval.dtype, reduction)
        carried = self._unpack(executor, carry)
        leaves = jax.tree.leaves((inputs, targets))
        steps = window_length(window, length, executor, self.rule.name == 'bptt', self._budget)
        grads, [losses], carried = executor.grad(
            jax.tree.leaves(params),
            carried,
            leaves,
            [weights],
            length,
            steps,
            fresh,
            progress,
            extra,
        )
        grads = jax.tree.unflatten(jax.tree.structure(params), grads)
        traces, done = (carry.traces, carry.steps) if fresh else (carried.traces, carried.steps)
        return (grads, losses), self._pack(carry, carried)._replace(traces=traces, steps=done)

    def evolve(
        self, params: Any, carry: Carry, xs: Any, *, window: Any = 'auto'
    ) -> tuple[Any, Carry]:
        """Run over a sequence without a loss: the outputs, and the carry with its traces advanced."""
        inputs = self._split(xs)
        length = sequence_length(inputs)
        if ('evolve', window) not in self._jitted:
            self._jitted['evolve', window] = jax.jit(
                lambda *a: self._evolve(window, *a), static_argnums=(0,)
            )
        return self._jitted['evolve', window](length, params, carry, inputs)

    def _evolve(self, window, length, params, carry, inputs):
        executor, out_tree = self._executor(
            None, params, carry.state, jax.tree.map(lambda a: a[0], inputs), ()
        )
        carried = self._unpack(executor, carry)
        steps = window_length(window, length, executor, False, self._budget)
        outs, carried = executor.evolve(
            jax.tree.leaves(params), carried, jax.tree.leaves(inputs), length, steps
        )
        return out_tree.unflatten(outs), self._pack(carry, carried)

    def _split(self, xs: Any) -> tuple:
        if self._inputs == 1:
            return (xs,)
        if not isinstance(xs, tuple) or len(xs) != self._inputs:
            raise TypeError(
                f'`xs` must be a tuple of {self._inputs} sequences, one for each input of the step.'
            )
        return xs

    @staticmethod
    def _scalar_or_by_sample(outs):
        if len(outs) != 1 or outs[0].aval.ndim > 1:
            raise ValueError(
                '`loss_fn` must return one loss, a scalar or one for each sample, got '
                + (f'shape {outs[0].aval.shape}.' if len(outs) == 1 else f'{len(outs)} arrays.')
            )
        return outs

    @staticmethod
    def _unpack(executor: Executor, carry: Carry) -> Carried:
        wanted = executor.shapes
        if {k: (v.shape, v.dtype) for k, v in wanted.items()} != {
            k: (v.shape, v.dtype) for k, v in carry.traces.items()
        }:
            raise ValueError(
                '`carry` holds traces of another model, rule or batch size. Make a new one with `init(params, state)`.'
            )
        leaves = jax.tree.leaves(carry.state)
        hidden, other = moving(leaves)
        return Carried(
            [leaves[i] for i in hidden], [leaves[i] for i in other], carry.traces, carry.steps
        )

    @staticmethod
    def _pack(carry: Carry, carried: Carried) -> Carry:
        leaves, tree = jax.tree.flatten(carry.state)
        hidden, other = moving(leaves)
        at = dict(zip([*hidden, *other], [*carried.hidden, *carried.other], strict=True))
        return Carry(
            tree.unflatten([at[i] for i in range(len(leaves))]), carried.traces, carried.steps
        )
