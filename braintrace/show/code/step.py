"""One step of a learner as terms: the engine's own functions, traced for a window of one step,
with the values that have letters in the mathematics beside what it returns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..._jax import is_float, trace
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
from .terms import Node, View

MOST_STATES = 4  # of a unit, which have a letter each


class Given(NamedTuple):
    """What a step of a learner starts from, as terms."""

    params: list[View]
    hidden: list[View]
    other: list[View]
    traces: dict[TraceKey, View]
    steps: View
    inputs: list[View]
    credit: list[View]
    modulator: View | None


class Made(NamedTuple):
    """What it returns, as terms, and what its values are called."""

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


def step_of(core: Core, reader: Reader, given: Given, names: Sequence[str]) -> Made:
    """One step of a learner: what `Core.forward` and `Core.online` do with a window of one step.
    `names` are those of the parameters, then of the states."""
    core, seen = watched(core)
    letters = Lettered(core, names)
    named: list[tuple[str, bool]] = []
    sizes = [len(part) for part in (given.params, given.hidden, given.other, given.inputs)]
    keys = list(given.traces)
    flat = [
        *given.params,
        *given.hidden,
        *given.other,
        *given.inputs,
        *given.traces.values(),
        given.steps,
        *given.credit,
        *([given.modulator] if given.modulator is not None else []),
    ]

    def run(*values: Any) -> list[Any]:
        rest = iter(values)
        params, hidden, other, inputs = ([next(rest) for _ in range(n)] for n in sizes)
        traces = {key: next(rest) for key in keys}
        steps = next(rest)
        credit = [next(rest)[None] if is_float(v) else None for v in core.program.step.outs]
        extra = Extra(None, *[m[None] for m in rest])
        weights = Weights(list(core.program.step.captured), params)
        carried = Carried(hidden, other, traces, steps)
        xs = [x[None] for x in inputs]
        outs, after = core.forward(weights, carried, xs, 1)
        grads, _ = core.online(weights, carried, xs, 1, extra, credit, [None] * sizes[1])
        spoken = list(letters.values(seen))
        named.extend((name, factor) for name, factor, _ in spoken)
        results = [*grads, *[a[0] for a in outs], *after.hidden, *after.other]
        results += [after.traces[key] for key in keys]
        return [*results, after.steps, *[value for _, _, value in spoken]]

    avals = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in flat]
    jaxpr, consts = trace(run, *avals)
    first = [reader.constant(c, v.aval) for c, v in zip(consts, jaxpr.invars, strict=False)]
    rest = iter(reader.read(jaxpr, [*first, *flat]))
    n = len(core.program.step.outs)
    grads, outs, hidden, other = (
        [next(rest) for _ in range(k)] for k in (sizes[0], n, *sizes[1:3])
    )
    traces = {key: next(rest) for key in keys}
    steps = next(rest)
    values = list(rest)
    factors, hints = _hints(named, values)
    constants = [
        (name, v.node.info)
        for (name, factor), v in zip(named, values, strict=True)
        if factor and v.node.op == 'const'
    ]
    return Made(grads, outs, hidden, other, traces, steps, factors, hints, constants)


def _hints(
    names: Sequence[tuple[str, bool]], views: Sequence[View]
) -> tuple[dict[Node, str], dict[Node, str]]:
    """What nodes are called that are a factor (D, df), and all others that have a letter."""
    wishes: dict[Node, list[str]] = {}
    factors: set[Node] = set()
    for (name, factor), v in zip(names, views, strict=True):
        if v.node.op not in ('const', 'name', 'array', 'outer'):
            wishes.setdefault(v.node, []).append(name)
            if factor:
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

    def values(self, seen: Seen) -> Iterator[tuple[str, bool, Any]]:
        """A name, whether it is a factor of the transition, and the value, without the axis of
        steps."""
        window = seen.window
        if window is None:
            return
        carrier = self.core.carrier
        if isinstance(carrier, Rtrl):
            Phi, M = carrier.state.influence(window, carrier.params)
            yield 'Phi', True, Phi
            for p, m in zip(carrier.params, M, strict=True):
                yield f'M_{self._name[self.core.program.step.params[p.number]]}', True, m
        elif isinstance(carrier, RtrlOfSamples):
            yield 'Phi', True, carrier.state.influence_of_uses(window).Phi
        elif carrier.follows_relations:
            yield from self._factors(window)
        if seen.credit is not None:
            for r, dy in enumerate(seen.credit.y):
                yield f'dy_{self.weight(r)}', False, dy[0]
            yield from self._of_states('c', [c[0] for c in seen.credit.hidden])
            yield from self._of_states('s', [s[0] for s in seen.credit.signals(False)])
        if seen.entry is not None:
            yield from self._of_states('lam', seen.entry)

    def _of_states(self, letter: str, leaves: Sequence[Any]) -> Iterator[tuple[str, bool, Any]]:
        single = len(self._hidden) == 1
        for name, a in zip(self._hidden, leaves, strict=False):
            if a is not None and jnp.issubdtype(a.dtype, jnp.inexact):
                yield letter if single else f'{letter}_{name}', False, a

    def _transition(self, window: Window, group: int) -> Any:
        """`D[k, a, b, unit]` as the rule sees it."""
        carrier = self.core.carrier
        if isinstance(carrier, PositionWise) and group in carrier.groups:
            return carrier.transition(window, group)
        return window.factors.transition(group)

    def _factors(self, window: Window) -> Iterator[tuple[str, bool, Any]]:
        layout = self.core.program.layout
        several = len(layout.units) > 1
        for g, units in layout.units.items():
            states = [self._hidden[i] for i in units.leaves]
            D = self._transition(window, g)[0]
            for a, new in enumerate(states):
                for b, old in enumerate(states):
                    told = f'D_{new}_{old}' if new != old else f'D_{new}'
                    yield told if several or len(states) > 1 else 'D', True, D[a, b]
        for slot in layout.slots:
            states = [self._hidden[i] for i in layout.units[slot.group].leaves]
            for f in slot.feeds:
                df = window.factors.slope(f.relation, slot.group, f.unit)[0]
                for a, new in enumerate(states):
                    more = f'_{new}' if len(states) > 1 else ''
                    yield f'df_{self.weight(f.relation)}{more}', True, df[a]


def names_of_lines(
    core: Core, reader: Reader, given: Given
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
        if at[v].node.op not in ('const', 'name', 'array', 'outer'):
            (own if spoken.assigned else other).setdefault(at[v].node, spoken.name)
    return own, other
