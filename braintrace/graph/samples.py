"""Whether the samples of a batch are independent, and along which axis of each op output they
lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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


def _stay_apart(d: Dep, v: Var, axis: int = 0) -> bool:
    here = _numbers(v, axis)
    return not d.mixed and all(bool(((m < 0) | (m == here)).all()) for m in d.maps.get(0, ()))


class Samples(NamedTuple):
    """How many samples a step has, and which axis of a variable counts them; a variable that is not
    there belongs to no sample of its own. `axes` has the states before and after the step, the
    inputs and outputs, and the operands and outputs of all uses. Where samples cannot be told
    apart, the whole step is one of them and every axis is None."""

    size: int
    axes: dict[Var, int | None]

    @property
    def told_apart(self) -> bool:
        """Whether there is an axis of samples."""
        return None not in self.axes.values()


def find_samples(analysis: Analysis) -> Samples:
    """The samples of a step: those of a batch, if no sample touches another before the outputs and
    every use of a weight has them on an axis of its output; else the whole step as one."""
    step = analysis.step
    states = [*step.hidden_vars, *step.other_vars]
    floats = [v for v in step.hidden_vars if is_float(v)]
    leading = {v.aval.shape[:1] for v in floats}
    uses = None
    if len(leading) == 1 and leading != {()}:
        uses = _uses_by_sample(analysis, *leading)
    if uses is None or (deps := _apart(analysis, floats, uses)) is None:
        return one_sample(analysis)
    chosen, batch = floats, floats[0].aval.shape[:1]
    for v in [*states, *step.input_vars]:
        if v not in chosen and v.aval.shape[:1] == batch:
            further = _apart(analysis, [*chosen, v], uses)
            if further is not None:
                chosen, deps = [*chosen, v], further
    axes: dict[Var, int | None] = {v: 0 for v in chosen}
    ends = [v for v in step.outs if isinstance(v, Var)]
    for v in [*ends, *_operands(analysis), *uses]:
        axis = _axis(deps.get(v, NOTHING), v, batch[0])
        if axis is not None:
            axes[v] = axis
    new_of = dict(zip(states, [*step.hidden_outs, *step.other_outs], strict=True))
    axes |= {new: 0 for old, new in new_of.items() if old in axes and isinstance(new, Var)}
    return Samples(batch[0], axes)


def one_sample(analysis: Analysis) -> Samples:
    """The whole step as one sample."""
    step = analysis.step
    inside = [*_operands(analysis), *[use.y[0] for use in analysis.uses]]
    starts = [*step.hidden_vars, *step.other_vars, *step.input_vars]
    every = [*starts, *step.jaxpr.outvars, *inside]
    return Samples(1, {v: None for v in every if isinstance(v, Var)})


def _operands(analysis: Analysis) -> list[Var]:
    return [use.x_var for use in analysis.uses if use.op is not None and use.x_var is not None]


def _uses_by_sample(analysis: Analysis, batch: tuple[int, ...]) -> dict[Var, int] | None:
    """The axis of samples by the output of each use; None where one has none. A weight that only
    adds a number to the loss belongs to no sample."""
    axes = {}
    for use in analysis.uses:
        axis, y = None if use.op is None else _sample_axis(use.op), use.y[0]
        if axis is not None and y.aval.shape[axis : axis + 1] == batch:
            axes[y] = axis
        elif not _only_numbers(analysis, y):
            return None
    return axes


def _only_numbers(analysis: Analysis, y: Var) -> bool:
    """Whether everything that a value leads to is a single number."""
    reached = {y}
    for eqn in analysis.eqns:
        if not reached.isdisjoint(a for a in eqn.invars if isinstance(a, Var)):
            reached.update(eqn.outvars)
    return all(v.aval.ndim == 0 for v in reached)


def _apart(
    analysis: Analysis, starts: Sequence[Var], uses: dict[Var, int]
) -> dict[Var, Dep] | None:
    """Which samples each value depends on, if these variables have them on their first axis, the
    uses on theirs, and no sample touches another before the outputs; else None."""
    step = analysis.step
    axes = {use: uses[use.y[0]] for use in analysis.uses if use.y[0] in uses}
    deps = _follow(analysis, list(starts), axes)
    olds, news = [*step.hidden_vars, *step.other_vars], [*step.hidden_outs, *step.other_outs]
    for old, new in zip(olds, news, strict=True):
        dep = deps.get(new, NOTHING) if isinstance(new, Var) else NOTHING
        if dep if old not in starts else not _stay_apart(dep, old):
            return None
    for y, axis in uses.items():
        if not _stay_apart(deps.get(y, NOTHING), y, axis):
            return None
    return deps


def _axis(d: Dep, v: Var, batch: int) -> int | None:
    """The axis of a variable that counts samples, if it has one."""
    maps = d.maps.get(0, ())
    if d.mixed or not maps:
        return None
    for axis, n in enumerate(v.aval.shape):
        if n == batch and _stay_apart(d, v, axis):
            return axis
    return None
