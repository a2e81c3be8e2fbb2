"""The equations that a value passes on its way through a step, position by position."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from .._jax import Atom, JaxprEqn, Var
from ..graph.analysis import Analysis


def on_the_way(
    analysis: Analysis, seeds: Iterable[int], starts: Sequence[Var], ends: Sequence[Atom]
) -> Iterator[tuple[JaxprEqn, list[bool]]]:
    """The equations on position-wise ways from `starts`, where the seeds are born, to `ends`, each
    with whether an operand lies on such a way."""
    on_way: set[Atom] = set(starts)
    for eqn in analysis.along(seeds, starts, ends).jaxpr.eqns:
        met = [isinstance(a, Var) and a in on_way for a in eqn.invars]
        if eqn.primitive.name != 'stop_gradient' and any(met):
            yield eqn, met
            on_way.update(eqn.outvars)
