"""Whether the samples of a batch are independent, and along which axis of each op output they lie."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._jax import Var, is_float
from .analysis import Analysis
from .influence import NOTHING, Constants, Dep, influence, union


def sample_axes(found: Analysis) -> list[int] | None:
    """For each use of a weight the axis of y that counts samples, if the first axis of every state does and no sample ever touches another.

    The same analysis as for units, with all the elements of a sample under one number.
    """
    step = found.step
    states = [
        (old, new)
        for old, new in zip(
            [*step.hidden_vars, *step.other_vars],
            [*step.hidden_outs, *step.other_outs],
            strict=True,
        )
        if is_float(old)
    ]
    sizes = {old.aval.shape[:1] for old, _ in states}
    if len(sizes) != 1 or sizes == {()} or any(u.axes is None for u in found.uses):
        return None
    [(batch,)] = sizes
    axes = [
        next(
            (
                k
                for k, c in enumerate(u.op.kept or u.op.axes.y)
                if c and (c not in u.op.axes.w or u.op.axes.x is None)
            ),
            -1,
        )
        for u in found.uses
        if u.op is not None
    ]
    if any(a < 0 or u.y[0].aval.shape[a] != batch for a, u in zip(axes, found.uses, strict=True)):
        return None
    deps = {old: Dep({0: (_numbers(old, 0),)}) for old, _ in states}
    born = {u.y[0]: Dep({0: (_numbers(u.y[0], a),)}) for a, u in zip(axes, found.uses, strict=True)}
    const = Constants(step.jaxpr)
    for eqn in found.eqns:
        outs, _ = influence(
            eqn,
            [deps.get(a, NOTHING) if isinstance(a, Var) else NOTHING for a in eqn.invars],
            const,
        )
        deps.update(
            {
                v: union([d, born.get(v, NOTHING)])
                for v, d in zip(eqn.outvars, outs, strict=True)
                if d or v in born
            }
        )
    return (
        axes
        if all(_apart(deps.get(new, NOTHING), new) for _, new in states if isinstance(new, Var))
        else None
    )


def _numbers(v: Var, axis: int) -> np.ndarray:
    shape = v.aval.shape
    return np.broadcast_to(
        np.arange(shape[axis], dtype=np.int32).reshape(
            [-1 if k == axis else 1 for k in range(len(shape))]
        ),
        shape,
    )


def _apart(d: Dep, v: Var) -> bool:
    maps: Sequence[np.ndarray] = d.maps.get(0, ())
    return not d.mixed and all(bool(((m < 0) | (m == _numbers(v, 0))).all()) for m in maps)
