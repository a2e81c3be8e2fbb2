"""brainstate modules: any `brainstate.nn.Module` whose states are initialised."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from .._jax import Jaxpr, new_jaxpr, open_jaxpr, subjaxprs
from ..errors import CompilationError, NotSupportedError
from ..step import Leaf, Step, dotted
from .base import HIDDEN, OTHER, PARAM, Held, Surroundings, TracedModel, Watched, leaves_of
from .brainevent import calls_kernel, choose_plain_kernels

_double = jax.config.read('jax_enable_x64')
import brainstate  # noqa: E402

if _double and not jax.config.read('jax_enable_x64'):
    # importing brainstate resets the precision; the user's choice stands
    brainstate.environ.set(precision=64)


MOVING = 't', 'i'  # of `brainstate.environ`: they change from step to step


class StatefulStep(NamedTuple):
    """What brainstate made of a step: the stateful function, and the states that were known to it
    by path."""

    stateful: Any
    known: Mapping[tuple, Any]


def is_module(model: Any) -> bool:
    """Whether this is a model of brainstate."""
    return isinstance(model, brainstate.nn.Module)


def check_module(model: Any) -> None:
    """Refuse anything but a model of brainstate."""
    if not is_module(model):
        raise TypeError(f'`model` must be a brainstate.nn.Module, got {type(model).__name__}.')


def all_states(model: Any) -> dict[tuple, Any]:
    """The states of a model by path."""
    return dict(brainstate.graph.states(model).items())


def states_of(model: Any) -> dict[tuple, Any]:
    """The states of a model by path; an error if none of them is hidden."""
    states = all_states(model)
    if not any(isinstance(s, brainstate.HiddenState) for s in states.values()):
        raise CompilationError(
            '`model` has no hidden state. If it is recurrent, its states are not initialised: call '
            '`brainstate.nn.init_all_states(model)` first. Otherwise there is nothing to trace.'
        )
    return states


def holders(thing: Any) -> dict[tuple, Held] | None:
    """The states of a module, an optimiser or any other node, by path; None for what is none."""
    if not isinstance(thing, brainstate.graph.Node):
        return None
    return {path: held(path, state) for path, state in all_states(thing).items()}


def held(path: tuple, state: Any) -> Held:
    """A state of a model."""
    return Held(path, role(state), state)


def role(state: Any) -> str:
    """Whether a state is a parameter, hidden, or other."""
    if isinstance(state, brainstate.ParamState):
        return PARAM
    return HIDDEN if isinstance(state, brainstate.HiddenState) else OTHER


def trace(
    f: Callable, known: Mapping[tuple, Any], *inputs: Any, **named: Any
) -> tuple[TracedModel, list[tuple]]:
    """A function of states as a step, and the paths of the states that are not among those known.
    The states are left as they were."""
    stateful = brainstate.transform.StatefulFunction(
        _watched(f, known), return_only_write=False, name='step'
    )
    # Unchecked, a state whose unit changes would keep a tracer for ever.
    with brainstate.check_state_value_tree():
        closed = stateful.get_jaxpr(*inputs, **named)
    for state in stateful.get_write_states(*inputs, **named):
        _refuse_written_parameter(state, known)
    jaxpr, captured = open_jaxpr(closed)
    _choose_kernels(jaxpr)
    states = stateful.get_states(*inputs, **named)
    path_of = {id(s): path for path, s in known.items()}
    strangers = [s for s in states if id(s) not in path_of]
    path_of |= {id(s): (f'_unknown_path_{i}',) for i, s in enumerate(strangers)}
    held = tuple(Held(path_of[id(s)], role(s), s) for s in states)
    out_tree: Any = jax.tree.structure(stateful.get_out_shapes(*inputs, **named)[0])
    step = _as_step(jaxpr, captured, held, out_tree.num_leaves)
    traced = TracedModel(step, out_tree, held, StatefulStep(stateful, known))
    return traced, [path_of[id(s)] for s in strangers]


class _Placed(NamedTuple):
    """A leaf of a state in brainstate's program: its place among the leaves of all states."""

    leaf: Leaf
    place: int


def _as_step(jaxpr: Jaxpr, captured: tuple, held: tuple[Held, ...], num_outs: int) -> Step:
    """brainstate's program `(captured, arguments, states) -> (outputs, states)` with the states in
    the order of the roles, in front."""
    by_role: dict[str, list[_Placed]] = {PARAM: [], HIDDEN: [], OTHER: []}
    number = 0
    for path, of_role, state in held:
        columns = state.num_state if isinstance(state, brainstate.HiddenGroupState) else 0
        may_trace = getattr(state, 'is_etrace', True)
        for leaf in leaves_of(path, state.value, columns):
            by_role[of_role].append(_Placed(leaf._replace(traced=may_trace), number))
            number += 1
    states_in = jaxpr.invars[len(jaxpr.invars) - number :]
    arguments = jaxpr.invars[len(captured) : len(jaxpr.invars) - number]
    states_out = jaxpr.outvars[num_outs:]
    order = [p for of_role in by_role.values() for p in of_role]
    moving = [*by_role[HIDDEN], *by_role[OTHER]]
    invars = [*jaxpr.invars[: len(captured)], *[states_in[p.place] for p in order], *arguments]
    outs = [*[states_out[p.place] for p in moving], *jaxpr.outvars[:num_outs]]
    leaves = [tuple(p.leaf for p in of_role) for of_role in by_role.values()]
    return Step(new_jaxpr(invars, outs, jaxpr.eqns), captured, *leaves)


def _refuse_written_parameter(state: Any, known: Mapping[tuple, Any]) -> None:
    if isinstance(state, brainstate.ParamState):
        path = next((dotted(p) for p, s in known.items() if s is state), '?')
        raise NotSupportedError(
            f'Parameter {path} is written inside the step. A parameter must only be read there: '
            'make it another kind of state, or update it outside.'
        )


def _choose_kernels(jaxpr: Jaxpr) -> None:
    """brainevent's kernels on a CPU need numba. Where it is missing and nobody has chosen others,
    they run in plain JAX instead of not at all."""

    def calls_kernels(jaxpr: Jaxpr) -> bool:
        return any(calls_kernel(e) or any(map(calls_kernels, subjaxprs(e))) for e in jaxpr.eqns)

    if calls_kernels(jaxpr):
        choose_plain_kernels()


# ---- what surrounds a step ----


def surroundings() -> Surroundings:
    """What a step may read from `brainstate.environ`: the settings it is compiled for, and values
    that move with time (`t`, `i` and arrays)."""
    settings, moving = [], {}
    for name, value in brainstate.environ.all().items():
        if isinstance(value, str | int) and name not in MOVING:
            settings.append((name, value))
            continue
        leaves, tree = jax.tree.flatten(value)
        if name in MOVING or any(isinstance(a, jax.Array | np.ndarray) for a in leaves):
            moving[name] = value
        else:
            known = [a if isinstance(a, Hashable) else id(a) for a in leaves]
            settings.append((name, tree, *known))
    return Surroundings(tuple(settings), moving)


def within(moving: Mapping[str, Any]) -> AbstractContextManager:
    """`brainstate.environ` with these values of what moves."""
    return brainstate.environ.context(**moving) if moving else nullcontext()


# ---- states that are replaced ----


def read(state: Any) -> Any:
    """The present value of a state."""
    return state.value


def watch(model: Any) -> Callable[[], Watched]:
    """A quick way to say which state objects a model holds now: a model that is initialised again
    holds others, and programs are made for the objects."""
    return _Watch(model).states


class _Watch:
    """Who holds each state, under which name: looked up again when one of them is not there any
    more."""

    def __init__(self, model: Any):
        self._model = model
        self._places: list[tuple[Callable[[], Any], Any]] = []
        self._found: Watched | None = None

    def states(self) -> Watched:
        if self._found is None or any([look() is not state for look, state in self._places]):
            states = all_states(self._model)
            self._places = [(_place(self._model, path), s) for path, s in states.items()]
            self._found = Watched(states, tuple([id(s) for s in states.values()]))
        return self._found


def _place(model: Any, path: tuple) -> Callable[[], Any]:
    """What there is now where the state of this path was found."""
    for key in path[:-1]:
        model = _entry(model, key)()
    return _entry(model, path[-1])


def _entry(owner: Any, key: Any) -> Callable[[], Any]:
    """A look at the attribute or item `key` of a module or container."""
    if isinstance(key, str) and not isinstance(owner, dict):
        return partial(getattr, owner, key, None)
    return partial(operator.getitem, owner, key)


# ---- transformations of functions that write states ----


def loop(f: Callable, xs: Any) -> Any:
    """`f` over the first axis of `xs`, its results stacked; it may write states."""
    return brainstate.transform.for_loop(f, xs)


def gradients(holders: Mapping, values: Mapping) -> dict:
    """Gradients of states by the user's keys, as `brainstate.transform.grad` gives them."""
    return dict(values)


def grad(f: Callable, holders: Mapping) -> Callable:
    """The gradient of `f() -> (loss, aux)` by the states of these holders, with the aux."""
    return brainstate.transform.grad(f, holders, has_aux=True)


def compiled(f: Callable, held: Callable[[], Watched]) -> _Compiled:
    """`f`, which may write states, as one compiled call, with as little as possible between the
    caller and XLA.

    `states(*args)` of the result are the states that it reads or writes.
    `held` says which states there are: when they are other ones, or when a setting of
    `brainstate.environ` changes, it is compiled anew; for arguments and states of other shapes JAX
    does so by itself. After an exception all states are as they were.
    """
    return _Compiled(f, held)


class _Met(NamedTuple):
    """What a function does to states: the stateful function that is traced, the states that it
    reads or writes, and which of them it writes, by number."""

    stateful: Any
    states: list
    written: list[int]

    def is_like(self, other: _Met) -> bool:
        """Whether the same states are read and the same written."""
        same = [id(s) for s in self.states] == [id(s) for s in other.states]
        return same and self.written == other.written


class _Compiled:
    def __init__(self, f: Callable, held: Callable[[], Watched]):
        self._f, self._held = f, held
        self._key: Any = None
        self._met = _Met(None, [], [])
        self._is_new = False
        self._writers: list[Callable[[Any], None]] = []
        self._jitted: Callable = f

    def states(self, *args: Any) -> list:
        """The states that it reads or writes, for arguments like these."""
        self._prepare(args)
        return list(self._met.states)

    def pure(self, values: list, *args: Any) -> tuple[list, Any]:
        """The new values of `states(*args)` and the result, from the old values."""
        moving = self._prepare(args)
        if moving:
            raise NotSupportedError(
                f'`brainstate.environ` has {", ".join(moving)}, which move with time, and a pure '
                'function has no environment. Give them to the step as inputs.'
            )
        return self._pure(values, {}, args)

    def _prepare(self, args: tuple) -> Mapping[str, Any]:
        settings, moving = surroundings()
        key = settings, self._held().key
        if key != self._key:
            self._met, self._is_new = self._trace(moving, args), True
            written = [self._met.states[i] for i in self._met.written]
            # the setter itself: `state.value = ...` gets there by a detour
            self._writers = [partial(type(s).value.fset, s) for s in written]
            self._jitted = jax.jit(self._changes)
            self._key = key
        return moving

    def __call__(self, *args: Any) -> Any:
        moving = self._prepare(args)
        new, out = self._jitted([s.value for s in self._met.states], moving, args)
        for write, value in zip(self._writers, new, strict=True):
            write(value)
        return out

    def _trace(self, moving: Mapping[str, Any], args: tuple) -> _Met:
        def run(moving, *args):
            with within(moving):
                return self._f(*args)

        stateful = brainstate.transform.StatefulFunction(run, return_only_write=False, name='step')
        with brainstate.check_state_value_tree():
            states = list(stateful.get_states(moving, *args))
        written = {id(s) for s in stateful.get_write_states(moving, *args)}
        return _Met(stateful, states, [i for i, s in enumerate(states) if id(s) in written])

    def _changes(self, values: list, moving: dict, args: tuple) -> tuple[list, Any]:
        """The new values of the states that are written, and the result."""
        new, out = self._pure(values, moving, args)
        return [new[i] for i in self._met.written], out

    def _pure(self, values: list, moving: dict, args: tuple) -> tuple[list, Any]:
        met = self._met if self._is_new else self._trace(moving, args)
        self._is_new = False
        if not met.is_like(self._met):
            raise ValueError(
                'With inputs of this shape the step meets other states than before: make a new '
                'stream for them.'
            )
        return met.stateful.jaxpr_call(values, moving, *args)


# ---- a step that says what is wrong with it ----


def _watched(f: Callable, states: Mapping[tuple, Any]) -> Callable:
    """The function, in which every state takes part, used or not, and a refused write names the
    state."""

    def step(*args, **kwargs):
        try:
            out = f(*args, **kwargs)
        except ValueError as error:
            culprit = _written_by(error)
            if culprit is None:
                raise
            outside = f'(a {type(culprit).__name__} outside the model)'
            path = next((dotted(p) for p, s in states.items() if s is culprit), outside)
            raise ValueError(
                f'State {path} changes in the step: {error} A state must keep its unit and its '
                'structure: convert the new value.'
            ) from error
        for s in states.values():
            s.value  # noqa: B018
        return out

    return step


def _written_by(error: BaseException) -> Any:
    """The state whose setter refused a value, if that is what the error is about."""
    if 'tree structure' not in str(error):
        return None
    tb, culprit = error.__traceback__, None
    while tb is not None:
        frame = tb.tb_frame
        setter = frame.f_globals.get('__name__') == 'brainstate._state'
        if setter and isinstance(frame.f_locals.get('self'), brainstate.State):
            culprit = frame.f_locals['self']
        tb = tb.tb_next
    return culprit
