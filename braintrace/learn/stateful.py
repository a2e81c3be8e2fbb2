"""Learners of models that hold their states: compiling, and the way of values from the model and
back.

A shell of some framework owns the parts of a `Learning` and puts them together for each call, so
that whatever copies the shell copies a learner.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from ..frontends.base import HIDDEN, OTHER, PARAM, Framework, TracedModel, Watched
from ..graph.diagnostics import emit
from ..plan.keys import TraceKey
from ..rules.carrier import Traces
from ..rules.signals import FEEDBACK, Extra
from .cache import Cache, signature
from .compiled import Compiled, compile_traced
from .core import KEEP, Core
from .data import MultiStepData
from .how import How
from .records import Carried, Weights
from .shapes import explained

_REMEDY = (
    "Initialise the model's states for as many samples as the inputs have (`batch_size=`), or pass "
    'inputs for as many as the states.'
)


CompiledModel: TypeAlias = Compiled[TracedModel]


@dataclass(eq=False)
class Own:
    """What a learner keeps for itself, out of sight of frameworks, which look for states in every
    container. Copies of a learner may share it.

    Args:
        cache: what was compiled.
        outside: parameter states that steps use and the model does not hold, in the order they
            were met.
        keys: the traces met so far, by their text.
    """

    cache: Cache = field(default_factory=Cache)
    outside: list[Any] = field(default_factory=list)
    keys: dict[str, TraceKey] = field(default_factory=dict)

    def __deepcopy__(self, memo: dict) -> Own:
        return Own(keys=dict(self.keys))

    def __reduce__(self) -> tuple:
        return Own, (Cache(), [], dict(self.keys))


@dataclass(frozen=True)
class Example:
    """The shapes of one step's inputs, for which a learner was compiled."""

    inputs: tuple

    def __hash__(self) -> int:
        return hash(tuple(jax.tree.leaves(self.inputs)))


class Learning(NamedTuple):
    """A learner of a model that holds its states.

    Args:
        framework: how that is done in the model's framework.
        model: the one whose states are followed.
        step: what is run for one step.
        memory: holds `{'steps': number of steps done, 'traces': {text of the key: array}}` as its
            `value`.
        how: what the user has said.
        own: what the learner keeps for itself.
        extra: `extra(modulator, length, window)`, what the signal takes from outside.
    """

    framework: Framework
    model: Any
    step: Callable
    memory: Any
    how: How
    own: Own
    extra: Callable[[Any, int, int], Extra]

    def watch(self) -> Callable[[], Watched]:
        """Says at each call which states the model holds by then, and how it is built."""
        key = 'watch', _Same(self.model)
        return self.own.cache.get(key, lambda: self.framework.watch(self.model))

    def held(self) -> Watched:
        """The states that the model holds now, and how it is built."""
        return self.watch()()

    def identities(self) -> tuple[int, ...]:
        """The identities of these objects."""
        return tuple([id(s) for s in self.held().states.values()])

    def remember(self, compiled: CompiledModel) -> None:
        """Note which program was the last, and that the traces belong to the states that the model
        holds now."""
        self.own.cache.put(('held', _Same(self.memory)), self.identities())
        if compiled.lasting:
            self.own.cache.put(('latest', _Same(self.memory)), compiled)

    def states_were_replaced(self) -> bool:
        """Whether the model holds other state objects than those that the traces belong to: it was
        initialised again."""
        before = self.own.cache.peek(('held', _Same(self.memory)))
        return before is not None and before != self.identities()

    def key(self, settings: Hashable, inputs: Any) -> Hashable:
        """All that a program depends on besides the function: settings, the types of inputs and
        states, and how the model is built."""
        states, key = self.held()
        values = [self.framework.read(s) for s in states.values()]
        return settings, key, signature(inputs, values)

    def own_key(self, settings: Hashable, inputs: Any) -> Hashable:
        """The key of a program of a user's function, which names this very model."""
        return _Same(self.model), self.key(settings, inputs)

    def program(self, key: Hashable, make: Callable[[], CompiledModel]) -> CompiledModel:
        """The program of a key, made if there is none, for the states that the model holds now."""
        compiled = self.own.cache.get(key, make, lambda compiled: compiled.lasting)
        return replace(compiled, traced=compiled.traced.bound_to(self.held().states))


class _Same:
    """An object as a key: equal to itself alone, and kept alive by the key."""

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


# ---- compiling ----


def compile_step(learning: Learning, inputs: tuple) -> CompiledModel:
    """The program of one call, for inputs of one step like these."""
    settings, moving = learning.framework.surroundings()
    key = 'call', learning.key(settings, (moving, inputs))

    def make() -> CompiledModel:
        compiled = build(learning, learning.step, moving, inputs, grade_hidden=True)
        if compiled.core.carrier.follows_relations:
            emit(compiled.core.graph.diagnostics)
        return compiled

    return learning.program(key, make)


def latest_step(learning: Learning) -> CompiledModel | None:
    """The program that the traces were last written by, if it is still known."""
    return learning.own.cache.peek(('latest', _Same(learning.memory)))


def build(
    learning: Learning,
    f: Callable,
    moving: Any,
    inputs: tuple,
    graded: tuple[int, ...] | None = None,
    grade_hidden: bool = False,
) -> CompiledModel:
    """A function of states, and what learns it."""
    framework, own = learning.framework, learning.own

    def step(moving, *inputs):
        with framework.within(moving):
            return f(*inputs)

    while True:
        known = framework.states_of(learning.model)
        known |= {('outside', i): s for i, s in enumerate(own.outside)}
        hidden = {p: framework.read(s) for p, s in known.items() if framework.role(s) == HIDDEN}
        with explained(hidden, inputs, _REMEDY):
            traced, strangers = framework.trace(step, known, moving, *inputs)
        met = {h.path: h.holder for h in traced.held if h.role == PARAM}
        new = [met[path] for path in strangers if path in met]
        if not new:
            break
        own.outside.extend(new)  # parameters outside the model get a name that lasts
    made = compile_traced(traced, learning.how, graded, grade_hidden)
    own.keys |= {str(key): key for key in made.core.shapes}
    return made


# ---- values from the model and back ----


def weights_of(compiled: CompiledModel) -> Weights:
    """The captured values and the present parameters."""
    return compiled.weights(compiled.traced.read(PARAM))


def nothing_learned(compiled: CompiledModel) -> dict[str, Any]:
    """The memory of a learner that has not made a step."""
    traces = compiled.core.init(compiled.traced.read(PARAM))
    named = {str(key): trace for key, trace in traces.items()}
    memory = {'steps': jnp.zeros((), jnp.int32), 'traces': named}
    if compiled.core.nonfinite != KEEP:
        memory['skipped'] = jnp.zeros((), jnp.int32)
    return memory


def take(learning: Learning, compiled: CompiledModel) -> Carried:
    """What is carried into a program: the states of the model, the traces of the learner."""
    memory, core, model = learning.memory.value, compiled.core, compiled.traced
    traces = _traces_for(learning, core, model)
    hidden, other = model.read(HIDDEN), model.read(OTHER)
    return Carried(hidden, other, traces, memory['steps'], memory.get('skipped'))


def _traces_for(learning: Learning, core: Core, model: TracedModel) -> Traces:
    """The learner's traces, by key; those of a program that has begun anew are zero."""
    kept: dict[str, Any] = learning.memory.value['traces']
    first: Traces = {}
    traces: Traces = {}
    for key, like in core.shapes.items():
        old = kept.get(str(key))
        if old is not None and (old.shape, old.dtype) == (like.shape, like.dtype):
            traces[key] = old
            continue
        _may_begin_anew(learning, key, old, like)
        first = first or core.init(model.read(PARAM))
        traces[key] = first[key]
    return traces


def _may_begin_anew(learning: Learning, key: TraceKey, old: Any, like: Any) -> None:
    """Refuse to lose what was learned: a trace may only begin if the learner has none, if it has
    made no step, or if the model was initialised again."""
    steps, kept = learning.memory.value['steps'], learning.memory.value['traces']
    inside = isinstance(steps, jax.core.Tracer)
    if not kept and not inside and jnp.any(steps != 0):
        raise ValueError(
            f'The learner has made {int(jnp.max(steps))} steps, but holds no traces: `etrace` was '
            'emptied. Restore all of it, or call `learner.reset_state()` to begin anew.'
        )
    if old is None and inside:
        raise ValueError(
            f'`step_fn` traces a weight outside the model ({key}), and the learner has no room for '
            'it inside `jit`. Run `step_fn` once outside of `jit`, for instance with '
            '`etrace_evolve`, or make the module a part of the model.'
        )
    if old is None or learning.states_were_replaced():
        return
    if inside or jnp.any(steps != 0) or jnp.any(old != 0):
        raise ValueError(
            f'The trace {key} is {old.dtype}{list(old.shape)}, and this call needs '
            f'{like.dtype}{list(like.shape)}. To go on with other shapes and forget what was, call '
            '`learner.reset_state()` first.'
        )


def give(
    learning: Learning, compiled: CompiledModel, carried: Carried, with_traces: bool = True
) -> None:
    """Write back what a program carries on."""
    compiled.traced.write(HIDDEN, carried.hidden)
    compiled.traced.write(OTHER, carried.other)
    memory = learning.memory.value
    if carried.skipped is not None:
        memory = {**memory, 'skipped': carried.skipped}
    if not with_traces:
        if carried.skipped is not None:  # what is written inside `jit` is copied: no more than this
            learning.memory.value = memory
        return
    new = {str(key): trace for key, trace in carried.traces.items()}
    # a trace that this program does not advance has no meaning any more; feedback weights
    # keep theirs
    for text, trace in memory['traces'].items():
        if text not in new:
            stays = text in learning.own.keys and learning.own.keys[text].kind == FEEDBACK
            new[text] = trace if stays else jnp.zeros_like(trace)
    learning.memory.value = {**memory, 'steps': carried.steps, 'traces': new}
    learning.remember(compiled)


# ---- a learner that is called inside a driver ----


@dataclass(eq=False)
class Driving:
    """A driver that traces a function of the user: the memory of the learner it drives, how often
    that was called, and what is said if it must not be."""

    memory: Any
    calls: int = 0
    refusal: str | None = None


_driving: contextvars.ContextVar[Driving | None] = contextvars.ContextVar('driving', default=None)


@contextlib.contextmanager
def driving(learning: Learning, refusal: str | None = None) -> Iterator[Driving]:
    """Inside, a call of the learner runs the model itself: the driver compiles the whole step. Or
    it is refused, where there is something to be said about it."""
    here = Driving(learning.memory, refusal=refusal)
    token = _driving.set(here)
    try:
        yield here
    finally:
        _driving.reset(token)


def is_driven(memory: Any, args: tuple, modulator: Any) -> bool:
    """Whether a call of the learner with this memory comes from a driver that is tracing a step of
    it: then the call is counted, and must be of one step."""
    here = _driving.get()
    if here is None or here.memory is not memory:
        return False
    if here.refusal is not None:
        raise TypeError(here.refusal)
    here.calls += 1
    if modulator is not None:
        raise TypeError(
            'Inside a driver pass `modulator` to the driver, for all steps, and not to the learner.'
        )
    if any(isinstance(x, MultiStepData) for x in args):
        raise TypeError(
            '`step_fn` gets one step at a time: call the learner on plain data, or pass '
            '`chunk_size` to drive it with MultiStepData.'
        )
    return True
