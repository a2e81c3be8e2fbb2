"""The stateful shell: a learner for brainstate models, itself a brainstate module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..frontends import brainstate as frontend
from ..frontends.brainstate import ModuleInfo
from ..graph.diagnostics import Diagnostics, emit
from ..graph.etrace_graph import ETraceGraph, assemble, prepare
from ..graph.flatten import ControlFlowPolicy
from ..learn.core import Carried, Executor, memory_of
from ..learn.data import MultiStepData, SingleStepData, first_step
from ..learn.options import BUDGET, executor_of, per_step, resolve, sequence_length
from ..rules.config import ETraceConfig
from ..rules.registry import Rule, of_config
from ..rules.signals import Extra
from ..show.report import CompilationReport
from .drivers import SequenceDriverMixin

brainstate: Any = frontend.brainstate


class EligibilityTrace(brainstate.ShortTermState):  # type: ignore[misc]
    """The influence of the weights on the present, carried on from step to step."""


class Part:
    """One entry of a state that holds a dict, with a `value` of its own: one state is cheaper to pass through `jit` than many."""

    def __init__(self, state: Any, *keys: str):
        self._state, self._keys = state, keys

    @property
    def value(self) -> Any:
        value = self._state.value
        for k in self._keys:
            value = value[k]
        return value

    @value.setter
    def value(self, new: Any) -> None:
        def put(tree: dict, keys: tuple) -> dict:
            return {**tree, keys[0]: put(tree[keys[0]], keys[1:]) if keys[1:] else new}

        self._state.value = put(self._state.value, self._keys)


class _Own:
    """What a learner keeps for itself, out of sight of brainstate, which looks for states in every container of a module."""

    def __init__(self) -> None:
        self.compiled: tuple[ModuleInfo, Executor] | None = None
        self.compiled_for: Any = None  # shapes and states
        self.inputs: Any = ()  # the shapes of one step's data
        self.owners: list[tuple[Any, Any, Any]] = []  # who holds each state, under which name
        self.jitted: dict[Any, Any] = {}
        self.outside: list[
            Any
        ] = []  # parameter states that a step uses and the model does not hold
        self.calls: list | None = None  # inside a driver: the calls of the learner


class ETraceAlgorithm(SequenceDriverMixin, brainstate.nn.Module):  # type: ignore[misc]
    """A learner: call it like the model, differentiate it like the model, and the gradient is the online one.

    Args:
        model: a `brainstate.nn.Module`.
        name: of the module.
        vjp_method: 'single-step', the classical rule, or 'multi-step', exact credit inside each call's window.
        control_flow: what to do with control flow inside a step.
        trace: which weights may have a trace: 'all', 'marked', or a function of the parameter's path.
        memory_budget: bytes that one block of steps may keep, for `window='auto'`.
        config: the rule as an `ETraceConfig` instead of the class's own.
        options: of the rule.
    """

    rule: Rule
    modulator: Any = None

    def __init__(
        self,
        model: Any,
        name: str | None = None,
        vjp_method: str | None = None,
        control_flow: ControlFlowPolicy | None = None,
        trace: Any = 'all',
        memory_budget: int = BUDGET,
        config: ETraceConfig | None = None,
        **options: Any,
    ):
        super().__init__(name=name)
        if not isinstance(model, brainstate.nn.Module):
            raise TypeError(f'`model` must be a brainstate.nn.Module, got {type(model).__name__}.')
        if config is not None:
            if not isinstance(config, ETraceConfig):
                raise TypeError(f'`config` must be an ETraceConfig, got {type(config).__name__}.')
            self.rule = of_config(config)
        self.config = config
        self.rule, self._single_step = resolve(self.rule, vjp_method, options)
        self.model4compile = model
        self._step_of: Callable = lambda *a: model(*a)
        self._memory = EligibilityTrace({'steps': jnp.zeros((), jnp.int32), 'traces': {}})
        self._policy, self._trace, self._budget, self._options = (
            control_flow or ControlFlowPolicy(),
            trace,
            memory_budget,
            options,
        )
        self._own = _Own()

    # ---- what was compiled ----

    @property
    def is_compiled(self) -> bool:
        """Whether there is a graph yet."""
        return self._own.compiled is not None

    @property
    def graph(self) -> ETraceGraph:
        """What depends on what in the model."""
        if self._own.compiled is None:
            raise ValueError(
                'The learner is not compiled yet: call `compile_graph(*example_inputs)`, or make it with `braintrace.compile`.'
            )
        return self._own.compiled[1].program.layout.graph

    @property
    def report(self) -> CompilationReport:
        """What the compiler decided for each parameter, and the bytes of traces and blocks."""
        if self._own.compiled is None:
            raise RuntimeError('There is no report before `compile_graph(*example_inputs)`.')
        return CompilationReport(self.graph, memory_of(self._ready()[1], self._budget))

    def show_graph(self, verbose: bool = True, return_msg: bool = False) -> str | None:
        """Print the report, or return it."""
        self._ready()
        text = self.report.to_str(2)
        if verbose:
            print(text)
        return text if return_msg else None

    @property
    def path_to_states(self) -> dict[tuple, Any]:
        """The states of the model by path."""
        return dict(brainstate.graph.states(self.model4compile).items())

    @property
    def state_id_to_path(self) -> dict[int, tuple]:
        """The path of each state of the model, by the state's `id`."""
        return {id(s): p for p, s in self.path_to_states.items()}

    def _of_role(self, role: str) -> dict[tuple, Any]:
        return {p: s for p, s in self.path_to_states.items() if frontend._role(s) == role}

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
        """Compile the model for inputs like these; nothing happens if it is compiled for them already."""
        settings, moving = frontend.surroundings()
        inputs = moving, *first_step(args)
        if self._own.compiled is None or self._shapes(settings, inputs) != self._own.compiled_for:
            self._compile(settings, inputs)
            self._memory = EligibilityTrace(
                self._no_traces()
            )  # a new state, so that `vmap_new_states` around this call maps it too

    def _shapes(self, settings: tuple, inputs: tuple) -> Any:
        """All that a compiled program depends on: settings, the shapes of inputs and states, and that the states are the ones it was made for."""
        ids = self._in_use()
        leaves, tree = jax.tree.flatten((inputs, [s.value for _, _, s in self._own.owners]))
        return (
            settings,
            tree,
            tuple(
                [
                    (a.shape, a.dtype)
                    if hasattr(a, 'dtype')
                    else (jnp.shape(a), jnp.result_type(a))
                    for a in leaves
                ]
            ),
            ids,
        )

    def _in_use(self) -> tuple[int, ...]:
        """Which states the model holds now: a model that is initialised again has others."""
        if any([_held(owner, key) is not s for owner, key, s in self._own.owners]):
            self._find_owners()
        return tuple([id(s) for _, _, s in self._own.owners])

    def _find_owners(self) -> None:
        self._own.owners = [
            (*_owner(self.model4compile, path), s) for path, s in self.path_to_states.items()
        ]

    def _compile(self, settings: tuple, inputs: tuple) -> None:
        self._find_owners()
        shapes = self._shapes(settings, inputs)
        info, executor = self._build(frontend.within(self._step_of), inputs, None, True)
        if self.rule.traces:
            emit(executor.program.layout.graph.diagnostics, stacklevel=4)
        self._own.compiled, self._own.compiled_for, self._own.jitted = (info, executor), shapes, {}
        self._own.inputs = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct(jnp.shape(a), jnp.result_type(a)), inputs[1:]
        )

    def _build(
        self, f: Callable, inputs: tuple, graded: Any, hidden: bool
    ) -> tuple[ModuleInfo, Executor]:
        known = {
            **frontend.states_of(self.model4compile),
            **{('outside', i): s for i, s in enumerate(self._own.outside)},
        }
        info, strangers = frontend.trace_function(f, known, *inputs, control_flow=self._policy)
        weights = [info.states[p] for p in strangers if frontend._role(info.states[p]) == 'param']
        if weights:  # parameters outside the model get a name that lasts
            self._own.outside += weights
            if self._own.calls:
                self._own.calls.clear()
            return self._build(f, inputs, graded, hidden)
        diagnostics = Diagnostics()
        found = prepare(info.step, self._policy, diagnostics, self._trace)
        info = info.with_step(found.step, found.uses)
        graph = assemble(
            found,
            diagnostics,
            module_info=info,
            states=info.states,
            perturbed=False,
            traced=self._trace,
        )
        return info, executor_of(graph, self.rule, self._single_step, self._options, graded, hidden)

    # ---- traces ----

    def init_etrace_state(self, *args: Any) -> None:
        """Zero traces for the compiled model."""
        self._memory.value = self._no_traces()

    def _no_traces(self) -> dict[str, Any]:
        info, executor = self._ready()
        return {'steps': jnp.zeros((), jnp.int32), 'traces': executor.init(info.read('param'))}

    def reset_state(self, batch_size: int | None = None, **kwargs: Any) -> None:
        """Forget: zero traces, and the count of steps. A new batch size takes effect with the model's own states, at the next call."""
        first = {} if self._own.compiled is None else self._no_traces()['traces']
        memory = self._memory.value
        traces = {
            k: jnp.broadcast_to(first.get(k, 0), v.shape).astype(v.dtype)
            for k, v in memory['traces'].items()
        }
        self._memory.value = {'steps': jnp.zeros_like(memory['steps']), 'traces': traces}

    @property
    def running_index(self) -> Part:
        """The number of steps done."""
        return Part(self._memory, 'steps')

    @property
    def etrace(self) -> dict[str, Part]:
        """The traces by name, each with its `value`."""
        return {name: Part(self._memory, 'traces', name) for name in self._memory.value['traces']}

    def get_etrace_of(self, weight: Any) -> dict[str, jax.Array]:
        """The traces of a parameter, given as its state or its path, by name."""
        _, executor = self._ready()
        path = next((p for p, s in self.param_states.items() if s is weight), weight)
        path = (
            (path,)
            if isinstance(path, str)
            else tuple(path)
            if isinstance(path, list | tuple)
            else path
        )
        layout = executor.program.layout
        mine = {
            s.name
            for s in layout.slots
            if any(
                path == p
                for f in s.feeds
                for p in layout.relations[f.relation].trainable_paths.values()
            )
        }
        found = {
            name: state.value
            for name, state in self.etrace.items()
            if name.split('/')[0].removeprefix('x:') in mine or name.split('/')[0] in mine
        }
        if not found:
            raise ValueError(f'{path} has no trace. The report (`learner.report.show()`) says why.')
        return found

    def _ready(self) -> tuple[ModuleInfo, Executor]:
        if self._own.compiled is None:
            raise ValueError(
                'The learner is not compiled yet: call `compile_graph(*example_inputs)`, or make it with `braintrace.compile`.'
            )
        return self._own.compiled

    def _take(self, info: ModuleInfo, executor: Executor) -> tuple[list, Carried]:
        memory, traces = self._memory.value, {}
        new = [name for name in executor.shapes if name not in memory['traces']]
        if new and isinstance(memory['steps'], jax.core.Tracer):
            raise ValueError(
                f'`step_fn` traces a weight outside the model ({new[0]}), and the learner has no room for it inside `jit`. Run `step_fn` once '
                'outside of `jit`, for instance with `etrace_evolve`, or make the module a part of the model.'
            )
        fits = lambda name, like: (
            name in memory['traces']
            and (memory['traces'][name].shape, memory['traces'][name].dtype)
            == (like.shape, like.dtype)
        )
        first = (
            {}
            if all(fits(*item) for item in executor.shapes.items())
            else executor.init(info.read('param'))
        )
        for name, like in executor.shapes.items():
            traces[name] = memory['traces'][name] if fits(name, like) else first[name]
        return info.read('param'), Carried(
            info.read('hidden'), info.read('other'), traces, memory['steps']
        )

    def _give(self, info: ModuleInfo, carried: Carried, traces: bool = True) -> None:
        info.write('hidden', carried.hidden)
        info.write('other', carried.other)
        if traces:
            # a trace that this program does not advance has no meaning any more; feedback weights keep theirs
            rest = {
                k: v for k, v in self._memory.value['traces'].items() if k not in carried.traces
            }
            void = {
                k: v if k.startswith('feedback:') else jnp.zeros_like(v) for k, v in rest.items()
            }
            self._memory.value = {'steps': carried.steps, 'traces': {**void, **carried.traces}}

    # ---- one call ----

    def _extra(self, modulator: Any, length: int, window: int) -> Extra:
        """What the signal takes from outside, for so many steps in windows of so many."""
        modulator = self.modulator if modulator is None else modulator
        self.rule.check_modulator(modulator)
        return Extra(None, per_step(modulator, length))

    def update(self, *args: Any, modulator: Any = None) -> Any:
        """One step, or a window of steps given as `MultiStepData`; `modulator` is for the rules that take one."""
        if self._own.calls is not None:
            if modulator is not None:
                raise TypeError(
                    'Inside a driver pass `modulator` to the driver, for all steps, and not to the learner.'
                )
            return self._in_the_open(args)
        self._ready()
        settings, moving = frontend.surroundings()
        args = moving, *args
        if self._shapes(settings, first_step(args)) != self._own.compiled_for:
            self._compile(settings, first_step(args))
            self.init_etrace_state()
        info, executor = self._ready()
        several = [x.data for x in args if isinstance(x, MultiStepData)]
        length = sequence_length(several) if several else 1
        inputs = [leaf for x in args for leaf in self._over_steps(x, length)]
        params, carried = self._take(info, executor)
        if length not in self._own.jitted:
            self._own.jitted[length] = jax.jit(lambda p, c, x, e: executor.call(p, c, x, length, e))
        extra = self._extra(
            modulator
            if several or modulator is None
            else jax.tree.map(lambda m: jnp.asarray(m)[None], modulator),
            length,
            length,
        )
        outs, carried = self._own.jitted[length](params, carried, inputs, extra)
        self._give(info, carried)
        return info.out_tree.unflatten(outs if several else [a[0] for a in outs])

    @staticmethod
    def _over_steps(x: Any, length: int) -> list:
        if isinstance(x, MultiStepData):
            return [jnp.asarray(a) for a in jax.tree.leaves(x.data)]
        return [
            jnp.broadcast_to(jnp.asarray(a), (length, *jnp.shape(a)))
            for a in jax.tree.leaves(x.data if isinstance(x, SingleStepData) else x)
        ]

    def _in_the_open(self, args: tuple) -> Any:
        """Inside a driver the model itself runs in the learner's place: the driver compiles the whole step."""
        assert self._own.calls is not None
        self._own.calls.append(1)
        if any(isinstance(x, MultiStepData) for x in args):
            raise TypeError(
                '`step_fn` gets one step at a time: call the learner on plain data, or pass `chunk_size` to drive it with MultiStepData.'
            )
        return self._step_of(*first_step(args))


def _held(owner: Any, key: Any) -> Any:
    """The attribute or item `key` of a module or container."""
    return (
        getattr(owner, key, None)
        if isinstance(key, str) and not isinstance(owner, dict)
        else owner[key]
    )


def _owner(model: Any, path: tuple) -> tuple[Any, Any]:
    """Who holds the state at this path, and under which name."""
    for key in path[:-1]:
        model = _held(model, key)
    return model, path[-1]


class ETraceVmap(SequenceDriverMixin, brainstate.nn.Module):  # type: ignore[misc]
    """A learner of a model whose states are mapped over a batch: the model sees one sample, the learner the whole batch.

    Args:
        module: a learner. If it is compiled already, for one sample inside `vmap_new_states`, it is compiled again for all of them.
        in_axes, out_axes, vmap_states, vmap_out_states, axis_name, axis_size: as in `brainstate.nn.Vmap`.
    """

    def __init__(
        self,
        module: ETraceAlgorithm,
        in_axes: Any = 0,
        out_axes: Any = 0,
        vmap_states: Any = 'new',
        vmap_out_states: Any = None,
        axis_name: Any = None,
        axis_size: int | None = None,
    ):
        super().__init__()
        if not isinstance(module, ETraceAlgorithm):
            raise TypeError(
                f'`module` must be a learner, got {type(module).__name__}. Other modules are mapped by `brainstate.nn.Vmap`.'
            )
        self.module = module
        mapped = brainstate.nn.Vmap(
            module.model4compile,
            in_axes,
            out_axes,
            vmap_states,
            vmap_out_states,
            axis_name,
            axis_size,
        )
        module._step_of = lambda *a: mapped(*a)
        if module._own.compiled is not None:
            module.compile_graph(*_mapped_like(module, in_axes, axis_size))

    def update(self, *args: Any, modulator: Any = None) -> Any:
        """One step, or a window of steps, of the whole batch."""
        return self.module(*args, modulator=modulator)

    def __getattr__(self, name: str) -> Any:
        if name in _OF_LEARNER or name in SequenceDriverMixin.__annotations__:
            return getattr(self.module, name)
        raise AttributeError(name)


def _mapped_like(learner: ETraceAlgorithm, in_axes: Any, size: int | None) -> list:
    """Example inputs for all samples, for a learner that was compiled for one."""
    memory = learner._memory.value
    if jnp.ndim(memory['steps']) != 1 and size is None:
        raise ValueError(
            '`module` is compiled for whole batches. Compile it after it is mapped, or for one sample inside `vmap_new_states`.'
        )
    size = size or len(memory['steps'])
    inputs = learner._own.inputs
    axes = list(in_axes) if isinstance(in_axes, list | tuple) else [in_axes] * len(inputs)
    put = lambda a, axis: jnp.zeros(
        a.shape if axis is None else np.insert(a.shape, axis % (len(a.shape) + 1), size), a.dtype
    )
    return [
        jax.tree.map(lambda a, axis=axis: put(a, axis), x)
        for x, axis in zip(inputs, axes, strict=True)
    ]


_OF_LEARNER = (
    'graph',
    'report',
    'hidden_states',
    'other_states',
    'is_compiled',
    'show_graph',
    'get_etrace_of',
    'running_index',
)
