"""Hidden groups: the states that belong to one and the same unit, found by true influence.

Two states are of one group when the old value of one reaches the new value of the other at the same position. A group's transition is the step restricted to
such paths; where an operation mixes positions, its output is a constant of the transition.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._jax import Jaxpr, JaxprEqn, Var, eval_jaxpr, source_line
from ..errors import NotSupportedError
from .analysis import Analysis, Row
from .diagnostics import DiagnosticKind as Kind
from .diagnostics import Diagnostics
from .index_maps import Maps, positions
from .structure import SnapPattern, Structure


class HiddenGroup(NamedTuple):
    """Hidden states tied position by position, with the program that takes their old values to their new ones.

    `hidden_invars` and `hidden_outvars` are the states' variables in the step. `transition_jaxpr` maps the one to the other given
    `transition_jaxpr_constvars`. `carried` lists the rows (states of a unit) whose old value is used position by position: only those need a trace.
    `elsewhere` has the index maps by which a unit's new state depends on old states of other units, where that is known element by element. `snap` has the
    units that each unit reaches, if the graph was compiled with `sparse_n`.
    """

    index: int  # type: ignore[assignment]
    hidden_paths: list
    hidden_states: list
    hidden_invars: list
    hidden_outvars: list
    transition_jaxpr: Jaxpr
    transition_jaxpr_constvars: list
    is_diagonal_recurrence: bool = True
    snap: SnapPattern | None = None
    descent: Any = None
    columns: tuple = ()
    carried: tuple = ()
    elsewhere: Maps = ()
    mixing: bool = False

    @property
    def _columns(self) -> tuple[int, ...]:
        return self.columns or (0,) * len(self.hidden_invars)

    @property
    def varshape(self) -> tuple[int, ...]:
        """The shape of the units."""
        shape = self.hidden_invars[0].aval.shape
        return shape[:-1] if self._columns[0] else shape

    @property
    def num_state(self) -> int:
        """How many states a unit has."""
        return sum(max(c, 1) for c in self._columns)

    @property
    def trace_state_width(self) -> int:
        """How many values of the group a trace holds for each weight: the states of one unit, or of a neighbourhood of units."""
        return self.num_state * (1 if self.snap is None else self.snap.valid.shape[-1])

    def check_consistent_varshape(self) -> None:
        """Raise `NotSupportedError` unless all states have the group's shape."""
        for path, v, c in zip(self.hidden_paths, self.hidden_invars, self._columns, strict=True):
            if (v.aval.shape[:-1] if c else v.aval.shape) != self.varshape:
                raise NotSupportedError(
                    f'Hidden state {path} has shape {v.aval.shape}, but its group has {self.varshape}.'
                )

    def concat_hidden(self, splitted: Sequence[Any]) -> Any:
        """One array `(*varshape, num_state)` from the value of each state."""
        if len(splitted) != len(self.hidden_invars):
            raise ValueError(
                f'`concat_hidden` takes one value for each of the {len(self.hidden_invars)} hidden states, got {len(splitted)}.'
            )
        return jnp.concatenate(
            [v if c else v[..., None] for v, c in zip(splitted, self._columns, strict=True)], -1
        )

    def split_hidden(self, concat: Any) -> list[Any]:
        """The inverse of `concat_hidden`."""
        if concat.shape[-1] != self.num_state:
            raise ValueError(
                f'`split_hidden` takes {self.num_state} states on the last axis, got {concat.shape[-1]}.'
            )
        parts = jnp.split(concat, np.cumsum([max(c, 1) for c in self._columns])[:-1], -1)
        return [
            (p if c else p[..., 0]).astype(v.aval.dtype)
            for p, c, v in zip(parts, self._columns, self.hidden_invars, strict=True)
        ]

    def transition(self, hidden_vals: Sequence[Any], input_vals: Sequence[Any]) -> list[Any]:
        """The new hidden values; `input_vals` are the values of `transition_jaxpr_constvars`."""
        return eval_jaxpr(self.transition_jaxpr, input_vals, *hidden_vals)

    def _concat_transition(self, hidden_vals: Sequence[Any], input_vals: Sequence[Any]):
        return (
            lambda h: self.concat_hidden(self.transition(self.split_hidden(h), input_vals))
        ), self.concat_hidden(hidden_vals)

    def diagonal_jacobian(self, hidden_vals: Sequence[Any], input_vals: Sequence[Any]) -> Any:
        """`D[p, a, b]`, the derivative of new state `a` of unit `p` by old state `b` of the same unit, shape `(*varshape, S, S)`.

        One pull for each state and colour; units of one colour do not depend on each other's old value. With neighbourhoods `snap` of K units it is their
        block of the Jacobian, `(*varshape, K S, K S)`, with zeros where there are fewer.
        """
        if self.mixing:
            n, S, W = int(np.prod(self.varshape)), self.num_state, self.trace_state_width
            full = self.full_jacobian(hidden_vals, input_vals).reshape(n, S, n, S)
            near, there = (
                a.reshape(n, -1)
                for a in (
                    self.snap[2:] if self.snap is not None else (np.arange(n), np.ones(n, bool))
                )
            )
            block = (
                full[near[:, :, None], :, near[:, None, :], :]
                * (there[:, :, None] & there[:, None, :])[..., None, None]
            )
            return jnp.swapaxes(block, 2, 3).reshape(*self.varshape, W, W)
        f, h = self._concat_transition(hidden_vals, input_vals)
        _, pull = jax.vjp(f, h)
        colours = self.colours()
        states = jnp.eye(self.num_state, dtype=h.dtype)

        def of_colour(c):
            chosen = jnp.asarray(colours == c)[..., None]
            rows = jax.vmap(lambda one: pull(jnp.where(chosen, one, 0))[0])(states)
            return jnp.where(chosen[..., None], jnp.moveaxis(rows, 0, -2), 0)

        return sum(of_colour(c) for c in range(int(colours.max(initial=0)) + 1))

    def colours(self) -> np.ndarray:
        """A colour for each unit; units of one colour do not depend on each other's old states along the transition."""
        n = int(np.prod(self.varshape))
        return (colour(n, self.elsewhere) if self.elsewhere else np.zeros(n, np.int32)).reshape(
            self.varshape
        )

    def full_jacobian(self, hidden_vals: Sequence[Any], input_vals: Sequence[Any]) -> Any:
        """The derivative of every new value by every old one along the transition, shape `(*varshape, S, *varshape, S)`."""
        f, h = self._concat_transition(hidden_vals, input_vals)
        return jax.jacrev(f, holomorphic=jnp.iscomplexobj(h))(h)

    def dict(self) -> dict[str, Any]:
        """The fields by name."""
        return self._asdict()


def find_groups(
    found: Analysis,
    diagnostics: Diagnostics,
    *,
    states: Mapping[tuple, Any] | None = None,
    mixing: bool = False,
) -> list[HiddenGroup]:
    """The hidden groups in the order of their first state. `mixing` keeps the operations that mix positions in the transitions."""
    rows = found.rows
    news = [found.of_row(r) for r in rows]
    tied = [
        (i, j)
        for j, d in enumerate(news)
        for i, maps in d.maps.items()
        if i < len(rows) and _same_position(rows[i], rows[j], maps)
    ]
    root = list(range(len(rows)))

    def top(i: int) -> int:
        while root[i] != i:
            i = root[i]
        return i

    first: dict[tuple, int] = {}
    links = tied + [
        (first.setdefault((*r.leaf.path, '/', *r.leaf.key), i), i) for i, r in enumerate(rows)
    ]
    for i, j in links:
        a, b = sorted((top(i), top(j)))
        root[b] = a
    members: dict[int, list[int]] = {}
    for i in range(len(rows)):
        members.setdefault(top(i), []).append(i)
    carried = {i for i, _ in tied}
    return [
        _group(found, index, seeds, carried, news, states or {}, mixing, diagnostics)
        for index, seeds in enumerate(members.values())
    ]


def _same_position(old: Row, new: Row, maps: Maps) -> bool:
    return old.shape == new.shape and any(
        m is p or bool((m == p).any()) for p in [positions(old.shape)] for m in maps
    )


def _group(
    found: Analysis,
    index: int,
    seeds: list[int],
    carried: set[int],
    news: list,
    states: Mapping,
    mixing: bool,
    diagnostics: Diagnostics,
) -> HiddenGroup:
    rows = [found.rows[s] for s in seeds]
    leaves = dict.fromkeys((r.leaf, r.old, r.new) for r in rows)
    invars: list[Var] = [old for _, old, _ in leaves]
    outvars = [new for _, _, new in leaves]
    paths = [leaf.path for leaf, _, _ in leaves]
    own = 0
    for s in seeds:
        own |= 1 << s
    off_position: list[np.ndarray] = []
    for m in (
        m
        for s in seeds
        for i, maps in news[s].maps.items()
        if i in seeds
        for m in maps
        if not _is_identity(m)
    ):
        if not any(m is o or np.array_equal(m, o) for o in off_position):
            off_position.append(m)
    mixed = any(news[s].mixed & own for s in seeds)
    jaxpr = found.between(invars, outvars) if mixing else found.along(seeds, invars, outvars)
    if len(paths) > 1:
        diagnostics.info(
            Kind.HIDDEN_GROUP_MERGED,
            f'Hidden states {paths} belong to the same units (group {index}).',
            hidden_paths=tuple(paths),
        )
    if mixed or off_position:
        _tell_mixing(found, index, seeds, news, paths, diagnostics)
    return HiddenGroup(
        index,
        paths,
        [states.get(p) for p in paths],
        invars,
        outvars,
        jaxpr,
        list(jaxpr.constvars),
        not (mixed or off_position),
        columns=tuple(leaf.columns for leaf, _, _ in leaves),
        carried=tuple(k for k, s in enumerate(seeds) if s in carried),
        elsewhere=tuple(off_position),
        mixing=mixing,
    )


def with_neighbours(
    found: Analysis, groups: Sequence[HiddenGroup], n: int, limit: int
) -> list[HiddenGroup]:
    """The groups with the neighbourhoods of SnAp-n, whose blocks of the Jacobian may have `limit` elements."""
    structure, done = Structure(found), []
    for g in groups:
        g = g._replace(snap=structure.neighbours(g.hidden_invars, g.hidden_outvars, g.varshape, n))
        size = int(np.prod(g.varshape)) * g.trace_state_width**2
        if size > limit:
            raise NotSupportedError(
                f'sparse_n={n}: the Jacobian of hidden group {g.index} would have {size} elements in the neighbourhoods of its units, more '
                f'than snap_max_jacobian_elements={limit}. Use a smaller n, or raise the limit.'
            )
        done.append(g)
    return done


def _is_identity(m: np.ndarray) -> bool:
    return bool(((m < 0) | (m == positions(m.shape))).all())


def _tell_mixing(
    found: Analysis, index: int, seeds: list[int], news: list, paths: list, diagnostics: Diagnostics
) -> None:
    """Recurrence through a weight matrix is what the diagonal rules leave out by definition; through anything else the user should know."""
    weighted = {y for u in found.uses for y in u.y}
    through = [
        e
        for j in seeds
        for i in seeds
        if news[j].mixed >> i & 1
        for e in [found.blame(i, found.rows[j].new)]
        if e is not None
    ]
    others = [e for e in through if weighted.isdisjoint(e.outvars)]
    group, about = f'Hidden group {index} ({_names(paths)})', dict(hidden_paths=tuple(paths))
    if through and not others:
        diagnostics.info(
            Kind.TRANSITION_MIXED,
            f'{group} is recurrent through a weight ({_place(through[0])}): the diagonal rules leave that part out of the '
            'trace by definition.',
            **about,
        )
    elif others:
        diagnostics.warning(
            Kind.TRANSITION_MIXED,
            f'{group} mixes its units through {_place(others[0])}: a trace that remembers one unit per weight does not '
            'carry that part; inside a window it is exact.',
            primitive=others[0].primitive.name,
            **about,
        )
    else:
        diagnostics.warning(
            Kind.TRANSITION_MIXED,
            f'{group} moves values between its units: a trace that remembers one unit per weight does not follow them; '
            'inside a window they are exact.',
            **about,
        )


def _place(eqn: JaxprEqn) -> str:
    return f'`{eqn.primitive.name}` at {source_line(eqn)}'


def _names(paths: Sequence[tuple]) -> str:
    return ', '.join('.'.join(map(str, p)) or 'state' for p in paths)


def colour(n: int, maps: Sequence[np.ndarray]) -> np.ndarray:
    """Colours for n units such that no unit shares one with a unit it depends on: random independent sets, with a fixed seed."""
    pairs = [
        np.stack([np.flatnonzero(ok), m.ravel()[ok]])
        for m in maps
        for ok in [(m.ravel() >= 0) & (m.ravel() != np.arange(m.size))]
    ]
    a, b = np.concatenate(pairs + [p[::-1] for p in pairs], 1)
    rank = np.random.RandomState(0).permutation(n)
    colour, c = np.full(n, -1, np.int32), 0
    while (colour < 0).any():
        blocked = colour >= 0
        while not blocked.all():  # one maximal set of mutually independent units
            best = np.full(n, -1)
            open_ = ~blocked[a] & ~blocked[b]
            np.maximum.at(best, a[open_], rank[b[open_]])
            chosen = ~blocked & (rank > best)
            colour[chosen] = c
            blocked |= chosen
            blocked[b[chosen[a]]] = True
        c += 1
    return colour
