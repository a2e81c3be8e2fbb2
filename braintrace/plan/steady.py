"""Slopes that do not change: the leak of a leaky unit, the rotation of a linear one.

What parameters alone decide is the same in all steps, and mostly for all samples too. It is enough
then to have it once: an axis of length one stands for all steps, or for all samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._jax import Atom, JaxprEqn, Literal, Var, prune, trace
from ..graph.analysis import Analysis, Row
from ..ops.families import Family, family


class Steady(NamedTuple):
    """Whether slopes are the same in all steps, and along the first axis of what they belong to."""

    steps: bool = False
    first: bool = False

    def least(self, a: Any, lead: int) -> Any:
        """Slopes with the steps first and `lead` axes before the first of what they belong to,
        without repetition."""
        if not self.steps:
            return a
        is_there = self.first and a.ndim > lead
        return jax.lax.slice_in_dim(a[:1], 0, 1, axis=lead) if is_there else a[:1]


MOVING = Steady()


def steadiness(
    analysis: Analysis, seeds: Iterable[int], starts: Sequence[Var], rows: Iterable[Row]
) -> Steady:
    """How the slopes of these rows' new values by `starts`, where the seeds are born, change."""
    news = [a for a in dict.fromkeys(row.new for row in rows) if isinstance(a, Var)]
    path = analysis.along(seeds, starts, news)

    def slopes(*values: Any) -> list[Any]:
        free, at = values[: len(path.free)], values[len(path.free) :]
        made, pull = jax.vjp(lambda *at: path(free, *at), *at)
        return list(pull([jnp.ones_like(a) for a in made]))

    traced = trace(slopes, *path.free, *starts).jaxpr
    eqns = prune(traced.eqns, traced.outvars)
    atoms = [*traced.outvars, *[a for e in eqns for a in e.invars]]
    taken = {a for a in atoms if isinstance(a, Var)}
    given = dict(zip(traced.invars, [*path.free, *starts], strict=True))
    used = {v: given[v] for v in traced.invars if v in taken}
    once = analysis.step.once
    fixed = {*analysis.step.captured_vars, *analysis.step.param_vars}.union(
        *[e.outvars for e in once]
    )
    if not fixed.issuperset(used.values()):
        return MOVING
    repeated = _repeated(once, set())
    met = _repeated(eqns, {v for v, original in used.items() if original in repeated})
    return Steady(True, all(_is_repeated(a, met) for a in traced.outvars))


def _repeated(eqns: Iterable[JaxprEqn], repeated: set[Var]) -> set[Var]:
    """The values that are one and the same along their first axis, as far as their equations say
    it, given those that are so to begin with."""
    for eqn in eqns:
        if _repeats(eqn, repeated):
            repeated = repeated.union(eqn.outvars)
    return repeated


def _repeats(eqn: JaxprEqn, repeated: set[Var]) -> bool:
    """Whether the outputs of an equation are the same along their first axis."""
    if eqn.primitive.name == 'broadcast_in_dim':
        dims, [a, *_] = eqn.params['broadcast_dimensions'], eqn.invars
        return 0 not in dims or (dims[0] == 0 and _is_repeated(a, repeated))
    if family(eqn) is not Family.ELEMENTWISE:
        return False
    return all(_is_repeated(a, repeated) for a in eqn.invars)


def _is_repeated(a: Atom, repeated: set[Var]) -> bool:
    return isinstance(a, Literal) or a.aval.shape[:1] in ((), (1,)) or a in repeated
