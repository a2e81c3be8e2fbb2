"""How the steps of a window went."""

from __future__ import annotations

from typing import Any, NamedTuple

from .evaluate import Values

State = tuple[list[Any], list[Any]]  # hidden and other leaves


class Course(NamedTuple):
    """How the steps of a window went, with the steps first: the states before each of them, the
    outputs, and what the loop keeps (see `Program.kept`)."""

    hidden: list[Any]
    other: list[Any]
    outs: list[Any]
    kept: list[Any]


class Moment(NamedTuple):
    """One step of a window, or all of them with the steps first: what it starts from, and what is
    known of it already: what the loop kept, what a unit's change comes back as over each detour,
    which samples take part, and the new states (none where samples are left out, which keep their
    own)."""

    hidden: Values
    other: Values
    inputs: Values
    kept: Values
    detours: Values = ()
    ok: Any = ()
    new: Values = ()
