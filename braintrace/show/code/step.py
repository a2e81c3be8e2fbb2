"""One step of a learner as terms: the engine's own functions, traced for a window of one step,
with the values that have letters in the mathematics beside what it returns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

import jax.numpy as jnp

from ..._jax import is_float
from ...engine.entries import whole
from ...engine.loop import inner
from ...engine.program import Program
from ...engine.window import Window
from ...learn.core import KEEP, Core
from ...learn.records import Carried, Weights
from ...plan.keys import TraceKey
from ...rules.carrier import Credit
from ...rules.d_rtrl import PositionWise
from ...rules.rtrl import Rtrl, RtrlOfSamples
from ...rules.signals import Extra
from .control import Reader
from .names import common_part, names_in_source
from .views import Node, View, is_given

MOST_STATES = 4  # of a unit, which have a letter each


V = TypeVar('V')  # arrays, or terms in their place


class Given(NamedTuple, Generic[V]):
    """What a step of a learner starts from."""

    params: list[V]
    hidden: list[V]
    other: list[V]
    traces: dict[TraceKey, V]
    steps: V
    inputs: list[V]
    credit: list[V]
    modulator: V | None


class Results(NamedTuple, Generic[V]):
    """What a step of a learner returns; the traces in the order in which they are given."""

    grads: list[V]
    outs: list[V]
    hidden: list[V]
    other: list[V]
    traces: list[V]
    steps: V


class Letter(NamedTuple):
    """What the mathematics calls a value, and whether that is a factor of the transition: `D`,
    `df`, `Phi`."""

    name: str
    is_factor: bool


class Made(NamedTuple):
    """What a step of a learner returns, as terms, and what its values are called: the factors of
    the transition, other nodes, and factors that are one number."""

    grads: list[View]
    outs: list[View]
    hidden: list[View]
    other: list[View]
    traces: dict[TraceKey, View]
    steps: View
    factors: dict[Node, str]
    hints: dict[Node, str]
    constants: list[tuple[str, Any]]


@dataclass(eq=False)
class Seen:
    """What a learner's signal has seen: the window, and the credit that it gave."""

    window: Window | None = None
    credit: Credit | None = None
    entry: list[Any] | None = None


def of_outputs_alone(core: Core) -> Core:
    """The core with credit from the outputs alone, not from hidden states that are read
    directly, and with numbers as they come."""
    return replace(core, program=Program(core.program.layout), nonfinite=KEEP)


def watched(core: Core) -> tuple[Core, Seen]:
    """The core, and what its signal sees when it runs."""
    seen, signal = Seen(), core.signal

    def same_step(window, cotangents, kept, extra):
        made = signal.same_step(window, cotangents, kept, extra)
        seen.window, seen.credit = window, made.credit
        return made

    def entry(window, cotangents, hidden, kept):
        seen.window, seen.entry = window, signal.entry(window, cotangents, hidden, kept)
        return seen.entry

    return replace(core, signal=replace(signal, same_step=same_step, entry=entry)), seen


def step_of(core: Core, reader: Reader, given: Given[View], names: Sequence[str]) -> Made:
    """One step of a learner: what `Core.forward` and `Core.online` do with a window of one step.
    `names` are those of the parameters, then of the states."""
    core, seen = watched(core)
    lettered = Lettered(core, names)
    keys = list(given.traces)
    letters: list[Letter] = []

    def run(given: Given[Any], traces: list[Any]) -> tuple[Results[Any], list[Any]]:
        results = _run(core, given, dict(zip(keys, traces, strict=True)))
        pairs = list(lettered.values(seen))
        letters.extend(letter for letter, _ in pairs)
        return results, [value for _, value in pairs]

    traces = list(given.traces.values())
    results, values = reader.apply(run, given._replace(traces={}), traces)
    pairs = list(zip(letters, values, strict=True))
    factors, hints = _hints(pairs)
    constants = [
        (letter.name, v.node.info)
        for letter, v in pairs
        if letter.is_factor and v.node.op == 'const'
    ]
    return Made(
        results.grads,
        results.outs,
        results.hidden,
        results.other,
        dict(zip(keys, results.traces, strict=True)),
        results.steps,
        factors,
        hints,
        constants,
    )


def _run(core: Core, given: Given[Any], traces: dict[TraceKey, Any]) -> Results[Any]:
    """One step of a learner on arrays; `given` are they but for the traces."""
    step = core.program.step
    weights = Weights(list(step.captured), given.params)
    carried = Carried(given.hidden, given.other, traces, given.steps)
    xs = [x[None] for x in given.inputs]
    graded = iter(given.credit)
    credit = [next(graded)[None] if is_float(v) else None for v in step.outs]
    extra = Extra(None, None if given.modulator is None else given.modulator[None])
    outs, after = core.forward(weights, carried, xs, 1)
    grads, _ = core.online(weights, carried, xs, 1, extra, credit, [None] * len(given.hidden))
    first = [a[0] for a in outs]
    return Results(
        grads, first, after.hidden, after.other, [after.traces[key] for key in traces], after.steps
    )


def _hints(pairs: Sequence[tuple[Letter, View]]) -> tuple[dict[Node, str], dict[Node, str]]:
    """What nodes are called that are a factor, and all others that have a letter."""
    wishes: dict[Node, list[str]] = {}
    factors: set[Node] = set()
    for letter, v in pairs:
        if not is_given(v.node):
            wishes.setdefault(v.node, []).append(letter.name)
            if letter.is_factor:
                factors.add(v.node)
    called = {node: _together(asked) for node, asked in wishes.items()}
    return (
        {node: name for node, name in called.items() if node in factors},
        {node: name for node, name in called.items() if node not in factors},
    )


def _together(names: Sequence[str]) -> str:
    """One name for a value that has several: `df_z` for `df_Wz` and `df_Uz`."""
    letter = names[0].split('_')[0]
    alike = [n.removeprefix(f'{letter}_') for n in names if n.startswith(f'{letter}_')]
    return f'{letter}_{common_part(alike)}' if alike else names[0]


class Lettered:
    """The values of a step that have letters."""

    def __init__(self, core: Core, names: Sequence[str]):
        self.core = core
        leaves = core.program.step.params
        self._name = dict(zip(leaves, names, strict=False))
        self._hidden = names[len(leaves) :]

    def weight(self, relation: int) -> str:
        """What the weight of a relation is called."""
        sources = self.core.program.layout.relations[relation].sources
        return '_'.join(self._name[s.leaf] for s in sources) or 'w'

    def values(self, seen: Seen) -> Iterator[tuple[Letter, Any]]:
        """The letters, each with its value, without the axis of steps."""
        window = seen.window
        if window is None:
            return
        carrier = self.core.carrier
        if isinstance(carrier, Rtrl):
            Phi, M = carrier.state.influence(window, carrier.params)
            yield Letter('Phi', True), Phi
            for p, m in zip(carrier.params, M, strict=True):
                name = self._name[self.core.program.step.params[p.number]]
                yield Letter(f'M_{name}', True), m
        elif isinstance(carrier, RtrlOfSamples):
            yield Letter('Phi', True), carrier.state.influence_of_uses(window).Phi
        elif carrier.follows_relations:
            yield from self._factors(window)
        if seen.credit is not None:
            asked = {r: dy for r, dy in enumerate(seen.credit.y) if dy is not None}
            for r, dy in {**self._through_slopes(window, seen.credit), **asked}.items():
                yield Letter(f'dy_{self.weight(r)}', False), dy[0]
            yield from self._of_states('c', [c[0] for c in seen.credit.hidden()])
            yield from self._of_states('s', [s[0] for s in seen.credit.signals(False)])
        if seen.entry is not None:
            yield from self._of_states('lam', seen.entry)

    def _through_slopes(self, window: Window, credit: Credit) -> dict[int, Any]:
        """The credit of the output of each relation that has a trace, from signals at the units."""
        layout, dy = self.core.program.layout, {}
        for slot in layout.slots:
            s = layout.units[slot.group].credit_by_state(credit.signals(False))
            for f in slot.feeds:
                df = window.factors.slopes(f.relation, slot.group, f.unit)
                dy[f.relation] = inner([f.at_y(a) for a in s], df)
        return dy

    def _of_states(self, letter: str, leaves: Sequence[Any]) -> Iterator[tuple[Letter, Any]]:
        single = len(self._hidden) == 1
        for name, a in zip(self._hidden, leaves, strict=False):
            if a is not None and jnp.issubdtype(a.dtype, jnp.inexact):
                yield Letter(letter if single else f'{letter}_{name}', False), a

    def _transition(self, window: Window, group: int) -> Any:
        """`D[k, a, b, unit]` as the rule sees it."""
        carrier = self.core.carrier
        if isinstance(carrier, PositionWise) and group in carrier.groups:
            units = self.core.program.layout.units[group]
            shape = window.length, *units.shape
            return whole(carrier.transition(window, group), shape, 1, units.dtype)
        return window.factors.transition(group)

    def _factors(self, window: Window) -> Iterator[tuple[Letter, Any]]:
        layout = self.core.program.layout
        for g, units in layout.units.items():
            states = [self._hidden[i] for i in units.leaves]
            several = len(layout.units) > 1 or len(states) > 1
            D = self._transition(window, g)[0]
            for a, new in enumerate(states):
                for b, old in enumerate(states):
                    name = 'D'
                    if several:
                        name = f'D_{new}' if new == old else f'D_{new}_{old}'
                    yield Letter(name, True), D[a, b]
        for slot in layout.slots:
            states = [self._hidden[i] for i in layout.units[slot.group].leaves]
            for f in slot.feeds:
                df = window.factors.slope(f.relation, slot.group, f.unit)[0]
                for a, new in enumerate(states):
                    more = f'_{new}' if len(states) > 1 else ''
                    yield Letter(f'df_{self.weight(f.relation)}{more}', True), df[a]


def names_of_lines(
    core: Core, reader: Reader, given: Given[View]
) -> tuple[dict[Node, str], dict[Node, str]]:
    """What the user's own lines call the values of the model's step, and what else these may be
    called."""
    step = core.program.step
    pairs = zip(step.captured, step.captured_vars, strict=True)
    captured = [reader.constant(c, v.aval) for c, v in pairs]
    at: dict[Any, View] = {}
    start = [*captured, *given.params, *given.hidden, *given.other, *given.inputs]
    reader.read(step.jaxpr, start, at)
    own: dict[Node, str] = {}
    other: dict[Node, str] = {}
    for v, spoken in names_in_source(step.jaxpr).items():
        if not is_given(at[v].node):
            names = own if spoken.assigned else other
            names.setdefault(at[v].node, spoken.name)
    return own, other
