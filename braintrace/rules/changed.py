"""Traces that go through a function of the user after each step: to clip them, say.

The influence of a step on its own new state is exact as ever; what is changed is what later steps
find.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ..engine.loop import scan
from ..engine.window import Window
from ..graph.samples import Samples
from ..plan.kept import Passage
from ..plan.keys import TraceKey
from ..plan.layout import Layout
from .carrier import BlockCarrier, Carrier, Contribution, Credit, Entry, Traces

OnTraces = Callable[[dict[str, Any]], dict[str, Any]]


def changed(carrier: Carrier, on_traces: OnTraces) -> Carrier:
    """The carrier, with traces that go through `on_traces` after each step."""
    if isinstance(carrier, BlockCarrier):
        return ChangedInBlocks(carrier, on_traces)
    return Changed(carrier, on_traces)


@dataclass(frozen=True, eq=False)
class Changed(Carrier):
    """Another carrier, step by step."""

    inner: Carrier
    on_traces: OnTraces

    @property
    def layout(self) -> Layout:  # type: ignore[override]
        return self.inner.layout

    @property
    def follows_relations(self) -> bool:  # type: ignore[override]
        return self.inner.follows_relations

    @property
    def whole_sequence(self) -> bool:  # type: ignore[override]
        return self.inner.whole_sequence

    def loses(self, way: Passage) -> str | None:
        if way.new is not None:
            return 'a function of the user changes the traces'
        return self.inner.loses(way)

    @property
    def shared(self) -> frozenset[TraceKey]:
        return self.inner.shared

    def sample_axes(self, samples: Samples) -> dict[TraceKey, int | None]:
        return self.inner.sample_axes(samples)

    def init(self) -> Traces:
        return self.inner.init()

    def read(self, traces: Traces, entry: Entry) -> Contribution:
        return self.inner.read(traces, entry)

    def advance(self, traces: Traces, window: Window) -> Traces:
        def one(traces: Traces, k: Any) -> tuple[Traces, None]:
            return self._through(self.inner.advance(traces, window.step(k))), None

        return scan(one, traces, jnp.arange(window.length), window.length)[0]

    def _through(self, traces: Traces) -> Traces:
        """The traces as the user wants them; a random key that is kept among them is not one."""
        floats = [key for key, trace in traces.items() if jnp.issubdtype(trace.dtype, jnp.inexact)]
        given = {str(key): traces[key] for key in floats}
        got = self.on_traces(dict(given))
        like = {name: (trace.shape, trace.dtype) for name, trace in given.items()}
        if not isinstance(got, dict) or got.keys() != given.keys():
            raise ValueError(
                f'`on_traces` must return a dict with the names it was given, {list(given)}, '
                f'got {list(got) if isinstance(got, dict) else type(got).__name__}.'
            )
        for name, trace in got.items():
            if (jnp.shape(trace), jnp.result_type(trace)) != like[name]:
                shape, dtype = like[name]
                raise ValueError(
                    f'`on_traces` must keep the trace {name!r} as it is, {dtype}{list(shape)}, '
                    f'got {jnp.result_type(trace)}{list(jnp.shape(trace))}.'
                )
        return traces | {key: got[str(key)] for key in floats}


class ChangedInBlocks(Changed, BlockCarrier):
    """Another carrier with single-step credit, step by step."""

    inner: BlockCarrier

    @property
    def step_bytes(self) -> int:
        return self.inner.step_bytes

    def block(
        self, traces: Traces | None, window: Window, credit: Credit, steps: Any, keep: bool
    ) -> tuple[Contribution, Traces | None]:
        parts = _at_all_steps(credit)

        def one(traces: Traces, k: Any) -> tuple[Contribution, Traces]:
            given, new = self.inner.block(
                traces, window.step(k), _at(parts, k), steps + k, keep=True
            )
            return given, self._through(new or {})

        def turn(state: Any, k: Any) -> tuple[Any, None]:
            traces, weights, params = state
            given, traces = one(traces, k)
            weights, params = _plus(weights, given.weights), _plus(params, given.params)
            return (traces, weights, params), None

        before = self.inner.init() if traces is None else traces
        made = jax.eval_shape(lambda: _parts(one(before, 0)[0]))
        none = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), made)
        numbers = jnp.arange(window.length)
        (after, *given), _ = scan(turn, (before, *none), numbers, window.length)
        return Contribution(*given), after if keep else None


def _parts(given: Contribution) -> tuple[dict[int, Any], list[Any] | None]:
    return given.weights, given.params


def _plus(a: Any, b: Any) -> Any:
    return jax.tree.map(jnp.add, a, b)


def _at_all_steps(credit: Credit) -> tuple:
    """The parts of a credit, those that wait to be asked for as well: where nobody asks, XLA leaves
    them out."""
    waiting = credit.along_units(), credit.signals(False), credit.signals(True)
    return credit.y, credit.hidden(), credit.past, *waiting


def _at(parts: tuple, k: Any) -> Credit:
    """The credit of one step, as that of a window."""
    y, hidden, past, along_units, alone, together = jax.tree.map(
        lambda a: jax.lax.dynamic_slice_in_dim(a, k, 1), parts
    )
    return Credit(
        y, lambda: hidden, lambda: along_units, lambda of: together if of else alone, past
    )
