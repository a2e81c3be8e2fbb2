"""The user's own names: of parameters and states, and of what the lines of a model compute."""

from __future__ import annotations

import ast
import functools
import linecache
import re
from collections.abc import Sequence
from typing import NamedTuple

from ..._jax import Jaxpr, Var, called_name
from ...graph.lines import source_stack
from ...step import Leaf
from .lines import TAKEN


def identifiers(leaves: Sequence[Leaf]) -> list[str]:
    """For each leaf the end of its path that tells it from all others, as a name."""
    paths = [_words((*leaf.path, *leaf.key)) for leaf in leaves]
    if len(set(paths)) < len(paths):
        paths = [tuple(map(_word, (*leaf.path, *leaf.key))) for leaf in leaves]
    return [_shortest(path, paths) for path in paths]


def _shortest(path: tuple[str, ...], paths: Sequence[tuple[str, ...]]) -> str:
    for k in range(1, len(path) + 1):
        end = path[-k:]
        if sum(other[-k:] == end for other in paths) == 1 and not end[0].isdigit():
            break
    return as_identifier('_'.join(path[-k:]))


def _words(path: Sequence[object]) -> tuple[str, ...]:
    """The parts of a path as words, without a `weight` that only holds others."""
    words = [_word(part) for part in path]
    return tuple(w for k, w in enumerate(words) if w != 'weight' or k == len(words) - 1)


def _word(part: object) -> str:
    return re.sub(r'\W+', '_', str(part)).strip('_') or 'x'


def as_identifier(text: str) -> str:
    """A text as the name of a variable."""
    word = _word(text)
    return f'v{word}' if word[0].isdigit() else word


def common_part(names: Sequence[str]) -> str:
    """What some names share, `z` of `Wz`, `Uz` and `bz`; the first of them where that is
    nothing."""
    names = list(dict.fromkeys(names))
    if len(names) == 1:
        return names[0]
    for turn in (1, -1):
        shared = []
        for letters in zip(*[n[::-turn] for n in names], strict=False):
            if len(set(letters)) > 1:
                break
            shared.append(letters[0])
        word = ''.join(shared)[::-turn].strip('_')
        if word and word[0].isalpha():
            return word
    return names[0]


class Spoken(NamedTuple):
    """What a model's lines call a variable; `assigned` by the user's own lines `z = ...`, otherwise
    the name of the function that returns it, or of a library's variable."""

    name: str
    assigned: bool


def names_in_source(jaxpr: Jaxpr) -> dict[Var, Spoken]:
    """What the lines of a model call the variables of its program."""
    for cached in (_parsed, _returns, _assignments):
        cached.cache_clear()  # files, and cells of a notebook, change
    last: dict[tuple, Var] = {}  # by the line and those that led there
    names: dict[Var, Spoken] = {}
    outs = {v for v in jaxpr.outvars if isinstance(v, Var)}
    for eqn in jaxpr.eqns:
        stack, own = source_stack(eqn)
        assigned = _assignments(stack[0][0]).get(stack[0][1], ()) if stack else ()
        if len(assigned) == len(eqn.outvars):
            for k, (v, name) in enumerate(zip(eqn.outvars, assigned, strict=True)):
                names[v] = Spoken(name, own)
                last[(k, *stack)] = v
        elif len(eqn.outvars) == 1 and eqn.outvars[0] not in outs:
            called = called_name(eqn) or _returned(stack)
            if called.isidentifier():
                names[eqn.outvars[0]] = Spoken(called, False)
                last[(called, len(last))] = eqn.outvars[0]
    ends = set(last.values())
    return {v: spoken for v, spoken in names.items() if v in ends and spoken.name not in TAKEN}


def _returned(stack: Sequence[tuple[str, int]]) -> str:
    """The name of the function that the step calls and whose value a line returns."""
    if len(stack) < 2:
        return ''
    return _returns(stack[0][0]).get(stack[0][1], '')


@functools.lru_cache(maxsize=64)
def _parsed(file: str) -> ast.Module:
    try:
        return ast.parse(''.join(linecache.getlines(file)))
    except SyntaxError:
        return ast.Module([], [])


@functools.lru_cache(maxsize=64)
def _returns(file: str) -> dict[int, str]:
    """By line of a statement that returns one value, the name of its function."""
    by_line: dict[int, str] = {}
    functions = [f for f in ast.walk(_parsed(file)) if isinstance(f, ast.FunctionDef)]
    for f in functions:
        for node in ast.walk(f):
            if isinstance(node, ast.Return) and not isinstance(node.value, ast.Tuple):
                for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                    by_line[line] = f.name.strip('_')
    return by_line


@functools.lru_cache(maxsize=64)
def _assignments(file: str) -> dict[int, tuple[str, ...]]:
    """By line, the names that its statement assigns to."""
    by_line: dict[int, tuple[str, ...]] = {}
    for node in ast.walk(_parsed(file)):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            names = _names_of(node.targets[0])
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                by_line[line] = names
    return by_line


def _names_of(target: ast.expr) -> tuple[str, ...]:
    if isinstance(target, ast.Name):
        return (target.id,)
    if isinstance(target, ast.Tuple) and all(isinstance(e, ast.Name) for e in target.elts):
        return tuple(e.id for e in target.elts if isinstance(e, ast.Name))
    return ()
