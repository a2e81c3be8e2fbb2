"""A unit's way back to itself through ops that mix units.

A position-wise path ends at `y = x @ w`. On the diagonal of the Jacobian it goes on: a *self-path*
takes it from the element of x that comes from a unit to the element of y that feeds the same unit,
over the one weight between them. Where a second product follows (the reset gate of a GRU) a unit
returns by way of all others, `sum_j w'[u, j] slope[j] w[j, u]`: one product of the slopes with
`w' * w`, its weights taken element by element. So no Jacobian larger than y is ever formed.
`give_whole_diagonal` tells whether these two kinds are all there is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from .._jax import Var, is_complex
from ..graph.analysis import Analysis
from ..graph.compile import Graph
from ..graph.groups import Group
from ..graph.index_maps import Maps, along
from ..graph.uses import Use


@dataclass(frozen=True, eq=False)
class SelfPath:
    """The way over one product.

    `near` has the shape of y and says for each element of it which element of x comes from the unit
    it feeds (-1 for none), `weight` the index of the weight between them, one array of y's shape
    for each axis of w. `rows` are the seeds of the states that x comes from.
    """

    x: Var
    rows: frozenset[int]
    near: np.ndarray
    weight: tuple[np.ndarray, ...]

    def __call__(self, dx: jax.Array, scale: jax.Array) -> jax.Array:
        """The change of y by a change of x, along the diagonal; `scale` has the shape of y."""
        return along(self.near, self.x.aval.shape)(dx) * scale


@dataclass(frozen=True, eq=False)
class Detour(SelfPath):
    """The way over two products: x is the operand of the first, y the output of the second, and
    `weight` has for each weight of the second the one of the first (-1: none) that leads from the
    same unit to the element it multiplies. `seed` is that of the first product's output."""

    first: Use
    second: Use
    seed: int

    def scale(self, slopes: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
        """What a unit's change comes back as, `(K, *y)`: from the slopes of the second operand by
        the output of the first, `(K, *x)`, and both weights."""
        axes, there = self.second.axes, self.weight[0] >= 0
        assert axes is not None
        between = first[tuple(np.maximum(i, 0) for i in self.weight)]
        joined = second * jnp.where(there, between, 0)
        return jnp.einsum(f'Z{axes.x},{axes.w}->Z{axes.y}', slopes, joined)


SelfPaths = Mapping[Var, Sequence[SelfPath]]  # by the output of the (last) product

Places = dict[str, np.ndarray]  # the place of each element along each label, -1 for none


class Ends:
    """One product, seen from a group: which unit each element of its operand comes from (`source`),
    and which units each element of its output feeds (`targets`); flat numbers, -1 for none."""

    def __init__(self, analysis: Analysis, use: Use, rows: set[int], targets: Maps):
        assert use.x_var is not None and use.axes is not None and use.axes.x is not None
        self.use, self.analysis, self.x_var, self.y_var = use, analysis, use.x_var, use.y[0]
        self.x, self.w, self.y = use.axes.x, use.axes.w, use.axes.y
        maps = {s: analysis.dep(self.x_var).maps.get(s, ()) for s in rows}
        self.rows = frozenset(s for s, of_row in maps.items() if of_row)
        self.source = np.full(self.x_var.aval.size, -1, np.int64)
        self.clear = True  # no element comes from two units
        for m in (m.ravel() for of_row in maps.values() for m in of_row):
            self.clear &= not ((self.source >= 0) & (m >= 0) & (self.source != m)).any()
            self.source = np.where(m >= 0, m, self.source)
        self.targets = [m.ravel() for m in targets]
        shapes = self.y_var.aval.shape + self.x_var.aval.shape
        self.size = dict(zip(self.y + self.x, shapes, strict=True))
        self.batch = [c for c in self.y if c not in self.w]

    def places(self, labels: str) -> Places:
        """The place of every element of x or y along each of its labels."""
        indices = np.indices([self.size[c] for c in labels]).reshape(len(labels), -1)
        return dict(zip(labels, indices, strict=True))

    def by_sample(self, a: np.ndarray, labels: str) -> np.ndarray:
        """Values at the elements of x or y as `(samples, elements of one)`."""
        rest = [k for k, c in enumerate(labels) if c not in self.batch]
        order = [labels.index(c) for c in self.batch] + rest
        samples = int(np.prod([self.size[c] for c in self.batch]))
        return a.reshape([self.size[c] for c in labels]).transpose(order).reshape(samples, -1)

    def at_weights(self, labels: str) -> np.ndarray:
        """For each weight the element of x or y, in one sample, that it belongs to."""
        number = np.zeros(self.use.w.aval.shape, np.int64)
        place = np.indices(number.shape)
        for c in labels:
            if c not in self.batch:
                number = number * self.size[c] + place[self.w.index(c)]
        return number

    def elements_of(self, units: tuple[int, ...]) -> np.ndarray:
        """For each unit the elements of x that come from it: (the most that one unit has,
        units)."""
        elements = np.argsort(self.source, kind='stable')[(self.source < 0).sum() :]
        unit = self.source[elements]
        rank = np.arange(len(unit)) - np.searchsorted(unit, unit)
        table = np.full((int(rank.max(initial=-1)) + 1, int(np.prod(units))), -1, np.int64)
        table[rank, unit] = elements
        return table


def find_self_paths(graph: Graph, twice: bool = False) -> SelfPaths:
    """The self-paths of a graph, by the output of the op; with `twice` also those over two
    products."""
    paths: dict[Var, list[SelfPath]] = {}
    for g in graph.groups:
        ends = _ends(graph, g)
        for e in ends.values():
            if e.clear and e.rows and e.targets:
                paths.setdefault(e.y_var, []).extend(_over_one(e, g.varshape))
        if twice:
            once = {y: [p for p in over if not isinstance(p, Detour)] for y, over in paths.items()}
            for u, first in ends.items():
                for second in (e for e in ends.values() if first.rows and e.targets):
                    seed = graph.analysis.seed(u)
                    detour = _over_two(seed, first, second, once, g.varshape)
                    if detour is not None:
                        paths.setdefault(second.y_var, []).append(detour)
    return paths


def _ends(graph: Graph, g: Group) -> dict[int, Ends]:
    """The matrix products that a group takes part in, by the number of the use."""
    analysis = graph.analysis
    relation_of = {r.use: r for r in graph.relations}
    rows = {s for s, row in enumerate(analysis.rows) if row.old in g.invars}
    ends = {}
    for u, use in enumerate(analysis.uses):
        if use.x_var is None or not _is_matrix_product(use):
            continue
        fed = relation_of[use].maps.get(g.index, ()) if use in relation_of else ()
        if fed or not rows.isdisjoint(analysis.dep(use.x_var).maps):
            ends[u] = Ends(analysis, use, rows, fed)
    return ends


def _is_matrix_product(use: Use) -> bool:
    plain = use.op is not None and use.op.plain
    return plain and use.eqn.primitive.name == 'dot_general'


def _over_one(e: Ends, units: tuple[int, ...]) -> list[SelfPath]:
    """From the elements of x that come from a unit to those of y that feed it, where both lie at
    the same place of the axes they share."""
    of_x, of_y, shape = e.places(e.x), e.places(e.y), e.y_var.aval.shape
    paths = []
    for elements in e.elements_of(units):
        for target in e.targets:
            near = np.where(target >= 0, elements[target.clip(0)], -1)
            for c in of_x.keys() & of_y.keys():
                near = np.where(of_x[c][near.clip(0)] == of_y[c], near, -1)
            if (near >= 0).any():
                index = [of_y[c] if c in of_y else of_x[c][near.clip(0)] for c in e.w]
                weight = tuple(i.reshape(shape) for i in index)
                paths.append(SelfPath(e.x_var, e.rows, near.reshape(shape), weight))
    return paths


def _over_two(
    seed: int, first: Ends, second: Ends, once: SelfPaths, units: tuple[int, ...]
) -> Detour | None:
    """From a unit through the product `first`, position by position on to the operand of `second`,
    and back to the unit; None where that has no such form."""
    between, elements = first.analysis.dep(second.x_var), first.elements_of(units)
    one_way = len(between.maps.get(seed, ())) == 1 and seed not in between.inverse
    one_each = len(elements) == 1 and len(second.targets) == 1
    if not (one_way and one_each and first.clear and second.clear):
        return None
    if is_complex(first.y_var) or is_complex(second.x_var):
        return None  # what comes back may need more than one complex slope
    middle, [target] = between.maps[seed][0].ravel(), second.targets
    near = np.where(target >= 0, elements[0][target.clip(0)], -1)
    # where an element of the second x comes from, and where one of the second y leads back to
    here = _follow(middle, first.places(first.y))
    back = _follow(near, first.places(first.x))
    # what single self-paths bring to the second x
    own = [_pick(p.near.ravel(), middle) for p in once.get(first.y_var, ())]
    if any(_belongs_to_two(m, first, second) for m in own):
        return None
    if not _alike_in_all_samples(first, second, here, back):
        return None

    def at_x(a: np.ndarray) -> np.ndarray:
        return second.by_sample(a, second.x)[0][x]

    def at_y(a: np.ndarray) -> np.ndarray:
        return second.by_sample(a, second.y)[0][y]

    x, y = second.at_weights(second.x), second.at_weights(second.y)
    there = (at_x(middle) >= 0) & (at_y(near) >= 0)
    for c in here.keys() & back.keys():
        there &= at_x(here[c]) == at_y(back[c])
    for m in own:  # back to the unit over itself: two single self-paths
        for path in once.get(second.y_var, ()):
            to_itself = at_y(path.near.ravel()) == at_x(np.arange(len(middle)))
            there &= (at_x(m) != at_y(near)) | ~to_itself
    if not there.any():
        return None
    index = [at_x(here[c]) if c in here else at_y(back[c]) for c in first.w]
    weight = tuple(np.where(there, i, -1) for i in index)
    near = near.reshape(second.y_var.aval.shape)
    return Detour(first.x_var, first.rows, near, weight, first.use, second.use, seed)


def _pick(values: np.ndarray, index: np.ndarray) -> np.ndarray:
    """`values[index]`, -1 where the index is."""
    return np.where(index >= 0, values[index.clip(0)], -1)


def _follow(m: np.ndarray, place: Places) -> Places:
    return {c: _pick(p, m) for c, p in place.items()}


def _belongs_to_two(m: np.ndarray, first: Ends, second: Ends) -> bool:
    """Whether an element of the second operand would come from one unit directly and from another
    by `m`."""
    both = (m >= 0) & (second.source >= 0)
    return bool((both & (first.source[m.clip(0)] != second.source)).any())


def _alike_in_all_samples(first: Ends, second: Ends, here: Places, back: Places) -> bool:
    """Whether what happens in one sample of the second product says it for all of them."""
    for c in here.keys() | back.keys():
        sides = []
        if c in here:
            sides.append(second.by_sample(here[c], second.x))
        if c in back:
            sides.append(second.by_sample(back[c], second.y))
        if c in here and c in first.batch:
            if not _one_each(np.concatenate(sides, 1)):
                return False
        elif not all(map(_steady, sides)):
            return False
    return True


def _steady(a: np.ndarray) -> bool:
    """Whether all samples, the first axis, are alike."""
    return bool((a == a[:1]).all())


def _one_each(a: np.ndarray) -> bool:
    """Whether each sample has one value (-1: none) everywhere."""
    return bool(((a < 0) | (a == a.max(1, keepdims=True, initial=-1))).all())


Way = tuple[int, ...]  # the uses, by number, at which a path mixes units; -1 for another op


def give_whole_diagonal(graph: Graph, paths: SelfPaths) -> bool:
    """Whether the self-paths give the whole diagonal: every way from a group's old states to its
    new ones mixes units in none, one or two of these products."""
    for g in graph.groups:
        ways = _ways_through(graph.analysis, g)
        if ways is None:
            return False
        for v in g.outvars:
            if not all(_is_covered(graph.analysis, way, paths) for way in ways.get(v, ())):
                return False
    return True


def _ways_through(analysis: Analysis, g: Group) -> dict[Var, set[Way]] | None:
    """By which ways each variable is reached from the old states of a group; None if one of them
    mixes units in another op than a use of a weight, or more than twice."""
    use_at = {use.y[0]: u for u, use in enumerate(analysis.uses)}
    leads = set(g.outvars)
    for eqn in reversed(analysis.eqns):
        if not leads.isdisjoint(eqn.outvars):
            leads |= {a for a in eqn.invars if isinstance(a, Var)}
    ways: dict[Var, set[Way]] = {v: {()} for v in g.invars}
    for k, eqn in enumerate(analysis.eqns):
        if leads.isdisjoint(eqn.outvars):
            continue
        cut = analysis.cuts.get(k, frozenset()) | analysis.use_cuts.get(k, frozenset())
        arriving: set[Way] = set()
        for i, a in enumerate(eqn.invars):
            mine = ways.get(a, set()) if isinstance(a, Var) else set()
            if i in cut:
                mine = {(*way, use_at.get(eqn.outvars[0], -1)) for way in mine}
            arriving |= mine
        if any(len(way) > 2 or -1 in way for way in arriving):
            return None
        if arriving:
            for v in eqn.outvars:
                ways[v] = ways.get(v, set()) | arriving
    return ways


def _is_covered(analysis: Analysis, way: Way, paths: SelfPaths) -> bool:
    if not way:
        return True
    for path in paths.get(analysis.uses[way[-1]].y[0], ()):
        if isinstance(path, Detour):
            if path.seed == analysis.seed(way[0]):
                return True
        elif len(way) == 1:
            return True
    return False
