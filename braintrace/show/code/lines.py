"""Names that are given once, and lines that are not too long."""

from __future__ import annotations

import builtins
import keyword
import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 96  # of a line, before it is indented
TAKEN = {'jax', 'jnp', 'np', *keyword.kwlist, *dir(builtins)}


class Names:
    """Names that are given once. Those that are kept are given only to who asks for them."""

    def __init__(self, taken: Iterable[str] = (), kept: Iterable[str] = ()):
        self._taken, self.kept = {*TAKEN, *taken}, set(kept)

    def new(self, wanted: str, spare: bool = False) -> str:
        """This name, with a number if it is taken; a spare one keeps out of the way of others."""
        name, k = wanted, 1
        while name in self._taken or (spare and name in self.kept):
            k += 1
            name = f'{wanted}{k}' if not wanted[-1].isdigit() else f'{wanted}_{k}'
        self._taken.add(name)
        return name

    def reserve(self, names: Iterable[str]) -> None:
        """These are not given from now on."""
        self._taken.update(names)

    def copy(self) -> Names:
        """Names that may be given again elsewhere."""
        return Names(self._taken, self.kept)


def tuple_of(texts: Sequence[str]) -> str:
    """A tuple of these."""
    return f'({texts[0]},)' if len(texts) == 1 else f'({", ".join(texts)})'


def targets(names: Sequence[str]) -> str:
    """These names on the left side of an assignment."""
    return f'{names[0]},' if len(names) == 1 else ', '.join(names)


def indented(lines: Iterable[str]) -> list[str]:
    """The lines of a body."""
    return [f'    {line}' for line in lines]


def comment(text: str) -> list[str]:
    """A comment of as many lines as it needs."""
    return textwrap.wrap(text, WIDTH, initial_indent='# ', subsequent_indent='# ')


def wrap(head: str, text: str, comment: str = '') -> list[str]:
    """A statement as lines; what stands in its last brackets goes below where it is too long."""
    told = f'  # {comment}' if comment else ''
    if len(head) + len(text) + len(told) <= WIDTH:
        return [head + text + told]
    if len(head) + len(text) <= WIDTH:
        return [head + text]
    opening = _last_bracket(text)
    if opening is None:
        return [head + text]
    start, stop = opening
    indent = ' ' * (len(head) - len(head.lstrip()) + 4)
    parts = _at_commas(text[start + 1 : stop])
    inside = ', '.join(parts) + (',' if text[start + 1 : stop].rstrip().endswith(',') else '')
    lines = [f'{head}{text[: start + 1]}']
    if len(indent) + len(inside) <= WIDTH and text[start] != '{':
        lines.append(indent + inside)
    elif all(part.isidentifier() for part in parts):
        lines += textwrap.wrap(
            f'{inside.rstrip(",")},', WIDTH, initial_indent=indent, subsequent_indent=indent
        )
    else:
        for part in parts:
            lines += wrap(indent, part + ',')
    return [*lines, f'{indent[:-4]}{text[stop:]}{told}']


def _last_bracket(text: str) -> tuple[int, int] | None:
    """The pair of brackets that ends last, at the outermost level."""
    stack: list[int] = []
    best = None
    for k, c in enumerate(text):
        if c in '([{':
            stack.append(k)
        elif c in ')]}':
            start = stack.pop()
            if not stack and k - start > 8:
                best = start, k
    return best


def _at_commas(text: str) -> list[str]:
    """The parts between the outermost commas."""
    parts, depth, start = [], 0, 0
    for k, c in enumerate(text):
        depth += (c in '([{') - (c in ')]}')
        if c == ',' and depth == 0:
            parts.append(text[start:k].strip())
            start = k + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts
