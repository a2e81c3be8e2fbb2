"""Pytrees in a page of Python: how each leaf is reached, and how a tree of new values is built."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from ...errors import NotSupportedError
from .lines import tuple_of


@dataclass(frozen=True)
class Tree:
    """A value of the file that holds arrays.

    Args:
        root: its name.
        leaves: how each of its arrays is reached.
        form: the tree with the number of each leaf in its place.
        plain: whether it is made of dicts, lists and tuples alone.
    """

    root: str
    leaves: tuple[str, ...]
    form: Any
    plain: bool

    @property
    def keys(self) -> list[str] | None:
        """The name of each leaf where the tree is a dict of arrays; None for other trees."""
        form = self.form
        if type(form) is not dict or not all(isinstance(part, int) for part in form.values()):
            return None
        return [str(key) for key in sorted(form, key=form.__getitem__)]

    @property
    def needs_root(self) -> bool:
        """Whether a tree like this one is built by the class or the structure of the one that was
        given."""
        return not self.plain or _has_fields(self.form)

    def build(self, texts: Sequence[str], fields: bool = True) -> str:
        """A tree like this one with other leaves. A tuple with names (`fields`) is made by the
        class of the one that was given."""
        if self.plain or not fields:
            return _built(self.form, self.root, list(texts), fields)
        listed = ', '.join(texts)
        return f'jax.tree.unflatten(jax.tree.structure({self.root}), [{listed}])'


def tree_of(root: str, value: Any, backend: str) -> Tree:
    """The tree of a value, which in the file has this name."""
    structure: Any
    leaves, structure = jax.tree.flatten(value)
    form = structure.unflatten(range(len(leaves)))
    plain = plain_tree(root, form)
    if plain is not None:
        return plain
    if backend == 'numpy':
        raise NotSupportedError(
            f"`code(backend='numpy')`: `{root}` is a {type(value).__name__}, which numpy cannot "
            "take apart. Use dicts, lists and tuples, or backend='jax'."
        )
    reached = tuple(f'jax.tree.leaves({root})[{k}]' for k in range(len(leaves)))
    return Tree(root, reached, form, False)


def plain_tree(root: str, form: Any) -> Tree | None:
    """The tree of a form with numbers in the places of its leaves, None for constants in it; None
    if it is not made of dicts, lists and tuples."""
    by_number = {number: path for path, number in _paths(form, root)}
    if None in by_number.values():
        return None
    return Tree(root, tuple(str(by_number[k]) for k in range(len(by_number))), form, True)


def flat_tree(root: str, names: Sequence[str]) -> Tree:
    """A dict of arrays by name."""
    form = {name: k for k, name in enumerate(names)}
    return Tree(root, tuple(f'{root}[{name!r}]' for name in names), form, True)


def output_tree(out_tree: Any) -> Tree:
    """The tree of what a step gives; what is of a class of its own becomes a tuple."""
    n = out_tree.num_leaves
    form = _simple(out_tree.unflatten(range(n)))
    by_number = {number: path for path, number in _paths(form, 'out')}
    return Tree('out', tuple(str(by_number[k]) for k in range(n)), form, True)


def _simple(form: Any) -> Any:
    """A form without classes of their own."""
    if form is None or isinstance(form, int):
        return form
    if type(form) is dict:
        return {key: _simple(part) for key, part in form.items()}
    if type(form) in (list, tuple):
        return type(form)(_simple(part) for part in form)
    leaves = jax.tree.leaves(form)
    return leaves[0] if len(leaves) == 1 else tuple(leaves)


def _has_fields(form: Any) -> bool:
    """Whether there is a tuple with names in a form of dicts, lists and tuples."""
    if form is None or isinstance(form, int):
        return False
    parts = form.values() if isinstance(form, dict) else form
    return hasattr(form, '_fields') or any(map(_has_fields, parts))


def _paths(form: Any, path: str) -> Iterator[tuple[str | None, int]]:
    """How each number in a form is reached; None for what is inside of a class of its own."""
    if form is None:
        return
    if isinstance(form, int):
        yield path, form
    elif type(form) is dict:
        for key, part in form.items():
            yield from _paths(part, f'{path}[{key!r}]')
    elif isinstance(form, tuple) and hasattr(form, '_fields'):
        for name, part in zip(form._fields, form, strict=True):
            yield from _paths(part, f'{path}.{name}')
    elif type(form) in (list, tuple):
        for k, part in enumerate(form):
            yield from _paths(part, f'{path}[{k}]')
    else:
        for number in jax.tree.leaves(form):
            yield None, number


def _built(form: Any, path: str, texts: list[str], fields: bool) -> str:
    if form is None:
        return 'None'
    if isinstance(form, int):
        return texts[form]
    if type(form) is dict:
        parts = [
            f'{key!r}: {_built(part, f"{path}[{key!r}]", texts, fields)}'
            for key, part in form.items()
        ]
        return f'{{{", ".join(parts)}}}'
    if hasattr(form, '_fields') and fields:
        parts = [
            f'{name}={_built(part, f"{path}.{name}", texts, fields)}'
            for name, part in zip(form._fields, form, strict=True)
        ]
        return f'type({path})({", ".join(parts)})'
    parts = [_built(part, f'{path}[{k}]', texts, fields) for k, part in enumerate(form)]
    if isinstance(form, list):
        return f'[{", ".join(parts)}]'
    return tuple_of(parts)
