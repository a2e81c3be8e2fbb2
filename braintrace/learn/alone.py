"""The gradient of a sequence that stands alone, where one block of it is more than a cache holds.

No trace comes into such a sequence and none is asked of it. So it is run forwards in parts, of
which only the course is kept, and then credit goes through the parts from the last to the first:
what comes back from a part to the one before is credit of the units' states. The memory of one part
serves the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..engine.blocks import in_blocks
from ..engine.course import Course, State
from ..engine.credit import Asked
from ..engine.evaluate import Given
from ..engine.window import Window
from ..rules.carrier import Contribution, PartCarrier
from ..rules.signals import Extra
from .progress import advance
from .records import Carried, Run, Weights

if TYPE_CHECKING:
    from .core import Core


def grad_in_parts(
    core: Core,
    weights: Weights,
    carried: Carried,
    inputs: Sequence[Any],
    cotangents: Sequence[Any],
    run: Run,
    extra: Extra,
) -> tuple[list[Any], list[Any], Carried]:
    """As `Core.grad`; the traces of `carried` are those of a beginning."""
    carrier, part = core.carrier, core.sizes.part_of(run.length)
    assert isinstance(carrier, PartCarrier)

    def window(state: State, inputs: list[Any], steps: int, went: Any = None) -> Window:
        hidden, other = state
        given = Given(weights.captured, weights.params, hidden, other, inputs)
        return Window(core.program, given, steps, split=run.split, went=went)

    def forwards(before: State, x: tuple) -> tuple[State, Course]:
        inputs, cotangents = x
        made = window(before, inputs, len(cotangents[0]))
        if run.progress:
            advance(made.length, run.length)
        return (made.hidden, made.other), made.course

    def backwards(state: tuple, x: tuple) -> tuple[tuple, None]:
        (after, later, totals), (inputs, cotangents, per_step, course) = state, x
        before = [a[0] for a in course.hidden], [a[0] for a in course.other]
        again = window(before, inputs, len(cotangents[0]), (course, after))
        asked = Asked(carrier.asks_of, inputs=False)
        here = extra._replace(steps=per_step, weights=cotangents[0], asked=asked)
        step = core.signal.same_step(again, cotangents, carried.traces, here)
        given, earlier = carrier.part(again, step.credit, later)
        totals = core.added(totals, Contribution(given.weights, step.params))
        return (before, earlier, totals), None

    start, xs = (list(carried.hidden), list(carried.other)), (list(inputs), list(cotangents))
    end, course = in_blocks(forwards, start, xs, run.length, part)
    state = end, carrier.at_end, core.nothing_yet(weights.params)
    (_, _, totals), _ = in_blocks(
        backwards, state, (*xs, extra.steps, course), run.length, part, reverse=True
    )
    steps = core.counted(carried.steps, run.length)
    after = carried._replace(hidden=end[0], other=end[1], steps=steps)
    return core.to_params(weights, *totals), course.outs, after
