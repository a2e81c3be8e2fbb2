"""The carry of a plain learner and the flat leaves of its core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from ..frontends.function import TracedFunction
from ..learn.core import Core
from ..learn.records import Carried, Weights
from ..learn.shapes import told
from ..rules.carrier import Traces
from .plain_runs import Carry


class Compiled(NamedTuple):
    """A step of the function, possibly with a loss, and the core that learns it."""

    traced: TracedFunction
    core: Core

    @property
    def lasting(self) -> bool:
        """Whether it may outlive the call: one that captured a value of a surrounding trace belongs
        to that."""
        return not any(isinstance(c, jax.core.Tracer) for c in self.core.program.step.captured)

    @property
    def captured(self) -> list[Any]:
        """The values that the step closes over, and the arrays of its ops."""
        return list(self.core.program.step.captured)

    def weights(self, params: Sequence[Any], captured: list[Any] | None = None) -> Weights:
        """The captured values, or these in their place, and these parameters."""
        return Weights(self.captured if captured is None else captured, list(params))


def unpack(compiled: Compiled, carry: Carry) -> Carried:
    """A carry as flat leaves, its traces by key."""
    shapes = compiled.core.shapes
    by_text = {str(key): a for key, a in shapes.items()}
    for name in {**by_text, **carry.traces}:
        needs, has = told(by_text.get(name)), told(carry.traces.get(name))
        if needs != has:
            raise ValueError(
                f'`carry` holds traces of another model, rule or batch size: the trace {name} is '
                f'{has} there, and this call needs {needs}. Make a new one with '
                '`init(params, state)`.'
            )
    hidden, other = compiled.traced.leaves(carry.state)
    traces: Traces = {key: carry.traces[str(key)] for key in shapes}
    return Carried(hidden, other, traces, carry.steps, carry.skipped)


def pack(compiled: Compiled, carried: Carried) -> Carry:
    """The carry of flat leaves, its traces by name."""
    named = {str(key): trace for key, trace in carried.traces.items()}
    state = compiled.traced.state(carried.hidden, carried.other)
    return Carry(state, named, carried.steps, carried.skipped)
