"""What a trace is of. Traces are found by key; a key becomes text only where people read it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..step import Leaf, dotted

TRACE = 'trace'  # what a weight has done to the unit it feeds
INPUT, OUTPUT = 'x', 'f'  # the two factors of such a trace
UNNAMED = (TRACE, OUTPUT)  # kinds that need no word of their own


@dataclass(frozen=True)
class TraceKey:
    """The parameters behind a weight, the first hidden state of the group it feeds, and the kind of
    trace.

    `number` tells apart keys that are alike in everything else. Keys are ordered as their texts
    are, so that JAX can flatten a dict of them.
    """

    weight: tuple[Leaf, ...] = ()
    group: tuple | None = None
    kind: str = TRACE
    number: int = 0

    @cached_property
    def text(self) -> str:
        """`cell.W.weight->cell.h`, with the kind in front if it is not a plain trace."""
        told = '+'.join(leaf.name for leaf in self.weight)
        if self.group is not None:
            told += ('->' if self.weight else '') + (dotted(self.group) or 'state')
        if self.kind not in UNNAMED:
            told = f'{self.kind}:{told}' if told else self.kind
        return f'{told}#{self.number}' if self.number else told

    def __str__(self) -> str:
        return self.text

    def __lt__(self, other: TraceKey) -> bool:
        return self.text < other.text

    def of(self, kind: str) -> TraceKey:
        """The key of something else that is kept for the same weight and group."""
        return replace(self, kind=kind)

    def is_of(self, path: tuple) -> bool:
        """Whether the parameter at this path is behind the weight."""
        return any(leaf.path == path for leaf in self.weight)


def shared(keys: Sequence[TraceKey]) -> TraceKey:
    """The key of what several weights share."""
    weights = dict.fromkeys(leaf for key in keys for leaf in key.weight)
    return replace(keys[0], weight=tuple(weights))


def trace_type(dtype: Any) -> np.dtype:
    """The type of a trace of values of this one: at least float32, since a trace is a sum of many
    small steps."""
    half = jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize < 4
    return np.dtype(np.float32) if half else np.dtype(dtype)


def distinct(keys: Iterable[TraceKey], taken: Iterable[TraceKey] = ()) -> list[TraceKey]:
    """The keys in their order, numbered where their texts would be the same as one before or one
    that is taken."""
    met = {key.text for key in taken}
    numbered = []
    for key in keys:
        number = 0
        while replace(key, number=number).text in met:
            number += 1
        numbered.append(replace(key, number=number))
        met.add(numbered[-1].text)
    return numbered
