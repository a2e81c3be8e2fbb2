"""What a carrier is: the part of a learning rule that takes `J = dh/dtheta` across the edge of a
window.

    init()                              -> traces                zero influence
    read(traces, entry)                 -> contribution          multi-step credit: what arrives
                                                                 at the entry meets the traces
    advance(traces, window)             -> traces                those at the window's exit
    read_and_advance(traces, entry,     -> contribution, traces  both, for those that do it in one
                     window)                                     pass over their traces
    block(traces, window, credit, ...)  -> contribution, traces  single-step credit: the classical
                                                                 rule over all steps at once

`traces` is a dict of arrays by `TraceKey`. A contribution is linear in the credit. It is made of
gradients by relation, of the weight as its op takes it, and possibly of the parameters themselves.
A carrier says what it can by what it is: a `Carrier` has multi-step credit, a `BlockCarrier`
single-step credit as well.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax

from ..engine.window import Window
from ..graph.samples import Samples
from ..ops.axes import Op
from ..plan.kept import Passage, lost_between_units, relation_of
from ..plan.keys import TraceKey
from ..plan.layout import Layout

Traces = dict[TraceKey, Any]

SINGLE_STEP, MULTI_STEP = 'single-step', 'multi-step'  # the kinds of credit


def check_vjp_method(method: str) -> None:
    """Refuse what is no kind of credit."""
    if method not in (SINGLE_STEP, MULTI_STEP):
        raise ValueError(f"`vjp_method` must be 'single-step' or 'multi-step', got {method!r}.")


@dataclass(frozen=True, eq=False)
class Credit:
    """Credit inside each step (single-step), all with the steps first.

    Args:
        y: of each relation's output, as far as it was asked for.
        hidden: when asked, of the old hidden leaves along their own transition.
        along_units: when asked, of each relation's output along position-wise paths only.
        signals: when asked, `signals(together)`, of the new hidden leaves, each with the rest of
            its group (`together`: with all others) held fixed.
        past: of the state before the step, from outputs that read it directly; None for none.
    """

    y: list[Any]
    hidden: Callable[[], list[Any]]
    along_units: Callable[[], list[Any]]
    signals: Callable[[bool], list[Any]]
    past: list[Any] | None = None


@dataclass(frozen=True, eq=False)
class Entry:
    """Credit that arrives at a window's entry (multi-step): of the hidden leaves and of the states
    of other kinds (None where they are not float); the number of steps done before; captured values
    and parameters; the op of each relation. `through` takes credit of some new hidden leaves, by
    number, to that of the new hidden leaves that they read in the same step."""

    hidden: list[Any]
    other: list[Any]
    steps: Any
    captured: Sequence[Any]
    params: Sequence[Any]
    ops: Sequence[Op]
    through: Callable[[dict[int, Any]], list[Any]]


@dataclass
class Contribution:
    """Gradients of weights by relation, and of the parameters (None for none)."""

    weights: dict[int, Any] = field(default_factory=dict)
    params: list[Any] | None = None


class Carrier(ABC):
    """Takes the influence of the weights from window to window, with multi-step credit."""

    layout: Layout
    credit: ClassVar[tuple[str, ...]] = (MULTI_STEP,)  # the kinds it has, the usual one first
    # Whether the compiler's word on a relation is about it.
    follows_relations: ClassVar[bool] = False
    # Whether a window is the sequence unless something else is said.
    whole_sequence: ClassVar[bool] = False
    # Whether the influence on one state may disturb what is kept of another.
    mixes_states: ClassVar[bool] = True

    @property
    def window_step_bytes(self) -> int:
        """What it keeps of each step of a window while it advances with multi-step credit, besides
        what every rule keeps."""
        return 0

    @abstractmethod
    def init(self) -> Traces:
        """Zero influence."""

    @abstractmethod
    def read(self, traces: Traces, entry: Entry) -> Contribution:
        """What the credit at a window's entry gives, with the traces there."""

    @abstractmethod
    def advance(self, traces: Traces, window: Window) -> Traces:
        """The traces at the window's exit."""

    def read_and_advance(
        self, traces: Traces, entry: Entry, window: Window
    ) -> tuple[Contribution, Traces]:
        """Both, which may be faster in one pass over the traces."""
        return self.read(traces, entry), self.advance(traces, window)

    def sample_axes(self, samples: Samples) -> dict[TraceKey, int | None]:
        """The axis of samples of each trace that goes on by more than derivatives of the window (a
        decay of its own, an average): None for one without. A sample that is left out of a step
        keeps its part of these; the others need nothing, since a window leaves it out itself."""
        return {}

    @property
    def shared(self) -> frozenset[TraceKey]:
        """The traces that all samples share. Where these are cut over devices (`window.split`), the
        carrier keeps them the same on all of them."""
        return frozenset()

    def loses(self, way: Passage) -> str | None:
        """What this step of an influence loses by the way it is carried, in words; None where it
        is kept whole. A carrier that does not say it is taken to lose everything that crosses the
        edge of a window, and with single-step credit the rest too."""
        if way.new is None and not way.single_step:
            return None
        return 'the rule does not say that it keeps it'


class BlockCarrier(Carrier):
    """Has single-step credit as well."""

    credit: ClassVar[tuple[str, ...]] = (SINGLE_STEP, MULTI_STEP)

    @property
    def asks_of(self) -> frozenset[int]:
        """The relations, by number, whose outputs' credit `block` looks at; `credit.y` may have
        None for the others."""
        return frozenset(range(len(self.layout.relations)))

    @abstractmethod
    def block(
        self, traces: Traces | None, window: Window, credit: Credit, steps: Any, keep: bool
    ) -> tuple[Contribution, Traces | None]:
        """The rule over all steps of a window, and the traces at its exit if they are to be kept.

        `traces` is None where nothing came before. `steps` is the number of steps done before the
        window.
        """

    @property
    @abstractmethod
    def step_bytes(self) -> int:
        """What it keeps of each step of a block besides states, products and operands."""


class PartCarrier(BlockCarrier):
    """Of a sequence that stands alone it needs no traces: it can go through its parts from the last
    to the first."""

    @property
    @abstractmethod
    def at_end(self) -> Any:
        """What comes back from after the last part: nothing."""

    @abstractmethod
    def part(self, window: Window, credit: Credit, later: Any) -> tuple[Contribution, Any]:
        """What a part of the sequence gives, and what comes back from it to the part before, from
        what comes back to it."""


@dataclass(frozen=True, eq=False)
class Several(BlockCarrier):
    """Different carriers for different relations."""

    layout: Layout
    parts: tuple[BlockCarrier, ...]
    chosen: tuple[frozenset[int], ...]  # the relations of each part, by number
    follows_relations: ClassVar[bool] = True
    mixes_states: ClassVar[bool] = False

    def _own(self, part: BlockCarrier, traces: Traces) -> Traces:
        return {key: traces[key] for key in jax.eval_shape(part.init)}

    @property
    def asks_of(self) -> frozenset[int]:
        return frozenset().union(*[part.asks_of for part in self.parts])

    @property
    def step_bytes(self) -> int:
        return sum(part.step_bytes for part in self.parts)

    def loses(self, way: Passage) -> str | None:
        relation = relation_of(self.layout, way.use)
        for part, chosen in zip(self.parts, self.chosen, strict=True):
            if relation is not None and relation.number in chosen:
                return part.loses(way)
        return lost_between_units(self.layout, way)

    def init(self) -> Traces:
        return {key: trace for part in self.parts for key, trace in part.init().items()}

    def block(
        self, traces: Traces | None, window: Window, credit: Credit, steps: Any, keep: bool
    ) -> tuple[Contribution, Traces | None]:
        weights: dict[int, Any] = {}
        kept: Traces = {}
        for part in self.parts:
            own = None if traces is None else self._own(part, traces)
            given, new = part.block(own, window, credit, steps, keep)
            weights |= given.weights
            kept |= new or {}
        return Contribution(weights), kept if keep else None

    def sample_axes(self, samples: Samples) -> dict[TraceKey, int | None]:
        return {key: a for part in self.parts for key, a in part.sample_axes(samples).items()}

    def read(self, traces: Traces, entry: Entry) -> Contribution:
        weights: dict[int, Any] = {}
        for part in self.parts:
            weights |= part.read(self._own(part, traces), entry).weights
        return Contribution(weights)

    def advance(self, traces: Traces, window: Window) -> Traces:
        new: Traces = {}
        for part in self.parts:
            new |= part.advance(self._own(part, traces), window)
        return new
