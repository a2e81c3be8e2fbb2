"""What a function can name: for frameworks whose states are plain objects that a function closes
over."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

MOST = 1000  # entries of a container that may hold objects rather than data
# Their functions name no objects of a user, except in closures.
LIBRARIES = {*sys.stdlib_module_names, 'flax', 'jax', 'jaxlib', 'numpy', 'optax', 'orbax'}
OURS, OUR_FILES = __name__.split('.')[0], __file__.split('frontends')[0]


def reached_by(f: Callable, kind: Any) -> list[Any]:
    """The objects of one kind (a class or a union of classes) that a function closes over, names
    among its globals, or reaches through other functions, containers and objects of plain
    classes."""
    reached: list[Any] = []
    seen: dict[int, Any] = {}
    todo: list[Any] = [f]
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, kind):
            reached.append(value)
        else:
            todo.extend(_named_by(value))
    return reached


def _named_by(value: Any) -> Iterator[Any]:
    if isinstance(value, types.FunctionType):
        yield from (value.__defaults__ or ())
        yield from (value.__kwdefaults__ or {}).values()
        yield from _filled(value.__closure__ or ())
        ours = value.__code__.co_filename.startswith(OUR_FILES)
        if not ours and not _of_library(value):
            named = value.__globals__
            yield from (named[n] for n in _names(value.__code__) if n in named)
    elif isinstance(value, types.MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, dict | list | tuple | set | frozenset):
        if len(value) <= MOST:
            yield from (value.values() if isinstance(value, dict) else value)
    elif hasattr(value, '__wrapped__'):  # a function inside of `jit` and the like
        yield value.__wrapped__
    elif not isinstance(value, type | types.ModuleType) and not _of_library(type(value), OURS):
        yield from getattr(value, '__dict__', {}).values()


def _of_library(value: Any, *more: str) -> bool:
    return (value.__module__ or '').split('.')[0] in {*LIBRARIES, *more}


def _filled(cells: tuple) -> Iterator[Any]:
    for cell in cells:
        try:
            yield cell.cell_contents
        except ValueError:  # a name that has no value yet
            continue


def _names(code: types.CodeType) -> set[str]:
    """The global names in a function's code, and in that of functions inside of it."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))
