"""Where the values of a learner lie on a mesh of devices.

Samples follow one axis of the mesh and units another. States and weights say by themselves which of
their axes count samples and units. A trace has the axes of its weight, and lies along them as the
weight does; for its other axes the partitioner of XLA is asked: it is shown two steps, and where it
leaves the traces is where they are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from .._jax import Var
from ..frontends.base import HIDDEN, OTHER, PARAM
from ..plan.keys import TraceKey
from ..step import Leaf
from .core import KEEP, Core
from .records import Carried, Run, Weights
from .stateful import CompiledModel, Learning

BATCH, UNITS = 'data', 'model'  # the usual names of axes of a mesh


class Placement(NamedTuple):
    """A sharding for every leaf of a core: parameters, states, inputs with time as first axis, and
    traces by key; `whole` is that of what lies on all devices."""

    params: list[NamedSharding]
    hidden: list[NamedSharding]
    other: list[NamedSharding]
    inputs: list[NamedSharding]
    traces: dict[TraceKey, Any]
    whole: NamedSharding


def place(core: Core, mesh: Mesh, batch: str | None, units: str | None) -> Placement:
    """Where the values of a core lie.

    Args:
        core: the learner of flat leaves.
        mesh: the devices.
        batch: the axis of the mesh for samples, the first axis of states and inputs; None for none.
        units: the axis of the mesh for units, the last axis of hidden states; None for none.

    An axis of the usual name that the mesh does not have counts as none.
    """
    batch, units = _axes_of(mesh, batch, units)
    step = core.program.step
    samples = _samples(step.hidden_vars) if batch is not None else None

    def on(shape: Sequence[int], *axes: tuple[int, str | None]) -> NamedSharding:
        """Axes of the mesh at axes of the array, where they divide these."""
        spec: list[str | None] = [None] * len(shape)
        for k, axis in axes:
            if axis is not None and shape[k] % mesh.shape[axis] == 0:
                spec[k] = axis
        return NamedSharding(mesh, PartitionSpec(*spec))

    def of_samples(shape: Sequence[int]) -> list[tuple[int, str | None]]:
        return [(0, batch)] if shape and shape[0] == samples else []

    def of_state(v: Var, leaf: Leaf) -> NamedSharding:
        shape, unit = v.aval.shape, len(v.aval.shape) - (2 if leaf.columns else 1)
        counted = of_samples(shape)
        return on(shape, *counted, *([(unit, units)] if unit >= len(counted) else []))

    rows = _unit_axes(core)
    asked, mesh = mesh, automatic(mesh)
    first = Placement(
        [on(v.aval.shape, *[(k, units) for k in rows.get(v, ())]) for v in step.param_vars],
        [of_state(v, leaf) for v, leaf in zip(step.hidden_vars, step.hidden, strict=True)],
        [on(v.aval.shape, *of_samples(v.aval.shape)) for v in step.other_vars],
        [
            on((1, *v.aval.shape), *[(k + 1, axis) for k, axis in of_samples(v.aval.shape)])
            for v in step.input_vars
        ],
        {},
        NamedSharding(mesh, PartitionSpec()),
    )
    found = first._replace(traces=_traces(core, first))
    if asked == mesh:
        return found

    def on_asked(sharding: Any) -> NamedSharding:
        return NamedSharding(asked, sharding.spec)

    return jax.tree.map(on_asked, found)


def automatic(mesh: Mesh) -> Mesh:
    """The same mesh with automatic axes, on which XLA settles how values lie."""
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * mesh.devices.ndim)


def _axes_of(mesh: Mesh, batch: str | None, units: str | None) -> tuple[str | None, str | None]:
    """The axes of the mesh for samples and for units."""
    known = ', '.join(map(repr, mesh.axis_names))
    for name, axis, usual in (('batch', batch, BATCH), ('units', units, UNITS)):
        if axis not in (None, usual, *mesh.axis_names):
            raise ValueError(
                f'`{name}` must be an axis of the mesh, {known}, or None, got {axis!r}.'
            )
    if batch is not None and batch == units:
        raise ValueError(
            f'`batch` and `units` are both {batch!r}: give them axes of their own, or None for one.'
        )
    there = [axis if axis in mesh.axis_names else None for axis in (batch, units)]
    if there == [None, None] and (batch or units):
        raise ValueError(
            f'`mesh` has the axes {known}, and neither is for samples ({batch!r}) or units '
            f'({units!r}). Name one of them as `batch` or as `units`.'
        )
    return there[0], there[1]


def _samples(states: Sequence[Var]) -> int | None:
    """The number of samples, if there is one."""
    leading = {v.aval.shape[0] for v in states if v.aval.ndim > 1}
    return leading.pop() if len(leading) == 1 else None


def _unit_axes(core: Core) -> dict[Var, tuple[int, ...]]:
    """For each parameter that is a weight as it is, the axis that counts the units it feeds."""
    axis_of: dict[Var, tuple[int, ...]] = {}
    for r in core.graph.relations:
        axes = r.axes
        fed = [k for k, c in enumerate(axes.w) if c in axes.y and c not in (axes.x or '')]
        axis_of.setdefault(r.w_var, tuple(fed[-1:]))
    return axis_of


def _traces(core: Core, placed: Placement) -> dict[TraceKey, Any]:
    """Where the traces lie after two steps, the rest being placed."""
    step = core.program.step

    def two_steps(captured, params, hidden, other, inputs):
        none = jnp.zeros((), jnp.int32)
        skipped = None if core.nonfinite == KEEP else none
        carried = Carried(hidden, other, core.init(params), none, skipped)
        return core.evolve(Weights(captured, params), carried, inputs, Run(2, 1))[1].traces

    def shapes(variables: Sequence[Var], shardings: Sequence[Any], *time: int) -> list[Any]:
        return [
            jax.ShapeDtypeStruct((*time, *v.aval.shape), v.aval.dtype, sharding=s)
            for v, s in zip(variables, shardings, strict=True)
        ]

    lowered = jax.jit(two_steps).lower(
        shapes(step.captured_vars, [placed.whole] * len(step.captured)),
        shapes(step.param_vars, placed.params),
        shapes(step.hidden_vars, placed.hidden),
        shapes(step.other_vars, placed.other),
        shapes(step.input_vars, placed.inputs, 2),
    )
    found = lowered.compile().output_shardings
    of_weight = {
        leaf.path: (v.aval.shape, sharding)
        for leaf, v, sharding in zip(step.params, step.param_vars, placed.params, strict=True)
    }
    for key, trace in core.shapes.items():
        if len(key.weight) == 1 and key.weight[0].path in of_weight:
            shape, sharding = of_weight[key.weight[0].path]
            found[key] = _as_the_weight(trace.shape, found[key], shape, sharding)
    return found


def _as_the_weight(
    trace: Sequence[int], found: Any, weight: Sequence[int], placed: NamedSharding
) -> Any:
    """Where a trace lies whose last axes are those of its weight: along them as the weight, along
    the others as was found. Any other trace lies as was found."""
    lead = len(trace) - len(weight)
    last = [*placed.spec, *[None] * (len(weight) - len(placed.spec))]
    used = {axis for axis in last if axis is not None}
    if lead < 0 or tuple(trace[lead:]) != tuple(weight) or not used:
        return found
    first = [*found.spec, *[None] * lead][:lead]
    return NamedSharding(
        placed.mesh, PartitionSpec(*[None if axis in used else axis for axis in first], *last)
    )


def put_on_devices(learning: Learning, compiled: CompiledModel, placed: Placement) -> None:
    """Move the states of a model and the memory of its learner."""
    of_role = {PARAM: placed.params, HIDDEN: placed.hidden, OTHER: placed.other}
    for role, shardings in of_role.items():
        compiled.traced.write(role, jax.device_put(compiled.traced.read(role), shardings))
    memory = dict(learning.memory.value)
    texts = {str(key): sharding for key, sharding in placed.traces.items()}
    traces = {
        text: jax.device_put(trace, texts.get(text, placed.whole))
        for text, trace in memory.pop('traces').items()
    }
    rest = jax.device_put(memory, placed.whole)
    learning.memory.value = {**rest, 'traces': traces}
