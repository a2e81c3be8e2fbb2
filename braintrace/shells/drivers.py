"""A learner over whole sequences, as users call it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from numbers import Integral
from typing import Any

import jax

from ..learn import drivers
from ..learn.checkpoints import Checkpoints
from ..learn.drivers import Asked
from ..learn.options import masked_losses, sequence_length, spread_mask, weigh
from ..learn.records import Carried
from ..learn.resuming import learn_and_save
from ..learn.shapes import explained_time
from ..learn.stateful import CompiledModel, Learning, driving, take

SCHEDULES = ('per_step', 'window', 'sequence_end')


class SequenceDriverMixin:
    """`etrace_grad`, `etrace_learn`, `etrace_stream` and `etrace_evolve` for a learner of a model
    that holds its states.

    Example:
        >>> import brainstate, jax, jax.numpy as jnp, braintrace
        >>> cell, read_out = brainstate.nn.ValinaRNNCell(2, 4), brainstate.nn.Linear(4, 1)
        >>> net = brainstate.nn.Sequential(cell, read_out)
        >>> learner = braintrace.compile(net, 'd_rtrl', jnp.ones((1, 2)), batch_size=1)
        >>> def update(grads):
        ...     for k, state in learner.param_states.items():
        ...         state.value = jax.tree.map(lambda w, g: w - 0.1 * g, state.value, grads[k])
        >>> def step(x):
        ...     return ((learner(x) - 1) ** 2).mean()
        >>> live = learner.etrace_stream(step_fn=step, update=update)
        >>> losses = [float(live(jnp.ones((1, 2)))) for _ in range(20)]
        >>> losses[-1] < losses[0]
        True
    """

    _memory: Any  # the state that holds the traces, another one when it is compiled anew

    @abstractmethod
    def _learning(self) -> Learning:
        """The learner, ready to run; an error if it is not compiled."""

    @abstractmethod
    def _weights(self) -> Mapping:
        """The parameter states that get a gradient unless others are asked for."""

    @abstractmethod
    def _schedule(self) -> tuple[str, int | None]:
        """When the learner's configuration hands out gradients: the schedule, and the steps of a
        window."""

    @abstractmethod
    def _kept(self) -> list[Any]:
        """The holders of all values that `snapshot()` has."""

    @abstractmethod
    def compiled_step(self) -> CompiledModel:
        """The step as a program and the core that learns it."""

    def values_now(self) -> tuple[Carried, list[Any]]:
        """What is carried into the next step, as flat leaves, and the leaves of what the model
        reads from its surroundings, which come before those of its inputs."""
        learning = self._learning()
        moving = learning.framework.surroundings().moving
        return take(learning, self.compiled_step()), jax.tree.leaves(moving)

    def uncalled(self, refusal: str) -> AbstractContextManager:
        """Inside, a call of the learner is a TypeError that says `refusal`."""
        return driving(self._learning(), refusal)

    def etrace_grad(
        self,
        *sequences: Any,
        step_fn: Callable,
        mask: Any = None,
        chunk_size: int | None = None,
        weights: Mapping | None = None,
        reduction: str = 'mean',
        loss_output: str = 'per_step',
        has_aux: bool = False,
        return_value: bool = False,
        window: Any = 'auto',
        fresh: bool = False,
        progress: bool = False,
        modulator: Any = None,
    ) -> Any:
        """Online gradient of a loss over a sequence.

        Args:
            sequences: pytrees with time as first axis.
            step_fn: `step_fn(*slices) -> loss`, or `(loss, aux)`; it calls the learner once. The
                loss is a scalar, or one for each sample. A new function is compiled anew, as by
                `jax.jit`: define it once.
            mask: weights of the losses, `(T,)` or `(T, batch)`. Numbers that are not finite are not
                read where it is zero.
            chunk_size: give `step_fn` slices of that many steps, to be wrapped in `MultiStepData`;
                it returns a loss for each step.
            weights: the parameter states to differentiate, by any keys; all of the model's by
                default.
            reduction: 'mean' or 'sum'.
            loss_output: 'per_step', 'masked' or 'scalar'.
            has_aux: `step_fn` returns `(loss, aux)`.
            return_value: also return the losses.
            window: steps in a block, or 'auto'. With single-step credit the result does not depend
                on it.
            fresh: the sequence stands alone: it starts from zero traces and leaves none behind.
            progress: show a progress bar.
            modulator: for the rules that take one: a number, an array with time as first axis, or
                one of these for each group by number.

        Returns:
            `grads`, `(grads, losses)`, `(grads, aux)` or `(grads, losses, aux)`.
        """
        learning = self._learning()
        if loss_output not in ('per_step', 'masked', 'scalar'):
            raise ValueError(
                f"`loss_output` must be 'per_step', 'masked' or 'scalar', got {loss_output!r}."
            )
        _check_functions(step_fn=step_fn)
        weights = self._chosen(weights)
        asked = Asked(step_fn, mask, reduction, has_aux, window, fresh, progress, modulator)
        with explained_time(sequences, self._shapes_of_a_step):
            if chunk_size is None or (chunk_size == 1 and not isinstance(chunk_size, bool)):
                answer = drivers.grad(learning, sequences, weights, asked)
            else:
                answer = drivers.grad_by_chunks(learning, sequences, chunk_size, weights, asked)
        parts = [answer.grads]
        if return_value:
            parts.append(_told(answer.losses, mask, reduction, loss_output))
        if has_aux:
            parts.append(answer.aux)
        return tuple(parts) if len(parts) > 1 else answer.grads

    def etrace_learn(
        self,
        *sequences: Any,
        step_fn: Callable,
        update: Callable,
        schedule: str | None = None,
        window_size: int | None = None,
        mask: Any = None,
        modulator: Any = None,
        progress: bool = False,
        reduction: str = 'mean',
        window: Any = 'auto',
        checkpoints: Checkpoints | None = None,
    ) -> Any:
        """Learn while the sequence goes by: a gradient, and `update(grads)` on the weights, in each
        step, each window, or once at the end.

        Args:
            sequences, step_fn, mask, modulator, reduction, window: as in `etrace_grad`, for the
                steps between two updates.
            update: writes the weights, for instance `optimizer.update`.
            schedule: 'per_step', 'window' or 'sequence_end'; by default that of the learner's
                configuration, or 'per_step'.
            window_size: the steps between two updates for 'window'.
            progress: show a progress bar.
            checkpoints: save every `checkpoints.every` steps all that the learner, `step_fn` and
                `update` keep in states, and begin where the last checkpoint was. Called again after
                the process was killed, with the same data, it ends with the same bits.

        Returns:
            The loss of each step.
        """
        learning = self._learning()
        _check_functions(step_fn=step_fn, update=update)
        usual, usual_size = self._schedule()
        schedule = schedule or usual
        if schedule not in SCHEDULES:
            raise ValueError(
                f"`schedule` must be 'per_step', 'window' or 'sequence_end', got {schedule!r}."
            )
        length = sequence_length(sequences)
        steps = {'per_step': 1, 'sequence_end': length}.get(schedule)
        if steps is None:
            size = usual_size if window_size is None else window_size
            steps = min(_window_size(size), length)
        asked = Asked(
            step_fn, mask, reduction, window=window, progress=progress, modulator=modulator
        )
        if checkpoints is not None:
            return learn_and_save(
                self,
                learning,
                sequences,
                self._weights(),
                asked,
                update,
                steps,
                checkpoints,
                self._kept(),
            )
        with explained_time(sequences, self._shapes_of_a_step):
            return drivers.learn(learning, sequences, self._weights(), asked, update, steps)

    def etrace_stream(
        self, *, step_fn: Callable, update: Callable, has_aux: bool = False
    ) -> Callable:
        """Learn from data as they come: a function for one step, in one compiled call the step, its
        gradient and `update(grads)` on the weights.

        The same as `etrace_learn` on sequences of one step, with next to nothing spent in Python.
        What `step_fn` and `update` name is taken in at the first call, as by `jit`.

        Args:
            step_fn: `step_fn(*data) -> loss`, or `(loss, aux)`; it calls the learner once.
            update: writes the weights, for instance `optimizer.update`.
            has_aux: `step_fn` returns `(loss, aux)`.

        Returns:
            `live(*data, modulator=None) -> loss`, or `(loss, aux)`.
        """
        self._learning()
        _check_functions(step_fn=step_fn, update=update)
        asked = Asked(step_fn, has_aux=has_aux)
        memory, step = None, None

        def live(*data: Any, modulator: Any = None) -> Any:
            nonlocal memory, step
            if step is None or memory is not self._memory:  # or it was compiled anew
                step = drivers.stream(self._learning(), self._weights(), asked, update)
                memory = self._memory
            return step(data, modulator)

        return live

    def etrace_evolve(
        self,
        *sequences: Any,
        step_fn: Callable | None = None,
        chunk_size: int | None = None,
        return_outputs: bool = False,
        window: Any = 'auto',
    ) -> Any:
        """Run over a sequence without a loss: states and traces go on. Gives None, or the stacked
        outputs."""
        window = window if chunk_size is None else chunk_size
        with explained_time(sequences, self._shapes_of_a_step):
            outs = drivers.evolve(self._learning(), sequences, step_fn, window)
        return outs if return_outputs else None

    def _shapes_of_a_step(self) -> list[tuple]:
        """The shapes of the inputs of one step."""
        return [v.aval.shape for v in self.compiled_step().traced.step.input_vars]

    def _chosen(self, weights: Mapping | None) -> Mapping:
        if weights is None:
            return self._weights()
        if not isinstance(weights, Mapping) or not all(
            hasattr(s, 'value') for s in weights.values()
        ):
            raise TypeError(f'`weights` must be a dict of states, got {type(weights).__name__}.')
        return weights


def _check_functions(**given: Any) -> None:
    for name, f in given.items():
        if not callable(f):
            raise TypeError(f'`{name}` must be a function, got {type(f).__name__}.')


def _told(losses: Any, mask: Any, reduction: str, loss_output: str) -> Any:
    """The losses in the form that was asked for."""
    if loss_output == 'per_step':
        return losses
    spread = spread_mask(mask, losses.shape, losses.dtype)
    if loss_output == 'masked':
        return masked_losses(losses, spread)
    return masked_losses(losses, weigh(spread, reduction)).sum()


def _window_size(size: Any) -> int:
    if isinstance(size, bool) or not isinstance(size, Integral) or size < 1:
        raise ValueError(
            "`window_size` must be the number of steps between two updates for schedule='window', "
            f'got {size!r}.'
        )
    return int(size)
