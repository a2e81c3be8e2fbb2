"""The primitives of JAX by family: the one table that every pass looks them up in.

A primitive that is not here is known by its own derivative only.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import NamedTuple

from .._jax import JaxprEqn
from ..frontends.base import ELEMENTWISE


class Family(Enum):
    """What a primitive does with the elements of its operands."""

    ELEMENTWISE = auto()  # each element of an output depends on the elements at its own position
    LAYOUT = auto()  # elements are moved, copied or dropped, and nothing else
    REDUCTION = auto()  # whole axes become one element
    PRODUCT = auto()  # sums of products
    WINDOW = auto()  # windows become one element
    SCATTER_ADD = auto()  # elements are added onto the first operand
    MIXING = auto()  # known, and no position survives
    NO_DERIVATIVE = auto()  # a float comes out, no derivative goes through
    CALL = auto()  # a program is called
    CUSTOM = auto()  # a program is called that has a rule of its own
    CONTROL = auto()  # control flow
    BARRIER = auto()  # every operand comes out as it is
    SPARSE = auto()  # a product that cannot always be mapped over time or differentiated


class Member(NamedTuple):
    """One primitive: its family, whether it is linear in its float operands together (or in each of
    two), and, for a call, the parameter that holds the program."""

    family: Family
    linear: bool = False
    program: str = ''


def _table(*parts: tuple[str, Member]) -> dict[str, Member]:
    """`('name name ...', entry)` pairs as a dict; a name may stand in one of them only."""
    table: dict[str, Member] = {}
    for names, entry in parts:
        for name in names.split():
            if name in table:
                raise ValueError(f'Primitive {name!r} is in two families: name it once.')
            table[name] = entry
    return table


FAMILIES: dict[str, Member] = _table(
    (
        'abs acos acosh add add_any asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt clamp '
        'complex conj convert_element_type copy cos cosh digamma div erf erf_inv erfc exp exp2 '
        'expm1 exprel igamma igammac imag integer_pow lgamma log log1p logistic max min mul neg '
        'polygamma pow pvary real reduce_precision regularized_incomplete_beta rem rsqrt select_n '
        'sin sinh sqrt square sub tan tanh trace_mark zeta',
        Member(Family.ELEMENTWISE),
    ),
    (ELEMENTWISE, Member(Family.ELEMENTWISE)),
    (
        'broadcast_in_dim concatenate dynamic_slice dynamic_update_slice expand_dims gather pad '
        'reshape rev scatter slice split squeeze stack tile transpose',
        Member(Family.LAYOUT, linear=True),
    ),
    ('reduce_sum', Member(Family.REDUCTION, linear=True)),
    ('reduce_max reduce_min reduce_prod', Member(Family.REDUCTION)),
    ('conv_general_dilated dot_general', Member(Family.PRODUCT, linear=True)),
    ('reduce_window_sum', Member(Family.WINDOW, linear=True)),
    ('reduce_window_max', Member(Family.WINDOW)),
    ('scatter-add scatter_add', Member(Family.SCATTER_ADD, linear=True)),
    ('cumsum', Member(Family.MIXING, linear=True)),
    (
        'cholesky cumlogsumexp cummax cummin cumprod fft ragged_dot reduce_window scatter_mul '
        'select_and_gather_add select_and_scatter_add sort triangular_solve',
        Member(Family.MIXING),
    ),
    ('ceil floor nextafter round sign stop_gradient', Member(Family.NO_DERIVATIVE)),
    ('checkpoint jit pjit remat2', Member(Family.CALL, program='jaxpr')),
    ('closed_call core_call', Member(Family.CALL, program='call_jaxpr')),
    ('custom_jvp_call custom_vjp_call custom_vmap_call', Member(Family.CUSTOM)),
    ('cond scan while', Member(Family.CONTROL)),
    ('optimization_barrier', Member(Family.BARRIER)),
    (
        'bcoo_dot_general bcsr_dot_general coo_matmat coo_matvec csr_matmat csr_matvec',
        Member(Family.SPARSE),
    ),
)

BY_OPERAND = frozenset(
    {
        Family.ELEMENTWISE,
        Family.LAYOUT,
        Family.REDUCTION,
        Family.PRODUCT,
        Family.WINDOW,
        Family.SCATTER_ADD,
        Family.MIXING,
    }
)  # the families whose outputs can be told operand by operand


def family(eqn: JaxprEqn) -> Family | None:
    """The family of an equation's primitive; None for one that is not in the table."""
    entry = FAMILIES.get(eqn.primitive.name)
    return None if entry is None else entry.family


def is_linear(eqn: JaxprEqn) -> bool:
    """Whether the outputs are linear in each float operand while the others are held."""
    entry = FAMILIES.get(eqn.primitive.name)
    return entry is not None and entry.linear


def called_program(eqn: JaxprEqn) -> str:
    """The parameter in which a call holds its program."""
    return FAMILIES[eqn.primitive.name].program


def members(*families: Family) -> Iterable[str]:
    """The names of the primitives of these families."""
    return (name for name, entry in FAMILIES.items() if entry.family in families)
