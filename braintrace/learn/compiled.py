"""A step that a front-end has traced, and the core that learns it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import jax

from ..frontends.base import Traced
from ..graph.compile import compile_step
from .core import Core, core_of
from .how import How
from .records import Weights

Of = TypeVar('Of', bound=Traced)


@dataclass(frozen=True, eq=False)
class Compiled(Generic[Of]):
    """A step, possibly with a loss, and the core that learns it.

    Args:
        traced: the step as it is run, and the way of values into it and back.
        core: what learns it.
    """

    traced: Of
    core: Core

    @property
    def lasting(self) -> bool:
        """Whether it may outlive the call: one that captured a value of a surrounding trace belongs
        to that."""
        return not any(isinstance(c, jax.core.Tracer) for c in self.captured)

    @property
    def captured(self) -> list[Any]:
        """The values that the step closes over, and the arrays of its ops."""
        return list(self.core.program.step.captured)

    def weights(self, params: Sequence[Any], captured: list[Any] | None = None) -> Weights:
        """The captured values, or these in their place, and these parameters."""
        return Weights(self.captured if captured is None else captured, list(params))


def compile_traced(
    traced: Of, how: How, graded: Sequence[int] | None = None, grade_hidden: bool = False
) -> Compiled[Of]:
    """What learns a step in the way that the user has said. `graded` are the outputs that credit
    comes from, all by default; with `grade_hidden` the new hidden states too."""
    graph = compile_step(traced.step, policy=how.policy, trace=how.traced)
    core = core_of(
        graph,
        how.rule,
        how.options,
        how.single_step,
        graded=graded,
        grade_hidden=grade_hidden,
        budget=how.budget,
        nonfinite=how.nonfinite,
        on_traces=how.on_traces,
    )
    return Compiled(replace(traced, step=core.program.step), core)
