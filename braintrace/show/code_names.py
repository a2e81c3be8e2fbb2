"""The user's own names: of parameters and states, and of what the lines of a model compute."""

from __future__ import annotations

import ast
import functools
import linecache
import re
from collections.abc import Sequence

from .._jax import Jaxpr, Var, called_name, source_stack
from ..step import Leaf


def identifiers(leaves: Sequence[Leaf]) -> list[str]:
    """For each leaf the end of its path that tells it from all others, as a name."""
    paths = [tuple(_word(part) for part in (*leaf.path, *leaf.key)) for leaf in leaves]
    return [_shortest(path, paths) for path in paths]


def _shortest(path: tuple[str, ...], paths: Sequence[tuple[str, ...]]) -> str:
    for k in range(1, len(path) + 1):
        end = path[-k:]
        if sum(other[-k:] == end for other in paths) == 1 and not end[0].isdigit():
            break
    return as_identifier('_'.join(path[-k:]))


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


def names_in_source(jaxpr: Jaxpr) -> dict[Var, str]:
    """What the lines `z = ...` of a model call the variables of its program."""
    last: dict[tuple, Var] = {}
    names: dict[Var, str] = {}
    outs = {v for v in jaxpr.outvars if isinstance(v, Var)}
    for eqn in jaxpr.eqns:
        stack = source_stack(eqn)
        if not stack:
            continue
        targets = _targets(*stack[0], inner=len(stack) > 1)
        called = '' if targets else called_name(eqn)
        if called.isidentifier() and len(eqn.outvars) == 1 and eqn.outvars[0] not in outs:
            names[eqn.outvars[0]] = called.strip('_')
            last[called, len(last)] = eqn.outvars[0]
            continue
        if len(targets) == len(eqn.outvars) and len(targets) > 1:
            names.update(zip(eqn.outvars, targets, strict=True))
        elif len(targets) == 1 and len(eqn.outvars) == 1:
            last[tuple(stack)] = eqn.outvars[0]
            names[eqn.outvars[0]] = targets[0]
    ends = set(last.values())
    several = {v for eqn in jaxpr.eqns if len(eqn.outvars) > 1 for v in eqn.outvars}
    return {v: name for v, name in names.items() if v in ends or v in several}


def _targets(file: str, line: int, inner: bool) -> tuple[str, ...]:
    """The names that a line of a file assigns to; what a function returns that the step calls
    (`inner`) has the name of that function."""
    names = _assignments(file).get(line, ())
    if not names and inner:
        return _returns(file).get(line, ())
    return names


@functools.lru_cache(maxsize=64)
def _parsed(file: str) -> ast.Module:
    try:
        return ast.parse(''.join(linecache.getlines(file)))
    except SyntaxError:
        return ast.Module([], [])


@functools.lru_cache(maxsize=64)
def _returns(file: str) -> dict[int, tuple[str, ...]]:
    """By line of a statement that returns one value, the name of its function."""
    by_line: dict[int, tuple[str, ...]] = {}
    for f in ast.walk(_parsed(file)):
        for node in ast.walk(f) if isinstance(f, ast.FunctionDef) else ():
            if isinstance(node, ast.Return) and not isinstance(node.value, ast.Tuple):
                for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                    by_line[line] = (f.name.strip('_'),)  # type: ignore[union-attr]
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
