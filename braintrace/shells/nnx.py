"""Learners of Flax NNX modules that hold their state, themselves NNX modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from ..compat.records import ETraceGraph, published
from ..frontends.base import HIDDEN, OTHER, PARAM
from ..frontends.nnx import Framework, Memory, variables_of
from ..graph.compile import Graph
from ..graph.flatten import ControlFlowPolicy
from ..learn import drivers
from ..learn.choice import Choice, choose_for_learner, is_auto
from ..learn.core import BUDGET, KEEP
from ..learn.data import first_step
from ..learn.how import how_to_learn
from ..learn.options import per_step
from ..learn.stateful import (
    CompiledModel,
    Example,
    Learning,
    Own,
    compile_step,
    is_driven,
    nothing_learned,
)
from ..rules.signals import Extra
from ..show.code.learner import code_of_model
from ..show.report import CompilationReport
from ..step import dotted
from .drivers import SequenceDriverMixin
from .long_runs import LongRunMixin


class NNXLearner(LongRunMixin, SequenceDriverMixin, nnx.Module):
    """A learner of a `flax.nnx.Module`: call it like the model, differentiate it like the model,
    and the gradient is the online one. Made by `braintrace.compile`.

    Gradients are a `nnx.State`, as `nnx.grad` gives them. Parameters are the `nnx.Param` of the
    model; variables that are neither parameters nor hidden (random streams, batch statistics) are
    carried along.

    Args:
        model: the module. Its recurrent state is in variables that `hidden` marks.
        rule: by name, by class, as an `ETraceConfig` or as a `Rule` of one's own.
        hidden: the type of these variables, or another filter of NNX.
        vjp_method: 'single-step', the classical rule, or 'multi-step', exact credit inside each
            call's window.
        control_flow: what to do with control flow inside a step.
        trace: which weights may have a trace: 'all', 'marked', or a function of the parameter's
            path.
        memory_budget: bytes that one block of steps may keep, for `window='auto'`, as a number or
            as text ('10MB').
        nonfinite: 'keep' takes numbers as they come. With 'skip' a sample whose state, trace or
            gradient would not be finite after a step keeps those it had, adds nothing, and is
            counted in `skipped`. With 'raise' an error says which it was, in which step.
        on_traces: a function `{name: trace} -> {name: trace}` that the traces go through after each
            step.
        choice: how the compiler found the rule, where that was left to it; the report tells it.
        options: of the rule.

    Example:
        >>> import jax.numpy as jnp, optax, braintrace
        >>> from flax import nnx
        >>> class Hidden(nnx.Variable):
        ...     pass
        >>> class Net(nnx.Module):
        ...     def __init__(self, rngs):
        ...         self.cell, self.h = nnx.GRUCell(3, 8, rngs=rngs), Hidden(jnp.zeros(8))
        ...         self.out = nnx.Linear(8, 2, rngs=rngs)
        ...     def __call__(self, x):
        ...         self.h[...], y = self.cell(self.h[...], x)
        ...         return self.out(y)
        >>> net = Net(nnx.Rngs(0))
        >>> learner = braintrace.compile(net, 'rtrl', jnp.ones(3), hidden=Hidden)
        >>> optimizer = nnx.Optimizer(net, optax.adam(1e-2), wrt=nnx.Param)
        >>> def step(x):
        ...     return ((learner(x) - 1) ** 2).mean()
        >>> def update(grads):
        ...     optimizer.update(net, grads)
        >>> live = learner.etrace_stream(step_fn=step, update=update)
        >>> losses = [float(live(jnp.ones(3))) for _ in range(20)]
        >>> losses[-1] < losses[0]
        True
    """

    def __init__(
        self,
        model: Any,
        rule: Any,
        *,
        hidden: Any,
        vjp_method: str | None = None,
        control_flow: ControlFlowPolicy | None = None,
        trace: Any = 'all',
        memory_budget: float | str = BUDGET,
        nonfinite: str = KEEP,
        on_traces: Callable | None = None,
        choice: Choice | None = None,
        **options: Any,
    ):
        self.model = model
        self._framework = Framework(hidden)
        self._how = how_to_learn(
            rule,
            options,
            vjp_method=vjp_method,
            policy=control_flow,
            traced=trace,
            budget=memory_budget,
            nonfinite=nonfinite,
            on_traces=on_traces,
            choice=choice,
        )
        self._own = Own()
        self._example: Example | None = None
        self._memory = Memory({'steps': jnp.zeros((), jnp.int32), 'traces': {}})

    # ---- what was compiled ----

    def _parts(self) -> Learning:
        return Learning(
            self._framework,
            self.model,
            self._run_model,
            self._memory,
            self._how,
            self._own,
            self._signal_input,
        )

    def _run_model(self, *args: Any) -> Any:
        return self.model(*args)

    def _signal_input(self, modulator: Any, length: int, window: int) -> Extra:
        self.rule.check_modulator(modulator)
        return Extra(None, per_step(modulator, length))

    def _learning(self) -> Learning:
        if self._example is None:
            raise ValueError(
                'The learner is not compiled yet: call `compile_graph(*example_inputs)`, or make '
                'it with `braintrace.compile`.'
            )
        return self._parts()

    def compile_graph(self, *args: Any) -> None:
        """Compile the model for inputs like these, and begin with zero traces."""
        inputs = first_step(args)
        compiled = compile_step(self._parts(), inputs)
        self._example = Example(jax.tree.map(_shape, inputs))
        self._memory = Memory(nothing_learned(compiled))
        self._parts().remember(compiled)

    def compiled_step(self) -> CompiledModel:
        """The step as a program and the core that learns it, for inputs like those it was compiled
        for."""
        learning = self._learning()
        return compile_step(learning, self._example.inputs)  # type: ignore[union-attr]

    @property
    def rule(self) -> Any:
        """The learning rule."""
        return self._how.rule

    @property
    def graph(self) -> ETraceGraph:
        """What depends on what in the model."""
        return published(self.compiled_step().core.graph, perturbed=False)

    @property
    def report(self) -> CompilationReport:
        """What the compiler decided for each parameter, and the bytes of traces and blocks."""
        core = self.compiled_step().core
        return CompilationReport(self.graph, core=core, choice=self._how.choice)

    def code(self, backend: str = 'jax', *, modulator: Any = 1.0) -> str:
        """The rule of this model as one source file, see `PureLearner.code`; parameters, states and
        gradients are dicts of arrays by name there."""
        learning, compiled = self._learning(), self.compiled_step()
        inputs = self._example.inputs  # type: ignore[union-attr]
        return code_of_model(learning, compiled, inputs, backend, modulator)

    def _of_role(self, role: str) -> dict[tuple, Any]:
        states = variables_of(self.model)
        return {p: v for p, v in states.items() if self._framework.role(v, p) == role}

    @property
    def param_states(self) -> dict[tuple, Any]:
        """The parameters of the model by path."""
        return self._of_role(PARAM)

    @property
    def hidden_states(self) -> dict[tuple, Any]:
        """The hidden variables of the model by path."""
        return self._of_role(HIDDEN)

    @property
    def other_states(self) -> dict[tuple, Any]:
        """The variables of the model that are neither parameters nor hidden, by path."""
        return self._of_role(OTHER)

    # ---- traces ----

    def reset_state(self) -> None:
        """Forget: zero traces, and the count of steps. The variables of the model stay as they
        are."""
        self._memory.value = nothing_learned(self.compiled_step())

    @property
    def steps(self) -> jax.Array:
        """The number of steps done."""
        return self._memory.value['steps']

    @property
    def skipped(self) -> Any:
        """How many steps of samples were left out because they were not finite, with
        `nonfinite='skip'`."""
        return self._memory.value.get('skipped', 0)

    @property
    def etrace(self) -> dict[str, jax.Array]:
        """The traces by name."""
        return self._memory.value['traces']

    def get_etrace_of(self, weight: Any) -> dict[str, jax.Array]:
        """The traces of a parameter, given as its variable or its path, by name; empty where its
        rule has nothing to carry for it."""
        core = self.compiled_step().core
        path = next((p for p, v in self.param_states.items() if v is weight), weight)
        path = (path,) if isinstance(path, str) else tuple(path)
        mine = [key for key in core.shapes if key.is_of(path)]
        if not mine and not any(path in r.paths for r in core.graph.relations):
            raise ValueError(f'{path} has no trace. The report (`learner.report.show()`) says why.')
        return {str(key): self.etrace[str(key)] for key in mine}

    # ---- calls ----

    def __call__(self, *args: Any, modulator: Any = None) -> Any:
        """One step, or a window of steps given as `MultiStepData`; `modulator` is for the rules
        that take one."""
        if not is_driven(self._memory, args, modulator):
            return drivers.update(self._learning(), args, modulator)
        return self._run_model(*first_step(args))

    def _weights(self) -> dict[tuple, Any]:
        return self.param_states

    def _chosen(self, weights: Any) -> dict[tuple, Any]:
        """The parameters that a filter of NNX picks, as `wrt` does for `nnx.grad`."""
        params = self.param_states
        if weights is None:
            return params
        picked = nnx.filterlib.to_predicate(weights)
        chosen = {path: v for path, v in params.items() if picked(path, v)}
        if not chosen:
            raise ValueError(f'`weights` picks none of the parameters {[*map(dotted, params)]}.')
        return chosen

    def _schedule(self) -> tuple[str, int | None]:
        return 'per_step', None


def compile_module(
    model: Any,
    algorithm: Any,
    *example_inputs: Any,
    hidden: Any = None,
    verbose: int = 0,
    **options: Any,
) -> NNXLearner:
    """A compiled learner of a module of NNX."""
    if hidden is None:
        raise TypeError(
            f'`model` is the Flax NNX module {type(model).__name__}: say which of its variables '
            'are recurrent state, `compile(module, rule, *inputs, hidden=Hidden)` with '
            '`class Hidden(nnx.Variable)`. If it holds none, give the step and the state too: '
            '`compile(step, rule, module, state, *inputs)`, where `step(module, state, *inputs)` '
            'returns `(state, out)`.'
        )
    elsewhere = {'batch_size', 'seed', 'vmap'} & options.keys()
    if elsewhere:
        raise TypeError(
            f'`{min(elsewhere)}` is for modules of brainstate. A module of NNX makes its states '
            'itself: give them the batch as first axis.'
        )
    if not example_inputs:
        raise ValueError('`compile` needs example inputs of one step.')
    if verbose not in (0, 1, 2):
        raise ValueError(f'`verbose` must be 0, 1 or 2, got {verbose!r}.')

    def compiled(rule: Any, **options: Any) -> NNXLearner:
        learner = NNXLearner(model, rule, hidden=hidden, **options)
        learner.compile_graph(*example_inputs)
        return learner

    def graph_of(**options: Any) -> Graph:
        return compiled('bptt', **options).compiled_step().core.graph

    if is_auto(algorithm):
        algorithm, options = choose_for_learner(graph_of, options)
    learner = compiled(algorithm, **options)
    if verbose:
        learner.report.show(verbose)
    return learner


def _shape(a: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(a), jnp.result_type(a))
