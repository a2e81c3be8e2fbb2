"""Learning signals: where the credit of a step comes from.

The true gradient, the same through fixed random weights, an outside modulator, or a learned guess of what the future will say. A signal has

    init(params)                                    -> what it keeps beside the traces
    same_step(window, cotangents, kept, extra)      -> gradients of the parameters, Credit, credit of the inputs     (single-step)
    entry(window, cotangents, hidden, kept)         -> the credit of the window's entry, which meets the traces       (multi-step)
    beyond(window, extra)                           -> gradients of the parameters by credit from beyond the window   (multi-step)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._jax import eval_jaxpr
from ..graph.relations import Origin, weight_program
from ..plan.layout import Layout
from .carrier import Credit


class Extra(NamedTuple):
    """What a signal takes from outside: values for the whole run, and values with the steps as first axis."""

    fixed: Any = None
    steps: Any = None


NO_EXTRA = Extra()


class Signal:
    """The gradient of the loss, unless a part of it is replaced."""

    @property
    def linear(self) -> bool:
        """Whether what it gives is linear in the cotangents. A signal of another kind has to say so for itself."""
        return type(self) is Signal

    def init(self, params: Sequence[Any] | None) -> dict[str, Any]:
        return {}

    def same_step(
        self, window: Any, cotangents: Sequence[Any], kept: dict[str, Any], extra: Extra
    ) -> tuple[list, Credit, dict[int, Any]]:
        return _credit(window, cotangents, None)

    def entry(
        self, window: Any, cotangents: Sequence[Any], hidden: list, kept: dict[str, Any]
    ) -> list:
        return hidden

    def beyond(self, window: Any, extra: Extra) -> list | None:
        return None


def _credit(
    window: Any, cotangents: Sequence[Any], feedback: Any
) -> tuple[list, Credit, dict[int, Any]]:
    gp, y, hidden, inputs = window.same_step(cotangents, feedback)
    signals = lambda **how: window.signals(cotangents, feedback, **how)
    return (
        gp,
        Credit(
            y,
            lambda: window.direct(cotangents, feedback),
            hidden,
            signals,
            window.past(cotangents, feedback),
        ),
        inputs,
    )


@dataclass(frozen=True, eq=False)
class RandomFeedback(Signal):
    """Credit goes back through fixed random weights instead of those of the read-out (and of every product above a hidden state).

    They are kept as `feedback:<weight>`, and may be set. With `adaptive` what is kept is their difference to the weights, so that they change as those do.
    """

    layout: Layout
    key: Any
    scale: float = 0.1
    adaptive: bool = False

    @property
    def linear(self) -> bool:
        return True

    def _names(self) -> dict[Any, str]:
        origin = Origin(self.layout.graph.step)
        names: dict[Any, str] = {}
        for y, w in self.layout.feedback_uses.items():
            name = 'feedback:' + '+'.join(leaf.name for _, leaf, _, _ in origin.of(w))
            names[y] = f'{name}#{len(names)}' if name in names.values() else name
        return names

    def init(self, params: Sequence[Any] | None) -> dict[str, Any]:
        names = self._names()
        keys = jax.random.split(self.key, max(len(names), 1))
        drawn = {
            name: self.scale
            * jax.random.normal(
                k, self.layout.feedback_uses[y].aval.shape, self.layout.feedback_uses[y].aval.dtype
            )
            for (y, name), k in zip(names.items(), keys, strict=False)
        }
        now = self._weights(params) if self.adaptive and params is not None else [0] * len(drawn)
        return {name: b - w for (name, b), w in zip(drawn.items(), now, strict=True)}

    def _weights(self, params: Sequence[Any]) -> list[Any]:
        program = weight_program(self.layout.graph.step, list(self.layout.feedback_uses.values()))
        return eval_jaxpr(program.jaxpr, program.consts, *params)

    def _feedback(self, window: Any, kept: dict[str, Any]) -> dict[Any, Any]:
        feedback = {y: kept[name] for y, name in self._names().items()}
        if self.adaptive:
            feedback = {
                y: b + jax.lax.stop_gradient(w)
                for (y, b), w in zip(feedback.items(), self._weights(window.params), strict=True)
            }
        return feedback

    def same_step(
        self, window: Any, cotangents: Sequence[Any], kept: dict[str, Any], extra: Extra
    ) -> tuple[list, Credit, dict[int, Any]]:
        return _credit(window, cotangents, self._feedback(window, kept))

    def entry(
        self, window: Any, cotangents: Sequence[Any], hidden: list, kept: dict[str, Any]
    ) -> list:
        return window.pull_through(cotangents, self._feedback(window, kept))


@dataclass(frozen=True, eq=False)
class SquareFeedback(Signal):
    """The square form: each group's signal, normalised over its units, through a fixed random matrix from units to units."""

    layout: Layout
    key: Any
    scale: float = 0.1

    def init(self, params: Sequence[Any] | None) -> dict[str, Any]:
        groups = self.layout.graph.hidden_groups
        keys = jax.random.split(self.key, max(len(groups), 1))
        return {
            f'feedback:group {g.index}': self.scale * jax.random.normal(k, (g.varshape[-1],) * 2)
            for g, k in zip(groups, keys, strict=False)
            if g.varshape
        }

    def same_step(
        self, window: Any, cotangents: Sequence[Any], kept: dict[str, Any], extra: Extra
    ) -> tuple[list, Credit, dict[int, Any]]:
        gp, _, _, inputs = window.same_step(cotangents)
        return (
            gp,
            _from_signals(window, self.entry(window, cotangents, window.signals(cotangents), kept)),
            inputs,
        )

    def entry(
        self, window: Any, cotangents: Sequence[Any], hidden: list, kept: dict[str, Any]
    ) -> list:
        def through(g: Any, s: Any, columns: bool) -> Any:
            if not g.varshape or not jnp.issubdtype(s.dtype, jnp.inexact):
                return s
            s = s / (jnp.linalg.norm(s, axis=-2 if columns else -1, keepdims=True) + 1e-8)
            return jnp.einsum(
                '...lj,lk->...kj' if columns else '...l,lk->...k',
                s,
                kept[f'feedback:group {g.index}'],
            ).astype(s.dtype)

        return _by_group(self.layout, hidden, through)


@dataclass(frozen=True, eq=False)
class Modulator(Signal):
    """An outside signal `m` instead of the gradient: one number, or one for each unit (and sample) of a group, in each step."""

    layout: Layout

    def same_step(
        self, window: Any, cotangents: Sequence[Any], kept: dict[str, Any], extra: Extra
    ) -> tuple[list, Credit, dict[int, Any]]:
        if extra.steps is None:
            raise RuntimeError(
                "The rule 'three_factor' needs a modulator: pass `modulator=` with the call, or set `learner.modulator`."
            )
        gp, _, _, inputs = window.same_step(cotangents)
        zeros = [
            jnp.zeros((window.length, *v.aval.shape), v.aval.dtype)
            for v in self.layout.graph.step.hidden_vars
        ]
        return (
            gp,
            _from_signals(
                window,
                _by_group(
                    self.layout,
                    zeros,
                    lambda g, s, columns: spread_modulator(extra.steps, g, s, columns),
                ),
            ),
            inputs,
        )


def spread_modulator(m: Any, group: Any, s: Any, columns: bool) -> Any:
    """The modulator at each unit: `m` is an array, or has one for each group by number; each with the steps first."""
    m = jnp.asarray(m[group.index] if isinstance(m, dict) else m)
    if columns and m.ndim == s.ndim - 1 and m.shape[1:] == group.varshape:
        m = m[..., None]
    lead, rest = m.shape[:1], m.shape[1:]
    m = m.reshape(lead + (1,) * (s.ndim - m.ndim) + rest) if m.ndim < s.ndim else m
    if m.ndim > s.ndim or any(
        a not in (1, b) for a, b in zip(m.shape[1:], s.shape[1:], strict=True)
    ):
        raise ValueError(
            f'`modulator` has shape {rest} in a step, which does not broadcast to the units {group.varshape} of group {group.index}.'
        )
    return jnp.broadcast_to(m, s.shape).astype(s.dtype)


@dataclass(frozen=True, eq=False)
class Guess(Signal):
    """The gradient of the loss, and at the end of a window a guess `synthesizer(h_b)` of the credit that later windows will send.

    Weights with a trace wait for that credit themselves; the guess serves all others.
    """

    layout: Layout
    guess: Callable[[Any, dict[int, Any]], dict[int, Any]]

    def beyond(self, window: Any, extra: Extra) -> list | None:
        if self.guess is None:
            raise RuntimeError(
                "The rule 'dni' needs the option `guess`, a function (parameters, {group: hidden values}) -> {group: credit}."
            )
        groups, step = self.layout.graph.hidden_groups, self.layout.graph.step
        where = {v: i for i, v in enumerate(step.hidden_outs)}
        leaves = {g.index: [where[v] for v in g.hidden_outvars] for g in groups}
        hidden = {
            g.index: g.concat_hidden([window.hidden[i] for i in leaves[g.index]]) for g in groups
        }
        found = self.guess(extra.fixed, hidden)
        credit = [jnp.zeros(h.shape, h.dtype) for h in window.hidden]
        for g in groups:
            if found[g.index].shape != hidden[g.index].shape:
                raise ValueError(
                    f'The synthesizer gives shape {found[g.index].shape} for group {g.index}, which has {hidden[g.index].shape}.'
                )
            for i, part in zip(leaves[g.index], g.split_hidden(found[g.index]), strict=True):
                credit[i] = part.reshape(credit[i].shape).astype(credit[i].dtype)
        return window.pull_untraced([jax.lax.stop_gradient(c) for c in credit])


def _by_group(layout: Layout, signals: Sequence[Any], f: Callable[[Any, Any, bool], Any]) -> list:
    """Each hidden leaf's signal through `f(group, signal, whether the leaf has columns of states)`."""
    step = layout.graph.step
    of = {v: g for g in layout.graph.hidden_groups for v in g.hidden_invars}
    return [
        f(of[v], s, bool(leaf.columns))
        for v, leaf, s in zip(step.hidden_vars, step.hidden, signals, strict=True)
    ]


def _from_signals(window: Any, signals: list) -> Credit:
    y, hidden = window.from_signals(signals)
    return Credit(y, lambda: y, hidden, lambda **how: signals)
