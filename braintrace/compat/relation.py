"""A relation as 0.2 published it: a view of `graph.relations.Relation`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, overload

from .._jax import Jaxpr, Primitive, Var, run_jaxpr
from ..graph.analysis import Analysis
from ..graph.index_maps import Maps
from ..graph.relations import Relation, connected, products_of_biases
from ..graph.uses import Use
from ..ops.axes import Axes, Op
from .hidden_group import HiddenGroup


class HiddenParamOpRelation(NamedTuple):
    """`y = op(x, w)`, where `w = phi(theta)` and y feeds the units of one or more hidden groups
    position by position. A bias that is added to y belongs to it.

    `axes` labels the axes of x, w and y. `maps[g]` says for each element of y which unit of group
    `g` it feeds (-1 for none); it has several maps where an element feeds several units.
    `y_to_hidden_group_jaxprs` has for each group the program from y, its last input, to the new
    states; its first inputs are what it needs besides. `path_classification` tells for each
    connected hidden state whether all of the influence is position by position ('all_direct') or a
    part arrives in another way ('mixed').
    """

    primitive: Primitive
    x_var: Var | None
    y_var: Var
    hidden_groups: list
    y_to_hidden_group_jaxprs: Sequence[Jaxpr]
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
        """What multiplies the weight, `x_var`."""
        return self.x_var

    @property
    def y(self) -> Var:
        """The output of the op, `y_var`."""
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
        """The shape of a trace that remembers for each weight the one unit it feeds, for one state
        of the unit."""
        return self.op.trace_shape(self.y_var.aval.shape)

    def operand(self, values: Sequence[Any]) -> Any:
        """What multiplies the weight, from the values of the equation's operands; None for
        element-wise use."""
        return self.op.x(values)

    def y_to_hidden_groups(
        self,
        y_val: Any,
        const_vals: Sequence[Any] | Mapping[Var, Any],
        concat_hidden_vals: bool = True,
    ) -> list[Any]:
        """The new values of each group's hidden states as a function of y.

        `const_vals` has for each group the values of its program's inputs before y, or maps
        variables to values.
        """
        results = []
        for k, (g, jaxpr) in enumerate(
            zip(self.hidden_groups, self.y_to_hidden_group_jaxprs, strict=True)
        ):
            if isinstance(const_vals, Mapping):
                consts = [const_vals[v] for v in jaxpr.invars[:-1]]
            else:
                consts = const_vals[k]
            hidden = run_jaxpr(jaxpr, *consts, y_val)
            results.append(g.concat_hidden(hidden) if concat_hidden_vals else hidden)
        return results

    def dict(self) -> dict[str, Any]:
        """The fields by name."""
        return self._asdict()


class _Tails(Sequence):
    """The programs from y to the new states of each group, made when they are looked at."""

    def __init__(self, analysis: Analysis, relation: Relation):
        self._analysis, self._relation = analysis, relation

    def __len__(self) -> int:
        return len(self._relation.groups)

    @overload
    def __getitem__(self, i: int) -> Jaxpr: ...

    @overload
    def __getitem__(self, i: slice) -> list[Jaxpr]: ...

    def __getitem__(self, i):
        if isinstance(i, slice):
            return [self[k] for k in range(len(self))[i]]
        r = self._relation
        seed = self._analysis.seed_of(r.use)
        return self._analysis.along([seed], [r.y_var], r.groups[i].outvars).jaxpr


def published_relations(
    analysis: Analysis,
    relations: Sequence[Relation],
    groups: Mapping[int, HiddenGroup],
    states: Mapping[tuple, Any],
) -> list[HiddenParamOpRelation]:
    """The views of relations, one for each op: a product and the bias that is added to it.

    `groups` has the views of the groups by index, `states` the state objects by path.
    """
    by_use = {analysis.uses.index(r.use): r for r in relations}
    ops: dict[int, list[Relation]] = {u: [r] for u, r in by_use.items()}
    for bias, product in products_of_biases(analysis).items():
        if bias in ops and product in ops and _alike(by_use[bias], by_use[product]):
            ops[product] += ops.pop(bias)
    return [_published(analysis, parts, groups, states) for parts in ops.values()]


def _alike(a: Relation, b: Relation) -> bool:
    """Whether two relations feed the same groups."""
    return [g.index for g in a.groups] == [g.index for g in b.groups]


def _published(
    analysis: Analysis,
    parts: Sequence[Relation],
    groups: Mapping[int, HiddenGroup],
    states: Mapping[tuple, Any],
) -> HiddenParamOpRelation:
    """The view of the relations of one op: the first is the product, if there is one."""
    relation, *biases = parts
    use, sources = relation.use, [source for r in parts for source in r.sources]
    seed = analysis.seed_of(use)
    keys: list[str] = []
    for r in parts:
        for source in r.sources:
            usual = 'bias' if r in biases else 'weight'
            key = str(source.leaf.key[-1]) if source.leaf.key else usual
            keys.append(key if key not in keys else f'{key}_{len(keys)}')
    paths = [source.leaf.path for source in sources]

    def table(column: Iterable[Any]) -> dict[str, Any]:
        return dict(zip(keys, column, strict=True))

    reached = connected(analysis, relation)
    return HiddenParamOpRelation(
        use.meets.primitive,
        relation.x_var,
        relation.y_var,
        [groups[g.index] for g in relation.groups],
        _Tails(analysis, relation),
        [path for path, _ in reached],
        dict(use.meets.params),
        path_classification={
            path: 'mixed' if analysis.dep(new).mixed >> seed & 1 else 'all_direct'
            for path, new in reached
        },
        trainable_vars=table(source.var for source in sources),
        trainable_paths=table(paths),
        trainable_leaf_indices=table(source.index for source in sources),
        trainable_param_states=table(states.get(path) for path in paths),
        trainable_processing_chains=table(source.chain for source in sources),
        name=f'{relation.number}:{relation.name}',
        use=use,
        axes=relation.axes,
        maps=relation.maps,
    )
