"""The lines of source behind the equations of a program: the user's own, where there is one.

A line is a library's if its file is one of a framework, of JAX, or of this package; `ops/` and
`nn/` of this package are libraries that a model is made of, and all the rest of it runs the model.
"""

from __future__ import annotations

import inspect
import itertools
import pathlib
import re

from .._jax import JaxprEqn, frames
from ..frontends.base import FRAMEWORKS, NUMERICS

Line = tuple[str, int]  # file and number

_HERE = re.escape(str(pathlib.Path(__file__).parent.parent))
_NUMERICS = re.compile(f'/({"|".join(NUMERICS)})/')
_OPS = re.compile(rf'{_NUMERICS.pattern}|{_HERE}/ops/')  # below the layers of a library
_LIBRARIES = re.compile(rf'{_OPS.pattern}|/({"|".join(FRAMEWORKS)})/|{_HERE}/nn/')
_NOT_THE_USER = re.compile(rf'{_LIBRARIES.pattern}|{_HERE}/|/contextlib.py|/functools.py')
# What runs a user's model, rather than is a part of it.
_TRACING = re.compile(rf'{_HERE}/(?!ops/|nn/)')


def _lines(eqn: JaxprEqn) -> tuple[list[Line], list[Line]]:
    """The lines that led to an equation, from the inside: all, and those that are no library's."""
    every = frames(eqn)
    inside = list(itertools.takewhile(lambda line: not _TRACING.search(line[0]), every)) or every
    return inside, [line for line in inside if not _LIBRARIES.search(line[0])]


def source_line(eqn: JaxprEqn) -> str:
    """`cell.py:41`: the line behind an equation, the user's own rather than a library's if there is
    one, or `?`."""
    inside, own = _lines(eqn)
    shown = own or [line for line in inside if not _OPS.search(line[0])] or inside
    if not shown:
        return '?'
    file, number = shown[0]
    return f'{file.split("/")[-1]}:{number}'


def place_of(eqn: JaxprEqn) -> str:
    """An equation as messages name it: `` `dot_general` at cell.py:41 ``."""
    return f'`{eqn.primitive.name}` at {source_line(eqn)}'


def source_stack(eqn: JaxprEqn) -> tuple[list[Line], bool]:
    """The files and lines behind an equation, from the inside, without those of JAX; and whether
    the first is the user's own, rather than a library's."""
    inside, own = _lines(eqn)
    stack = [line for line in inside if not _NUMERICS.search(line[0])]
    return stack, bool(stack) and stack[0] in own


def located(eqn: JaxprEqn, around: JaxprEqn | None) -> JaxprEqn:
    """The equation; where none of its lines is the user's own, as inside functions that a library
    compiles, at the place of the call around it."""
    return eqn if around is None or _lines(eqn)[1] else eqn.replace(source_info=around.source_info)


def frames_inside() -> int:
    """How many frames above the caller are of this package or of a library that runs it: what to
    add to the `stacklevel` of a warning that is about the user's line."""
    caller = inspect.stack(0)[2:]
    mine = itertools.takewhile(lambda frame: _NOT_THE_USER.search(frame.filename), caller)
    return sum(1 for _ in mine)
