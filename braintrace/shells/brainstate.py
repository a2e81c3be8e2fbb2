"""Learners of brainstate models, themselves brainstate modules."""

from __future__ import annotations

import pickle
from abc import abstractmethod
from typing import Any

import jax
import jax.numpy as jnp

from ..compat.executors import ETraceGraphExecutor
from ..compat.module_info import module_info
from ..compat.records import ETraceGraph, published
from ..frontends import brainstate as frontend
from ..frontends.pickling import dumps
from ..learn import drivers
from ..learn.core import Core
from ..learn.data import first_step
from ..learn.how import How, how_to_learn
from ..learn.options import per_step
from ..learn.stateful import (
    CompiledModel,
    Example,
    Learning,
    Own,
    compile_step,
    is_driven,
    latest_step,
    nothing_learned,
)
from ..plan.keys import TraceKey
from ..rules.config import ETraceConfig
from ..rules.options import count
from ..rules.registry import BY_NAME
from ..rules.rule import Rule
from ..rules.signals import Extra
from ..show.code.learner import code_of_model
from ..show.report import CompilationReport
from .drivers import SequenceDriverMixin
from .long_runs import LongRunMixin
from .memory import EligibilityTrace, Part

brainstate: Any = frontend.brainstate


class Learner(LongRunMixin, SequenceDriverMixin, brainstate.nn.Module):  # type: ignore[misc]
    """What learners of brainstate models have in common. What they keep for themselves is in plain
    objects, since brainstate looks for states in every container of a module."""

    rule: Rule
    config: ETraceConfig | None
    modulator: Any = None

    def __init__(self, name: str | None = None):
        super().__init__(name=name)
        self._memory = EligibilityTrace({'steps': jnp.zeros((), jnp.int32), 'traces': {}})
        self._own = Own()
        self._example: Example | None = None

    @property
    @abstractmethod
    def _model(self) -> Any:
        """The model whose states are followed."""

    @property
    @abstractmethod
    def how(self) -> How:
        """What the user has said."""

    @abstractmethod
    def _run_model(self, *args: Any) -> Any:
        """One step of the model."""

    # ---- copies: brainstate's own `__deepcopy__` makes one, a file goes this way ----

    def __reduce__(self) -> tuple:
        return _unpickled, (type(self), dumps(vars(self)))

    # ---- what was compiled ----

    def _parts(self) -> Learning:
        return Learning(
            frontend,
            self._model,
            self._run_model,
            self._memory,
            self.how,
            self._own,
            self.signal_input,
        )

    @property
    def example(self) -> tuple | None:
        """The shapes of one step's inputs that it was compiled for; None before that."""
        return None if self._example is None else self._example.inputs

    def _learning(self) -> Learning:
        self._require_compiled()
        return self._parts()

    def _require_compiled(self) -> None:
        if not self.is_compiled:
            raise ValueError(
                'The learner is not compiled yet: call `compile_graph(*example_inputs)`, or make '
                'it with `braintrace.compile`.'
            )

    def compiled_step(self) -> CompiledModel:
        """The step as a program and the core that learns it, for inputs like the example's."""
        learning = self._learning()
        return compile_step(learning, self.example)  # type: ignore[arg-type]

    @property
    def _core(self) -> Core:
        return self.compiled_step().core

    @property
    def is_compiled(self) -> bool:
        """Whether there is a graph yet."""
        return self._example is not None

    @property
    def graph(self) -> ETraceGraph:
        """What depends on what in the model."""
        compiled = self.compiled_step()

        def make() -> ETraceGraph:
            info = module_info(compiled.traced, self.how.policy, compiled.core.graph.analysis.uses)
            if self.config is None or not self.config.include_recurrent_mixing:
                return published(compiled.core.graph, info)
            return published(compiled.core.graph, info, mixing=True, sparse=self.config.sparse_n)

        return self._own.cache.get(('graph', compiled.core), make, lambda _: compiled.lasting)

    @property
    def report(self) -> CompilationReport:
        """What the compiler decided for each parameter, and the bytes of traces and blocks."""
        if not self.is_compiled:
            raise RuntimeError('There is no report before `compile_graph(*example_inputs)`.')
        return CompilationReport(self.graph, core=self._core, choice=self.how.choice)

    def code(self, backend: str = 'jax', *, modulator: Any = 1.0) -> str:
        """The rule of this model as one source file: see `PureLearner.code`."""
        return code_of_model(self._parts(), self.compiled_step(), self.example, backend, modulator)

    def show_graph(self, verbose: bool = True, return_msg: bool = False) -> str | None:
        """Print the report, or return it."""
        self._require_compiled()
        text = self.report.to_str(2)
        if verbose:
            print(text)
        return text if return_msg else None

    @property
    def path_to_states(self) -> dict[tuple, Any]:
        """The states of the model by path."""
        return frontend.all_states(self._model)

    @property
    def state_id_to_path(self) -> dict[int, tuple]:
        """The path of each state of the model, by the state's `id`."""
        return {id(s): p for p, s in self.path_to_states.items()}

    def _of_role(self, role: str) -> dict[tuple, Any]:
        return {p: s for p, s in self.path_to_states.items() if frontend.role(s) == role}

    @property
    def param_states(self) -> dict[tuple, Any]:
        """The parameters of the model by path."""
        return self._of_role('param')

    @property
    def hidden_states(self) -> dict[tuple, Any]:
        """The hidden states of the model by path."""
        return self._of_role('hidden')

    @property
    def other_states(self) -> dict[tuple, Any]:
        """The states of the model that are neither parameters nor hidden, by path."""
        return self._of_role('other')

    def compile_graph(self, *args: Any) -> None:
        """Compile the model for inputs like these; nothing happens if it is compiled for them
        already."""
        inputs, learning = first_step(args), self._parts()
        example = Example(jax.tree.map(_shape, inputs))
        compiled = compile_step(learning, inputs)
        same = self._example == example and not learning.states_were_replaced()
        if same and self._fits(compiled.core):
            return
        self._example = example
        # a new state, so that `vmap_new_states` around this call maps it too
        self._memory = EligibilityTrace(None)
        self.init_etrace_state(*inputs)
        self._parts().remember(compiled)

    def _fits(self, core: Core) -> bool:
        """Whether the traces are those of this core."""
        kept = self._memory.value['traces']
        wanted = {str(key): (a.shape, a.dtype) for key, a in core.shapes.items()}
        return all(
            text in kept and (kept[text].shape, kept[text].dtype) == like
            for text, like in wanted.items()
        )

    # ---- traces ----

    def init_etrace_state(self, *args: Any) -> None:
        """Zero traces for the compiled model."""
        self._memory.value = nothing_learned(self.compiled_step())

    def reset_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Forget: zero traces, and the count of steps. The states of the model stay as they are:
        `brainstate.nn.reset_all_states(learner, batch_size=)` begins anew with both. A new batch
        size takes effect with the model's own states, at the next call."""
        if batch_size is not None:
            count('batch_size', batch_size)
        memory, first = self._memory.value, {}
        if self.is_compiled:
            compiled = latest_step(self._parts()) or self.compiled_step()
            first = nothing_learned(compiled)['traces']
        traces = {}
        for name, old in memory['traces'].items():
            start = first.get(name, 0)
            if jnp.shape(start) != old.shape[old.ndim - jnp.ndim(start) :]:
                start = 0  # the model has other shapes by now: the next call makes new ones
            traces[name] = jnp.broadcast_to(start, old.shape).astype(old.dtype)
        zeros = {name: jnp.zeros_like(a) for name, a in memory.items() if name != 'traces'}
        self._memory.value = {**zeros, 'traces': traces}

    @property
    def running_index(self) -> Part:
        """The number of steps done."""
        return Part(self._memory, 'steps')

    @property
    def skipped(self) -> Any:
        """How many steps of samples were left out because they were not finite, with
        `nonfinite='skip'`."""
        return self._memory.value.get('skipped', 0)

    @property
    def etrace(self) -> dict[str, Part]:
        """The traces by name, each with its `value`."""
        names = self._memory.value['traces']
        return {name: Part(self._memory, 'traces', name) for name in names}

    def get_etrace_of(self, weight: Any) -> Any:
        """The traces of a parameter, given as its state or its path, by name; empty where its rule
        has nothing to carry for it."""
        return {str(key): trace for key, trace in self._traces_of(weight).items()}

    def _traces_of(self, weight: Any) -> dict[TraceKey, jax.Array]:
        core = self._core
        path = next((p for p, s in self.param_states.items() if s is weight), weight)
        if isinstance(path, str | list | tuple):
            path = (path,) if isinstance(path, str) else tuple(path)
        mine = [key for key in core.shapes if key.is_of(path)]
        if not mine and not any(path in r.paths for r in core.graph.relations):
            raise ValueError(f'{path} has no trace. The report (`learner.report.show()`) says why.')
        kept = self._memory.value['traces']
        return {key: kept[str(key)] for key in mine}

    # ---- one call ----

    def _weights(self) -> dict[tuple, Any]:
        return self.param_states

    def _schedule(self) -> tuple[str, int | None]:
        if self.config is None:
            return 'per_step', None
        return self.config.update_schedule, self.config.window_size

    def signal_input(self, modulator: Any, length: int, window: int) -> Extra:
        """What the signal takes from outside, for so many steps in windows of so many."""
        modulator = self.modulator if modulator is None else modulator
        self.rule.check_modulator(modulator)
        return Extra(None, per_step(modulator, length))

    def update(self, *args: Any, modulator: Any = None) -> Any:
        """One step, or a window of steps given as `MultiStepData`; `modulator` is for the rules
        that take one."""
        if not is_driven(self._memory, args, modulator):
            return drivers.update(self._learning(), args, modulator)
        return self._run_model(*first_step(args))


def _shape(a: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(a), jnp.result_type(a))


def _unpickled(cls: type, attributes: bytes) -> Any:
    learner: Any = object.__new__(cls)
    vars(learner).update(pickle.loads(attributes))
    return learner


class ETraceAlgorithm(Learner):
    """A model beside the executor of its graph: the base of the learners, and of rules of one's own
    that write `update` with an executor. As it is, it carries nothing from call to call.

    Args:
        model: a `brainstate.nn.Module`.
        graph_executor: an `ETraceGraphExecutor` of the model.
        name: of the module.

    Example:
        >>> import brainstate, jax.numpy as jnp, braintrace
        >>> cell = brainstate.nn.init_all_states(braintrace.nn.MiniGRU(3, 4))
        >>> rule = braintrace.ETraceAlgorithm(cell, braintrace.ETraceVjpGraphExecutor(cell))
        >>> rule.compile_graph(jnp.ones(3))
        >>> out, hidden, *_ = rule.graph_executor.solve_h2w_h2h_jacobian(jnp.ones(3))
        >>> out.shape, list(hidden)
        ((4,), [('h',)])
    """

    rule = BY_NAME['bptt']
    config: ETraceConfig | None = None
    _said: How | None = None

    def __init__(self, model: Any, graph_executor: ETraceGraphExecutor, name: str | None = None):
        super().__init__(name=name)
        if not isinstance(model, brainstate.nn.Module):
            raise ValueError(f'`model` must be a brainstate.nn.Module, got {type(model).__name__}.')
        if not isinstance(graph_executor, ETraceGraphExecutor):
            raise ValueError(
                '`graph_executor` must be an ETraceGraphExecutor, got '
                f'{type(graph_executor).__name__}.'
            )
        self.model4compile, self._executor = model, graph_executor

    @property
    def graph_executor(self) -> ETraceGraphExecutor:
        """The executor of the model's graph, compiled if the learner is."""
        if not self.is_compiled:
            return self._executor
        compiled = self.compiled_step()

        def make() -> ETraceGraphExecutor:
            return self._executor.of(self.model4compile, self.graph)

        key = 'executor', compiled.core
        return self._own.cache.get(key, make, lambda _: compiled.lasting)

    @property
    def executor(self) -> ETraceGraphExecutor:
        """The same as `graph_executor`."""
        return self.graph_executor

    @property
    def _model(self) -> Any:
        return self.model4compile

    @property
    def how(self) -> How:
        """What the user has said about the learner."""
        if self._said is None:
            self._said = how_to_learn(self.rule, {}, policy=self._executor.control_flow)
        return self._said

    def _run_model(self, *args: Any) -> Any:
        return self.model4compile(*args)
