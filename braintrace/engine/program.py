"""A compiled step as the engine runs it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from .._jax import Jaxpr, JaxprEqn, Var, is_complex, is_float, new_jaxpr, prune
from ..graph.analysis import Analysis
from ..ops.families import Family, family
from ..plan.layout import Layout
from ..plan.self_paths import Detour
from ..step import Step
from .curves import curves_of
from .loop import Loop
from .parted import part_products
from .phases import Phases


class Program:
    """The flat program of a layout's graph.

    Args:
        layout: the plan whose relations and self-paths are followed.
        graded: the outputs, by number, that credit comes from; all float ones by default.
        hidden: whether credit comes from the new hidden states too.
    """

    def __init__(self, layout: Layout, graded: Sequence[int] | None = None, hidden: bool = False):
        self.layout = layout
        if graded is None:
            graded = [i for i, a in enumerate(self.step.outs) if is_float(a)]
        self.graded_outs = list(graded)
        floats = [i for i, v in enumerate(self.step.hidden_vars) if is_float(v)]
        self._graded_hidden = floats if hidden else []

    @property
    def step(self) -> Step:
        return self.layout.graph.step

    @property
    def analysis(self) -> Analysis:
        return self.layout.graph.analysis

    @cached_property
    def detours(self) -> list[Detour]:
        """The self-paths over two products."""
        paths = [p for over in self.layout.self_paths.values() for p in over]
        return [p for p in paths if isinstance(p, Detour)]

    @cached_property
    def products(self) -> list[Var]:
        """The products with weights."""
        multiplied = [u for u in self.analysis.uses if u.axes is not None and u.axes.x is not None]
        return list(dict.fromkeys(u.y[0] for u in multiplied))

    @cached_property
    def kept(self) -> list[Var]:
        """What the loop keeps, so that it need not be computed again: products with weights, and
        curves of them, which are costly; and what is made just to be multiplied by a weight. XLA
        drops of these what nobody asks for, a product behind its curve."""
        curves = curves_of(self.step, self.products)
        return list(dict.fromkeys([*self.products, *curves, *self.made_operands]))

    @cached_property
    def made_operands(self) -> list[Var]:
        """What element-wise equations make of the state for products with weights, alone or as one
        of several parts side by side; new states are kept anyway."""
        multiplied = {r.x_var for r in self.layout.relations if r.x_var is not None}
        for eqn in self.analysis.eqns:
            if eqn.primitive.name == 'concatenate' and eqn.outvars[0] in multiplied:
                multiplied.update(a for a in eqn.invars if isinstance(a, Var))
        multiplied.difference_update(self.step.hidden_outs)
        made = [e.outvars[0] for e in self.analysis.eqns if family(e) is Family.ELEMENTWISE]
        return [v for v in made if v in multiplied and self.analysis.dep(v)]

    @cached_property
    def renewed(self) -> dict[int, Var]:
        """The new states, by the number of their leaf, that are the one output of an equation and
        not kept anyway. They are known, since the next step has them as its old ones."""
        made = {v for e in self.analysis.eqns if len(e.outvars) == 1 for v in e.outvars}
        outs = enumerate(self.step.hidden_outs)
        return {i: v for i, v in outs if v in made and v not in self.kept and is_float(v)}

    @cached_property
    def weight_operand(self) -> dict[Var, int]:
        """By the output of a use, which operand of its equation is the weight."""
        return {use.y[0]: use.operand for use in self.analysis.uses}

    def side_by_side(self, eqn: JaxprEqn) -> dict[int, list[int]]:
        """Those operands of a product, by number, that are parts side by side along the axis that
        is summed over, and the sizes of the parts."""
        if eqn.primitive.name != 'dot_general':
            return {}
        (sums, _), found = eqn.params['dimension_numbers'], {}
        for i, a in enumerate(eqn.invars):
            k = self.analysis.made_by.get(a) if isinstance(a, Var) else None
            made = None if k is None else self.analysis.eqns[k]
            if made is None or made.primitive.name != 'concatenate':
                continue
            axis = made.params['dimension']
            if list(sums[i]) == [axis]:
                found[i] = [part.aval.shape[axis] for part in made.invars]
        return found

    @cached_property
    def relation_weights(self) -> dict[int, dict[int, Var]]:
        """The operands that are weights of relations, by equation and number."""
        weights: dict[int, dict[int, Var]] = {}
        for r in self.layout.relations:
            k, i = self.analysis.made_by[r.y_var], r.use.operand
            weights.setdefault(k, {})[i] = self.analysis.eqns[k].invars[i]
        return weights

    @cached_property
    def free_params(self) -> list[int]:
        """The parameters, by number, that are more than weights of relations: a step reads them in
        another way too."""
        step = self.step
        read = {a for a in [*step.outs, *step.hidden_outs] if isinstance(a, Var)}
        for k, eqn in reversed(list(enumerate(self.analysis.eqns))):
            if not read.isdisjoint(eqn.outvars):
                weights = self.relation_weights.get(k, {})
                rest = [a for i, a in enumerate(eqn.invars) if i not in weights]
                read.update(a for a in rest if isinstance(a, Var))
        return [i for i, v in enumerate(step.param_vars) if v in read]

    def was_real(self, v: Var | None) -> bool:
        """Whether a complex value was made from a real one, by nothing but a change of type."""
        k = None if v is None else self.analysis.made_by.get(v)
        if k is None:
            return False
        eqn = self.analysis.eqns[k]
        return eqn.primitive.name == 'convert_element_type' and not is_complex(eqn.invars[0])

    @cached_property
    def loop(self) -> Loop:
        """The step as the body of a loop that also gives what is kept."""
        return Loop(self.step, self.kept)

    @cached_property
    def _one_step(self) -> Phases:
        return Phases(self.loop, self.step, self.kept)

    @cached_property
    def _many_steps(self) -> Phases:
        step = part_products(self.step)
        return Phases(Loop(step, self.kept), step, self.kept)

    def phases(self, length: int) -> Phases:
        """The same, with only that in the loop which has to wait."""
        return self._one_step if length == 1 else self._many_steps

    def making(self, wanted: Sequence[Var], known: Sequence[Var]) -> Jaxpr:
        """The program of some variables of the step, from what it starts from and what is known, as
        far as they need it."""
        jaxpr, made = self.step.jaxpr, set(known)
        rest = [e for e in jaxpr.eqns if not e.effects and made.isdisjoint(e.outvars)]
        eqns = prune(rest, wanted)
        read = {*wanted}.union(*[[a for a in e.invars if isinstance(a, Var)] for e in eqns])
        return new_jaxpr([v for v in [*jaxpr.invars, *known] if v in read], wanted, eqns)

    def losses(self, outs: Sequence[Any]) -> list[Any]:
        """The outputs that credit comes from."""
        return [outs[i] for i in self.graded_outs]

    def graded(self, outs: Sequence[Any], hidden: Sequence[Any]) -> list[Any]:
        """What credit comes from: outputs, and new hidden states where they may be read
        directly."""
        return [
            *[outs[i] for i in self.graded_outs],
            *[hidden[i] for i in self._graded_hidden],
        ]
