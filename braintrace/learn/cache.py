"""What was compiled, kept for the next call.

A function counts as the one it was before if it is the same object, as for `jax.jit`. Arrays count
by their types: shape, dtype, and how they lie on devices. The number of entries is bounded, the one
that was used longest ago goes first; nothing of a call that failed is kept.
"""

from __future__ import annotations

import threading
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import jax

from .._jax import trace_context, type_of
from ..graph.lines import frames_inside

ENTRIES = 32  # of one learner
OFTEN = 10  # a function that was made anew so many times is probably made in a loop

T = TypeVar('T')


class Cache:
    """Entries by key. A copy of a cache, also one through a file, is empty: what was compiled stays
    where it is."""

    def __init__(self, entries: int = ENTRIES):
        self._entries, self._most = OrderedDict[Hashable, Any](), entries
        self._met: Counter = Counter()
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(
        self, key: Hashable, make: Callable[[], T], lasting: Callable[[T], bool] | None = None
    ) -> T:
        """The entry of a key, made if there is none. One that is not `lasting` is given, but not
        kept."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key]
        made = make()
        if lasting is None or lasting(made):
            with self._lock:
                self._entries[key] = made
                if len(self._entries) > self._most:
                    self._entries.popitem(last=False)
        return made

    def peek(self, key: Hashable) -> Any:
        """The entry of a key, or None."""
        return self._entries.get(key)

    def put(self, key: Hashable, value: Any) -> None:
        """Replace the entry of a key."""
        with self._lock:
            self._entries.pop(key, None)
        self.get(key, lambda: value)

    def count(self, f: Callable, name: str) -> None:
        """Tell a user whose function is a new one at every call, so that every call compiles."""
        code = getattr(f, '__code__', None)
        if code is None:
            return
        self._met[code] += 1
        if self._met[code] == OFTEN:
            warnings.warn(
                f'`{name}` ({code.co_filename.rsplit("/", 1)[-1]}:{code.co_firstlineno}) was a new '
                f'function in {OFTEN} calls, and each of them compiled. Define it once, outside of '
                'the loop.',
                stacklevel=2 + frames_inside(),
            )

    def __copy__(self) -> Cache:
        return Cache(self._most)

    def __deepcopy__(self, memo: dict) -> Cache:
        return Cache(self._most)

    def __reduce__(self) -> tuple:
        return Cache, (self._most,)


def signature(*trees: Any) -> Hashable:
    """What a program that was traced for these values depends on: their structure and types, and
    what JAX itself looks at while it traces."""
    leaves, structure = jax.tree.flatten(trees)
    return structure, tuple([type_of(a) for a in leaves]), trace_context()
