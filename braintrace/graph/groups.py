"""Hidden groups: the states that belong to one and the same unit, found by true influence.

Two states are of one group when the old value of one reaches the new value of the other at the same
position. A group's transition is the step restricted to such paths; where an operation mixes
positions, its output is a constant of the transition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._jax import JaxprEqn, Var
from ..step import Fragment, Leaf, dotted
from .analysis import Analysis, Row
from .dependence import Dep
from .diagnostics import DiagnosticKind as Kind
from .diagnostics import Diagnostics
from .index_maps import Maps, positions
from .lines import place_of


@dataclass(frozen=True, eq=False)
class Group:
    """Hidden states tied position by position.

    `rows` are the states of a unit. `carried` lists those, by position in `rows`, whose old value
    is used position by position: only those need a trace. `elsewhere` has the index maps by which a
    unit's new state depends on old states of other units, where that is known element by element.
    """

    index: int
    rows: tuple[Row, ...]
    carried: tuple[int, ...]
    elsewhere: Maps = ()

    @cached_property
    def _leaves(self) -> list[tuple[Leaf, Var, Any]]:
        return list(dict.fromkeys((r.leaf, r.old, r.new) for r in self.rows))

    @property
    def invars(self) -> list[Var]:
        """The variables of the old values, one for each leaf."""
        return [old for _, old, _ in self._leaves]

    @property
    def outvars(self) -> list[Var]:
        """The variables of the new values, one for each leaf."""
        return [new for _, _, new in self._leaves]

    @property
    def paths(self) -> list[tuple]:
        """The path of each leaf."""
        return [leaf.path for leaf, _, _ in self._leaves]

    @property
    def columns(self) -> tuple[int, ...]:
        """For each leaf the number of states on its last axis, 0 for a leaf that is one state."""
        return tuple(leaf.columns for leaf, _, _ in self._leaves)

    @property
    def varshape(self) -> tuple[int, ...]:
        """The shape of the units."""
        return self.rows[0].shape

    @property
    def num_state(self) -> int:
        """How many states a unit has; a complex one counts once."""
        return sum(max(c, 1) for c in self.columns)

    def concat_hidden(self, values: Sequence[jax.Array]) -> jax.Array:
        """One array `(*varshape, num_state)` from the value of each leaf."""
        return concat_hidden(self.columns, values)

    def split_hidden(self, concat: jax.Array) -> list[jax.Array]:
        """The value of each leaf from one array `(*varshape, num_state)`."""
        return split_hidden(self.columns, [v.aval.dtype for v in self.invars], concat)


def concat_hidden(columns: Sequence[int], values: Sequence[jax.Array]) -> jax.Array:
    """Values of leaves as one array `(*units, states)`; a leaf with `columns` has them on its last
    axis already."""
    if len(values) != len(columns):
        raise ValueError(
            f'`concat_hidden` takes one value for each of the {len(columns)} hidden states, '
            f'got {len(values)}.'
        )
    wide = [v if c else v[..., None] for v, c in zip(values, columns, strict=True)]
    return jnp.concatenate(wide, -1)


def split_hidden(
    columns: Sequence[int], dtypes: Sequence[np.dtype], concat: jax.Array
) -> list[jax.Array]:
    """The value of each leaf, in its dtype, from one array `(*units, states)`."""
    widths = [max(c, 1) for c in columns]
    if concat.shape[-1] != sum(widths):
        raise ValueError(
            f'`split_hidden` takes {sum(widths)} states on the last axis, got {concat.shape[-1]}.'
        )
    parts = jnp.split(concat, np.cumsum(widths)[:-1], -1)
    return [
        (p if c else p[..., 0]).astype(dtype)
        for p, c, dtype in zip(parts, columns, dtypes, strict=True)
    ]


def transition(analysis: Analysis, group: Group, mixing: bool = False) -> Fragment:
    """The program from the old values of a group's leaves to their new ones, along position-wise
    paths; with `mixing` along all paths."""
    if mixing:
        return analysis.between(group.invars, group.outvars)
    return analysis.along(analysis.seeds_of(group.rows), group.invars, group.outvars)


def is_diagonal(analysis: Analysis, group: Group) -> bool:
    """Whether no unit of a group depends on the old states of another unit."""
    own = sum(1 << s for s in analysis.seeds_of(group.rows))
    mixed = any(analysis.of_row(row).mixed & own for row in group.rows)
    return not mixed and not group.elsewhere


def find_groups(analysis: Analysis, diagnostics: Diagnostics) -> list[Group]:
    """The hidden groups in the order of their first state."""
    rows = analysis.rows
    news = [analysis.of_row(r) for r in rows]
    tied = [
        (i, j)
        for j, d in enumerate(news)
        for i, maps in d.maps.items()
        if i < len(rows) and _same_position(rows[i], rows[j], maps)
    ]
    first: dict[tuple, int] = {}
    of_one_leaf = [
        (first.setdefault((*r.leaf.path, '/', *r.leaf.key), i), i) for i, r in enumerate(rows)
    ]
    carried = {i for i, _ in tied}
    groups = []
    for index, seeds in enumerate(_connected(len(rows), tied + of_one_leaf)):
        group = Group(
            index,
            tuple(rows[s] for s in seeds),
            tuple(k for k, s in enumerate(seeds) if s in carried),
            _off_position(seeds, news),
        )
        _tell(analysis, group, seeds, news, diagnostics)
        groups.append(group)
    return groups


def _connected(n: int, pairs: Sequence[tuple[int, int]]) -> list[list[int]]:
    """The numbers below n in the sets that these pairs connect, each in order."""
    root = list(range(n))

    def top(i: int) -> int:
        while root[i] != i:
            i = root[i]
        return i

    for i, j in pairs:
        a, b = sorted((top(i), top(j)))
        root[b] = a
    members: dict[int, list[int]] = {}
    for i in range(n):
        members.setdefault(top(i), []).append(i)
    return list(members.values())


def _same_position(old: Row, new: Row, maps: Maps) -> bool:
    here = positions(old.shape)
    return old.shape == new.shape and any(bool((m == here).any()) for m in maps)


def _off_position(seeds: Sequence[int], news: Sequence[Dep]) -> Maps:
    """The distinct maps by which units of a group depend on other units of it."""
    distinct: list[np.ndarray] = []
    for s in seeds:
        for i, maps in news[s].maps.items():
            for m in maps if i in seeds else ():
                if not _is_identity(m) and not any(np.array_equal(m, o) for o in distinct):
                    distinct.append(m)
    return tuple(distinct)


def _is_identity(m: np.ndarray) -> bool:
    return bool(((m < 0) | (m == positions(m.shape))).all())


# ---- diagnostics ---------------------------------------------------------------------------------


def _tell(
    analysis: Analysis,
    group: Group,
    seeds: Sequence[int],
    news: Sequence[Dep],
    diagnostics: Diagnostics,
) -> None:
    paths = group.paths
    if len(paths) > 1:
        diagnostics.info(
            Kind.HIDDEN_GROUP_MERGED,
            f'Hidden states {paths} belong to the same units (group {group.index}).',
            hidden_paths=tuple(paths),
        )
    mixing = [(i, j) for j in seeds for i in seeds if news[j].mixed >> i & 1]
    if mixing or group.elsewhere:
        own = sum(1 << i for i in seeds)
        moved = any(news[j].seeds & ~own for j in seeds)
        # Where nothing but itself acts on a group, no trace can lose anything.
        tell = diagnostics.warning if moved else diagnostics.info
        ends = [analysis.blame(i, analysis.rows[j].new) for i, j in mixing]
        _tell_mixing(analysis, group, [e for e in ends if e is not None], diagnostics, tell)


def _tell_mixing(
    analysis: Analysis,
    group: Group,
    through: Sequence[JaxprEqn],
    diagnostics: Diagnostics,
    tell: Callable[..., None],
) -> None:
    """Recurrence through a weight matrix is what the diagonal rules leave out by definition;
    through anything else the user should know, by `tell`. `through` are the equations that mix."""
    weighted = {y for u in analysis.uses for y in u.y}
    others = [e for e in through if weighted.isdisjoint(e.outvars)]
    names = ', '.join(dotted(p) or 'state' for p in group.paths)
    what, about = f'Hidden group {group.index} ({names})', tuple(group.paths)
    if through and not others:
        diagnostics.info(
            Kind.TRANSITION_MIXED,
            f'{what} is recurrent through a weight ({place_of(through[0])}): the diagonal rules '
            'leave that part out of the trace by definition.',
            hidden_paths=about,
        )
    elif others:
        tell(
            Kind.TRANSITION_MIXED,
            f'{what} mixes its units through {place_of(others[0])}: a trace that remembers one '
            'unit per weight does not carry that part; inside a window it is exact.',
            primitive=others[0].primitive.name,
            hidden_paths=about,
        )
    else:
        tell(
            Kind.TRANSITION_MIXED,
            f'{what} moves values between its units: a trace that remembers one unit per weight '
            'does not follow them; inside a window they are exact.',
            hidden_paths=about,
        )


# ---- colours -------------------------------------------------------------------------------------


def colour(n: int, maps: Sequence[np.ndarray]) -> np.ndarray:
    """Colours `(n,)` for n units such that no unit shares one with a unit it depends on: random
    independent sets, with a fixed seed."""
    if not maps:
        return np.zeros(n, np.int32)
    pairs = [_pairs(m.ravel()) for m in maps]
    a, b = np.concatenate(pairs + [p[::-1] for p in pairs], 1)
    rank = np.random.RandomState(0).permutation(n)
    colours, c = np.full(n, -1, np.int32), 0
    while (colours < 0).any():
        blocked = colours >= 0
        while not blocked.all():  # one maximal set of mutually independent units
            best = np.full(n, -1)
            open_ = ~blocked[a] & ~blocked[b]
            np.maximum.at(best, a[open_], rank[b[open_]])
            chosen = ~blocked & (rank > best)
            colours[chosen] = c
            blocked |= chosen
            blocked[b[chosen[a]]] = True
        c += 1
    return colours


def _pairs(m: np.ndarray) -> np.ndarray:
    """A unit and another one that it depends on, `(2, pairs)`."""
    other = (m >= 0) & (m != np.arange(m.size))
    return np.stack([np.flatnonzero(other), m[other]])
