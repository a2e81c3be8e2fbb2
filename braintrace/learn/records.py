"""What the parts of the core hand to each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..engine.split import TOGETHER, Split
from ..rules.carrier import Contribution, Traces
from ..rules.signals import NO_EXTRA, Extra


class Weights(NamedTuple):
    """What stays the same during a run: the values that the step captured, and the parameters; flat
    leaves."""

    captured: Sequence[Any]
    params: Sequence[Any]


class Carried(NamedTuple):
    """What goes from one block to the next: the leaves of the model's state, the traces, the number
    of steps done, and how many steps of samples were not finite (None where nobody looks)."""

    hidden: list[Any]
    other: list[Any]
    traces: Traces
    steps: Any
    skipped: Any = None


class Run(NamedTuple):
    """How a sequence is run: its length, the steps of a block, whether it stands alone (zero traces
    before, none wanted after), whether a progress bar is shown, how samples are cut over
    devices."""

    length: int
    window: int
    fresh: bool = False
    progress: bool = False
    split: Split = TOGETHER


class Block(NamedTuple):
    """A block of steps and what is wanted of it.

    Args:
        weights: captured values and parameters.
        inputs: with the steps first.
        length: K.
        cotangents: credit of the graded outputs, with the steps first; None where no gradient is
            wanted.
        extra: what the signal takes from outside.
        alone: nothing came before.
        keep: the traces go on.
        is_loss: the graded outputs are losses.
        split: how samples are cut over devices.
    """

    weights: Weights
    inputs: Sequence[Any]
    length: int
    cotangents: Sequence[Any] | None = None
    extra: Extra = NO_EXTRA
    alone: bool = False
    keep: bool = True
    is_loss: bool = False
    split: Split = TOGETHER


class Outcome(NamedTuple):
    """What a block gives: what is carried on, gradients of the parameters and of the weights of
    relations, the outputs, and credit of the inputs by number."""

    carried: Carried
    params: list[Any]
    weights: list[Any]
    outs: list[Any]
    inputs: dict[int, Any]


class Gradients(NamedTuple):
    """What a window adds: gradients of the weights of relations (by number) and of the parameters,
    credit of the inputs by number, and the traces at its exit if they were wanted."""

    given: Contribution
    inputs: dict[int, Any]
    traces: Traces | None
