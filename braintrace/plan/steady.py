"""Slopes that do not change: the leak of a leaky unit, the rotation of a linear one.

What parameters alone decide is the same in all steps, and mostly for all samples too. It is enough
then to have it once: an axis of length one stands for all steps, or for all samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax

from .._jax import Atom, JaxprEqn, Literal, Var
from ..graph.analysis import Analysis, Row
from ..ops.families import Family, family
from .ways import on_the_way


class Steady(NamedTuple):
    """Whether slopes are the same in all steps, along the first axis of what they belong to, and
    everywhere."""

    steps: bool = False
    first: bool = False
    everywhere: bool = False

    def of_one_step(self, a: jax.Array) -> jax.Array:
        """Slopes of one step, without repetition along these axes."""
        if self.everywhere:
            return a[(slice(0, 1),) * a.ndim]
        return a[:1] if self.first and a.ndim else a


MOVING = Steady()
SUMS = frozenset(
    'add add_any complex concatenate conj convert_element_type copy imag neg pvary real stack '
    'sub'.split()
)


def steadiness(
    analysis: Analysis, seeds: Iterable[int], starts: Sequence[Var], rows: Iterable[Row]
) -> Steady:
    """How the slopes of these rows' new values by `starts`, where the seeds are born, change: not
    at all where all that a value is multiplied with on its way is decided by parameters."""
    step = analysis.step
    news = [a for a in dict.fromkeys(row.new for row in rows) if isinstance(a, Var)]
    factors: list[Atom] = []
    in_place = True
    for eqn, met in on_the_way(analysis, seeds, starts, news):
        more = _factors(eqn, met)
        if more is None:
            return MOVING
        factors += more
        in_place = in_place and family(eqn) is Family.ELEMENTWISE
    fixed = {*step.captured_vars, *step.param_vars}.union(*[e.outvars for e in step.once])
    if not all(isinstance(a, Literal) or a in fixed for a in factors):
        return MOVING
    repeated, numbers = _repeated(step.once), _numbers(step.once)
    first = in_place and all(_is_repeated(a, repeated) for a in factors)
    return Steady(True, first, in_place and all(_is_number(a, numbers) for a in factors))


def _factors(eqn: JaxprEqn, met: list[bool]) -> list[Atom] | None:
    """What an equation multiplies the values with that it meets on a way; None where it does more
    with them than that."""
    name, others = eqn.primitive.name, [a for a, m in zip(eqn.invars, met, strict=True) if not m]
    if name in SUMS:
        return []
    if (name == 'mul' and sum(met) == 1) or (name == 'div' and not met[1]):
        return others
    if family(eqn) is Family.LAYOUT:
        return others  # where elements go, if that is not fixed already
    return others[:1] if name == 'select_n' and not met[0] else None


def _repeated(eqns: Iterable[JaxprEqn]) -> set[Var]:
    """The values that are one and the same along their first axis, as far as their equations say
    it."""
    repeated: set[Var] = set()
    for eqn in eqns:
        if _repeats(eqn, repeated):
            repeated.update(eqn.outvars)
    return repeated


def _repeats(eqn: JaxprEqn, repeated: set[Var]) -> bool:
    """Whether the outputs of an equation are the same along their first axis."""
    if eqn.primitive.name == 'broadcast_in_dim':
        dims, [a, *_] = eqn.params['broadcast_dimensions'], eqn.invars
        return 0 not in dims or (dims[0] == 0 and _is_repeated(a, repeated))
    if family(eqn) is not Family.ELEMENTWISE:
        return False
    return all(_is_repeated(a, repeated) for a in eqn.invars)


def _numbers(eqns: Iterable[JaxprEqn]) -> set[Var]:
    """The values that are one number everywhere, as far as their equations say it."""
    numbers: set[Var] = set()
    for eqn in eqns:
        spread = eqn.primitive.name == 'broadcast_in_dim' or family(eqn) is Family.ELEMENTWISE
        if spread and all(_is_number(a, numbers) for a in eqn.invars):
            numbers.update(eqn.outvars)
    return numbers


def _is_number(a: Atom, numbers: set[Var]) -> bool:
    return isinstance(a, Literal) or a.aval.size == 1 or a in numbers


def _is_repeated(a: Atom, repeated: set[Var]) -> bool:
    return isinstance(a, Literal) or a.aval.shape[:1] in ((), (1,)) or a in repeated
