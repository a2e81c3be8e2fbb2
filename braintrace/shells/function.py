"""The learner of a plain function: pure functions over pytrees."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..compat.records import ETraceGraph, published
from ..frontends.base import form_of
from ..frontends.forms import Skeleton
from ..frontends.function import check_arrays, check_learns
from ..frontends.function import trace as trace_step
from ..graph.compile import Graph, compile_step
from ..graph.diagnostics import emit
from ..graph.flatten import ControlFlowPolicy
from ..learn.cache import Cache, signature
from ..learn.choice import is_auto
from ..learn.compiled import compile_traced
from ..learn.core import KEEP, RAISE
from ..learn.how import how_to_learn, how_to_learn_best
from ..learn.locating import refuse, refuse_losses
from ..learn.options import (
    first_of,
    per_step,
    refuse_bad_mask,
    refuse_constant,
    refuse_unused,
    sequence_length,
    spread_mask,
    unread,
    weigh,
)
from ..learn.per_device import on_any_mesh, per_device, split_of
from ..learn.records import Block, Run
from ..learn.shapes import (
    check_time,
    explained,
    explained_loss,
    explained_order,
    inputs_for,
    refuse_others,
    same_shapes,
)
from ..rules.signals import Extra
from ..show.code.learner import code_of
from ..show.code.signatures import of_function
from ..show.report import CompilationReport
from .packing import CompiledFunction, pack, same_after, same_in_carry, unpack
from .plain_runs import Carry, PlainRunMixin, check_carry_type, check_for_grad, only_loss

LARGE = 100_000  # numbers that a program may have as constants
_REMEDY = 'Samples are the second axis of `xs`, after time; `init` takes a state for any number.'


class Example(NamedTuple):
    """The model without its parameters, and the shapes of these, of the state and of one step's
    inputs, for which a learner was compiled."""

    skeleton: Skeleton
    params: list[Any]
    state: Any
    inputs: tuple


class PureLearner(PlainRunMixin):
    """Online gradients of `step(params, state, *inputs) -> (state, out)`; made by
    `braintrace.compile`.

    `params` is any pytree, an Equinox module, a Flax NNX module or the variables of a Linen module.
    Its inexact arrays are the parameters, everything else in it is constant. Gradients come in the
    form of the framework's own `grad`: a tree with None for what is constant, as by
    `eqx.filter_grad`, or for NNX a `nnx.State`.

    Args:
        step: the function.
        rule: by name, class or configuration, or a `Rule`.
        params: the parameters; they and what follows are only looked at for their shapes.
        state: of one step; a carry may have another number of samples.
        inputs: of one step.
        vjp_method: 'single-step', the classical rule, or 'multi-step', exact credit inside each
            window.
        trace: which weights may have a trace: 'all', 'marked', or a function of the parameter's
            path.
        control_flow: what to do with control flow inside a step.
        memory_budget: bytes that one block of steps may keep, for `window='auto'`, as a number or
            as text ('10MB').
        nonfinite: 'keep' takes numbers as they come. With 'skip' a sample whose state, trace or
            gradient would not be finite after a step keeps those it had, adds nothing, and is
            counted in `carry.skipped`. With 'raise' an error says which it was, in which step.
        options: of the rule.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> def leaky(p, h, x):
        ...     h = 0.9 * h + x @ p['W']
        ...     return h, h
        >>> params, state, xs = {'W': jnp.ones((3, 2))}, jnp.zeros(2), jnp.ones((5, 3))
        >>> learner = braintrace.compile(leaky, 'd_rtrl', params, state, xs[0])
        >>> carry = learner.init(params, state)
        >>> def loss(out, y):
        ...     return ((out - y) ** 2).sum()
        >>> (grads, losses), carry = learner.grad(loss, params, carry, xs, jnp.zeros((5, 2)))
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
        memory_budget: float | str | None = None,
        nonfinite: str = KEEP,
        on_traces: Callable | None = None,
        **options: Any,
    ):
        said: dict[str, Any] = dict(
            vjp_method=vjp_method,
            policy=control_flow,
            traced=trace,
            budget=memory_budget,
            nonfinite=nonfinite,
            on_traces=on_traces,
        )
        self._step, self._cache = step, Cache()
        self._take_apart = form_of(params).take_apart
        check_arrays(state, 'state')
        for i, x in enumerate(inputs):
            check_arrays(x, f'inputs[{i}]')
        leaves, skeleton = self._take_apart(params)
        check_learns(params, leaves)

        def graph_of(policy: ControlFlowPolicy) -> Graph:
            traced = trace_step(step, params, state, *inputs)
            return compile_step(traced.step, policy=policy, trace=trace)

        if not is_auto(rule):
            self._how = how_to_learn(rule, options, **said)
        with explained_order(step, params, state, inputs):
            if is_auto(rule):
                self._how = how_to_learn_best(graph_of, options, **said)
            self._example = Example(skeleton, *jax.tree.map(_shape, (leaves, state, inputs)))
            compiled = self._compiled(None, params, state, inputs, ())
        if compiled.core.carrier.follows_relations:
            emit(compiled.core.graph.diagnostics)
        self._closes_over_much = sum(map(jnp.size, compiled.captured)) > LARGE

    @property
    def rule(self) -> Any:
        """The learning rule."""
        return self._how.rule

    @property
    def graph(self) -> ETraceGraph:
        """What depends on what in the step."""
        return published(self.compiled_step().core.graph, perturbed=False)

    @property
    def report(self) -> CompilationReport:
        """What the compiler decided for each parameter, and the bytes of traces and blocks."""
        core = self.compiled_step().core
        return CompilationReport(self.graph, core=core, choice=self._how.choice)

    def code(self, backend: str = 'jax', *, modulator: Any = 1.0) -> str:
        """The rule of this model as one source file that stands alone: what the learner runs in
        windows of one step.

        Args:
            backend: 'jax', or 'numpy' for a file that imports numpy alone.
            modulator: an example, which says its shape, of the one that some rules take.
        """
        compiled, rule = self.compiled_step(), self._how.rule
        signature = of_function(self._step, rule.name, compiled.traced, self._example, backend)
        return code_of(compiled.core, signature, backend, modulator if rule.modulated else None)

    def leaves_of(self, params: Any) -> list[Any]:
        """The flat leaves of parameters, as the core takes them."""
        return self._take_apart(params)[0]

    def compiled_step(self) -> CompiledFunction:
        """The step as a program and the core that learns it, for values like the example's."""
        skeleton, params, state, inputs = self._example
        return self._compiled(None, skeleton.with_params(params), state, inputs, ())

    def _compiled(
        self, loss_fn: Callable | None, params: Any, state: Any, inputs: tuple, targets: tuple
    ) -> CompiledFunction:
        """The step, with the loss if there is one, for values like these."""
        leaves, skeleton = self._take_apart(params)

        def program(params, state, inputs, targets):
            state, out = self._step(params, state, *inputs)
            with explained_loss(out, targets):
                return state, loss_fn(out, *targets)

        def make() -> CompiledFunction:
            f = self._step if loss_fn is None else program
            given = inputs if loss_fn is None else (inputs, targets)
            refuse_others(self._example.params, leaves, self._example.skeleton.names)
            known = self._example.state, *self._example.inputs
            with explained(state, (*inputs, *targets), _REMEDY, known):
                traced = trace_step(f, params, state, *given)
            refuse_unused(traced.step, leaves)
            return compile_traced(traced, self._how, graded=None if loss_fn is None else (0,))

        key = 'step', loss_fn, skeleton, signature(leaves, state, inputs, targets)
        return self._cache.get(key, make, lambda compiled: compiled.lasting)

    def init(self, params: Any, state: Any, shardings: Carry | None = None) -> Carry:
        """The carry at the beginning: this state, of any number of samples, no influence yet.

        Args:
            params: the parameters.
            state: of the model.
            shardings: where it is made on many devices, as `shardings(mesh)` says.
        """
        leaves, skeleton = self._take_apart(params)

        def begin(leaves: list[Any], state: Any) -> Carry:
            _, _, known, inputs = self._example
            inputs = inputs_for(state, known, inputs, lambda: self.compiled_step().core)
            core = self._compiled(None, skeleton.with_params(leaves), state, inputs, ()).core
            named = {str(key): trace for key, trace in core.init(leaves).items()}
            steps, skipped = jnp.zeros((2,), jnp.int32)  # buffers of their own: may be donated
            return Carry(state, named, steps, None if core.nonfinite == KEEP else skipped)

        if shardings is not None:
            return jax.jit(begin, out_shardings=shardings)(leaves, state)
        split = split_of(leaves, state)
        return per_device(begin, (leaves, state), split, partial(same_in_carry, self._shared))

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
            loss_fn: the loss of one step, a scalar or one for each sample. A new function is
                compiled anew, as by `jax.jit`: define it once.
            params: the parameters, or the model that holds them.
            carry: from `init` or the last call.
            xs: the inputs, with time as first axis; a tuple if the step takes several.
            targets: further sequences, given to `loss_fn`.
            window: steps in a block, or 'auto'.
            mask: weights of the losses, `(T,)` or `(T, batch)`. Numbers that are not finite are not
                read where it is zero.
            reduction: 'mean' or 'sum' over the (weighted) losses.
            fresh: the sequence stands alone: it starts from zero traces and leaves none.
            progress: show a progress bar.
            modulator: for the rules that take one: a number, an array with time as first axis, or
                one of these for each group by number.
            signal: what the rule's signal takes from outside (for 'dni' the parameters of the
                guess).

        Returns:
            `((grads, losses), carry)`.
        """
        check_for_grad(loss_fn, carry)
        self.rule.check_modulator(modulator)
        refuse_bad_mask(mask)
        inputs = self._split(xs, carry)
        length = sequence_length([*inputs, *targets])
        leaves, skeleton = self._take_apart(params)

        def make() -> Callable:
            self._cache.count(loss_fn, 'loss_fn')

            def gradient(length, split, captured, leaves, carry, inputs, targets, mask, extra):
                params, data = skeleton.with_params(leaves), first_of((inputs, targets))
                compiled = self._compiled(loss_fn, params, carry.state, *data)
                core = compiled.core
                steps = core.sizes.window_length(window, length)
                run = Run(length, steps, fresh, progress, split)
                loss = only_loss(core)
                if not self.rule.modulated:
                    refuse_constant('loss_fn', core)
                given, mask = mask, spread_mask(mask, (length, *loss.shape), loss.dtype)
                data = unread(jax.tree.leaves((inputs, targets)), given)
                carried = unpack(compiled, carry)
                weights = compiled.weights(leaves, captured)
                cotangents = [weigh(mask, reduction)]
                grads, [losses], after = core.grad(weights, carried, data, cotangents, run, extra)
                new = pack(compiled, after)
                if fresh:
                    new = new._replace(traces=carry.traces, steps=carry.steps)
                return (grads, losses), new

            return jax.jit(gradient, static_argnums=(0,))

        key = 'grad', loss_fn, window, reduction, fresh, progress, skeleton
        extra = Extra(signal, per_step(modulator, length))
        jitted = partial(self._cache.get(key, make, lambda _: skeleton.lasting), length)
        captured = self._large_constants(loss_fn, params, carry, inputs, targets)
        split = split_of(leaves, (carry, inputs))
        given = split, captured, leaves, carry, inputs, targets, mask, extra
        like = (leaves, None), carry
        made = on_any_mesh(jitted, given, like, inputs, split, partial(same_after, self._shared))
        (grads, losses), new = made
        if self._how.nonfinite == RAISE:
            data = first_of((inputs, targets))
            compiled = self._compiled(loss_fn, params, carry.state, *data)
            data = unread(jax.tree.leaves((inputs, targets)), mask)
            block = Block(compiled.weights(leaves), data, length, [losses], extra, fresh)
            refuse_losses(compiled.core, unpack(compiled, carry), block, new)
        return (skeleton.gradients(grads), losses), new

    def evolve(
        self, params: Any, carry: Carry, xs: Any, *, window: Any = 'auto'
    ) -> tuple[Any, Carry]:
        """Run over a sequence without a loss: the outputs, and the carry with its traces
        advanced."""
        check_carry_type(carry, 'evolve(params, carry, xs)')
        inputs = self._split(xs, carry)
        length = sequence_length(inputs)
        leaves, skeleton = self._take_apart(params)

        def make() -> Callable:
            def go_on(length, split, captured, leaves, carry, inputs):
                params = skeleton.with_params(leaves)
                compiled = self._compiled(None, params, carry.state, first_of(inputs), ())
                steps = compiled.core.sizes.window_length(window, length)
                run = Run(length, steps, split=split)
                weights, carried = compiled.weights(leaves, captured), unpack(compiled, carry)
                data = jax.tree.leaves(inputs)
                outs, after = compiled.core.evolve(weights, carried, data, run)
                return compiled.traced.out_tree.unflatten(outs), pack(compiled, after)

            return jax.jit(go_on, static_argnums=(0,))

        key = 'evolve', window, skeleton
        jitted = partial(self._cache.get(key, make, lambda _: skeleton.lasting), length)
        captured = self._large_constants(None, params, carry, inputs, ())
        split = split_of(leaves, (carry, inputs))
        given = split, captured, leaves, carry, inputs
        like = None, carry
        outs, new = on_any_mesh(
            jitted, given, like, inputs, split, partial(same_after, self._shared)
        )
        if self._how.nonfinite == RAISE:
            compiled = self._compiled(None, params, carry.state, first_of(inputs), ())
            block = Block(compiled.weights(leaves), jax.tree.leaves(inputs), length)
            refuse(compiled.core, unpack(compiled, carry), block, new)
        return outs, new

    def _shared(self) -> set[str]:
        """The names of the traces that all samples share."""
        return {str(key) for key in self.compiled_step().core.shared}

    def _large_constants(
        self, loss_fn: Callable | None, params: Any, carry: Carry, inputs: Any, targets: Any
    ) -> list[Any] | None:
        """What the step closes over, where that is large: an argument of the compiled program, of
        which XLA does not look at every number as it does at constants."""
        if not self._closes_over_much:
            return None
        data = first_of((inputs, targets))
        return self._compiled(loss_fn, params, carry.state, *data).captured

    def _split(self, xs: Any, carry: Carry) -> tuple:
        """The sequences of the step's inputs."""
        n = len(self._example.inputs)
        if n == 1:
            xs = (xs,)
        if not isinstance(xs, tuple) or len(xs) != n:
            raise TypeError(
                f'`xs` must be a tuple of {n} sequences, one for each input of the step.'
            )
        if same_shapes(xs, self._example.inputs):
            raise ValueError(
                f'`xs` has no time axis: its shape is that of the input of one step, '
                f'{jax.tree.map(jnp.shape, xs[0])}. Time is the first axis of a sequence; one step '
                'is a sequence of length 1, `x[None]`.'
            )
        check_time(xs, carry.state, self._example.inputs, self._example.state)
        return xs


def _shape(a: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(a), jnp.result_type(a))
