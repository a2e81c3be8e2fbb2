"""A function that writes states of brainstate, as one compiled call."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, repeat, starmap
from operator import setitem
from typing import Any, NamedTuple

import jax

from .._jax import Jaxpr, calls_just_run, open_jaxpr, subjaxprs
from ..errors import NotSupportedError
from .base import Watched
from .brainstate_environ import TRACE_CONTEXT, brainstate, surroundings, within
from .brainstate_own import OwnState, copied


def compiled(f: Callable, held: Callable[[], Watched]) -> _Compiled:
    """`f`, which may write states, as one compiled call, with as little as possible between the
    caller and XLA.

    `states(*args)` of the result are the states that it reads or writes.
    `held` says which states there are: when they are other ones, or when a setting of
    `brainstate.environ` changes, it is compiled anew; for arguments and states of other shapes JAX
    does so by itself. After an exception all states are as they were. The new value of an
    `OwnState` takes the memory of the old one. XLA copies an array of it first where something
    else than its new value reads the old one too.
    """
    return _Compiled(f, held)


class _Values:
    """The values of some states, read and written where brainstate keeps them: `state.value` costs
    more than a step of a small network. That is allowed while nobody looks on.

    It leans on `State._value`, `_been_writen`, `_hooks_manager` and `TRACE_CONTEXT.state_stack`;
    without them `unseen` would have to be False.
    """

    def __init__(self, states: list):
        self._places = [vars(s) for s in states]
        self._plain = all(map(_is_plain, map(type, states)))

    def unseen(self) -> bool:
        """Whether nobody looks on: no trace of JAX, no transformation of brainstate, no hook, no
        type of state that has a say in it."""
        if TRACE_CONTEXT.state_stack or not (self._plain and calls_just_run()):
            return False
        hooks = [place['_hooks_manager'].has_hooks() for place in self._places]
        return not (any(hooks) or brainstate.has_state_hooks())

    def read(self) -> list:
        return [place['_value'] for place in self._places]

    def write(self, values: Iterator) -> None:
        """Give them the next of these values. It is one call of C, so that an interrupt, which
        Python raises between its own instructions, comes before all of it or after."""
        deque(map(setitem, self._places, repeat('_value'), values), maxlen=0)

    def will_be_written(self) -> None:
        for place in self._places:
            place['_been_writen'] = True


def _is_plain(kind: type) -> bool:
    """Whether a type of state reads and writes its value as brainstate's own do, or `OwnState`."""
    known = OwnState if issubclass(kind, OwnState) else brainstate.State
    ways = 'value', '_read_value', '_write_value'
    return all(getattr(kind, way) is getattr(known, way) for way in ways)


class _Met(NamedTuple):
    """What a function does to states: the stateful function that is traced, the states that it
    reads or writes, and by number which of them it writes, and the one that it writes over."""

    stateful: Any
    states: list
    written: list[int]
    own: int | None

    @property
    def changed(self) -> list:
        """The states that it writes."""
        return [self.states[i] for i in self.written]

    def is_like(self, other: _Met) -> bool:
        """Whether the same states are read and the same written, in the same way."""
        same = [id(s) for s in self.states] == [id(s) for s in other.states]
        return same and self[2:] == other[2:]


def _may_fail(jaxpr: Jaxpr) -> bool:
    """Whether a program calls others that may raise an exception while it runs."""

    def calls_others(name: str) -> bool:
        return 'callback' in name or 'ffi' in name

    return any(
        calls_others(e.primitive.name) or any(map(_may_fail, subjaxprs(e))) for e in jaxpr.eqns
    )


class _Compiled:
    def __init__(self, f: Callable, held: Callable[[], Watched]):
        self._f, self._held = f, held
        self._key: Any = None
        self._met = _Met(None, [], [], None)
        self._is_new = False
        self._all = self._rest = self._written = _Values([])
        self._own: OwnState | None = None
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
            met = self._met = self._trace(moving, args)
            self._is_new = True
            self._all, self._written = _Values(met.states), _Values(met.changed)
            self._own = None if met.own is None else met.states[met.own]
            self._rest = _Values([s for s in met.states if s is not self._own])
            if self._own is not None:
                self._own.prepare_to_lend()
            self._written.will_be_written()
            self._jitted = jax.jit(self._changes, donate_argnums=0)
            self._key = key
        return moving

    def __call__(self, *args: Any) -> Any:
        moving = self._prepare(args)
        if not self._all.unseen():
            rest = [s.value for s in self._met.states]
            lent = None if self._met.own is None else copied(rest.pop(self._met.own))
            *new, out = self._jitted(lent, rest, moving, args)
            for state, value in zip(self._met.changed, new, strict=True):
                state.value = value
            return out
        if self._own is None:
            return self._run(None, moving, args)
        with self._own.turn:
            out = self._run(self._own.lend(), moving, args)
            self._own.renewed()
        return out

    def _run(self, lent: Any, moving: Mapping[str, Any], args: tuple) -> Any:
        """The result, with the states as they are then. The call is made when `write` asks for the
        first value: once it has run, what was lent is gone, and an interrupt must not come before
        its new value has a place."""
        calls = [(lent, self._rest.read(), moving, args)]
        made = chain.from_iterable(starmap(self._jitted, calls))
        self._written.write(made)
        return next(made)

    def _trace(self, moving: Mapping[str, Any], args: tuple) -> _Met:
        def run(moving, *args):
            with within(moving):
                return self._f(*args)

        stateful = brainstate.transform.StatefulFunction(run, return_only_write=False, name='step')
        with brainstate.check_state_value_tree():
            states = list(stateful.get_states(moving, *args))
        ids = {id(s) for s in stateful.get_write_states(moving, *args)}
        written = [i for i, s in enumerate(states) if id(s) in ids]
        own = next((i for i in written if isinstance(states[i], OwnState)), None)
        if _may_fail(open_jaxpr(stateful.get_jaxpr(moving, *args))[0]):
            own = None  # after an exception all states are as they were
        return _Met(stateful, states, written, own)

    def _changes(self, lent: Any, rest: list, moving: dict, args: tuple) -> list:
        """The new values of the states that are written, and behind them the result, from the value
        that is written over and those of the rest."""
        if self._met.own is not None:
            rest.insert(self._met.own, lent)
        new, out = self._pure(rest, moving, args)
        return [*[new[i] for i in self._met.written], out]

    def _pure(self, values: list, moving: dict, args: tuple) -> tuple[list, Any]:
        met = self._met if self._is_new else self._trace(moving, args)
        self._is_new = False
        if not met.is_like(self._met):
            raise ValueError(
                'With inputs of this shape the step meets other states than before: make a new '
                'stream for them.'
            )
        return met.stateful.jaxpr_call(values, moving, *args)
