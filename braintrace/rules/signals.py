"""Learning signals: where the credit of a step comes from.

The true gradient, the same through fixed random weights, an outside modulator, or a learned guess
of what the future will say. A signal is five functions, each with the plain gradient as its
default:

    init(params)                                -> what it keeps beside the traces
    same_step(window, cotangents, kept, extra)  -> StepCredit, for single-step credit
    entry(window, cotangents, hidden, kept)     -> the credit of the entry, which meets the traces
    feedback(window, kept)                      -> weights that credit goes back through
    beyond(window, extra)                       -> gradients by credit from beyond the window

The last three are for multi-step credit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._jax import Var
from ..engine.credit import (
    ALL,
    NO_FEEDBACK,
    Asked,
    Feedback,
    along_units,
    from_signals,
    of_new_state,
    of_old_state,
    of_state_before,
    same_step,
)
from ..engine.evaluate import Overrides, is_inexact
from ..engine.window import Cotangents, Window
from ..graph.groups import Group
from ..graph.sources import Origin, weight_program
from ..plan.keys import TraceKey, distinct
from ..plan.layout import Layout
from .carrier import Credit, Traces

FEEDBACK = 'feedback'  # the kind of the weights that a signal keeps


class Extra(NamedTuple):
    """What a signal takes from outside: values for the whole run, values with the steps as first
    axis, how much the loss of each step, `(K,)` or `(K, samples)`, counts in the objective (None:
    as its credit says), and what is asked of it."""

    fixed: Any = None
    steps: Any = None
    weights: Any = None
    asked: Asked = ALL


NO_EXTRA = Extra()


class StepCredit(NamedTuple):
    """Gradients of the parameters, the credit that a carrier's `block` takes, and that of the
    inputs by number."""

    params: list[Any]
    credit: Credit
    inputs: dict[int, Any]


def _keeps_nothing(params: Sequence[Any] | None) -> Traces:
    return {}


def _gradient_in_step(
    window: Window, cotangents: Sequence[Any], kept: Traces, extra: Extra
) -> StepCredit:
    return _credit(window, cotangents, NO_FEEDBACK, extra.asked)


def _as_it_arrives(
    window: Window, cotangents: Sequence[Any], hidden: list[Any], kept: Traces
) -> list[Any]:
    return hidden


def _own_weights(window: Window, kept: Traces) -> Feedback:
    return NO_FEEDBACK


def _nothing_beyond(window: Window, extra: Extra) -> list[Any] | None:
    return None


@dataclass(frozen=True, eq=False)
class Signal:
    """Where credit comes from: the gradient of the loss, unless a part of it is replaced.

    Args:
        init, same_step, entry, feedback, beyond: see the head of this file.
        linear: whether what it gives is linear in the cotangents.
    """

    init: Callable[[Sequence[Any] | None], Traces] = _keeps_nothing
    same_step: Callable[[Window, Sequence[Any], Traces, Extra], StepCredit] = _gradient_in_step
    entry: Callable[[Window, Sequence[Any], list[Any], Traces], list[Any]] = _as_it_arrives
    beyond: Callable[[Window, Extra], list[Any] | None] = _nothing_beyond
    linear: bool = False
    feedback: Callable[[Window, Traces], Feedback] = _own_weights

    @property
    def is_gradient(self) -> bool:
        """Whether credit is the gradient of the loss, and nothing else."""
        as_given = self.same_step, self.entry, self.beyond
        return as_given == (_gradient_in_step, _as_it_arrives, _nothing_beyond)


GRADIENT = Signal(linear=True)


def _credit(
    window: Window, cotangents: Sequence[Any], feedback: Feedback, asked: Asked
) -> StepCredit:
    inside = same_step(window, cotangents, feedback, asked)
    given = window, cotangents, feedback
    # Each is made once, however many groups ask for their part of it.
    credit = Credit(
        inside.y,
        cache(partial(of_old_state, *given)),
        cache(partial(along_units, *given)),
        cache(partial(of_new_state, *given)),
        of_state_before(*given),
    )
    return StepCredit(inside.params, credit, inside.inputs)


def _credit_of_signals(window: Window, signals: list[Any]) -> Credit:
    """The credit that these signals at the new hidden leaves give."""
    y, hidden = from_signals(window, signals)
    return Credit(y, lambda: hidden, lambda: y, lambda together: signals)


# ---- random feedback ----


def random_feedback(layout: Layout, key: Any, scale: float = 0.1, adaptive: bool = False) -> Signal:
    """Credit goes back through fixed random weights instead of those of the read-out (and of every
    product above a hidden state). They are kept as `feedback:<weight>`, and may be set. With
    `adaptive` what is kept is their difference to the weights, so that they change as those do."""
    weights = RandomWeights(layout, key, scale, adaptive)
    return Signal(
        weights.init, weights.same_step, weights.entry, feedback=weights.feedback, linear=True
    )


@dataclass(frozen=True, eq=False)
class RandomWeights:
    """The feedback weights of a model."""

    layout: Layout
    key: Any
    scale: float
    adaptive: bool

    @cached_property
    def keys(self) -> dict[Var, TraceKey]:
        """Where the feedback weight of each product is kept, by the product's output."""
        origin = Origin(self.layout.graph.step)
        uses = self.layout.feedback_uses
        leaves = [tuple(source.leaf for source in origin.of(use.w)) for use in uses.values()]
        keys = distinct(TraceKey(weight, kind=FEEDBACK) for weight in leaves)
        return dict(zip(uses, keys, strict=True))

    def init(self, params: Sequence[Any] | None) -> Traces:
        draws = jax.random.split(self.key, max(len(self.keys), 1))
        kept: Traces = {}
        for (y, key), draw in zip(self.keys.items(), draws, strict=False):
            w = self.layout.feedback_uses[y].w.aval
            kept[key] = self.scale * jax.random.normal(draw, w.shape, w.dtype)
        if self.adaptive and params is not None:
            now = self._weights(self.layout.graph.step.captured, params)
            kept = {key: kept[key] - now[y] for y, key in self.keys.items()}
        return kept

    def _weights(self, captured: Sequence[Any], params: Sequence[Any]) -> dict[Var, Any]:
        uses = self.layout.feedback_uses
        program = weight_program(self.layout.graph.step, [use.w for use in uses.values()])
        return dict(zip(uses, program(captured, *params), strict=True))

    def feedback(self, window: Window, kept: Traces) -> Feedback:
        """The weights that credit goes back through."""
        feedback = {y: kept[key] for y, key in self.keys.items()}
        if not self.adaptive:
            return feedback
        now = self._weights(window.given.captured, window.params)
        return {y: b + now[y] for y, b in feedback.items()}

    def same_step(
        self, window: Window, cotangents: Sequence[Any], kept: Traces, extra: Extra
    ) -> StepCredit:
        return _credit(window, cotangents, self.feedback(window, kept), extra.asked)

    def entry(
        self, window: Window, cotangents: Sequence[Any], hidden: list[Any], kept: Traces
    ) -> list[Any]:
        overrides = Overrides(feedback=self.feedback(window, kept))
        pull = window.vjp('hidden', overrides=overrides)
        return pull(Cotangents(outs=list(cotangents))).hidden


def square_feedback(layout: Layout, key: Any, scale: float = 0.1) -> Signal:
    """Each group's own signal, normalised over its units, through a fixed random matrix from units
    to units."""
    groups = [g for g in layout.graph.groups if g.varshape]
    keys = {g.index: TraceKey(group=g.paths[0], kind=FEEDBACK) for g in groups}

    def init(params: Sequence[Any] | None) -> Traces:
        draws = jax.random.split(key, max(len(layout.graph.groups), 1))
        return {
            keys[g.index]: scale * jax.random.normal(draws[g.index], (g.varshape[-1],) * 2)
            for g in groups
        }

    def through(signals: Sequence[Any], kept: Traces) -> list[Any]:
        def one(g: Group, s: Any, columns: bool) -> Any:
            if s is None or not g.varshape or not is_inexact(s):
                return s
            axis = -2 if columns else -1
            s = s / (jnp.linalg.norm(s, axis=axis, keepdims=True) + 1e-8)
            labels = '...lj,lk->...kj' if columns else '...l,lk->...k'
            return jnp.einsum(labels, s, kept[keys[g.index]]).astype(s.dtype)

        return _by_group(layout, signals, one)

    def in_step(window, cotangents, kept, extra) -> StepCredit:
        inside = same_step(window, cotangents, asked=extra.asked)
        signals = through(of_new_state(window, cotangents), kept)
        return StepCredit(inside.params, _credit_of_signals(window, signals), inside.inputs)

    def entry(window, cotangents, hidden, kept) -> list[Any]:
        return through(hidden, kept)

    return Signal(init, in_step, entry)


# ---- other signals ----


def modulator(layout: Layout) -> Signal:
    """An outside signal `m` instead of the gradient: one number, or one for each unit (and sample)
    of a group, in each step."""

    def in_step(window, cotangents, kept, extra: Extra) -> StepCredit:
        if extra.steps is None:
            raise RuntimeError(
                "The rule 'three_factor' needs a modulator: pass `modulator=` with the call, or "
                'set `learner.modulator`.'
            )
        _check_groups(extra.steps, layout)
        inside = same_step(window, cotangents, asked=extra.asked)
        zeros = window.zeros_at(layout.graph.step.hidden_vars)

        def one(g: Group, s: Any, columns: bool) -> Any:
            m = spread_modulator(extra.steps, g, s, columns)
            return m if extra.weights is None else m * _beside_units(extra.weights, m)

        signals = _by_group(layout, zeros, one)
        return StepCredit(inside.params, _credit_of_signals(window, signals), inside.inputs)

    return Signal(same_step=in_step)


def _check_groups(m: Any, layout: Layout) -> None:
    """Refuse modulators by group that leave a group out, or name one that is not there."""
    groups = [g.index for g in layout.graph.groups]
    if isinstance(m, dict) and set(m) != set(groups):
        raise ValueError(
            f'`modulator` has entries for the groups {sorted(m, key=str)}, and the model has '
            f'{groups}. Give one for each: `learner.report.show()` lists them.'
        )


def spread_modulator(m: Any, group: Group, s: jax.Array, columns: bool) -> jax.Array:
    """The modulator at each unit: `m` is an array, or has one for each group by number; each with
    the steps first. `s` has the shape wanted, `columns` says whether its last axis counts the
    states of a unit."""
    m = jnp.asarray(m[group.index] if isinstance(m, dict) else m)
    if columns and m.ndim == s.ndim - 1 and m.shape[1:] == group.varshape:
        m = m[..., None]
    steps, rest = m.shape[:1], m.shape[1:]
    if m.ndim < s.ndim:
        m = m.reshape(steps + (1,) * (s.ndim - m.ndim) + rest)
    fits = m.ndim == s.ndim and all(
        a in (1, b) for a, b in zip(m.shape[1:], s.shape[1:], strict=True)
    )
    if not fits:
        raise ValueError(
            f'`modulator` has shape {rest} in a step, which does not broadcast to the units '
            f'{group.varshape} of group {group.index}. In a step it is a number, one for each '
            'unit, or one for each sample as an array `(batch, 1)`.'
        )
    return jnp.broadcast_to(m, s.shape).astype(s.dtype)


def _beside_units(weights: jax.Array, m: jax.Array) -> jax.Array:
    """The weights of the losses, `(K,)` or `(K, samples)`, beside values at the units
    `(K, *units)`."""
    if weights.ndim == 2 and m.shape[1:2] != weights.shape[1:]:
        weights = weights.sum(1)
    return weights.reshape(weights.shape + (1,) * (m.ndim - weights.ndim)).astype(m.dtype)


# (parameters, hidden by group) -> credit by group
Guess = Callable[[Any, dict[int, Any]], dict[int, Any]]


def guessed_future(layout: Layout, guess: Guess | None) -> Signal:
    """The gradient of the loss, and at the end of a window a guess of the credit that later windows
    will send.

    Weights with a trace wait for that credit themselves; the guess serves all others.
    """

    def beyond(window: Window, extra: Extra) -> list[Any] | None:
        if guess is None:
            raise RuntimeError(
                "The rule 'dni' needs the option `guess`, a function (parameters, "
                '{group: hidden values}) -> {group: credit}.'
            )
        hidden = by_group(layout, window.hidden)
        credit = to_leaves(layout, guess(extra.fixed, hidden), window.hidden)
        overrides = Overrides(fixed=frozenset(r.w_var for r in layout.relations))
        pull = window.vjp('params', overrides=overrides)
        return pull(Cotangents(hidden=credit)).params

    return Signal(beyond=beyond)


def by_group(layout: Layout, leaves: Sequence[Any]) -> dict[int, Any]:
    """Values of the hidden leaves as `(*units, states)` of each group."""
    place = {v: i for i, v in enumerate(layout.graph.step.hidden_outs)}
    return {
        g.index: g.concat_hidden([leaves[place[v]] for v in g.outvars]) for g in layout.graph.groups
    }


def to_leaves(layout: Layout, values: dict[int, Any], like: Sequence[Any]) -> list[Any]:
    """Values `(*units, states)` of each group as hidden leaves."""
    place = {v: i for i, v in enumerate(layout.graph.step.hidden_outs)}
    leaves = [jnp.zeros(h.shape, h.dtype) for h in like]
    for g in layout.graph.groups:
        wanted = *g.varshape, g.num_state
        if values[g.index].shape != wanted:
            raise ValueError(
                f'The synthesizer gives shape {values[g.index].shape} for group {g.index}, which '
                f'has {wanted}.'
            )
        for v, part in zip(g.outvars, g.split_hidden(values[g.index]), strict=True):
            i = place[v]
            leaves[i] = part.reshape(leaves[i].shape).astype(leaves[i].dtype)
    return leaves


def _by_group(
    layout: Layout, signals: Sequence[Any], f: Callable[[Group, Any, bool], Any]
) -> list[Any]:
    """Each hidden leaf's signal through
    `f(group, signal, whether the leaf has columns of states)`."""
    step = layout.graph.step
    group_of = {v: g for g in layout.graph.groups for v in g.invars}
    triples = zip(step.hidden_vars, step.hidden, signals, strict=True)
    return [f(group_of[v], s, bool(leaf.columns)) for v, leaf, s in triples]
