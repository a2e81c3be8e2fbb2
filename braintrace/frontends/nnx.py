"""Flax NNX modules: as arguments of a step, and as models that hold their states.

NNX lets a `Variable` be written only in the trace that it was made in. A step is run purely on the
user's own objects all the same: for its time they get values of the present trace, afterwards they
are as they were (`placed`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import jax
from flax import nnx
from flax.errors import TraceContextError

from .._jax import new_jaxpr
from .._jax import trace as trace_flat
from ..errors import CompilationError, NotSupportedError
from ..step import Leaf, Step, dotted
from .base import HIDDEN, OTHER, PARAM, Held, Surroundings, TracedModel, Watched, leaves_of
from .closures import reached_by
from .forms import Constant, is_array, is_inexact

# ---- modules as arguments of a step ----


def is_argument(model: Any) -> bool:
    """Whether this is a module of NNX, or a tree with one in it."""
    parts = jax.tree.leaves(model, is_leaf=lambda a: isinstance(a, nnx.Module))
    return any(isinstance(a, nnx.Module) for a in parts)


def _is_param(path: tuple, variable: Any) -> bool:
    return isinstance(variable, nnx.Param) and all(map(is_inexact, jax.tree.leaves(variable)))


@dataclass(frozen=True)
class ModuleSkeleton:
    """A module without its parameters.

    Args:
        graph: its modules and static attributes.
        of_params: the structure of its parameters.
        of_rest: the structure of its other variables.
        constants: the leaves of these.
        names: of the parameters.
    """

    graph: Any
    of_params: Any
    of_rest: Any
    constants: tuple[Constant, ...]
    names: tuple[Leaf, ...] = field(compare=False)

    @property
    def lasting(self) -> bool:
        return all(c.lasting for c in self.constants)

    def with_params(self, params: Sequence[Any]) -> Any:
        rest = self.of_rest.unflatten([c.value for c in self.constants])
        return nnx.merge(self.graph, self.of_params.unflatten(params), rest)

    def gradients(self, grads: Sequence[Any]) -> Any:
        """A `nnx.State` of the parameters."""
        return self.of_params.unflatten(grads)


def take_apart(model: Any) -> tuple[list[Any], ModuleSkeleton]:
    """The values of all `nnx.Param` of a module, and the rest of it."""
    graph, params, rest = nnx.split(model, _is_param, ...)
    leaves, of_params = jax.tree.flatten(params)
    constants, of_rest = jax.tree.flatten(rest)
    variables = nnx.to_flat_state(params)
    names = [leaf for path, v in variables for leaf in leaves_of(path, v.get_raw_value())]
    fixed = tuple(map(Constant, constants))
    return leaves, ModuleSkeleton(graph, of_params, of_rest, fixed, tuple(names))


# ---- modules that hold their states ----


class Memory(nnx.Variable):
    """What a learner keeps from step to step. It is no state of the model."""

    @property
    def value(self) -> Any:
        """The present value."""
        return self.get_value()

    @value.setter
    def value(self, new: Any) -> None:
        self.set_value(new)


class HeldVariable(Held):
    """A `Variable` of a model, by path and role."""

    @property
    def value(self) -> Any:
        return self.holder.get_value()

    def write(self, value: Any) -> None:
        self.holder.set_value(value)


def is_module(model: Any) -> bool:
    """Whether this is a module of NNX."""
    return isinstance(model, nnx.Module)


class Framework:
    """NNX with a filter for the variables that are recurrent state."""

    def __init__(self, hidden: Any):
        wanted = '`hidden` must be a subclass of nnx.Variable or another filter of NNX, got '
        if isinstance(hidden, nnx.Variable):
            raise TypeError(f'{wanted}a variable: pass its type, {type(hidden).__name__}.')
        try:
            self._is_hidden = nnx.filterlib.to_predicate(hidden)
        except (TypeError, ValueError) as error:
            raise TypeError(f'{wanted}{hidden!r}.') from error

    def role(self, variable: Any, path: tuple = ()) -> str:
        """Whether a variable is a parameter, hidden, or other; a filter may want its path too."""
        if self._is_hidden(path, variable):
            return HIDDEN
        return PARAM if _is_param(path, variable) else OTHER

    def states_of(self, model: Any) -> dict[tuple, Any]:
        """The variables of a model by path; an error if none of them is hidden."""
        states = variables_of(model)
        for path, v in states.items():
            if v.ref or v.hijax:
                told = f'Variable {dotted(path)} holds a reference (ref=True or hijax=True). '
                raise NotSupportedError(f'{told}Make it an ordinary one: a learner writes it back.')
        roles = {self.role(v, path) for path, v in states.items()}
        if PARAM not in roles:
            raise CompilationError('`hidden` leaves no parameter: it is for recurrent state alone.')
        if HIDDEN not in roles:
            raise CompilationError(
                '`model` has no variable that `hidden` marks. Keep recurrent state in variables of '
                'a type of their own (`class Hidden(nnx.Variable)`) and pass that type: '
                "`hidden=Hidden`; or mark them by name: `hidden=nnx.PathContains('h')`."
            )
        return states

    def held(self, path: tuple, variable: Any) -> Held:
        """A variable of a model."""
        return HeldVariable(path, self.role(variable, path), variable)

    def read(self, variable: Any) -> Any:
        """The present value of a variable."""
        return variable.get_value()

    def watch(self, model: Any) -> Callable[[], Watched]:
        """A quick way to say which variables a model holds now, and how it is built."""
        return _Watch(model).now

    def surroundings(self) -> Surroundings:
        """NNX has no settings outside of its modules."""
        return Surroundings((), {})

    def within(self, moving: Mapping[str, Any]) -> AbstractContextManager:
        """Nothing moves."""
        return nullcontext()

    def trace(
        self, f: Callable, known: Mapping[tuple, Any], *inputs: Any
    ) -> tuple[TracedModel, list[tuple]]:
        """A function of variables as a step, and the paths of those that are not among the known
        ones. The variables are left as they were."""
        of_known = {id(v) for v in known.values()}
        strangers = {
            (f'_unknown_path_{i}',): v
            for i, v in enumerate(_reached(f))
            if id(v) not in of_known and not isinstance(v, Memory)
        }
        states = {**known, **strangers}
        roles = {path: self.role(v, path) for path, v in states.items()}
        order = [p for role in (PARAM, HIDDEN, OTHER) for p in states if roles[p] == role]
        held = tuple(self.held(path, states[path]) for path in order)
        step, out_tree = _as_step(f, held, inputs)
        return TracedModel(step, out_tree, held), list(strangers)

    def gradients(self, holders: Mapping, values: Mapping) -> Any:
        """Gradients of variables, both by path, as `nnx.grad` gives them."""
        return nnx.from_flat_state([(path, v.copy(values[path])) for path, v in holders.items()])

    def loop(self, f: Callable, xs: Any) -> Any:
        """`f` over the first axis of `xs`, its results stacked; it may write variables."""
        variables = _reached(f)
        run = _pure(f, variables)
        values, outs = jax.lax.scan(lambda c, x: run(c, x), _values(variables), xs)
        _write(variables, values)
        return outs

    def grad(self, f: Callable, holders: Mapping) -> Callable:
        """The gradient of `f() -> (loss, aux)` by these variables, with the aux."""

        def gradient() -> tuple[Any, Any]:
            chosen = list(holders.values())
            ids = {id(v) for v in chosen}
            others = [v for v in _reached(f) if id(v) not in ids]
            run = _pure(f, [*chosen, *others])

            def objective(of_chosen, of_others):
                new, (loss, aux) = run([*of_chosen, *of_others])
                return loss, (new[len(chosen) :], aux)

            differentiate = jax.grad(objective, has_aux=True)
            grads, (new, aux) = differentiate(_values(chosen), _values(others))
            _write(others, new)
            return self.gradients(holders, dict(zip(holders, grads, strict=True))), aux

        return gradient

    def compiled(self, f: Callable, held: Callable[[], Watched]) -> _Compiled:
        """`f`, which may write variables, as one compiled call; compiled anew when the model is
        built otherwise than before."""
        return _Compiled(f, held)


def variables_of(model: Any) -> dict[tuple, Any]:
    """The variables of a module by path."""
    return {p: v for p, v in nnx.iter_graph(model) if isinstance(v, nnx.Variable)}


def holders(thing: Any) -> dict[tuple, Held] | None:
    """The variables of a module, an optimiser or any other node of NNX, by path; None for what is
    none."""
    if isinstance(thing, nnx.Variable):
        return {(): HeldVariable((), OTHER, thing)}
    if not isinstance(thing, nnx.Pytree):
        return None
    return {path: HeldVariable(path, OTHER, v) for path, v in variables_of(thing).items()}


def _reached(f: Callable) -> list[Any]:
    """The variables of all that a function can name."""
    by_id: dict[int, Any] = {}
    for node in reached_by(f, nnx.Pytree | nnx.Variable):
        variables = [node] if isinstance(node, nnx.Variable) else variables_of(node).values()
        by_id.update((id(v), v) for v in variables)
    return list(by_id.values())


def _as_step(f: Callable, held: Sequence[Held], inputs: tuple) -> tuple[Step, Any]:
    """A function of variables, in the order of their roles, as a step; the structure of its
    output."""
    variables = [h.holder for h in held]
    run = _pure(f, variables)
    structure: list[Any] = []
    values, tree = jax.tree.flatten((_values(variables), inputs))

    def flat(*leaves):
        before, inputs = tree.unflatten(leaves)
        after, out = run(before, *inputs)
        for h, old, new in zip(held, before, after, strict=True):
            _check_written(h, old, new)
        outs, out_tree = jax.tree.flatten(out)
        structure[:] = [out_tree]
        moving = [new for h, new in zip(held, after, strict=True) if h.role != PARAM]
        return [*jax.tree.leaves(moving), *outs]

    jaxpr, captured = trace_flat(flat, *values)
    program = new_jaxpr(jaxpr.invars, jaxpr.outvars, jaxpr.eqns)
    leaves = [
        tuple(leaf for h in held if h.role == role for leaf in leaves_of(h.path, h.value))
        for role in (PARAM, HIDDEN, OTHER)
    ]
    return Step(program, captured, *leaves), structure[0]


def _check_written(h: Held, old: Any, new: Any) -> None:
    """Refuse a step that writes a parameter, or a value of another type."""
    if h.role == PARAM:
        if any(a is not b for a, b in zip(*map(jax.tree.leaves, (old, new)), strict=True)):
            raise NotSupportedError(
                f'Parameter {dotted(h.path)} is written inside the step. A parameter must only be '
                'read there: make it another kind of variable, or update it outside.'
            )
        return
    before, after = (jax.tree.map(_type, value) for value in (old, new))
    if before != after:
        raise ValueError(
            f'Variable {dotted(h.path)} enters the step as {before} and leaves it as {after}. It '
            'must keep its structure, shapes and dtypes: cast the new value in the step, or begin '
            'with such a value.'
        )


def _type(a: Any) -> str:
    return jax.typeof(a).str_short()


# ---- variables with values of the present trace ----


@contextlib.contextmanager
def placed(variables: Sequence[Any], values: Sequence[Any]) -> Iterator[None]:
    """Inside, these variables have these values and may be written; afterwards they are as they
    were."""
    before = [v.__getstate__() for v in variables]
    try:
        for v, value in zip(variables, values, strict=True):
            v.__setstate__(v.copy(value).__getstate__())
        yield
    finally:
        for v, state in zip(variables, before, strict=True):
            v.__setstate__(state)


def _values(variables: Sequence[Any]) -> list[Any]:
    return [v.get_raw_value() for v in variables]


def _write(variables: Sequence[Any], values: Sequence[Any]) -> None:
    for v, value in zip(variables, values, strict=True):
        v.set_raw_value(value)


def _pure(f: Callable, variables: Sequence[Any]) -> Callable:
    """`(values, *args) -> (new values, out)` of a function that reads and writes variables."""

    def run(values: Sequence[Any], *args: Any) -> tuple[list[Any], Any]:
        with placed(variables, values):
            try:
                out = f(*args)
            except TraceContextError as error:
                error.add_note(_OUT_OF_REACH)
                raise
            return _values(variables), out

    return run


_OUT_OF_REACH = (
    'A function that is given to a learner may write the variables of modules that it names: by '
    'closure, as globals, or inside of objects that it names. In loops of jax.lax it may not; use '
    'those of nnx.'
)


class _Compiled:
    def __init__(self, f: Callable, held: Callable[[], Watched]):
        self._f, self._held = f, held
        self._key: Any = None
        self._variables: list[Any] = []
        self._jitted: Callable = f

    def states(self, *args: Any) -> list[Any]:
        """The variables that it may read or write."""
        states, key = self._held()
        now = key, [id(v) for v in states.values()]
        if now != self._key:
            self._variables = _reached(self._f)
            self._jitted = jax.jit(_pure(self._f, self._variables))
            self._key = now
        return self._variables

    def pure(self, values: Sequence[Any], *args: Any) -> tuple[list[Any], Any]:
        """The new values of `states(*args)` and the result, from the old values."""
        return _pure(self._f, self.states())(values, *args)

    def __call__(self, *args: Any) -> Any:
        variables = self.states()
        new, out = self._jitted(_values(variables), *args)
        _write(variables, new)
        return out


class _Watch:
    """The variables of a model and how it is built, looked up again when an attribute of one of its
    modules is another object than before."""

    def __init__(self, model: Any):
        self._model = model
        self._attributes: list[tuple[dict, list]] = []
        self._found: Watched | None = None

    def now(self) -> Watched:
        if self._found is None or any(_differ(*pair) for pair in self._attributes):
            values = [a for _, a in nnx.iter_graph(self._model)]
            nodes = [vars(a) for a in values if isinstance(a, nnx.Pytree)]
            self._attributes = [(a, list(a.values())) for a in nodes]
            # arrays that are no variables become constants of the program
            bare = [a for a in values if is_array(a) and not isinstance(a, nnx.Variable)]
            key = nnx.graphdef(self._model), tuple(map(Constant, bare))
            self._found = Watched(variables_of(self._model), key)
        return self._found


def _differ(now: dict, before: list) -> bool:
    return len(now) != len(before) or any(
        a is not b for a, b in zip(now.values(), before, strict=True)
    )
