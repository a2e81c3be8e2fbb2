"""What a carrier is.

A learning rule is a way to carry `J = dh/dtheta` across the edge of a window. A carrier has

    init()                          -> traces                     zero influence
    block(traces, window, credit)   -> contribution, traces       single-step credit: the classical rule over all steps of the window at once
    read(traces, credit)            -> contribution               multi-step credit: the credit that arrives at the window's entry meets the traces
    advance(traces, window)         -> traces                     the traces at the window's exit

`traces` is a dict of arrays by stable names. A contribution is linear in the credit. It is made of gradients by relation, of the weight as its op takes it,
and possibly of the parameters themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import jax

Traces = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Credit:
    """Credit inside each step (`single-step`): of each relation's y, of the old hidden leaves along their transition; when asked, of y along position-wise
    paths (`direct()`) and of the new hidden leaves, each with the rest of its group fixed (`signals()`). `past` is credit of the state before the step, from
    outputs that read it directly; None for none."""

    y: list
    direct: Any
    hidden: list
    signals: Any = None
    past: list | None = None


@dataclass(frozen=True, eq=False)
class Entry:
    """Credit that arrives at a window's entry (`multi-step`): of the hidden leaves and of the other float states; steps done before; the parameters."""

    hidden: list
    other: list
    steps: Any
    params: list


@dataclass
class Contribution:
    """Gradients of weights by relation, and of the parameters."""

    weights: dict[int, Any] = field(default_factory=dict)
    params: list | None = None


class Carrier(Protocol):
    def init(self) -> Traces: ...
    def block(
        self, traces: Traces | None, window: Any, credit: Credit, steps: Any, keep: bool
    ) -> tuple[Contribution, Traces | None]: ...
    def read(self, traces: Traces, credit: Entry) -> Contribution: ...
    def advance(self, traces: Traces, window: Any) -> Traces: ...


@dataclass(frozen=True, eq=False)
class Several:
    """Different carriers for different relations."""

    parts: tuple[Carrier, ...]

    def _each(self, traces: Any) -> list[Any]:
        return [
            None if traces is None else {k: traces[k] for k in jax.eval_shape(p.init)}
            for p in self.parts
        ]

    def init(self) -> Traces:
        return {k: v for p in self.parts for k, v in p.init().items()}

    def block(
        self, traces: Traces | None, window: Any, credit: Credit, steps: Any, keep: bool
    ) -> tuple[Contribution, Traces | None]:
        done = [
            p.block(t, window, credit, steps, keep)
            for p, t in zip(self.parts, self._each(traces), strict=True)
        ]
        weights = {r: w for c, _ in done for r, w in c.weights.items()}
        return Contribution(weights), {
            k: v for _, t in done for k, v in (t or {}).items()
        } if keep else None

    def read(self, traces: Traces, credit: Entry) -> Contribution:
        return Contribution(
            {
                r: w
                for p, t in zip(self.parts, self._each(traces), strict=True)
                for r, w in p.read(t, credit).weights.items()
            }
        )

    def advance(self, traces: Traces, window: Any) -> Traces:
        return {
            k: v
            for p, t in zip(self.parts, self._each(traces), strict=True)
            for k, v in p.advance(t, window).items()
        }
