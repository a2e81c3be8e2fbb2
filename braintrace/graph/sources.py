"""Where the weights of a step come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .._jax import Var, is_float, new_jaxpr, prune
from ..ops.families import Family, family
from ..step import Fragment, Leaf, Step


class Source(NamedTuple):
    """A parameter leaf that a weight is computed from: its number in the step, itself, the names of
    the operations between (from the leaf on), and its variable."""

    index: int  # type: ignore[assignment]
    leaf: Leaf
    chain: tuple[str, ...]
    var: Var


class Origin:
    """The parameter leaves behind the values of a step."""

    def __init__(self, step: Step):
        self._leaf = {
            v: (i, leaf)
            for i, (v, leaf) in enumerate(zip(step.param_vars, step.params, strict=True))
        }
        self._made_by = {v: e for e in step.jaxpr.eqns for v in e.outvars}

    def of(self, w: Var) -> list[Source]:
        """The leaves that `w` is computed from, in the order of the step."""
        sources: list[Source] = []
        seen: set[Var] = set()
        todo: list[tuple[Var, tuple[str, ...]]] = [(w, ())]
        while todo:
            v, chain = todo.pop()
            if v in seen or not is_float(v):
                continue
            seen.add(v)
            eqn = self._made_by.get(v)
            if v in self._leaf:
                index, leaf = self._leaf[v]
                sources.append(Source(index, leaf, chain, v))
            elif eqn is not None and family(eqn) is not Family.NO_DERIVATIVE:
                longer = (eqn.primitive.name, *chain)
                todo += [(a, longer) for a in eqn.invars if isinstance(a, Var)]
        return sorted(sources, key=lambda source: source.index)


def weight_program(step: Step, ws: Sequence[Var]) -> Fragment:
    """`phi`: these weights from the values of the parameters, with what the step closes over as
    free variables."""
    eqns = prune([e for e in step.jaxpr.eqns if not e.effects], ws)
    captured = step.captured_vars
    return Fragment(new_jaxpr([*captured, *step.param_vars], ws, eqns), tuple(captured))
