"""A function that writes states of brainstate, as one compiled call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from ..errors import NotSupportedError
from .base import Watched
from .brainstate_environ import TRACE_CONTEXT, brainstate, surroundings, within


def compiled(f: Callable, held: Callable[[], Watched]) -> _Compiled:
    """`f`, which may write states, as one compiled call, with as little as possible between the
    caller and XLA.

    `states(*args)` of the result are the states that it reads or writes.
    `held` says which states there are: when they are other ones, or when a setting of
    `brainstate.environ` changes, it is compiled anew; for arguments and states of other shapes JAX
    does so by itself. After an exception all states are as they were.
    """
    return _Compiled(f, held)


class _Values:
    """The values of some states, read and written where brainstate keeps them: `state.value` costs
    more than a step of a small network. That is allowed while nobody looks on.

    It leans on `State._value`, `_been_writen` and `TRACE_CONTEXT.state_stack`; without them
    `unseen` would have to be False.
    """

    def __init__(self, states: list):
        self._states = states
        self._places = [vars(s) for s in states]
        self._plain = all(map(_is_plain, map(type, states)))

    def unseen(self) -> bool:
        """Whether nobody looks on: no transformation of brainstate, no hook, no type of state that
        has a say in it."""
        if not self._plain or TRACE_CONTEXT.state_stack or brainstate.has_state_hooks():
            return False
        return not any([s.has_hooks() for s in self._states])

    def read(self) -> list:
        return [place['_value'] for place in self._places]

    def write(self, values: list) -> None:
        for place, value in zip(self._places, values, strict=True):
            place['_value'], place['_been_writen'] = value, True


def _is_plain(kind: type) -> bool:
    """Whether a type of state reads and writes its value as brainstate's own do."""
    ways = 'value', '_read_value', '_write_value'
    return all(getattr(kind, way) is getattr(brainstate.State, way) for way in ways)


class _Met(NamedTuple):
    """What a function does to states: the stateful function that is traced, the states that it
    reads or writes, and which of them it writes, by number."""

    stateful: Any
    states: list
    written: list[int]

    @property
    def changed(self) -> list:
        """The states that it writes."""
        return [self.states[i] for i in self.written]

    def is_like(self, other: _Met) -> bool:
        """Whether the same states are read and the same written."""
        same = [id(s) for s in self.states] == [id(s) for s in other.states]
        return same and self.written == other.written


def _are_traced(*made: Any) -> bool:
    """Whether what a compiled call has made are no values yet: all of it, or nothing, so that one
    leaf tells."""
    leaves = (leaf for value in made for leaf in jax.tree.leaves(value))
    return isinstance(next(leaves, None), jax.core.Tracer)


class _Compiled:
    def __init__(self, f: Callable, held: Callable[[], Watched]):
        self._f, self._held = f, held
        self._key: Any = None
        self._met = _Met(None, [], [])
        self._is_new = False
        self._read = self._written = _Values([])
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
            self._read, self._written = _Values(self._met.states), _Values(self._met.changed)
            self._jitted = jax.jit(self._changes)
            self._key = key
        return moving

    def __call__(self, *args: Any) -> Any:
        moving = self._prepare(args)
        unseen = self._read.unseen()
        values = self._read.read() if unseen else [s.value for s in self._met.states]
        new, out = self._jitted(values, moving, args)
        if unseen and not _are_traced(out, *new):
            self._written.write(new)
            return out
        for state, value in zip(self._met.changed, new, strict=True):
            state.value = value
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
