"""What one value depends on: the lattice of the analysis.

For one value and one seed: nothing < a few index maps < an inverse map < mixed. A value knows its
seeds by number: `maps` where the dependence is position by position, the bit set `mixed` where
there is any other. Between the two, for seeds that may have one, stands an *inverse map*: the one
element of the value that each element of the seed goes into, which a sum over elements leaves
whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from .index_maps import Maps, merge
from .inverse_maps import inverse_of, merge_inverse


@dataclass(frozen=True)
class Dep:
    """What one value depends on, by the number of the seed."""

    maps: dict[int, Maps] = field(default_factory=dict)
    mixed: int = 0
    inverse: dict[int, np.ndarray] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.maps or self.mixed or self.inverse)

    @property
    def seeds(self) -> int:
        """All seeds, as a bit set."""
        return self.mixed | sum(1 << s for s in self.live)

    @property
    def live(self) -> set[int]:
        """The seeds whose influence can be followed element by element."""
        return self.maps.keys() | self.inverse.keys()

    def each(self, f: Callable[[np.ndarray], np.ndarray]) -> Dep:
        """Every index map through `f`; one that vanishes is dropped. Inverse maps stay as they
        are."""
        moved = {s: tuple(n for n in map(f, ms) if (n >= 0).any()) for s, ms in self.maps.items()}
        return Dep({s: ms for s, ms in moved.items() if ms}, self.mixed, self.inverse)

    def all_maps(self) -> Iterable[np.ndarray]:
        """The index maps of all seeds."""
        return (m for ms in self.maps.values() for m in ms)


NOTHING = Dep()
Sizes = Mapping[int, int]  # the number of elements of the seeds that may have an inverse map
NO_SIZES: Sizes = {}


def union(deps: Iterable[Dep]) -> Dep:
    """The dependences of a value that depends on all of these."""
    total = NOTHING
    for d in deps:
        total = join(total, d)[0]
    return total


def join(a: Dep, b: Dep, sizes: Sizes = NO_SIZES) -> tuple[Dep, bool]:
    """Both dependences, and whether some of b's found no room in the maps (and so counts as
    mixed). `sizes` has the seeds that may have an inverse map."""
    if not a or not b:
        return a if a else b, False
    maps, inverse = a.maps | b.maps, a.inverse | b.inverse
    mixed, crowded = a.mixed | b.mixed, False
    for s in a.live & b.live:
        full = True
        if s in a.maps and s in b.maps:
            maps[s], full = merge(a.maps[s], b.maps[s])
        if full and (s in sizes or s in a.inverse or s in b.inverse):
            both = _joint_inverse(a, b, s, sizes)
            full = both is None
            if both is not None:
                inverse[s] = both
                maps.pop(s, None)
            else:
                _keep_first(a, b, s, maps, inverse)
        mixed |= full << s
        crowded |= full
    return Dep(maps, mixed, inverse), crowded


def _keep_first(
    a: Dep, b: Dep, s: int, maps: dict[int, Maps], inverse: dict[int, np.ndarray]
) -> None:
    """Where b's dependence on a seed finds no room beside a's: a keeps its own, so that the
    dependences of a loop only grow and its fixpoint is reached."""
    inverse.pop(s, None)
    if s in a.inverse:
        inverse[s] = a.inverse[s]
        maps.pop(s, None)
    elif s not in b.maps:
        maps[s] = a.maps[s]


def _joint_inverse(a: Dep, b: Dep, s: int, sizes: Sizes) -> np.ndarray | None:
    """One inverse map for the dependences of both on seed `s`, if there is one."""
    if s in sizes:
        size = sizes[s]
    else:
        size = (a.inverse[s] if s in a.inverse else b.inverse[s]).size
    of_a, of_b = (d.inverse[s] if s in d.inverse else inverse_of(d.maps[s], size) for d in (a, b))
    return merge_inverse(of_a, of_b)


def same(a: Dep, b: Dep) -> bool:
    """Whether two dependences are equal, map by map."""
    return (
        a.mixed == b.mixed
        and list(a.maps) == list(b.maps)
        and a.inverse.keys() == b.inverse.keys()
        and all(np.array_equal(a.inverse[s], b.inverse[s]) for s in a.inverse)
        and all(_equal(a.maps[s], b.maps[s]) for s in a.maps)
    )


def _equal(ms: Maps, others: Maps) -> bool:
    return len(ms) == len(others) and all(map(np.array_equal, ms, others))


def inverted(d: Dep, sizes: Sizes, keep: Callable[[Dep], bool] | None = None) -> Dep:
    """The dependences with inverse maps in the place of index maps where that is possible, but for
    those of the seeds that `keep` says yes to."""
    inverse = {}
    for s, ms in d.maps.items():
        if s in sizes and not (keep is not None and keep(Dep({s: ms}))):
            of_seed = inverse_of(ms, sizes[s])
            if of_seed is not None:
                inverse[s] = of_seed
    maps = {s: ms for s, ms in d.maps.items() if s not in inverse}
    return Dep(maps, d.mixed, d.inverse | inverse)
