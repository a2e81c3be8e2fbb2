"""A state of a learner's own, whose value a compiled call may write over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

import jax

from .brainstate_environ import brainstate


def copied(value: Any) -> Any:
    """The same arrays in memory of their own, wherever they lie."""
    return jax.device_put(value, may_alias=False)


def _by_turns(way: Callable) -> Callable:
    """One of brainstate's ways to the value of a state: it waits for a call that writes over the
    value, and keeps what is read from being written over."""

    @wraps(way)
    def taken(self: OwnState, *args: Any, **kwargs: Any) -> Any:
        turn = getattr(self, 'turn', None)
        if turn is None:
            return way(self, *args, **kwargs)
        with turn:
            self.keep()
            return way(self, *args, **kwargs)

    return taken


class OwnState(brainstate.ShortTermState):  # type: ignore[misc]
    """A state that only a learner writes in its steps. A compiled call writes over its value,
    unless somebody has read it: then over a copy.

    The slots are not among the attributes that brainstate copies from state to state.
    """

    __slots__ = ('turn', 'unread')
    turn: threading.RLock  # whose turn it is to read the value or to write over it
    unread: Any  # the value, where a compiled call has made it and nobody has read it yet

    @_by_turns
    def _read_value(self) -> Any:
        return super()._read_value()

    @_by_turns
    def _write_value(self, v: Any) -> None:
        super()._write_value(v)

    @_by_turns
    def copy(self) -> Any:
        """A state with the same value."""
        return super().copy()

    def copy_from(self, other: Any) -> None:
        """Take over the value of another state, and what is said of it."""
        super().copy_from(other.copy())

    @_by_turns
    def replace(self, *args: Any, **kwargs: Any) -> Any:
        """A state with other attributes."""
        return super().replace(*args, **kwargs)

    @_by_turns
    def to_state_ref(self) -> Any:
        """The state as a leaf of a tree."""
        return super().to_state_ref()

    @_by_turns
    def __getstate__(self) -> dict:
        return vars(self).copy()

    def prepare_to_lend(self) -> None:
        """From now on the value may be lent."""
        if not hasattr(self, 'turn'):
            self.keep()
            object.__setattr__(self, 'turn', threading.RLock())

    def lend(self) -> Any:
        """The value, to be written over, while it is the caller's turn."""
        value = vars(self)['_value']
        return value if value is self.unread else copied(value)

    def renewed(self) -> None:
        """What was lent has been written over, and this is the new value."""
        object.__setattr__(self, 'unread', vars(self)['_value'])

    def keep(self) -> None:
        """The present value is not to be written over."""
        object.__setattr__(self, 'unread', None)
