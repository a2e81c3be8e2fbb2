"""What a framework must give so that its models can learn online: the step of a model as a pure
program, and the places where its values live.

A front-end imports `step` and its own framework, nothing else. Plain functions are one too: their
values are the arguments of the step and live nowhere.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax

from ..step import Leaf, Step

PARAM, HIDDEN, OTHER = 'param', 'hidden', 'other'  # the roles of a state


class Held(NamedTuple):
    """A state of a model: its path, its role, and the object that holds it, which has a `value`."""

    path: tuple
    role: str
    holder: Any


@dataclass(frozen=True, eq=False)
class TracedModel:
    """One step of a model that holds its states.

    Args:
        step: the step.
        out_tree: the structure of its outputs.
        held: the states it reads or writes; the leaves of each role come in this order.
        origin: what the framework itself has to say about the trace.
    """

    step: Step
    out_tree: Any
    held: tuple[Held, ...]
    origin: Any = None

    def of_role(self, role: str) -> list[Held]:
        """The states of one role."""
        return [h for h in self.held if h.role == role]

    def read(self, role: str) -> list[Any]:
        """The present leaves of the states of one role, in the order of the step."""
        return [leaf for h in self.of_role(role) for leaf in jax.tree.leaves(h.holder.value)]

    def write(self, role: str, leaves: Sequence[Any]) -> None:
        """Put leaves back into the states of one role."""
        for h, value in zip(self.of_role(role), self.values(role, leaves), strict=True):
            h.holder.value = value

    def values(self, role: str, leaves: Sequence[Any]) -> list[Any]:
        """Leaves as values of the states of one role."""
        rest = iter(leaves)
        return [jax.tree.map(lambda _: next(rest), h.holder.value) for h in self.of_role(role)]


class Surroundings(NamedTuple):
    """What a step may read besides its arguments and states: settings that it is compiled for, and
    values that move with time."""

    settings: Hashable
    moving: Mapping[str, Any]


class Framework(Protocol):
    """What a learner asks of a framework whose models hold their states."""

    def is_module(self, model: Any) -> bool:
        """Whether this is a model of the framework."""

    def states_of(self, model: Any) -> dict[tuple, Any]:
        """The holders of a model's states by path; an error if none of them is hidden."""

    def role(self, holder: Any) -> str:
        """Whether a state is a parameter, hidden, or other."""

    def trace(
        self, f: Callable, known: Mapping[tuple, Any], *inputs: Any
    ) -> tuple[TracedModel, list[tuple]]:
        """A function of states as a step, run purely, and the paths of states that were not known;
        the states are left as they were."""

    def watch(self, model: Any) -> Callable[[], tuple]:
        """A quick way to say which state objects a model holds now: other ones after it is
        initialised again."""

    def surroundings(self) -> Surroundings:
        """What a step may read from the framework's environment now."""

    def within(self, moving: Mapping[str, Any]) -> AbstractContextManager:
        """The environment with these values of what moves."""

    def loop(self, f: Callable, xs: Any) -> Any:
        """`f` over the first axis of `xs`, its results stacked; it may write states."""

    def grad(self, f: Callable, holders: Mapping) -> Callable:
        """The gradient of `f() -> (loss, aux)` by the states of these holders, with the aux."""

    def compiled(self, f: Callable, held: Callable[[], tuple]) -> Callable:
        """`f`, which may write states, as one compiled call. `held` says which state objects there
        are."""


FRAMEWORKS = ('brainstate',)  # those with a front-end beside this file


def framework_of(model: Any) -> Framework | None:
    """The framework of a model that holds its states; None for a plain function.

    A framework that is not loaded has no models, and is not loaded here.
    """
    for name in FRAMEWORKS:
        if name in sys.modules:
            framework: Any = importlib.import_module(f'.{name}', __package__)
            if framework.is_module(model):
                return framework
    return None


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
