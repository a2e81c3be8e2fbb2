"""A unit's way back to itself through ops that mix units.

A position-wise path ends at `y = x @ w`. On the diagonal of the Jacobian it goes on: a *bridge* takes it from the element of x that comes from a unit to the
element of y that feeds the same unit, over the one weight between them. Where a second product follows (the reset gate of a GRU) a unit returns by way of
all others, `sum_j w'[u, j] slope[j] w[j, u]`: one product of the slopes with `w' * w`, its weights taken element by element. So no Jacobian larger than y is
ever formed. `covered` tells whether these two kinds are all there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._jax import Var
from ..graph.analysis import Analysis
from ..graph.etrace_graph import ETraceGraph
from ..graph.index_maps import Maps, along
from ..graph.uses import Use


@dataclass(frozen=True, eq=False)
class Bridge:
    """For each element of y the element of x that comes from the unit it feeds (`near`, -1 for none), and the weight between them."""

    x: Var
    rows: frozenset[int]
    near: np.ndarray
    weight: tuple[np.ndarray, ...]

    def __call__(self, dx: Any, scale: Any) -> Any:
        """The change of y by a change of x, along the diagonal."""
        return along(self.near, self.x.aval.shape)(dx) * scale


@dataclass(frozen=True, eq=False)
class Detour(Bridge):
    """The way over two products: x is the operand of the first, y the output of the second, and `weight` has for each weight of the second the one of
    the first (-1: none) that leads from the same unit to the element it multiplies."""

    first: Use
    second: Use
    seed: int

    def scale(self, slopes: Any, first: Any, second: Any) -> Any:
        """What a unit's change comes back as: slopes of the second operand by the output of the first, with the steps Z first, and both weights."""
        axes, there = self.second.axes, self.weight[0] >= 0
        assert axes is not None
        joined = second * jnp.where(there, first[tuple(np.maximum(i, 0) for i in self.weight)], 0)
        return jnp.einsum(f'Z{axes.x},{axes.w}->Z{axes.y}', slopes, joined)


Bridges = Mapping[Var, Sequence[Bridge]]


Places = dict[str, np.ndarray]  # the place of each element along each label, -1 for none


class Ends:
    """One product: which unit each element of its operand comes from, and which units each element of its output feeds (-1 for none)."""

    def __init__(self, found: Analysis, use: Use, rows: set[int], targets: Maps):
        assert use.x_var is not None and use.axes is not None and use.axes.x is not None
        self.use, self.found, self.x_var, self.y_var = use, found, use.x_var, use.y[0]
        self.x, self.w, self.y = use.axes.x, use.axes.w, use.axes.y
        maps = {s: self.found.dep(self.x_var).maps.get(s, ()) for s in rows}
        self.rows = frozenset(s for s, ms in maps.items() if ms)
        self.source = np.full(self.x_var.aval.size, -1, np.int64)
        self.clear = True  # no element comes from two units
        for m in (m.ravel() for ms in maps.values() for m in ms):
            self.clear &= not ((self.source >= 0) & (m >= 0) & (self.source != m)).any()
            self.source = np.where(m >= 0, m, self.source)
        self.targets = [m.ravel() for m in targets]
        self.size = dict(
            zip(self.y + self.x, self.y_var.aval.shape + self.x_var.aval.shape, strict=True)
        )
        self.batch = [c for c in self.y if c not in self.w]

    def places(self, labels: str) -> Places:
        return dict(
            zip(
                labels,
                np.indices([self.size[c] for c in labels]).reshape(len(labels), -1),
                strict=True,
            )
        )

    def by_sample(self, a: np.ndarray, labels: str) -> np.ndarray:
        """Values at the elements of x or y, (samples, elements of one)."""
        order = [labels.index(c) for c in self.batch] + [
            k for k, c in enumerate(labels) if c not in self.batch
        ]
        return (
            a.reshape([self.size[c] for c in labels])
            .transpose(order)
            .reshape(int(np.prod([self.size[c] for c in self.batch])), -1)
        )

    def at_weights(self, labels: str) -> np.ndarray:
        """For each weight the element of x or y, in one sample, that it belongs to."""
        number = np.zeros(self.use.w.aval.shape, np.int64)
        place = np.indices(number.shape)
        for c in labels:
            number = number if c in self.batch else number * self.size[c] + place[self.w.index(c)]
        return number

    def elements_of(self, units: tuple[int, ...]) -> np.ndarray:
        """For each unit the elements of x that come from it: (the most that one unit has, units)."""
        elements = np.argsort(self.source, kind='stable')[(self.source < 0).sum() :]
        unit = self.source[elements]
        rank = np.arange(len(unit)) - np.searchsorted(unit, unit)
        found = np.full((int(rank.max(initial=-1)) + 1, int(np.prod(units))), -1, np.int64)
        found[rank, unit] = elements
        return found


def _follow(m: np.ndarray, place: Places) -> Places:
    return {c: np.where(m >= 0, p[m.clip(0)], -1) for c, p in place.items()}


def _steady(a: np.ndarray) -> bool:
    """Whether all samples are alike."""
    return bool((a == a[:1]).all())


def _one_each(a: np.ndarray) -> bool:
    """Whether each sample has one value (-1: none) everywhere."""
    return bool(((a < 0) | (a == a.max(1, keepdims=True, initial=-1))).all())


def find_bridges(graph: ETraceGraph, twice: bool = False) -> Bridges:
    """The bridges of a graph, by the op's output; with `twice` also those over two products."""
    relation = {r.use: r for r in graph.hidden_param_op_relations}
    products = {
        u: use
        for u, use in enumerate(graph.found.uses)
        if use.op is not None
        and use.op.plain
        and use.x_var is not None
        and use.eqn.primitive.name == 'dot_general'
    }
    found: dict[Var, list[Bridge]] = {}
    for g in graph.hidden_groups:
        rows = {s for s, row in enumerate(graph.found.rows) if row.old in g.hidden_invars}
        fed = {
            u: relation[use].maps.get(g.index, ()) if use in relation else ()
            for u, use in products.items()
        }
        ends = {
            u: Ends(graph.found, use, rows, fed[u])
            for u, use in products.items()
            if fed[u] or not rows.isdisjoint(graph.found.dep(use.x_var).maps)
        }
        for e in ends.values():
            if e.clear and e.rows and e.targets:
                found.setdefault(e.y_var, []).extend(_over_one(e, g.varshape))
        once = {y: [b for b in over if not isinstance(b, Detour)] for y, over in found.items()}
        for u, first in ends.items() if twice else ():
            for second in (e for e in ends.values() if first.rows and e.targets):
                detour = _over_two(graph.found.seed(u), first, second, once, g.varshape)
                found.setdefault(second.y_var, []).extend([] if detour is None else [detour])
    return found


def _over_one(e: Ends, units: tuple[int, ...]) -> list[Bridge]:
    """From the elements of x that come from a unit to those of y that feed it, where both lie at the same place of the axes they share."""
    of_x, of_y, found = e.places(e.x), e.places(e.y), []
    for elements in e.elements_of(units):
        for target in e.targets:
            near = np.where(target >= 0, elements[target.clip(0)], -1)
            for c in of_x.keys() & of_y.keys():
                near = np.where(of_x[c][near.clip(0)] == of_y[c], near, -1)
            if (near >= 0).any():
                weight = tuple(
                    (of_y[c] if c in of_y else of_x[c][near.clip(0)]).reshape(e.y_var.aval.shape)
                    for c in e.w
                )
                found.append(Bridge(e.x_var, e.rows, near.reshape(e.y_var.aval.shape), weight))
    return found


def _over_two(
    seed: int, first: Ends, second: Ends, once: Bridges, units: tuple[int, ...]
) -> Detour | None:
    """From a unit through the product `first`, position by position on to the operand of `second`, and back to the unit; None where that has no such form."""
    between, elements = first.found.dep(second.x_var), first.elements_of(units)
    if (
        len(between.maps.get(seed, ())) != 1
        or seed in between.fans
        or len(elements) != 1
        or len(second.targets) != 1
        or not (first.clear and second.clear)
    ):
        return None
    middle, [target] = between.maps[seed][0].ravel(), second.targets
    near = np.where(target >= 0, elements[0][target.clip(0)], -1)
    of_x, of_y = first.places(first.x), first.places(first.y)
    here, back = (
        _follow(middle, of_y),
        _follow(near, of_x),
    )  # where an element of the second x comes from, and where one of the second y leads back to
    own = [
        np.where(middle >= 0, b.near.ravel()[middle.clip(0)], -1) for b in once.get(first.y_var, ())
    ]  # what single bridges bring to the second x
    if any(
        ((m >= 0) & (second.source >= 0) & (first.source[m.clip(0)] != second.source)).any()
        for m in own
    ):
        return None  # an element of the second x would belong to two units
    at_x, at_y = (
        (lambda a: second.by_sample(a, second.x)),
        (lambda a: second.by_sample(a, second.y)),
    )
    for c in here:
        sides = [at_x(here[c])] + [at_y(back[c]) for _ in 'y' if c in back]
        if not (
            _one_each(np.concatenate(sides, 1)) if c in first.batch else all(map(_steady, sides))
        ):
            return None
    if not all(_steady(at_y(back[c])) for c in back if c not in here):
        return None
    x, y = second.at_weights(second.x), second.at_weights(second.y)
    there = (at_x(middle)[0][x] >= 0) & (at_y(near)[0][y] >= 0)
    for c in here.keys() & back.keys():
        there &= at_x(here[c])[0][x] == at_y(back[c])[0][y]
    for m in own:
        for d in once.get(
            second.y_var, ()
        ):  # back to the unit over itself: the two single bridges do that
            there &= (at_x(m)[0][x] != at_y(near)[0][y]) | (
                at_y(d.near.ravel())[0][y] != at_x(np.arange(len(middle)))[0][x]
            )
    weight = tuple(
        np.where(there, at_x(here[c])[0][x] if c in here else at_y(back[c])[0][y], -1)
        for c in first.w
    )
    return (
        Detour(
            first.x_var,
            first.rows,
            near.reshape(second.y_var.aval.shape),
            weight,
            first.use,
            second.use,
            seed,
        )
        if there.any()
        else None
    )


def covered(graph: ETraceGraph, bridges: Bridges) -> bool:
    """Whether the bridges give the whole diagonal: every way from a group's old states to its new ones mixes units in none, one or two of these products."""
    found = graph.found
    of = {use.y[0]: u for u, use in enumerate(found.uses)}
    cut = {
        k: found.cuts.get(k, frozenset()) | found.use_cuts.get(k, frozenset())
        for k in {**found.cuts, **found.use_cuts}
    }
    for g in graph.hidden_groups:
        ways: dict[Var, set[tuple[int, ...]]] = {v: {()} for v in g.hidden_invars}
        leads = set(g.hidden_outvars)
        for eqn in reversed(found.eqns):
            if not leads.isdisjoint(eqn.outvars):
                leads |= {a for a in eqn.invars if isinstance(a, Var)}
        for k, eqn in enumerate(found.eqns):
            if leads.isdisjoint(eqn.outvars):
                continue
            arrive: set[tuple[int, ...]] = set()
            for i, a in enumerate(eqn.invars):
                mine = ways.get(a, set()) if isinstance(a, Var) else set()
                arrive |= (
                    {(*w, of.get(eqn.outvars[0], -1)) for w in mine}
                    if i in cut.get(k, ())
                    else mine
                )
            if any(len(w) > 2 or -1 in w for w in arrive):
                return False
            for v in eqn.outvars if arrive else ():
                ways[v] = ways.get(v, set()) | arrive
        for v in g.hidden_outvars:
            for way in ways.get(v, ()):
                over = bridges.get(found.uses[way[-1]].y[0], ()) if way else ()
                if way and not any(
                    b.seed == found.seed(way[0]) if isinstance(b, Detour) else len(way) == 1
                    for b in over
                ):
                    return False
    return True
