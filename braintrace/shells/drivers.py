"""A learner over whole sequences: the user's step, loss included, is compiled as one program and run in blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from ..frontends import brainstate as frontend
from ..frontends.brainstate import ModuleInfo
from ..learn.core import Executor
from ..learn.data import MultiStepData, SingleStepData
from ..learn.options import per_step, sequence_length, weigh, window_length
from ..learn.progress import advance
from ..rules.registry import Rule
from .stream import Compiled

brainstate: Any = frontend.brainstate


class SequenceDriverMixin:
    """`etrace_grad`, `etrace_learn` and `etrace_evolve` for a learner."""

    rule: Rule
    _own: Any
    config: Any
    param_states: Any
    _budget: int
    _single_step: bool
    _ready: Callable
    _take: Callable
    _give: Callable
    _build: Callable
    _shapes: Callable
    _extra: Callable
    _in_use: Callable

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
            step_fn: `step_fn(*slices) -> loss`, or `(loss, aux)`; it calls the learner once. The loss is a scalar, or one for each sample.
            mask: weights of the losses, `(T,)` or `(T, batch)`.
            chunk_size: give `step_fn` slices of that many steps, to be wrapped in `MultiStepData`; it returns a loss for each step.
            weights: the parameter states to differentiate, by any keys; all of the model's by default.
            reduction: 'mean' or 'sum'.
            loss_output: 'per_step', 'masked' or 'scalar'.
            has_aux: `step_fn` returns `(loss, aux)`.
            return_value: also return the losses.
            window: steps in a block, or 'auto'. With single-step credit the result does not depend on it.
            fresh: the sequence stands alone: it starts from zero traces and leaves none behind.
            progress: show a progress bar.
            modulator: for the rules that take one: a number, an array with time as first axis, or one of these for each group by number.

        Returns:
            `grads`, `(grads, losses)`, `(grads, aux)` or `(grads, losses, aux)`.
        """
        self._ready()
        wrapped = lambda x: isinstance(x, SingleStepData | MultiStepData)
        self.rule.check_modulator(modulator)
        if any(map(wrapped, jax.tree.leaves(sequences, is_leaf=wrapped))):
            raise TypeError('`etrace_grad` takes plain sequences: wrap the data inside `step_fn`.')
        if loss_output not in ('per_step', 'masked', 'scalar'):
            raise ValueError(
                f"`loss_output` must be 'per_step', 'masked' or 'scalar', got {loss_output!r}."
            )
        if weights is not None and not (
            isinstance(weights, Mapping)
            and all(isinstance(s, brainstate.State) for s in weights.values())
        ):
            raise TypeError(f'`weights` must be a dict of states, got {type(weights).__name__}.')
        length = sequence_length(sequences)
        weights = self.param_states if weights is None else weights
        if chunk_size is not None and not (chunk_size == 1 and not isinstance(chunk_size, bool)):
            grads, losses, aux = self._by_chunks(
                sequences, length, step_fn, mask, chunk_size, weights, reduction, has_aux
            )
        else:
            grads, losses, aux = self._by_blocks(
                sequences,
                length,
                step_fn,
                mask,
                weights,
                reduction,
                has_aux,
                window,
                fresh,
                progress,
                modulator,
            )
        value = losses
        if loss_output != 'per_step':
            weight, full = weigh(mask, losses.shape, losses.dtype, reduction)
            value = losses * full if loss_output == 'masked' else (losses * weight).sum()
        found = (grads, *([value] if return_value else []), *([aux] if has_aux else []))
        return found if len(found) > 1 else grads

    def _by_blocks(
        self,
        sequences,
        length,
        step_fn,
        mask,
        weights,
        reduction,
        has_aux,
        window,
        fresh,
        progress,
        modulator,
    ):
        settings, moving = frontend.surroundings()
        info, executor, tree = self._driver(step_fn, settings, moving, sequences, has_aux)
        loss = executor.program.step.outs[0]
        params, carried = self._take(info, executor)
        steps = window_length(window, length, executor, self.rule.name == 'bptt', self._budget)

        def run(params, carried, inputs, mask, extra):
            weight, _ = weigh(mask, (length, *loss.aval.shape), loss.aval.dtype, reduction)
            return executor.grad(
                params, carried, inputs, [weight], length, steps, fresh, progress, extra
            )

        key = executor, length, steps, reduction, fresh, progress
        if key not in self._own.jitted:
            self._own.jitted[key] = jax.jit(run)
        inputs, extra = _over_time(moving, sequences, length), self._extra(modulator, length, steps)
        grads, outs, after = self._own.jitted[key](params, carried, inputs, mask, extra)
        self._give(info, after, traces=not fresh)
        return (
            self._by_weight(info, grads, weights),
            outs[0],
            tree.unflatten(outs)[1] if has_aux else None,
        )

    def _by_weight(self, info: ModuleInfo, grads: list, weights: Mapping) -> dict:
        rest = iter(grads)
        of = {
            id(s): jax.tree.map(lambda _: next(rest), s.value)
            for s in info.compiled_model_states
            if frontend._role(s) == 'param'
        }
        return {
            k: of[id(s)] if id(s) in of else jax.tree.map(jnp.zeros_like, s.value)
            for k, s in weights.items()
        }

    def _driver(
        self, step_fn: Callable, settings: tuple, moving: dict, sequences: tuple, has_aux: bool
    ) -> tuple[ModuleInfo, Executor, Any]:
        """The program of one step of the user's function, loss included, for sequences like these."""
        key = (
            _identity(step_fn),
            self._shapes(settings, (moving, *_of_one_step(sequences))),
            has_aux,
        )
        if key not in self._own.jitted:
            slices = moving, *jax.tree.map(lambda a: a[0], sequences)
            calls: list = []
            self._own.calls = calls
            try:
                info, executor = self._build(
                    frontend.within(lambda *a: self._one_loss(step_fn(*a), has_aux)),
                    slices,
                    (0,),
                    False,
                )
            finally:
                self._own.calls = None
            if len(calls) != 1:
                raise ValueError(
                    f'`step_fn` must call the learner once in each step, it did so {len(calls)} times.'
                )
            made = info, executor, info.out_tree
            if any(isinstance(c, jax.core.Tracer) for c in executor.program.step.jaxpr.consts):
                return made  # it belongs to the surrounding trace and must not outlive it
            self._own.jitted[key] = made
        return self._own.jitted[key]

    @staticmethod
    def _one_loss(result: Any, has_aux: bool) -> Any:
        loss, aux = result if has_aux else (result, None)
        if jnp.ndim(loss) > 1:
            raise ValueError(
                f'`step_fn` must return a scalar loss, or one for each sample, got shape {jnp.shape(loss)}.'
            )
        return loss, aux

    def _by_chunks(self, sequences, length, step_fn, mask, chunk, weights, reduction, has_aux):
        if isinstance(chunk, bool) or not isinstance(chunk, int):
            raise TypeError(f'`chunk_size` must be an int, got {chunk!r}.')
        if chunk < 1 or length % chunk:
            raise ValueError(
                f'`chunk_size` must be at least 1 and divide the length {length}, got {chunk}.'
            )
        if self._single_step:
            raise ValueError(
                "`chunk_size` needs a learner with vjp_method='multi-step'. For blocks of the classical rule use `window`."
            )
        weight, _ = weigh(mask, (length,), jnp.result_type(float), reduction)
        cut = jax.tree.map(
            lambda a: jnp.reshape(a, (length // chunk, chunk, *jnp.shape(a)[1:])),
            (sequences, weight),
        )

        def one(_, slices):
            data, weight = slices

            def objective():
                losses, aux = self._losses(step_fn(*data), has_aux, chunk)
                return (losses * weight).sum(), (losses, aux)

            grads, extra = brainstate.transform.grad(objective, weights, has_aux=True)()
            return _, (grads, extra)

        _, (grads, (losses, aux)) = brainstate.transform.scan(one, jnp.zeros(()), cut)
        flat = lambda a: a.reshape(length, *a.shape[2:])
        return jax.tree.map(lambda g: g.sum(0), grads), flat(losses), aux

    @staticmethod
    def _losses(result: Any, has_aux: bool, chunk: int) -> Any:
        losses, aux = result if has_aux else (result, jnp.zeros(()))
        if jnp.shape(losses) != (chunk,):
            raise ValueError(
                f'With chunk_size={chunk} `step_fn` must return a loss for each step, shape ({chunk},), got {jnp.shape(losses)}.'
            )
        return losses, aux

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
    ) -> Any:
        """Learn while the sequence goes by: a gradient, and `update(grads)` on the weights, in each step, each window, or once at the end.

        Args:
            sequences, step_fn, mask, modulator, reduction, window: as in `etrace_grad`, for the steps between two updates.
            update: writes the weights, for instance `optimizer.update`.
            schedule: 'per_step', 'window' or 'sequence_end'; by default that of the learner's configuration, or 'per_step'.
            window_size: the steps between two updates for 'window'.
            progress: show a progress bar.

        Returns:
            The loss of each step.
        """
        config = self.config
        schedule = schedule or (config.update_schedule if config is not None else 'per_step')
        if schedule not in ('per_step', 'window', 'sequence_end'):
            raise ValueError(
                f"`schedule` must be 'per_step', 'window' or 'sequence_end', got {schedule!r}."
            )
        length = sequence_length(sequences)
        if mask is not None and jnp.shape(mask)[:1] != (length,):
            raise ValueError(
                f'`mask` has shape {jnp.shape(mask)}, but the sequence has {length} steps.'
            )
        size: Any = window_size or (config.window_size if config is not None else None)
        if schedule == 'window' and (
            isinstance(size, bool) or not isinstance(size, int) or size < 1
        ):
            raise ValueError(
                f"`window_size` must be the number of steps between two updates for schedule='window', got {size!r}."
            )
        steps: int = (
            1
            if schedule == 'per_step'
            else length
            if schedule == 'sequence_end'
            else min(size, length)
        )

        def one(part):
            slices, mask, modulator = part
            grads, losses = self.etrace_grad(
                *slices,
                step_fn=step_fn,
                mask=mask,
                modulator=modulator,
                reduction=reduction,
                window=window,
                return_value=True,
            )
            update(grads)
            if progress:
                advance(len(losses), length)
            return losses

        whole, data = length // steps, (sequences, mask, per_step(modulator, length))
        losses = brainstate.transform.for_loop(
            one,
            jax.tree.map(
                lambda a: jnp.reshape(a[: whole * steps], (whole, steps, *jnp.shape(a)[1:])), data
            ),
        )
        losses = losses.reshape(whole * steps, *losses.shape[2:])
        return (
            losses
            if whole * steps == length
            else jnp.concatenate([losses, one(jax.tree.map(lambda a: a[whole * steps :], data))])
        )

    def etrace_stream(
        self, *, step_fn: Callable, update: Callable, has_aux: bool = False
    ) -> Callable:
        """Learn from data as they come: a function for one step, in one compiled call the step, its gradient and `update(grads)` on the weights.

        The same as `etrace_learn` on sequences of one step, with next to nothing spent in Python. What `step_fn` and `update` name is taken in at the first
        call, as by `jit`.

        Args:
            step_fn: `step_fn(*data) -> loss`, or `(loss, aux)`; it calls the learner once.
            update: writes the weights, for instance `optimizer.update`.
            has_aux: `step_fn` returns `(loss, aux)`.

        Returns:
            `live(*data, modulator=None) -> loss`, or `(loss, aux)`.

        Example:
            >>> import brainstate, jax.numpy as jnp, braintrace
            >>> net = brainstate.nn.Sequential(brainstate.nn.ValinaRNNCell(2, 4), brainstate.nn.Linear(4, 1))
            >>> learner = braintrace.compile(net, 'd_rtrl', jnp.ones((1, 2)), batch_size=1)
            >>> def update(grads):
            ...     for k, state in learner.param_states.items():
            ...         state.value = jax.tree.map(lambda w, g: w - 0.1 * g, state.value, grads[k])
            >>> live = learner.etrace_stream(step_fn=lambda x: ((learner(x) - 1) ** 2).mean(), update=update)
            >>> losses = [float(live(jnp.ones((1, 2)))) for _ in range(20)]
            >>> losses[-1] < losses[0]
            True
        """
        self._ready()
        first = lambda tree: jax.tree.map(lambda a: a[0], tree)

        def one(data, modulator):
            data, modulator = jax.tree.map(lambda a: jnp.asarray(a)[None], (data, modulator))
            grads, *found = self.etrace_grad(
                *data, step_fn=step_fn, modulator=modulator, return_value=True, has_aux=has_aux
            )
            update(grads)
            return first(tuple(found) if has_aux else found[0])

        step = Compiled(one, self._in_use)
        return lambda *data, modulator=None: step(data, modulator)

    def etrace_evolve(
        self,
        *sequences: Any,
        step_fn: Callable | None = None,
        chunk_size: int | None = None,
        return_outputs: bool = False,
        window: Any = 'auto',
    ) -> Any:
        """Run over a sequence without a loss: states and traces go on. Gives None, or the stacked outputs."""
        self._ready()
        length = sequence_length(sequences)
        f = step_fn if step_fn is not None else lambda *a: self(*a)  # type: ignore[operator]
        settings, moving = frontend.surroundings()
        info, executor, tree = self._evolver(f, settings, moving, sequences)
        steps = window_length(
            window if chunk_size is None else chunk_size, length, executor, False, self._budget
        )
        params, carried = self._take(info, executor)
        key = 'evolve', executor, length, steps
        if key not in self._own.jitted:
            self._own.jitted[key] = jax.jit(lambda p, c, x: executor.evolve(p, c, x, length, steps))
        outs, carried = self._own.jitted[key](
            params, carried, _over_time(moving, sequences, length)
        )
        self._give(info, carried)
        return tree.unflatten(outs) if return_outputs else None

    def _evolver(
        self, f: Callable, settings: tuple, moving: dict, sequences: tuple
    ) -> tuple[ModuleInfo, Executor, Any]:
        key = 'evolver', _identity(f), self._shapes(settings, (moving, *_of_one_step(sequences)))
        if key not in self._own.jitted:
            slices = moving, *jax.tree.map(lambda a: a[0], sequences)
            self._own.calls = []
            try:
                info, executor = self._build(frontend.within(f), slices, (), False)
            finally:
                self._own.calls = None
            self._own.jitted[key] = info, executor, info.out_tree
        return self._own.jitted[key]


def _of_one_step(sequences: tuple) -> tuple:
    """The shapes of one step's data."""
    return jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(jnp.shape(a)[1:], jnp.result_type(a)), sequences
    )


def _over_time(moving: dict, sequences: tuple, length: int) -> list:
    """The leaves of all inputs with time as first axis; what moves in the surroundings stands still meanwhile."""
    return [jnp.broadcast_to(a, (length, *jnp.shape(a))) for a in jax.tree.leaves(moving)] + [
        jnp.asarray(a) for a in jax.tree.leaves(sequences)
    ]


def _identity(f: Callable) -> Any:
    """What makes two functions the same for a cache: the code and the very objects it names, with the contents of containers among them."""
    code = getattr(f, '__code__', None)
    if code is None:
        return f
    cells = [c.cell_contents for c in f.__closure__ or ()]
    names = [f.__globals__[n] for n in code.co_names if n in f.__globals__]
    parts = [
        code,
        *cells,
        *names,
        *(f.__defaults__ or ()),
        *(f.__kwdefaults__ or {}).values(),
        getattr(f, '__self__', None),
    ]
    inside = [
        v
        for p in parts
        for v in (
            p.values() if isinstance(p, dict) else p if isinstance(p, list | tuple | set) else ()
        )
    ]
    return _Same((*parts, *inside))


class _Same:
    """A tuple of objects, equal when they are the same objects."""

    def __init__(self, parts: tuple):
        self.parts = parts

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Same)
            and len(self.parts) == len(other.parts)
            and all(a is b for a, b in zip(self.parts, other.parts, strict=True))
        )

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.parts)))
