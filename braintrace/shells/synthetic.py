"""Synthetic gradients: a learned guess of the credit that the future will send to a hidden state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ..engine.window import Window
from ..frontends import brainstate as frontend
from ..learn.options import sequence_length

brainstate: Any = frontend.brainstate


class SyntheticGradient(brainstate.nn.Module):  # type: ignore[misc]
    """One affine map for each hidden group, from its units' states to a guess of their credit. It guesses zero until it is trained.

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
        width = {g: int(s[-2] * s[-1] if len(s) > 1 else s[-1]) for g, s in group_shapes.items()}
        keys = jax.random.split(jax.random.key(seed), max(len(width), 1))
        self.synth_w = {
            g: brainstate.ParamState(scale * jax.random.normal(k, (n, n), jnp.float32))
            for k, (g, n) in zip(keys, width.items(), strict=False)
        }
        self.synth_b = {
            g: brainstate.ParamState(jnp.zeros(n, jnp.float32)) for g, n in width.items()
        }

    def states_dict(self) -> dict[tuple[str, int], Any]:
        """The states by `('synth_w', group)` and `('synth_b', group)`."""
        return {('synth_w', g): s for g, s in self.synth_w.items()} | {
            ('synth_b', g): s for g, s in self.synth_b.items()
        }

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
    """Fit the synthesizer of a DNI learner on a sequence: at each window's end it should say what the next window's loss sends back.

    Args:
        learner: a compiled `DNI` learner with a synthesizer.
        inputs: the inputs of the model, with time as first axis.
        chunk_size: the steps of a window; the learner will take no other afterwards.
        loss_fn: of the stacked outputs of a window, by default the sum of squares.
        optimizer: registered on `synthesizer.states_dict()`, with `update(grads)`; plain gradient descent with `lr` by default.
        epochs, reset, batch_size: how often, and whether the model's states are reset before each.

    Returns:
        The mean squared error of each epoch.
    """
    synthesizer = getattr(learner, 'synthesizer', None)
    if synthesizer is None:
        raise RuntimeError(
            '`train_synthetic_gradient` needs a learner with a synthesizer: call `learner.attach_synthesizer` first.'
        )
    length = sequence_length([inputs])
    if (
        isinstance(chunk_size, bool)
        or not isinstance(chunk_size, int)
        or chunk_size < 1
        or length % chunk_size
    ):
        raise ValueError(
            f'`chunk_size` must be at least 1 and divide the length {length}, got {chunk_size}.'
        )
    info, executor = learner._ready()
    groups, step = learner.graph.hidden_groups, executor.program.step
    where = {v: i for i, v in enumerate(step.hidden_outs)}
    leaves = {g.index: [where[v] for v in g.hidden_outvars] for g in groups}
    together = lambda values: {
        g.index: g.concat_hidden([values[i] for i in leaves[g.index]]) for g in groups
    }
    loss = loss_fn or (lambda out: sum((a**2).sum() for a in jax.tree.leaves(out)))

    @jax.jit
    def window(values, params, hidden, other, x):
        """The entry state, the credit that arrives there, and the exit state."""
        w = Window(executor.program, params, hidden, other, jax.tree.leaves(x), chunk_size)
        out = jax.grad(lambda outs: loss(info.out_tree.unflatten(outs)), allow_int=True)(
            list(w.outs)
        )
        guessed = synthesizer.apply(values, together(w.hidden))
        exit_credit = [jnp.zeros(h.shape, h.dtype) for h in w.hidden]
        for g in groups:
            for i, part in zip(leaves[g.index], g.split_hidden(guessed[g.index]), strict=True):
                exit_credit[i] = part.reshape(exit_credit[i].shape)
        at_end = [jnp.zeros((chunk_size, *h.shape), h.dtype) for h in w.hidden]
        _, credit, _, _ = w.pull(outs=executor.program.graded(out, at_end), hidden=exit_credit)
        return together(hidden), together(credit), w.hidden, w.other

    @jax.jit
    def fit(values, hidden, credit):
        def error(values):
            guess = synthesizer.apply(values, hidden)
            return sum(
                ((guess[g] - jax.lax.stop_gradient(credit[g])) ** 2).sum() for g in guess
            ) / sum(c.size for c in credit.values())

        return jax.value_and_grad(error)(values)

    def learn(hidden, credit):
        error, grads = fit(synthesizer.param_values(), hidden, credit)
        by_state = {(f'synth_{k}', g): a for k, part in grads.items() for g, a in part.items()}
        if optimizer is not None:
            optimizer.update(by_state)
        else:
            for k, s in synthesizer.states_dict().items():
                s.value = s.value - lr * by_state[k]
        return float(error)

    errors = []
    for _ in range(epochs):
        if reset:
            brainstate.nn.reset_all_states(
                learner.model4compile, **({} if batch_size is None else {'batch_size': batch_size})
            )
        hidden, other, found = info.read('hidden'), info.read('other'), []
        for k in range(length // chunk_size):
            x = jax.tree.map(
                lambda a, k=k: jnp.asarray(a)[k * chunk_size : (k + 1) * chunk_size], inputs
            )
            entry, credit, hidden, other = window(
                synthesizer.param_values(), info.read('param'), hidden, other, x
            )
            found += [learn(entry, credit)] if k else []
        last = together(hidden)
        found.append(learn(last, {g: jnp.zeros_like(h) for g, h in last.items()}))
        errors.append(sum(found) / len(found))
    synthesizer.window = chunk_size
    return errors
