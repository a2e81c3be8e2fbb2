"""What a framework must give so that its models can learn online.

A model reaches a learner in one of two ways. As an argument of a plain step, `step(model, state,
*inputs)`: then its `Form` takes it apart into parameters and the rest, puts it together again, and
says how gradients look; pytrees, Equinox and Flax NNX have one. Or as an object that holds its
states: then its `Framework` finds them, runs one step as a pure program and writes values back;
brainstate and Flax NNX are such. What a model is made of may be a library's too: of matrices and
kernels that run as a whole, the `Kernels` of the library tell. A front-end imports `step` and its
own framework, nothing else.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import jax

from .._jax import JaxprEqn
from ..step import Leaf, Step
from .forms import Form

PARAM, HIDDEN, OTHER = 'param', 'hidden', 'other'  # the roles of a state


class Held(NamedTuple):
    """A state of a model: its path, its role, and the object that holds it. A framework whose
    holders have no `value` brings its own `value` and `write`."""

    path: tuple
    role: str
    holder: Any

    @property
    def value(self) -> Any:
        """The present value."""
        return self.holder.value

    def write(self, value: Any) -> None:
        """Give the holder another value."""
        self.holder.value = value


@dataclass(frozen=True, eq=False)
class Traced:
    """One step of a model as every front-end gives it, and a learner takes it.

    How values come into it and go back differs: a `TracedModel` reads and writes the objects that
    hold its states, a `TracedFunction` takes a state apart and puts it together.

    Args:
        step: the program.
        out_tree: the structure of its outputs.
    """

    step: Step
    out_tree: Any


@dataclass(frozen=True, eq=False)
class TracedModel(Traced):
    """One step of a model that holds its states.

    Args:
        step, out_tree: the program, and the structure of its outputs.
        held: the states it reads or writes; the leaves of each role come in this order.
        origin: what the framework itself has to say about the trace.
    """

    held: tuple[Held, ...]
    origin: Any = None

    def of_role(self, role: str) -> list[Held]:
        """The states of one role."""
        return [h for h in self.held if h.role == role]

    def read(self, role: str) -> list[Any]:
        """The present leaves of the states of one role, in the order of the step."""
        return [leaf for h in self.of_role(role) for leaf in jax.tree.leaves(h.value)]

    def write(self, role: str, leaves: Sequence[Any]) -> None:
        """Put leaves back into the states of one role."""
        for h, value in zip(self.of_role(role), self.values(role, leaves), strict=True):
            h.write(value)

    def values(self, role: str, leaves: Sequence[Any]) -> list[Any]:
        """Leaves as values of the states of one role."""
        rest = iter(leaves)
        return [jax.tree.map(lambda _: next(rest), h.value) for h in self.of_role(role)]

    def bound_to(self, states: Mapping[tuple, Any]) -> TracedModel:
        """The same step of another model of the same build, whose states these are by path; states
        outside the model stay the same."""
        if all(states.get(h.path, h.holder) is h.holder for h in self.held):
            return self
        held = tuple(h._replace(holder=states.get(h.path, h.holder)) for h in self.held)
        return replace(self, held=held)


class Surroundings(NamedTuple):
    """What a step may read besides its arguments and states: settings that it is compiled for, and
    values that move with time."""

    settings: Hashable
    moving: Mapping[str, Any]


class Watched(NamedTuple):
    """The holders of a model's states by path, and what tells apart models for which different
    programs are made."""

    states: Mapping[tuple, Any]
    key: Hashable


class CompiledCall(Protocol):
    """A function that may write states, as one compiled call."""

    def __call__(self, *args: Any) -> Any:
        """Run it; after an exception all states are as they were."""

    def states(self, *args: Any) -> list:
        """The holders of the states that it reads or writes, for arguments like these."""

    def pure(self, values: list, *args: Any) -> tuple[list, Any]:
        """The new values of these states and the result, from the old values; nothing is
        written."""


class Framework(Protocol):
    """What a learner asks of a framework whose models hold their states."""

    def states_of(self, model: Any) -> dict[tuple, Any]:
        """The holders of a model's states by path; an error if none of them is hidden."""

    def held(self, path: tuple, holder: Any) -> Held:
        """A state of a model, by the object that holds it."""

    def role(self, holder: Any) -> str:
        """Whether a state is a parameter, hidden, or other."""

    def read(self, holder: Any) -> Any:
        """The present value of a state."""

    def trace(
        self, f: Callable, known: Mapping[tuple, Any], *inputs: Any
    ) -> tuple[TracedModel, list[tuple]]:
        """A function of states as a step, run purely, and the paths of states that were not known;
        the states are left as they were."""

    def watch(self, model: Any) -> Callable[[], Watched]:
        """A quick way to say which state objects a model holds now, which may be others after it is
        initialised again, and how it is built."""

    def surroundings(self) -> Surroundings:
        """What a step may read from the framework's environment now."""

    def within(self, moving: Mapping[str, Any]) -> AbstractContextManager:
        """The environment with these values of what moves."""

    def loop(self, f: Callable, xs: Any) -> Any:
        """`f` over the first axis of `xs`, its results stacked; it may write states."""

    def gradients(self, holders: Mapping, values: Mapping) -> Any:
        """Gradients of states, both by the user's keys, as the framework's own `grad` gives
        them."""

    def grad(self, f: Callable, holders: Mapping) -> Callable:
        """The gradient of `f() -> (loss, aux)` by the states of these holders, with the aux."""

    def compiled(self, f: Callable, held: Callable[[], Watched]) -> CompiledCall:
        """`f`, which may write states, as one compiled call. `held` says which state objects there
        are; `states(*args)` of the result are those that it reads or writes."""


class Kernels(Protocol):
    """What the ops ask of a library of sparse matrices."""

    def calls_kernel(self, eqn: JaxprEqn) -> bool:
        """Whether an equation calls a kernel of the library, a product to be looked at from
        outside."""

    def by_columns(self, matrix: Any) -> bool:
        """Whether this is a matrix of the library in which columns are compressed, not rows."""

    def runnable(self, matrix: Any) -> Any:
        """A matrix, with kernels that can run here if they are the library's."""


class NumbaBridge(Protocol):
    """A library that lets XLA call what numba has compiled."""

    def numba_call(self, kernel: Callable, outs: list[jax.ShapeDtypeStruct]) -> Callable[..., Any]:
        """A kernel `(*operands, *outs)` for the CPU as a function `(*operands) -> outs` of JAX."""


# ---- which framework ----

# packages whose lines are a library's and not the user's, and those that they compute with
FRAMEWORKS = 'brainstate brainevent brainpy brainpy_state braintools equinox flax'.split()
NUMERICS = ('jax', 'saiunit', 'brainunit')
# primitives of theirs that act element by element, by name
ELEMENTWISE = 'heaviside_surrogate_gradient'

# front-ends beside this file, each with the module that is loaded if it has models
HOLDING = {'brainstate': 'brainstate', 'nnx': 'flax.nnx'}
ARGUMENTS = {'nnx': 'flax.nnx', 'equinox': 'equinox'}
ALONE = {'equinox': 'equinox', 'linen': 'flax.linen'}
MATRICES = {'brainevent': 'brainevent', 'saiunit': 'saiunit'}


def _loaded(names: Mapping[str, str]) -> Iterator[Any]:
    """The front-ends of those that are loaded: the others have no models, and are not loaded
    here."""
    for name, library in names.items():
        if library in sys.modules:
            yield importlib.import_module(f'.{name}', __package__)


def framework_of(model: Any) -> Any:
    """The front-end of a model that holds its states; None for a plain function."""
    return next((f for f in _loaded(HOLDING) if f.is_module(model)), None)


def form_of(model: Any) -> Form:
    """The form of a model that is an argument of a step: that of pytrees if it is of no
    framework."""
    tree: Any = importlib.import_module('.function', __package__)
    return next((f for f in _loaded(ARGUMENTS) if f.is_argument(model)), tree)


def advice_for(model: Any) -> str | None:
    """What to write for a model that holds no state and was passed without a step; None if it is no
    such model."""
    return next((told for f in _loaded(ALONE) if (told := f.advice_for(model))), None)


def calls_kernel(eqn: JaxprEqn) -> bool:
    """Whether an equation calls a kernel that a library has written for some device."""
    return any(f.calls_kernel(eqn) for f in _loaded(MATRICES))


def by_columns(matrix: Any) -> bool:
    """Whether columns of a sparse matrix are compressed, not rows."""
    return any(f.by_columns(matrix) for f in _loaded(MATRICES))


def runnable(matrix: Any) -> Any:
    """A sparse matrix, with kernels that can run here if it has any of a library."""
    for f in _loaded(MATRICES):
        matrix = f.runnable(matrix)
    return matrix


@functools.cache
def numba_bridge() -> NumbaBridge | None:
    """What lets XLA call a kernel of numba; None where that or numba itself is not installed."""
    if any(importlib.util.find_spec(name) is None for name in ('numba', 'brainevent')):
        return None
    bridge: Any = importlib.import_module('.brainevent', __package__)
    return bridge


def holders_of(thing: Any) -> dict[tuple, Held] | None:
    """What a module, an optimiser or another object of a loaded framework holds, by path; anything
    with a `value` holds that. None for other objects."""
    for framework in _loaded(HOLDING):
        holders = framework.holders(thing)
        if holders is not None:
            return holders
    return {(): Held((), OTHER, thing)} if hasattr(thing, 'value') else None


def leaves_of(path: tuple, value: Any, columns: int = 0) -> list[Leaf]:
    """A name for each leaf of a state's value: its path, and the keys that a user wrote inside of
    it."""
    keyed = jax.tree_util.tree_flatten_with_path(value)[0]
    return [Leaf(path, _written(keys), columns) for keys, _ in keyed]


def _written(keys: Sequence[Any]) -> tuple:
    """The keys of dicts and sequences, not the inside of a quantity."""
    names = []
    for k in keys:
        if isinstance(k, jax.tree_util.DictKey):
            names.append(k.key)
        elif isinstance(k, jax.tree_util.SequenceKey):
            names.append(k.idx)
    return tuple(names)
