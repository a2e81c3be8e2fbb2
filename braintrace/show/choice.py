"""In words, how 'auto' found its rule."""

from __future__ import annotations

from collections.abc import Iterator

from ..learn.choice import Candidate, Choice
from .text import bytes_as_text


def choice_lines(choice: Choice, parameters: int) -> Iterator[str]:
    """What was taken, what was not and why, and the price of the next better rule; `parameters` is
    the number of all of them."""

    def told(c: Candidate) -> str:
        exact = f'exact for {c.exact} of {parameters} parameters'
        return f'{label(c)}, {exact}, {bytes_as_text(c.needs)}'

    yield f'taken: {told(choice.taken)} of a budget of {bytes_as_text(choice.budget)}'
    for c in choice.others:
        yield f'not taken: {label(c)}, {_why_not(c, choice)}'
    better = choice.better
    if better is None:
        yield 'no rule is better'
    else:
        yield f'next better: {told(better)} (memory_budget={better.needs})'


def label(c: Candidate) -> str:
    """The rule as people write it."""
    return f'snap with n={c.options["n"]}' if c.rule == 'snap' else c.rule


def _why_not(c: Candidate, choice: Choice) -> str:
    if c.refused:
        return c.refused
    if c.needs > choice.budget:
        return f'it needs {bytes_as_text(c.needs)}'
    if c.exact < choice.taken.exact:
        return f'it is exact for {c.exact} only'
    if c.trace_bytes >= choice.taken.trace_bytes:
        return f'it is as exact and keeps no less: traces of {bytes_as_text(c.trace_bytes)}'
    return 'it keeps less'
