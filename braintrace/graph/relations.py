"""Relations: which weight feeds which hidden group, through which op, and which unit each of the
op's outputs reaches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .._jax import Atom, Var
from ..ops.axes import Axes, Op
from .analysis import Analysis
from .dependence import Dep
from .diagnostics import DiagnosticKind as Kind
from .diagnostics import Diagnostics
from .groups import Group
from .index_maps import MAX_MAPS, Maps, positions
from .lines import place_of
from .sources import Origin, Source
from .uses import Use


@dataclass(frozen=True, eq=False)
class Relation:
    """`y = op(x, w)`, where `w = phi(theta)` and y feeds the units of one or more hidden groups
    position by position.

    `sources` are the parameter leaves theta. `maps[g]` says for each element of y which unit of
    group `g` it feeds (-1 for none); it has several maps where an element feeds several units.
    """

    number: int
    use: Use
    sources: tuple[Source, ...]
    groups: tuple[Group, ...]
    maps: dict[int, Maps]

    @property
    def x_var(self) -> Var | None:
        """What multiplies the weight, if it is one variable."""
        return self.use.x_var

    @property
    def y_var(self) -> Var:
        """The output of the op."""
        return self.use.y[0]

    @property
    def w_var(self) -> Var:
        """The weight as the op takes it, after all transformations of the parameters."""
        return self.use.w

    @property
    def op(self) -> Op:
        """What is known about the op."""
        assert self.use.op is not None
        return self.use.op

    @property
    def axes(self) -> Axes:
        """How the axes of x, w and y line up."""
        return self.op.axes

    @property
    def name(self) -> str:
        """The parameters as people write them: `cell.W`, or `cell.A+cell.B` where there are
        several. Two uses of one weight have the same name."""
        return '+'.join(source.leaf.name for source in self.sources)

    @property
    def paths(self) -> list[tuple]:
        """The path of each parameter."""
        return [source.leaf.path for source in self.sources]

    @property
    def path(self) -> tuple:
        """The path of the first parameter."""
        return self.paths[0]

    def operand(self, values: Sequence[Any]) -> Any:
        """What multiplies the weight, from the values of the equation's operands; None for
        element-wise use."""
        return self.op.x(values)

    def trace_shape(self) -> tuple[int, ...]:
        """The shape of a trace that remembers for each weight the one unit it feeds, for one state
        of the unit."""
        return self.op.trace_shape(self.y_var.aval.shape)


def find_relations(
    analysis: Analysis, groups: Sequence[Group], diagnostics: Diagnostics
) -> list[Relation]:
    """A relation for each use of a weight that feeds a hidden group position by position, and one
    diagnostic for each op, a product and its bias."""
    relations: list[Relation] = []
    origin, product_of = Origin(analysis.step), products_of_biases(analysis)
    reaches = _reaches(analysis, groups)
    maps = [{g: r.maps for g, r in reach.items() if r.maps} for reach in reaches]
    sources = [tuple(origin.of(use.w)) for use in analysis.uses]
    for u, use in enumerate(analysis.uses):
        biases = [b for b, p in product_of.items() if p == u and bool(maps[b]) == bool(maps[u])]
        told_with = product_of.get(u)
        own_words = told_with is None or bool(maps[told_with]) != bool(maps[u])
        about = [*sources[u], *[source for b in biases for source in sources[b]]]
        tell = _Teller(analysis, use, analysis.seed(u), about, reaches[u], diagnostics)
        if maps[u]:
            fed = tuple(g for g in groups if g.index in maps[u])
            relations.append(Relation(len(relations), use, sources[u], fed, maps[u]))
            tell.included(relations[-1], own_words)
        elif own_words:
            tell.excluded(groups)
    return relations


def products_of_biases(analysis: Analysis) -> dict[int, int]:
    """For each use of a bias, by number, the product that it is added to and that goes nowhere
    else: the two are one op with two weights."""
    read = Counter(a for e in analysis.eqns for a in e.invars if isinstance(a, Var))
    read.update(a for a in analysis.step.jaxpr.outvars if isinstance(a, Var))
    products = {
        use.y[0]: u
        for u, use in enumerate(analysis.uses)
        if use.axes is not None and use.axes.x is not None and read[use.y[0]] == 1
    }
    product_of = {}
    for u, use in enumerate(analysis.uses):
        is_weight_alone = use.axes is not None and use.axes.x is None and read[use.y[0]] == 1
        if not is_weight_alone or use.meets.primitive.name != 'add':
            continue
        for a in use.meets.invars:
            if isinstance(a, Var) and a in products:
                product_of[u] = products[a]
    return product_of


def _reaches(analysis: Analysis, groups: Sequence[Group]) -> list[dict[int, _Reach]]:
    """For each use how its output reaches the groups that it reaches."""
    members = {g.index: [(row.new, analysis.of_row(row)) for row in g.rows] for g in groups}
    touched = {g: _all_seeds(d for _, d in rows) for g, rows in members.items()}
    reaches = []
    for u, use in enumerate(analysis.uses):
        seed = analysis.seed(u)
        met = [g for g, seeds in touched.items() if seeds >> seed & 1]
        reaches.append({g: _reach(use, seed, members[g]) for g in met})
    return reaches


def connected(analysis: Analysis, relation: Relation) -> list[tuple[tuple, Atom]]:
    """The path and the new value of each hidden state that a relation's y reaches position by
    position."""
    seed = analysis.seed_of(relation.use)
    return [
        (path, new)
        for g in relation.groups
        for path, new in zip(g.paths, g.outvars, strict=True)
        if seed in analysis.dep(new).live
    ]


def crowded(analysis: Analysis) -> set[Var]:
    """The outputs of uses of which an element feeds too many units."""
    many = set()
    rows = [(row.shape, analysis.of_row(row)) for row in analysis.rows]
    for u, use in enumerate(analysis.uses):
        seed = analysis.seed(u)
        fed: dict[tuple[int, ...], list[Dep]] = {}
        for shape, d in rows:
            if seed in d.live:
                fed.setdefault(shape, []).append(d)
        if len(use.y) == 1:
            y = use.y[0]
            if any(_units(deps, seed, y.aval.shape) is None for deps in fed.values()):
                many.add(y)
    return many


class _Reach(NamedTuple):
    """How an op's output reaches a group."""

    maps: Maps  # element of y -> unit it feeds
    crowded: bool  # position by position, but one element feeds too many units
    mixed: tuple[Atom, ...]  # new hidden states that y reaches in another way


def _all_seeds(deps: Iterable[Dep]) -> int:
    seeds = 0
    for d in deps:
        seeds |= d.seeds
    return seeds


def _reach(use: Use, seed: int, members: Sequence[tuple[Atom, Dep]]) -> _Reach:
    fed = [d for _, d in members if seed in d.live]
    mixed = tuple(dict.fromkeys(new for new, d in members if d.mixed >> seed & 1))
    if not fed:
        return _Reach((), False, mixed)
    maps = _units(fed, seed, use.y[0].aval.shape)
    return _Reach(maps or (), maps is None, mixed)


def _units(deps: Sequence[Dep], seed: int, shape: tuple[int, ...]) -> Maps | None:
    """The units that each element of y feeds, if these deps are of states of units: as many maps as
    units per element; None if those are too many."""
    here = positions(shape)
    maps = [m for d in deps for m in d.maps.get(seed, ())]
    inverse = [d.inverse[seed] for d in deps if seed in d.inverse]
    if not inverse and all(m.shape == shape and np.array_equal(m, here) for m in maps):
        return (here,)
    flat = [m.ravel() for m in maps]
    units = [np.flatnonzero(m >= 0) for m in flat] + [m[m >= 0] for m in inverse]
    elements = [m[m >= 0] for m in flat] + [np.flatnonzero(m >= 0) for m in inverse]
    pairs = np.stack([np.concatenate(elements), np.concatenate(units)])
    element, unit = np.unique(pairs, axis=1)
    rank = np.arange(len(element)) - np.searchsorted(element, element)
    if rank.max() >= MAX_MAPS:
        return None
    of_element = np.full((rank.max() + 1, here.size), -1, np.int32)
    of_element[rank, element] = unit
    return tuple(m.reshape(shape) for m in of_element)


class _Teller:
    """The diagnostics about one use of a weight."""

    def __init__(
        self,
        analysis: Analysis,
        use: Use,
        seed: int,
        sources: Sequence[Source],
        reach: Mapping[int, _Reach],
        diagnostics: Diagnostics,
    ):
        self.analysis, self.use, self.seed, self.reach = analysis, use, seed, reach
        self.diagnostics = diagnostics
        self.names = tuple(source.leaf.name for source in sources)
        self.path = sources[0].leaf.path
        self.reaches = 'reaches' if len(self.names) == 1 else 'reach'

    def _about(self, hidden_paths: Sequence[tuple]) -> dict[str, Any]:
        return dict(
            primitive=self.use.meets.primitive.name,
            weight_path=self.path,
            context=self.names,
            hidden_paths=tuple(hidden_paths),
        )

    def included(self, relation: Relation, in_full: bool) -> None:
        """What is traced and, in full, what of its influence is not."""
        name, where = ' and '.join(self.names), self.use.place
        about = self._about([path for path, _ in connected(self.analysis, relation)])
        groups = ', '.join(str(g.index) for g in relation.groups)
        own = [source.leaf.name for source in relation.sources]
        traced = f'{" and ".join(own)} {"is" if len(own) == 1 else "are"} traced'
        self.diagnostics.info(
            Kind.RELATION_INCLUDED,
            f'{traced} through {where} into group {groups}.',
            **about,
        )
        if not in_full:
            return
        for index, there in self.reach.items():
            if there.crowded:
                self.diagnostics.warning(
                    Kind.RELATION_PARTIAL_PATH,
                    f'{name}: one output of {where} also feeds many units of group {index}: '
                    'there is no trace for that, only the in-window gradient.',
                    **about,
                )
        for g in relation.groups:
            for new in self.reach[g.index].mixed[:1]:
                eqn = self.analysis.blame(self.seed, new)
                through = '' if eqn is None else f' through {place_of(eqn)}'
                self.diagnostics.warning(
                    Kind.RELATION_PARTIAL_PATH,
                    f'{name} also {self.reaches} group {g.index}{through}: only the direct, '
                    f'position-wise part of {where} has a trace; the rest gets its in-window '
                    'gradient.',
                    **about,
                )

    def excluded(self, groups: Sequence[Group]) -> None:
        """Why nothing is traced."""
        name, where = ' and '.join(self.names), self.use.place
        reach = self.reach
        obstructed = {g for g, r in reach.items() if r.mixed or r.crowded}
        touched = [g for g in groups if g.index in obstructed]
        about = self._about([p for g in touched for p in g.paths])
        instead = 'There is no trace for that, only the in-window gradient.'
        if not touched:
            self.diagnostics.info(
                Kind.RELATION_EXCLUDED_NON_TEMPORAL,
                f'{name} {self.reaches} no hidden state through {where}: no trace is needed, the '
                'in-window gradient is whole.',
                **about,
            )
            return
        first = touched[0].index
        if self.use.axes is None:
            kind = Kind.RELATION_EXCLUDED_NO_RULE
            message = f'{name}: used by {where}, which has no rule.'
        elif any(reach[g.index].crowded for g in touched):
            kind = Kind.RELATION_EXCLUDED_SHAPE_MISMATCH
            message = f'{name}: one output of {where} feeds many units of group {first}.'
        else:
            kind, how = self._obstacle(reach[first].mixed[0])
            message = f'{name}, used by {where}, {self.reaches} group {first} only through {how}.'
        self.diagnostics.warning(kind, f'{message} {instead}', **about)

    def _obstacle(self, new: Atom) -> tuple[Kind, str]:
        """What ends the position-wise path to a new state: the kind of diagnostic and the words."""
        eqn = self.analysis.blame(self.seed, new)
        if eqn is None:
            return Kind.RELATION_EXCLUDED_MIXED_TAIL, 'another operation, which mixes units'
        place = place_of(eqn)
        ys = {y for use in self.analysis.uses for y in use.y}
        if not ys.isdisjoint(eqn.outvars):
            return Kind.RELATION_EXCLUDED_WEIGHT_TO_WEIGHT, f'another weight, in {place}'
        return Kind.RELATION_EXCLUDED_MIXED_TAIL, f'{place}, which mixes units'
