"""Where a state depends on something with one and the same slope, whatever the values are: a fixed
leak, a sum."""

from __future__ import annotations

import numpy as np

from .._jax import Atom, JaxprEqn, Var
from ..graph.analysis import Analysis, Row
from ..graph.constants import Const, constants

SAME = ('convert_element_type', 'copy', 'expand_dims', 'reshape', 'squeeze', 'transpose')


def constant_slope(analysis: Analysis, seed: int, start: Var, row: Row) -> float | None:
    """The derivative of a state's new value by the seed's `start` along position-wise paths, if it
    is one number for all elements and all values; else None."""
    if row.column is not None:
        return None
    const = constants(analysis.step)
    slopes: dict[Atom, float | None] = {start: 1.0}
    for eqn in analysis.along([seed], [start], [row.new]).jaxpr.eqns:
        if eqn.primitive.name != 'stop_gradient' and any(_met(eqn, slopes)):
            slopes |= dict.fromkeys(eqn.outvars, _slope_after(eqn, slopes, const))
    return slopes.get(row.new)


def _met(eqn: JaxprEqn, slopes: dict[Atom, float | None]) -> list[bool]:
    return [isinstance(a, Var) and a in slopes for a in eqn.invars]


def _slope_after(eqn: JaxprEqn, slopes: dict[Atom, float | None], const: Const) -> float | None:
    """The slope of an equation's outputs, if it is a number again."""
    name, met = eqn.primitive.name, _met(eqn, slopes)
    arriving = [slopes[a] if m else 0.0 for a, m in zip(eqn.invars, met, strict=True)]
    if any(s is None for s in arriving):
        return None
    known = [float(s) for s in arriving if s is not None]
    if name in ('add', 'add_any', 'neg', 'sub'):
        sign = {'neg': [-1], 'sub': [1, -1]}.get(name, [1, 1])
        return sum(s * k for s, k in zip(known, sign, strict=True))
    if name in SAME:
        return known[0]
    if name in ('mul', 'div') and sum(met) == 1 and (met[0] or name == 'mul'):
        factor = const(eqn.invars[met.index(False)])
        if factor is not None and np.all(factor == np.ravel(factor)[:1]) and factor.size:
            c = float(np.ravel(factor)[0])
            return sum(known) * (c if name == 'mul' else 1 / c)
    return None


def is_leak(slope: float | None, leak: float | np.ndarray) -> bool:
    """Whether a slope is this leak, that of all units, to the precision of a float32."""
    return slope is not None and bool(np.all(np.abs(slope - leak) <= 1e-7 * np.abs(leak)))
