"""What a block of steps keeps of each of them, in bytes, as XLA was seen to allot it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from .._jax import Var
from .layout import Layout
from .steady import MOVING

OF_A_SIGNAL = 2  # arrays like y: the credit of a state there, and what it becomes at the trace


def bytes_of(*variables: Var) -> int:
    """The bytes of the values of some variables."""
    return sum(v.aval.size * v.aval.dtype.itemsize for v in variables)


def of_operands(layout: Layout) -> int:
    """What multiplies the weights of relations, once more where a product turns it round or where
    it is averaged."""
    with_x = {r.x_var: r for r in layout.relations if r.x_var is not None}
    return sum(bytes_of(x) * (2 if r.op.gradient is None else 1) for x, r in with_x.items())


def of_an_output(layout: Layout, relations: Iterable[int]) -> int:
    """The largest output of some relations: the credit of one goes into a gradient before that of
    the next is made."""
    return max((bytes_of(layout.relations[r].y_var) for r in relations), default=0)


def of_state(layout: Layout, group: int) -> int:
    """One state of all units of a group."""
    units = layout.units[group]
    return math.prod(units.shape) * units.dtype.itemsize


def of_products(layout: Layout, products: Iterable[Var]) -> int:
    """Products with weights that a derivative asks for: not those that only add to states whose
    slopes by them are the same in all steps, since the new states are known."""

    def only_adds(relation: int) -> bool:
        groups = [g.index for g in layout.relations[relation].groups]
        slopes = [layout.steady_slopes.get((relation, g), MOVING) for g in groups]
        return relation in layout.pure and all(slope.steps for slope in slopes)

    added = {r.y_var for i, r in enumerate(layout.relations) if only_adds(i)}
    return bytes_of(*[y for y in products if y not in added])


def of_transitions(layout: Layout, groups: Iterable[int]) -> int:
    """How the states of each unit act on each other, where that is not the same in all steps."""
    return sum(layout.moving_entries(g) * of_state(layout, g) for g in groups)


def of_matrices(layout: Layout, groups: Iterable[int]) -> int:
    """A number for each two states of each unit."""
    return sum(layout.units[g].states ** 2 * of_state(layout, g) for g in groups)


def of_credit(layout: Layout, groups: Iterable[int]) -> int:
    """The credit of the states of all units."""
    return sum(layout.units[g].states * of_state(layout, g) for g in groups)


def of_signals(layout: Layout, fed: Iterable[tuple[int, int]]) -> int:
    """Signals that meet the traces of outputs, one for each state: by relation and group."""
    return OF_A_SIGNAL * sum(
        layout.units[g].states * bytes_of(layout.relations[r].y_var) for r, g in fed
    )
