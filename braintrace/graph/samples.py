"""Whether the samples of a batch are independent, and along which axis of each op output they
lie."""

from __future__ import annotations

import numpy as np

from .._jax import Atom, Var, is_float
from ..ops.axes import Op
from .analysis import Analysis
from .constants import constants
from .dependence import NOTHING, Dep, union
from .influence import influence
from .uses import Use


def sample_axes(analysis: Analysis) -> list[int] | None:
    """For each use of a weight the axis of y that counts samples, if the first axis of every state
    does and no sample ever touches another; else None.

    This is the analysis of influence between units once more, with all the elements of a sample
    under one number.
    """
    step = analysis.step
    olds = [*step.hidden_vars, *step.other_vars]
    news = [*step.hidden_outs, *step.other_outs]
    states = [(old, new) for old, new in zip(olds, news, strict=True) if is_float(old)]
    leading = {old.aval.shape[:1] for old, _ in states}
    if len(leading) != 1 or leading == {()}:
        return None
    [(batch,)] = leading
    axes = []
    for use in analysis.uses:
        axis = None if use.op is None else _sample_axis(use.op)
        if axis is None or use.y[0].aval.shape[axis] != batch:
            return None
        axes.append(axis)
    deps = _follow(
        analysis, [old for old, _ in states], dict(zip(analysis.uses, axes, strict=True))
    )
    if all(_stay_apart(deps.get(new, NOTHING), new) for _, new in states if isinstance(new, Var)):
        return axes
    return None


def _sample_axis(op: Op) -> int | None:
    """The first axis of y that the weight does not have, or any axis of an element-wise use."""
    for k, c in enumerate(op.kept or op.axes.y):
        if c and (c not in op.axes.w or op.axes.x is None):
            return k
    return None


def _follow(analysis: Analysis, olds: list[Var], axes: dict[Use, int]) -> dict[Var, Dep]:
    """Which samples each value depends on."""
    deps = {old: Dep({0: (_numbers(old, 0),)}) for old in olds}
    born = {use.y[0]: Dep({0: (_numbers(use.y[0], a),)}) for use, a in axes.items()}
    const = constants(analysis.step)

    def read(a: Atom) -> Dep:
        return deps.get(a, NOTHING) if isinstance(a, Var) else NOTHING

    for eqn in analysis.eqns:
        outs, _ = influence(eqn, [read(a) for a in eqn.invars], const)
        for v, d in zip(eqn.outvars, outs, strict=True):
            if d or v in born:
                deps[v] = union([d, born.get(v, NOTHING)])
    return deps


def _numbers(v: Var, axis: int) -> np.ndarray:
    """The number of the sample that each element belongs to."""
    shape = v.aval.shape
    along_axis = [-1 if k == axis else 1 for k in range(len(shape))]
    return np.broadcast_to(np.arange(shape[axis], dtype=np.int32).reshape(along_axis), shape)


def _stay_apart(d: Dep, v: Var) -> bool:
    here = _numbers(v, 0)
    return not d.mixed and all(bool(((m < 0) | (m == here)).all()) for m in d.maps.get(0, ()))
