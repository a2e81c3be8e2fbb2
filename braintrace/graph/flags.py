"""What a value of a step depends on, in four bits: enough to see where weights meet data."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .._jax import JaxprEqn, Var, is_float
from ..ops.families import Family, family
from ..step import Leaf, Step

PARAM = 1  # depends on a weight to trace
DATA = 2  # depends on run-time data
ACTIVE = 4  # depends on a weight or a state
MARKABLE = 8  # depends on a weight that a mark makes one to trace

Trace = Callable[[tuple], bool] | str  # which weights may have a trace: 'all', 'marked', by path


def flow(eqn: JaxprEqn, flags: Sequence[int]) -> int:
    """The flags of an equation's float outputs, given its operands'."""
    out = 0
    for f in flags:
        out |= f
    if family(eqn) is Family.NO_DERIVATIVE:
        out &= DATA
    if eqn.primitive.name == 'trace_mark':
        traced = eqn.params['traced'] and out & MARKABLE
        out &= ~(PARAM | MARKABLE)
        if traced:
            out |= PARAM | MARKABLE
    return out


def seed_flags(step: Step, traced: Trace) -> dict[Var, int]:
    """What each input of a step is; `traced` says which weights may have a trace."""
    as_wanted = MARKABLE if traced == 'marked' else MARKABLE | PARAM
    flags = dict.fromkeys(step.param_vars, ACTIVE)
    for leaf, v in zip(step.params, step.param_vars, strict=True):
        if may_trace(leaf, traced):
            flags[v] |= as_wanted
    flags.update(dict.fromkeys([*step.hidden_vars, *step.other_vars], ACTIVE | DATA))
    flags.update(dict.fromkeys(step.input_vars, DATA))
    return {v: of_output(v, f) for v, f in flags.items()}


def may_trace(leaf: Leaf, traced: Trace) -> bool:
    """Whether neither the model nor `traced` keeps a parameter out of the traces."""
    return leaf.traced and (isinstance(traced, str) or traced(leaf.path))


def of_output(v: Var, f: int) -> int:
    """The flags of a variable: only a float carries derivatives."""
    return f if is_float(v) else f & DATA


def is_weight(f: int) -> bool:
    """Whether a value with these flags is made of weights to trace alone."""
    return f & (PARAM | DATA) == PARAM
