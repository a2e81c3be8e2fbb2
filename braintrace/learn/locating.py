"""Where a run stopped being finite, for `nonfinite='raise'`: it is run again step by step, and
looked at."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from .._jax import Var
from ..engine.blocks import in_blocks
from .core import RAISE, Core
from .nonfinite import all_finite, finite_by_sample
from .records import Block, Carried, Outcome


class Place(NamedTuple):
    """Something that may stop being finite: its name, and its axis of samples (None for none)."""

    name: str
    axis: int | None


class Counted(Protocol):
    """What a run has counted."""

    skipped: Any


def refuse_losses(core: Core, carried: Carried, block: Block, after: Counted) -> None:
    """`refuse` for a run with losses, of which every one counts."""
    ones = [jnp.ones(a.shape, a.dtype) for a in block.cotangents or ()]
    refuse(core, carried, block._replace(cotangents=ones, is_loss=True), after)


def refuse(core: Core, carried: Carried, block: Block, after: Counted) -> None:
    """Under 'raise', refuse a run of this block, from `carried` to `after`, that was not finite:
    say what stopped being so first, for which sample, in which step. Inside a trace the compiled
    program will do so."""
    if core.nonfinite != RAISE:
        return
    bad = after.skipped > carried.skipped
    places = _places(core, block.is_loss)

    def look(carried: Carried, weights, inputs, cotangents, extra) -> list[Any]:
        data = block._replace(weights=weights, inputs=inputs, cotangents=cotangents, extra=extra)
        return _look(core, carried, data, places)

    def tell_from_inside(*given: Any) -> None:
        jax.debug.callback(partial(_tell, places), carried.steps, *look(*given))

    given = carried, block.weights, list(block.inputs), block.cotangents, block.extra
    if isinstance(bad, jax.core.Tracer):
        jax.lax.cond(bad, tell_from_inside, lambda *_: None, *given)
    elif bad:
        _tell(places, carried.steps, *jax.jit(look)(*given))


def _places(core: Core, is_loss: bool) -> list[Place]:
    """Everything that is looked at after a step; `_values` has the values."""
    step, axes = core.program.step, core.samples.axes
    group_of = {v: g.index for g in core.graph.groups for v in g.invars}
    places = []
    for leaf, v in zip(step.hidden, step.hidden_vars, strict=True):
        group = f' (group {group_of[v]})' if v in group_of else ''
        places.append(Place(f'The hidden state {leaf.name}{group}', axes.get(v)))
    for leaf, v in zip(step.other, step.other_vars, strict=True):
        places.append(Place(f'The state {leaf.name}', axes.get(v)))
    for out in core.program.losses(step.outs) if is_loss else ():
        places.append(Place('The loss', axes.get(out) if isinstance(out, Var) else None))
    for key in core.shapes:
        places.append(Place(f'The trace {key}', core.trace_axes.get(key)))
    return places


def _values(core: Core, is_loss: bool, made: Outcome) -> list[Any]:
    """The value of each place after one step."""
    losses = [a[0] for a in core.program.losses(made.outs)] if is_loss else []
    traces = [made.carried.traces[key] for key in core.shapes]
    return [*made.carried.hidden, *made.carried.other, *losses, *traces]


def _look(core: Core, carried: Carried, block: Block, places: Sequence[Place]) -> list[Any]:
    """Whether each place is finite after each step, `(T, samples)`, or `(T, 1)` for one without;
    the last is the gradient."""

    def turn(carried, x):
        inputs, cotangents, steps = x
        extra = block.extra._replace(steps=steps)
        one = block._replace(inputs=inputs, cotangents=cotangents, extra=extra, length=1)
        made = core.attempt(carried, one._replace(alone=False, keep=True))[1]
        values = zip(places, _values(core, block.is_loss, made), strict=True)
        seen = [finite_by_sample(a, p.axis, core.samples.size) for p, a in values]
        seen.append(all_finite((made.params, made.weights))[None])
        return made.carried, [flags[None] for flags in seen]

    start = core.with_traces(carried) if block.alone else carried
    xs = list(block.inputs), block.cotangents, block.extra.steps
    return in_blocks(turn, start, xs, block.length, 1)[1]


def _tell(places: Sequence[Place], steps: Any, *flags: Any) -> None:
    advice = (
        "Look at the input and the weights there. With nonfinite='skip' such a sample is left out "
        'of such a step.'
    )
    bad = [~np.asarray(f) for f in flags]
    first = [(int(b.any(1).argmax()), k) for k, b in enumerate(bad) if b.any()]
    if not first:
        raise FloatingPointError(f'A number in this call is not finite. {advice}')
    step, k = min(first)
    name, whose = 'The gradient', ''
    if k < len(places):
        name, axis = places[k]
        whose = '' if axis is None else f', sample {int(bad[k][step].argmax())},'
    raise FloatingPointError(
        f'{name}{whose} is not finite after step {step} of this call (step '
        f'{int(np.max(steps)) + step} of the stream). {advice}'
    )
