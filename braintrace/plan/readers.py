"""Who reads a hidden state, and how: questions about a graph that rules ask before they choose
their traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .._jax import Atom, JaxprEqn, Var, is_float
from ..graph.analysis import Row
from ..graph.compile import Graph
from ..graph.groups import Group
from ..graph.relations import Relation
from ..graph.uses import Use


def variables(atoms: Sequence) -> list[Var]:
    """Those of these atoms that are variables."""
    return [a for a in atoms if isinstance(a, Var)]


def needed_by_outputs(graph: Graph) -> set[Var]:
    """What the outputs need, as far back as the new hidden states."""
    needed, new = set(variables(graph.step.outs)), set(graph.step.hidden_outs)
    for eqn in reversed(graph.analysis.eqns):
        if any(v in needed and v not in new for v in eqn.outvars):
            needed.update(variables(eqn.invars))
    return needed


def read_before(graph: Graph) -> frozenset[Var]:
    """The old hidden states that outputs read directly, not through a new one."""
    needed = needed_by_outputs(graph)
    return frozenset(v for v in graph.step.hidden_vars if v in needed and is_float(v))


def exposed_rows(graph: Graph, group: Group) -> tuple[Row, ...]:
    """The rows of a group that something outside of the group reads in the same step, or outputs
    read late."""
    step, own, late = graph.step, set(group.outvars), read_before(graph)
    others = set(step.hidden_outs) - own
    ends = {*variables(step.outs), *variables(step.other_outs), *others}

    def is_read_outside(new: Atom) -> bool:
        made_of_it = set(variables([new]))
        for eqn in graph.analysis.eqns:
            if not made_of_it.isdisjoint(variables(eqn.invars)):
                made_of_it.update(v for v in eqn.outvars if v not in own)
        return not made_of_it.isdisjoint(ends)

    rows = [row for row in group.rows if is_float(row.old)]
    return tuple(row for row in rows if is_read_outside(row.new) or row.old in late)


class ReadInStep(NamedTuple):
    """For each group the groups, itself included, of whose new states its own new ones are made in
    the same step: position by position, and in other ways."""

    near: dict[int, frozenset[int]]
    far: dict[int, frozenset[int]]

    def by_itself(self, group: int) -> bool:
        """Whether a group reads itself, in whatever way."""
        return group in self.near[group] | self.far[group]


def read_in_step(graph: Graph) -> ReadInStep:
    """Which new states are made of which."""
    analysis = graph.analysis
    group_of = {v: g.index for g in graph.groups for v in g.outvars}
    none: frozenset[int] = frozenset()
    near: dict[Var, frozenset[int]] = {}
    far: dict[Var, frozenset[int]] = {}
    read = ReadInStep({g.index: none for g in graph.groups}, {g.index: none for g in graph.groups})
    for k, eqn in enumerate(analysis.eqns):
        cut = analysis.cuts.get(k, none) | analysis.use_cuts.get(k, none)
        operands = [(i in cut, a) for i, a in enumerate(eqn.invars) if isinstance(a, Var)]
        here = none.union(*[near.get(a, none) for is_cut, a in operands if not is_cut])
        there = none.union(*[far.get(a, none) for _, a in operands])
        there = there.union(*[near.get(a, none) for is_cut, a in operands if is_cut])
        for v in eqn.outvars:
            near[v], far[v] = here, there
            if v in group_of:
                g = group_of[v]
                read.near[g], read.far[g] = read.near[g] | here, read.far[g] | there
                near[v] = here | {g}
    return read


def is_readout(graph: Graph, group: Group) -> bool:
    """Whether a group only listens: nothing but the outputs (and its own old values) depends on it,
    and the model has other groups."""
    analysis = graph.analysis
    mine = [s for s, row in enumerate(analysis.rows) if row.old in group.invars]
    others = [row for s, row in enumerate(analysis.rows) if s not in mine]
    if any(analysis.dep(row.new).seeds >> s & 1 for row in others for s in mine):
        return False
    above = set(group.outvars)
    for eqn in analysis.eqns:
        if not above.isdisjoint(variables(eqn.invars)):
            above.update(eqn.outvars)
    return bool(others) and above.isdisjoint(row.new for row in others)


def feedback_uses(graph: Graph) -> dict[Var, Use]:
    """The products in which hidden states meet a weight on their way to the outputs or to the next
    layer, by the product's output: where credit may go back through other weights."""
    outward, new_states = needed_by_outputs(graph), set(graph.step.hidden_outs)
    above: set[Var] = set()  # made of new hidden states
    late: set[Var] = set(read_before(graph))  # made of old ones, on the way to the outputs
    products = {
        u.y[0]: u for u in graph.analysis.uses if u.op is not None and u.op.axes.x is not None
    }
    met: dict[Var, Use] = {}
    for eqn in graph.analysis.eqns:
        goes_out = not outward.isdisjoint(eqn.outvars)
        reads = {a for a in variables(eqn.invars) if a in above or (a in late and goes_out)}
        if reads & late:
            late |= set(eqn.outvars) & outward - new_states
        met |= {v: products[v] for v in eqn.outvars if v in products and reads - {products[v].w}}
        if reads - late:
            above.update(eqn.outvars)
        else:
            above.update(v for v in eqn.outvars if v in new_states)
    return met


def shared_sums(graph: Graph, ys: Sequence[Var]) -> dict[Var, Var]:
    """For the output y of each op the sum that it is added into and that alone goes on (a product
    and its bias): outputs with the same sum have the same slopes, and the same credit."""
    readers: dict[Var, list[JaxprEqn]] = {}
    for eqn in graph.analysis.eqns:
        for a in set(variables(eqn.invars)):
            readers.setdefault(a, []).append(eqn)
    kept = set(variables(graph.step.jaxpr.outvars))

    def goes_only_into_a_sum(v: Var) -> bool:
        if v in kept or len(readers.get(v, ())) != 1:
            return False
        [eqn] = readers[v]
        once = sum(a is v for a in eqn.invars) == 1
        return once and eqn.primitive.name == 'add' and eqn.outvars[0].aval.shape == v.aval.shape

    sums = {}
    for y in ys:
        v = y
        while goes_only_into_a_sum(v):
            [v] = readers[v][0].outvars
        sums[y] = v
    return sums


def acts_on_units_only(graph: Graph, relation: Relation) -> bool:
    """Whether the outputs of a relation have no effect in a step but position by position on the
    new hidden state."""
    analysis, ends = graph.analysis, set(graph.step.hidden_outs)
    followed = {relation.y_var} - ends
    for k in range(analysis.made_by[relation.y_var] + 1, len(analysis.eqns)):
        eqn = analysis.eqns[k]
        touched = [i for i, a in enumerate(eqn.invars) if isinstance(a, Var) and a in followed]
        if not analysis.use_cuts.get(k, frozenset()).isdisjoint(touched):
            return False
        if touched:
            followed.update(v for v in eqn.outvars if v not in ends and analysis.dep(v))
    return followed.isdisjoint(variables(graph.step.outs))
