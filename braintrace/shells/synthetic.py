"""Synthetic gradients: a learned guess of the credit that the future will send to a hidden
state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ..engine.evaluate import Given
from ..engine.window import Cotangents, Window
from ..frontends import brainstate as frontend
from ..frontends.base import HIDDEN, OTHER, PARAM, TracedModel
from ..learn.options import sequence_length
from ..learn.stateful import CompiledModel
from ..rules.options import count
from ..rules.signals import by_group, to_leaves
from .brainstate import brainstate


class SyntheticGradient(brainstate.nn.Module):  # type: ignore[misc]
    """One affine map for each hidden group, from its units' states to a guess of their credit. It
    guesses zero until it is trained.

    Args:
        group_shapes: `learner.group_signal_shapes()`.
        hidden_width: accepted for old code, not used.
        scale: of the random initial weights.
        seed: of these weights.
    """

    def __init__(
        self,
        group_shapes: Mapping[int, tuple[int, ...]],
        hidden_width: int | None = None,
        scale: float = 0.0,
        seed: int = 0,
    ):
        super().__init__()
        self.window: int | None = None  # the steps of the windows it was fitted for
        keys = jax.random.split(jax.random.key(seed), max(len(group_shapes), 1))
        self.synth_w, self.synth_b = {}, {}
        for key, (g, shape) in zip(keys, group_shapes.items(), strict=False):
            n = int(shape[-2] * shape[-1] if len(shape) > 1 else shape[-1])
            weight = scale * jax.random.normal(key, (n, n), jnp.float32)
            self.synth_w[g] = brainstate.ParamState(weight)
            self.synth_b[g] = brainstate.ParamState(jnp.zeros(n, jnp.float32))

    def states_dict(self) -> dict[tuple[str, int], Any]:
        """The states by `('synth_w', group)` and `('synth_b', group)`."""
        weights = {('synth_w', g): s for g, s in self.synth_w.items()}
        return weights | {('synth_b', g): s for g, s in self.synth_b.items()}

    def param_values(self) -> dict[str, dict[int, Any]]:
        """The values of the parameters, `{'w': {group: array}, 'b': {group: array}}`."""
        return {
            'w': {g: s.value for g, s in self.synth_w.items()},
            'b': {g: s.value for g, s in self.synth_b.items()},
        }

    def apply(
        self, param_values: Mapping[str, Mapping[int, Any]], group_hiddens: Mapping[int, Any]
    ) -> dict[int, Any]:
        """The guess for these hidden values, as a function of the parameters' values."""

        def one(g: int, h: Any) -> Any:
            w, b = param_values['w'][g], param_values['b'][g]
            flat = h.astype(jnp.float32).reshape(*h.shape[: max(h.ndim - 2, 0)], -1)
            return (flat @ w + b).reshape(h.shape).astype(h.dtype)

        return {g: one(g, h) for g, h in group_hiddens.items()}


def train_synthetic_gradient(
    learner: Any,
    inputs: Any,
    *,
    chunk_size: int = 1,
    loss_fn: Callable | None = None,
    optimizer: Any = None,
    lr: float = 1e-2,
    epochs: int = 1,
    reset: bool = True,
    batch_size: int | None = None,
) -> list[float]:
    """Fit the synthesizer of a DNI learner on a sequence: at each window's end it should say what
    the next window's loss sends back.

    Args:
        learner: a compiled `DNI` learner with a synthesizer.
        inputs: the inputs of the model, with time as first axis.
        chunk_size: the steps of a window; the learner will take no other afterwards.
        loss_fn: of the stacked outputs of a window, by default the sum of squares.
        optimizer: registered on `synthesizer.states_dict()`, with `update(grads)`; plain gradient
            descent with `lr` by default.
        epochs, reset, batch_size: how often, and whether the model's states are reset before each.

    Returns:
        The mean squared error of each epoch.
    """
    synthesizer = getattr(learner, 'synthesizer', None)
    if synthesizer is None:
        raise RuntimeError(
            '`train_synthetic_gradient` needs a learner with a synthesizer: call '
            '`learner.attach_synthesizer` first.'
        )
    length = sequence_length([inputs])
    whole = isinstance(chunk_size, int) and not isinstance(chunk_size, bool)
    if not whole or chunk_size < 1 or length % chunk_size:
        raise ValueError(
            f'`chunk_size` must be at least 1 and divide the length {length}, got {chunk_size}.'
        )
    if epochs != 0:
        count('epochs', epochs)
    compiled = learner.compiled_step()
    window = _window(compiled, synthesizer, loss_fn or _sum_of_squares, chunk_size)
    fit = _fit(synthesizer, optimizer, lr)
    model, layout = compiled.traced, compiled.core.program.layout
    errors = []
    for _ in range(epochs):
        if reset:
            _reset(learner.model4compile, model, batch_size)
        hidden, other, met = model.read(HIDDEN), model.read(OTHER), []
        for k in range(length // chunk_size):
            part = slice(k * chunk_size, (k + 1) * chunk_size)
            x = jax.tree.map(lambda a, part=part: jnp.asarray(a)[part], inputs)
            values, params = synthesizer.param_values(), model.read(PARAM)
            entry, credit, hidden, other = window(values, params, hidden, other, x)
            if k:
                met.append(fit(entry, credit))
        last = by_group(layout, hidden)
        met.append(fit(last, jax.tree.map(jnp.zeros_like, last)))
        errors.append(sum(met) / len(met))
    synthesizer.window = chunk_size
    return errors


def _reset(module: Any, model: TracedModel, batch_size: int | None) -> None:
    """Reset the states of a model to the shapes it was compiled for: with this batch size or,
    where none is said, without one or with that of its hidden states."""
    before, others = model.read(HIDDEN), model.read(OTHER)
    sizes: list[dict[str, Any]] = [{'batch_size': batch_size}]
    if batch_size is None:
        first_axes = dict.fromkeys(h.shape[0] for h in before if h.ndim)
        sizes = [{}, *[{'batch_size': n} for n in first_axes]]
    for size in sizes:
        brainstate.nn.reset_all_states(module, **size)
        if [h.shape for h in model.read(HIDDEN)] == [h.shape for h in before]:
            return
    model.write(HIDDEN, before)
    model.write(OTHER, others)
    raise ValueError(
        f'`batch_size`: reset with {sizes[-1] or "none"}, the hidden states have other shapes than '
        'the learner was compiled for. Give the batch size that it was compiled with, or '
        'reset=False.'
    )


def _sum_of_squares(out: Any) -> Any:
    return sum((a**2).sum() for a in jax.tree.leaves(out))


def _window(compiled: CompiledModel, synthesizer: Any, loss: Callable, steps: int) -> Callable:
    """One window, from `(guess's parameters, parameters, hidden, other, inputs)` to `(entry state,
    the credit that arrives there, exit hidden, exit other)`."""
    program, out_tree = compiled.core.program, compiled.traced.out_tree
    layout, captured = program.layout, program.step.captured
    moving = jax.tree.leaves(frontend.surroundings().moving)

    @jax.jit
    def window(values, params, hidden, other, x):
        still = [jnp.broadcast_to(a, (steps, *jnp.shape(a))) for a in moving]
        given = Given(list(captured), params, hidden, other, [*still, *jax.tree.leaves(x)])
        w = Window(program, given, steps)

        def of_outs(outs):
            return loss(out_tree.unflatten(outs))

        at_outs = jax.grad(of_outs, allow_int=True)(list(w.outs))
        guess = synthesizer.apply(values, by_group(layout, w.hidden))
        nothing = [jnp.zeros((steps, *h.shape), h.dtype) for h in w.hidden]
        pulled = w.reverse(
            Cotangents(
                outs=program.graded(at_outs, nothing), hidden=to_leaves(layout, guess, w.hidden)
            )
        )
        arriving = [
            jnp.zeros_like(h) if c is None else c
            for c, h in zip(pulled.hidden, hidden, strict=True)
        ]
        return by_group(layout, hidden), by_group(layout, arriving), w.hidden, w.other

    return window


def _fit(synthesizer: Any, optimizer: Any, lr: float) -> Callable:
    """One step of the synthesizer towards the credit that arrived; its error."""

    @jax.jit
    def gradient(values, hidden, credit):
        def error(values):
            guess = synthesizer.apply(values, hidden)
            wrong = [guess[g] - jax.lax.stop_gradient(credit[g]) for g in guess]
            return sum((a**2).sum() for a in wrong) / sum(a.size for a in wrong)

        return jax.value_and_grad(error)(values)

    def fit(hidden: dict[int, Any], credit: dict[int, Any]) -> float:
        error, grads = gradient(synthesizer.param_values(), hidden, credit)
        by_state = {(f'synth_{k}', g): a for k, part in grads.items() for g, a in part.items()}
        if optimizer is not None:
            optimizer.update(by_state)
        else:
            for key, state in synthesizer.states_dict().items():
                state.value = state.value - lr * by_state[key]
        return float(error)

    return fit
