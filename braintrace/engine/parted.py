"""Products of values side by side, `concat(x, h) @ W`, as sums of products: what the inputs alone
decide then need not wait for the state."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import jax

from .._jax import Atom, JaxprEqn, Literal, Var, new_jaxpr, trace
from ..step import Step


class Parted(NamedTuple):
    """A product of which one operand, by number, is made of `parts` along the axis that is summed
    over; `waits` says which of them depend on the state."""

    eqn: JaxprEqn
    operand: int
    parts: list[Atom]
    waits: list[bool]

    @property
    def equations(self) -> list[JaxprEqn]:
        """Equations in its place, that make the same variable."""
        made = trace(self._sum, self.eqn.invars[1 - self.operand], *self.parts)
        [out], jaxpr = made.jaxpr.outvars, made.jaxpr
        names: dict[Any, Atom] = dict(
            zip(jaxpr.invars, [self.eqn.invars[1 - self.operand], *self.parts], strict=True)
        )
        names[out] = self.eqn.outvars[0]
        for eqn in jaxpr.eqns:
            names.update({v: Var(v.aval) for v in eqn.outvars if v not in names})

        def named(atoms: Sequence[Any]) -> list[Any]:
            return [a if isinstance(a, Literal) else names[a] for a in atoms]

        return [
            e.replace(
                invars=named(e.invars),
                outvars=named(e.outvars),
                source_info=self.eqn.source_info,
            )
            for e in jaxpr.eqns
        ]

    def _sum(self, weight: jax.Array, *parts: jax.Array) -> jax.Array:
        (axes, _) = self.eqn.params['dimension_numbers']
        [of_parts], [of_weight] = axes[self.operand], axes[1 - self.operand]
        ends = list(accumulate(p.shape[of_parts] for p in parts))
        starts = [0, *ends[:-1]]

        def product(waiting: bool) -> jax.Array:
            chosen = [k for k, waits in enumerate(self.waits) if waits == waiting]
            x = _side_by_side([parts[k] for k in chosen], of_parts)
            rows = [
                jax.lax.slice_in_dim(weight, starts[k], ends[k], axis=of_weight) for k in chosen
            ]
            pair = [x, _side_by_side(rows, of_weight)]
            operands = pair if self.operand == 0 else pair[::-1]
            return self.eqn.primitive.bind(*operands, **self.eqn.params)

        return product(waiting=False) + product(waiting=True)


def _side_by_side(parts: Sequence[jax.Array], axis: int) -> jax.Array:
    return parts[0] if len(parts) == 1 else jax.lax.concatenate(parts, axis)


def part_products(step: Step) -> Step:
    """An equal step in which products with weights are parted where that lets inputs go ahead."""
    moving: set[Atom] = {*step.hidden_vars, *step.other_vars}
    fixed: set[Atom] = {*step.captured_vars, *step.param_vars}
    fixed.update(v for e in step.once for v in e.outvars)
    joined: dict[Atom, JaxprEqn] = {}
    eqns: list[JaxprEqn] = []
    for eqn in step.jaxpr.eqns:
        if not moving.isdisjoint(a for a in eqn.invars if isinstance(a, Var)):
            moving.update(eqn.outvars)
        if eqn.primitive.name == 'concatenate':
            joined[eqn.outvars[0]] = eqn
        parted = _parted(eqn, joined, moving, fixed)
        eqns += [eqn] if parted is None else parted.equations
    return step.with_program(new_jaxpr(step.jaxpr.invars, step.jaxpr.outvars, eqns), step.captured)


def _parted(
    eqn: JaxprEqn, joined: dict[Atom, JaxprEqn], moving: set[Atom], fixed: set[Atom]
) -> Parted | None:
    if eqn.primitive.name != 'dot_general':
        return None
    axes, _ = eqn.params['dimension_numbers']
    for k, operand in enumerate(eqn.invars):
        other = eqn.invars[1 - k]
        if isinstance(operand, Literal) or operand not in joined or other not in fixed:
            continue
        made = joined[operand]
        if list(axes[k]) != [made.params['dimension']]:
            continue
        waits = [isinstance(a, Var) and a in moving for a in made.invars]
        if any(waits) and not all(waits):
            return Parted(eqn, k, list(made.invars), waits)
    return None
