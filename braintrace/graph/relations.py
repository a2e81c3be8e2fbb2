"""Relations: which weight feeds which hidden group, through which op, and which unit each of the op's outputs reaches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._jax import Atom, ClosedJaxpr, Var, eval_jaxpr, is_float, new_jaxpr, prune, source_line
from ..ops.axes import Axes, Op
from ..step import Leaf, Step
from .analysis import Analysis
from .diagnostics import DiagnosticKind as Kind
from .diagnostics import Diagnostics
from .groups import HiddenGroup
from .index_maps import MAX_MAPS, Maps, positions
from .influence import ZERO, Dep
from .uses import Use


class HiddenParamOpRelation(NamedTuple):
    """`y = op(x, w)`, where `w = phi(theta)` and y feeds the units of one or more hidden groups position by position.

    `axes` labels the axes of x, w and y. `maps[g]` says for each element of y which unit of group `g` it feeds (-1 for none); it has several maps where an
    element feeds several units. `path_classification` tells for each connected hidden state whether all of the influence is position by
    position ('all_direct') or a part arrives in another way ('mixed').
    """

    primitive: Any
    x_var: Var | None
    y_var: Var
    hidden_groups: list
    y_to_hidden_group_jaxprs: Sequence
    connected_hidden_paths: list
    eqn_params: dict
    path_classification: dict = {}
    trainable_vars: dict = {}
    trainable_paths: dict = {}
    trainable_leaf_indices: dict = {}
    trainable_param_states: dict = {}
    trainable_processing_chains: dict = {}
    control_flow_context: Any = None
    name: str = ''
    use: Use = None  # type: ignore[assignment]
    axes: Axes = None  # type: ignore[assignment]
    maps: dict[int, Maps] = {}

    @property
    def x(self) -> Var | None:
        """What multiplies the weight; the same as `x_var`."""
        return self.x_var

    @property
    def y(self) -> Var:
        """The output of the op; the same as `y_var`."""
        return self.y_var

    @property
    def path(self) -> tuple:
        """The path of the first trainable parameter."""
        return next(iter(self.trainable_paths.values()))

    @property
    def op(self) -> Op:
        """How the axes of x, w and y line up."""
        assert self.use.op is not None
        return self.use.op

    @property
    def w_var(self) -> Var:
        """The weight as the op takes it, after all transformations of the parameters."""
        return self.use.w

    def trace_shape(self) -> tuple[int, ...]:
        """The shape of a trace that remembers for each weight the one unit it feeds, for one state of the unit."""
        return self.op.trace_shape(self.y_var.aval.shape)

    def operand(self, values: Sequence[Any]) -> Any:
        """What multiplies the weight, from the values of the equation's operands; None for element-wise use."""
        return self.op.x(values)

    def y_to_hidden_groups(
        self,
        y_val: Any,
        const_vals: Sequence[Any] | Mapping[Var, Any],
        concat_hidden_vals: bool = True,
    ) -> list[Any]:
        """The new values of each group's hidden states as a function of y.

        `const_vals` has for each group the values of its jaxpr's constvars, or maps variables to values.
        """
        found = []
        for g, jaxpr in enumerate(self.y_to_hidden_group_jaxprs):
            consts = (
                [const_vals[v] for v in jaxpr.constvars]
                if isinstance(const_vals, Mapping)
                else const_vals[g]
            )
            hidden = eval_jaxpr(jaxpr, consts, y_val)
            found.append(
                self.hidden_groups[g].concat_hidden(hidden) if concat_hidden_vals else hidden
            )
        return found

    def dict(self) -> dict[str, Any]:
        """The fields by name."""
        return self._asdict()


def find_relations(
    found: Analysis,
    groups: Sequence[HiddenGroup],
    diagnostics: Diagnostics,
    states: Mapping[tuple, Any] | None = None,
) -> list[HiddenParamOpRelation]:
    """A relation for each use of a weight that feeds a hidden group position by position, and one diagnostic for each use."""
    relations: list[HiddenParamOpRelation] = []
    members = _members(found, groups)
    touched = {g: _all_seeds(d for _, d in rows) for g, rows in members.items()}
    origin = Origin(found.step)
    for u, use in enumerate(found.uses):
        leaves = origin.of(use.w)
        reach = {
            g: _reach(found, found.seed(u), members[g])
            for g, seeds in touched.items()
            if seeds >> found.seed(u) & 1
        }
        maps = {g: r.maps for g, r in reach.items() if r.maps}
        where = use.place
        about = dict(
            primitive=use.meets.primitive.name,
            weight_path=leaves[0][1].path,
            context=tuple(leaf.name for _, leaf, _, _ in leaves),
        )
        if maps:
            relation = _relation(
                found,
                u,
                use,
                leaves,
                [groups[g] for g in maps],
                reach,
                states or {},
                len(relations),
            )
            relations.append(relation)
            _tell_included(found, u, relation, reach, where, about, diagnostics)
        else:
            _tell_excluded(found, u, use, groups, reach, where, about, diagnostics)
    return relations


class _Reach(NamedTuple):
    maps: Maps  # element of y -> unit it feeds
    crowded: bool  # position by position, but one element feeds too many units
    mixed: tuple[Atom, ...]  # new hidden states that y reaches in another way


def _members(found: Analysis, groups: Sequence[HiddenGroup]) -> dict[int, list]:
    where = {v: g.index for g in groups for v in g.hidden_outvars}
    members: dict[int, list] = {g.index: [] for g in groups}
    for row in found.rows:
        members[where[row.new]].append((row.new, found.of_row(row)))
    return members


def _all_seeds(deps: Iterable[Dep]) -> int:
    seeds = 0
    for d in deps:
        seeds |= d.seeds
    return seeds


def _reach(found: Analysis, seed: int, members: list) -> _Reach:
    fed = [d for _, d in members if seed in d.live]
    mixed = tuple(dict.fromkeys(new for new, d in members if d.mixed >> seed & 1))
    if not fed:
        return _Reach((), False, mixed)
    use = found.uses[seed - found.seed(0)]
    maps = _units(fed, seed, use.y[0].aval.shape)
    return _Reach(maps or (), maps is None, mixed)


def _units(deps: Sequence[Dep], seed: int, shape: tuple[int, ...]) -> Maps | None:
    """The units that each element of y feeds, if these deps are of states of units: as many maps as units per element; None if those are too many."""
    here = positions(shape)
    maps, fans = (
        [m for d in deps for m in d.maps.get(seed, ())],
        [d.fans[seed] for d in deps if seed in d.fans],
    )
    if not fans and all(m.shape == shape and np.array_equal(m, here) for m in maps):
        return (here,)
    units = np.concatenate(
        [*[np.flatnonzero(m.ravel() >= 0) for m in maps], *[f[f >= 0] for f in fans]]
    )
    elements = np.concatenate(
        [*[m.ravel()[m.ravel() >= 0] for m in maps], *[np.flatnonzero(f >= 0) for f in fans]]
    )
    elements, units = np.unique(np.stack([elements, units]), axis=1)
    rank = np.arange(len(elements)) - np.searchsorted(elements, elements)
    if rank.max() >= MAX_MAPS:
        return None
    found = np.full((rank.max() + 1, here.size), -1, np.int32)
    found[rank, elements] = units
    return tuple(m.reshape(shape) for m in found)


def crowded(found: Analysis) -> set[Var]:
    """The outputs of uses of which an element feeds too many units."""
    many = set()
    for u, use in enumerate(found.uses):
        deps = [
            (row.shape, d)
            for row in found.rows
            for d in [found.of_row(row)]
            if found.seed(u) in d.live
        ]
        if len(use.y) == 1 and any(
            _units([d for s, d in deps if s == shape], found.seed(u), use.y[0].aval.shape) is None
            for shape in {s for s, _ in deps}
        ):
            many.add(use.y[0])
    return many


class Origin:
    """Where the weights of a step come from: the parameter leaves behind a value, and the operations on the way."""

    def __init__(self, step: Step):
        self._leaf = {
            v: (i, leaf)
            for i, (v, leaf) in enumerate(zip(step.param_vars, step.params, strict=True))
        }
        self._made_by = {v: e for e in step.jaxpr.jaxpr.eqns for v in e.outvars}

    def of(self, w: Var) -> list[tuple[int, Leaf, tuple[str, ...], Var]]:
        """Each leaf that `w` is computed from: its number, itself, the names of the operations between, its variable."""
        found: dict[Var, tuple[str, ...]] = {}
        seen: set[Var] = set()
        todo: list[tuple[Var, tuple[str, ...]]] = [(w, ())]
        while todo:
            v, chain = todo.pop()
            if v in seen:
                continue
            seen.add(v)
            if v in self._leaf and is_float(v):
                found[v] = chain
            elif v in self._made_by and is_float(v) and self._made_by[v].primitive.name not in ZERO:
                eqn = self._made_by[v]
                todo += [
                    (a, (eqn.primitive.name, *chain)) for a in eqn.invars if isinstance(a, Var)
                ]
        return sorted(
            ((*self._leaf[v], chain, v) for v, chain in found.items()), key=lambda item: item[0]
        )


class Tails(Sequence):
    """The programs from y to the new states of each group, made when they are looked at."""

    def __init__(self, found: Analysis, seed: int, y: Var, groups: Sequence[HiddenGroup]):
        self._found, self._seed, self._y, self._groups = found, seed, y, groups

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, i):
        return (
            [self[k] for k in range(len(self))[i]]
            if isinstance(i, slice)
            else self._found.along([self._seed], [self._y], self._groups[i].hidden_outvars)
        )


def _relation(
    found: Analysis,
    u: int,
    use: Use,
    leaves: list,
    groups: list[HiddenGroup],
    reach: Mapping[int, _Reach],
    states: Mapping,
    number: int,
) -> HiddenParamOpRelation:
    keys: list[str] = []
    for _, leaf, _, _ in leaves:
        key = str(leaf.key[-1]) if leaf.key else 'weight'
        keys.append(key if key not in keys else f'{key}_{len(keys)}')
    table = lambda column: dict(zip(keys, column, strict=True))
    tails = Tails(found, found.seed(u), use.y[0], groups)
    hit = [
        (p, o)
        for g in groups
        for p, o in zip(g.hidden_paths, g.hidden_outvars, strict=True)
        if found.seed(u) in found.dep(o).live
    ]
    return HiddenParamOpRelation(
        use.meets.primitive,
        use.x_var,
        use.y[0],
        groups,
        tails,
        [p for p, _ in hit],
        dict(use.meets.params),
        path_classification={
            p: 'mixed' if found.dep(o).mixed >> found.seed(u) & 1 else 'all_direct' for p, o in hit
        },
        trainable_vars=table(v for *_, v in leaves),
        trainable_paths=table(leaf.path for _, leaf, _, _ in leaves),
        trainable_leaf_indices=table(i for i, *_ in leaves),
        trainable_param_states=table(states.get(leaf.path) for _, leaf, _, _ in leaves),
        trainable_processing_chains=table(chain for *_, chain, _ in leaves),
        name=f'{number}:{"+".join(leaf.name for _, leaf, _, _ in leaves)}',
        use=use,
        axes=use.axes,  # type: ignore[arg-type]
        maps={g.index: reach[g.index].maps for g in groups},
    )


def _tell_included(
    found: Analysis,
    u: int,
    r: HiddenParamOpRelation,
    reach: Mapping[int, _Reach],
    where: str,
    about: dict,
    diagnostics: Diagnostics,
) -> None:
    name = ' and '.join(about['context'])
    about['hidden_paths'] = tuple(r.connected_hidden_paths)
    groups = ', '.join(str(g.index) for g in r.hidden_groups)
    diagnostics.info(
        Kind.RELATION_INCLUDED, f'{name} is traced through {where} into group {groups}.', **about
    )
    for g, there in reach.items():
        if there.crowded:
            diagnostics.warning(
                Kind.RELATION_PARTIAL_PATH,
                f'{name}: one output of {where} also feeds many units of group {g}: it has no trace there and gets '
                'its in-window gradient.',
                **about,
            )
    for g in r.hidden_groups:
        for new in reach[g.index].mixed[:1]:
            eqn = found.blame(found.seed(u), new)
            through = (
                f' through `{eqn.primitive.name}` at {source_line(eqn)}' if eqn is not None else ''
            )
            diagnostics.warning(
                Kind.RELATION_PARTIAL_PATH,
                f'{name} also reaches group {g.index}{through}: only the direct, position-wise part of '
                f'{where} has a trace; the rest gets its in-window gradient.',
                **about,
            )


def _tell_excluded(
    found: Analysis,
    u: int,
    use: Use,
    groups: Sequence[HiddenGroup],
    reach: Mapping[int, _Reach],
    where: str,
    about: dict,
    diagnostics: Diagnostics,
) -> None:
    name = ' and '.join(about['context'])
    touched = [groups[g] for g, r in reach.items() if r.mixed or r.crowded]
    instead = 'It has no trace there and gets its in-window gradient.'
    about['hidden_paths'] = tuple(p for g in touched for p in g.hidden_paths)
    if not touched:
        diagnostics.info(
            Kind.RELATION_EXCLUDED_NON_TEMPORAL,
            f'{name} reaches no hidden state through {where}: it needs no trace, its in-window '
            'gradient is whole.',
            **about,
        )
    elif use.axes is None:
        diagnostics.warning(
            Kind.RELATION_EXCLUDED_NO_RULE,
            f'{name} is used by {where}, which has no rule. {instead}',
            **about,
        )
    elif any(reach[g.index].crowded for g in touched):
        diagnostics.warning(
            Kind.RELATION_EXCLUDED_SHAPE_MISMATCH,
            f'{name}: one output of {where} feeds many units of group {touched[0].index}. '
            f'{instead}',
            **about,
        )
    else:
        new = reach[touched[0].index].mixed[0]
        eqn = found.blame(found.seed(u), new)
        through = (
            f'`{eqn.primitive.name}` at {source_line(eqn)}'
            if eqn is not None
            else 'another operation'
        )
        ys = {y for other in found.uses for y in other.y}
        if eqn is not None and not ys.isdisjoint(eqn.outvars):
            diagnostics.warning(
                Kind.RELATION_EXCLUDED_WEIGHT_TO_WEIGHT,
                f'{name}, used by {where}, reaches group {touched[0].index} only through another '
                f'weight, in {through}. {instead}',
                **about,
            )
        else:
            diagnostics.warning(
                Kind.RELATION_EXCLUDED_MIXED_TAIL,
                f'{name}, used by {where}, reaches group {touched[0].index} only through {through}, '
                f'which mixes units. {instead}',
                **about,
            )


def weight_program(step: Step, ws: Sequence[Var]) -> ClosedJaxpr:
    """`phi`: the parameters' values to these weights."""
    jaxpr = step.jaxpr.jaxpr
    eqns = prune([e for e in jaxpr.eqns if not e.effects], ws)
    return ClosedJaxpr(new_jaxpr(step.param_vars, ws, eqns, jaxpr.constvars), step.jaxpr.consts)
