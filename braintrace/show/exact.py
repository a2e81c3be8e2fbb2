"""Exactness in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..learn.exactness import Exactness


class ByParameter(dict[str, bool]):
    """Whether each parameter is exact, by name, where some are and some are not. As a condition it
    is false: not all are."""

    def __bool__(self) -> bool:
        return all(self.values())


def exactness_lines(told: Mapping[str, Exactness]) -> Iterator[str]:
    """A line for the parameters that are exact, and one for each reason why others are not."""
    names: dict[Exactness, list[str]] = {}
    for name, of_leaf in told.items():
        names.setdefault(of_leaf, []).append(name or 'params')
    for of_leaf, alike in names.items():
        if of_leaf.exact:
            who = 'every parameter' if len(names) == 1 else ', '.join(alike)
            yield f"{who}: BPTT's gradient at every window"
        else:
            yield f'{", ".join(alike)}: not exact, {of_leaf.why}'


def in_one_word(told: Mapping[str, Exactness]) -> str:
    """'yes', 'no', or how many of all parameters are exact."""
    exact = sum(of_leaf.exact for of_leaf in told.values())
    if exact == len(told):
        return 'yes'
    return f'{exact} of {len(told)}' if exact else 'no'
