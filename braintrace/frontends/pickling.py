"""Modules of brainstate through `pickle`.

States of brainstate hold a weak reference to the trace they were made in, and some of its classes
are not where they say they are; both are seen to here, for everything that hangs on a learner. What
a user's model holds besides must pickle by itself: functions at the top of a module, not lambdas.
"""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any

import brainstate

_OF_THE_TRACE = ('_trace_state', '_source_info', '_hooks_manager', '_level')


def dumps(value: Any) -> bytes:
    """The pickle of a value that may hold brainstate states."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, brainstate.State):
            kept = {k: v for k, v in vars(value).items() if k not in _OF_THE_TRACE}
            return _state, (type(value), kept)
        if isinstance(value, type) and not _is_where_it_says(value):
            return _class, (_home(value), value.__qualname__)
        return NotImplemented


def _state(cls: Any, kept: dict[str, Any]) -> Any:
    """A state of this class as it would be if it were made here."""
    state = cls.__new__(cls)
    vars(state).update(vars(brainstate.State(kept['_value'])))
    vars(state).update(kept)
    return state


def _is_where_it_says(cls: type) -> bool:
    value: Any = sys.modules.get(cls.__module__)
    for name in cls.__qualname__.split('.'):
        value = getattr(value, name, None)
    return value is cls


def _home(cls: type) -> str:
    """A loaded module of the class's package that has it."""
    package = cls.__module__.split('.')[0]
    for name, module in list(sys.modules.items()):
        if name.split('.')[0] == package and getattr(module, cls.__qualname__, None) is cls:
            return name
    raise pickle.PicklingError(
        f'{cls.__module__}.{cls.__qualname__} cannot be found where it says it is, so it cannot be '
        'pickled. Define the class at the top of a module.'
    )


def _class(module: str, name: str) -> type:
    __import__(module)
    return getattr(sys.modules[module], name)
