"""brainstate modules: any `brainstate.nn.Module` whose states are initialised."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax

from .._jax import Jaxpr, new_jaxpr, open_jaxpr, subjaxprs
from ..errors import CompilationError, NotSupportedError
from ..step import Leaf, Step, dotted
from .base import HIDDEN, OTHER, PARAM, Held, TracedModel, Watched, leaves_of
from .brainevent import calls_kernel, choose_plain_kernels
from .brainstate_compiled import compiled as compiled  # three parts of the `Framework`
from .brainstate_environ import brainstate
from .brainstate_environ import surroundings as surroundings
from .brainstate_environ import within as within


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
