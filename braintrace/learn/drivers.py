"""A learner over whole sequences: the user's step, loss included, is compiled as one program and
run in blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..frontends.base import PARAM
from .call import call
from .data import MultiStepData, first_step, is_wrapped, over_steps
from .locating import refuse, refuse_losses
from .options import (
    check_loss,
    first_of,
    masked_losses,
    per_step,
    refuse_bad_mask,
    refuse_constant,
    sequence_length,
    shapes_of_one_step,
    split_aux,
    spread_mask,
    unread,
    weigh,
)
from .progress import advance
from .records import Block, Run, Weights
from .stateful import (
    CompiledModel,
    Learning,
    build,
    compile_step,
    driving,
    give,
    take,
    weights_of,
)

# ---- one call ----


def update(learning: Learning, args: tuple, modulator: Any) -> Any:
    """One step, or a window of steps given as `MultiStepData`."""
    compiled = compile_step(learning, first_step(args))
    core, model = compiled.core, compiled.traced
    several = [x.data for x in args if isinstance(x, MultiStepData)]
    length = sequence_length(several) if several else 1
    moving = learning.framework.surroundings().moving
    inputs = [leaf for x in (moving, *args) for leaf in over_steps(x, length)]
    if modulator is not None and not several:
        modulator = jax.tree.map(lambda m: jnp.asarray(m)[None], modulator)
    extra = learning.extra(modulator, length, length)

    def make() -> Callable:
        def run(weights, carried, inputs, extra):
            return call(core, Weights(*weights), carried, inputs, length, extra)

        return jax.jit(run)

    jitted = learning.own.cache.get(('call', core, length), make, lambda _: compiled.lasting)
    weights, before = weights_of(compiled), take(learning, compiled)
    outs, carried = jitted(weights, before, inputs, extra)
    refuse(core, before, Block(weights, inputs, length), carried)
    give(learning, compiled, carried)
    return model.out_tree.unflatten(outs if several else [a[0] for a in outs])


# ---- gradients over a sequence ----


class Asked(NamedTuple):
    """What a user asks of a gradient: see `SequenceDriverMixin.etrace_grad`."""

    step_fn: Callable
    mask: Any = None
    reduction: str = 'mean'
    has_aux: bool = False
    window: Any = 'auto'
    fresh: bool = False
    progress: bool = False
    modulator: Any = None


class Answer(NamedTuple):
    """Gradients of the weights that were asked for, the losses of the steps, and the aux."""

    grads: Any
    losses: jax.Array
    aux: Any


def grad(learning: Learning, sequences: tuple, weights: Mapping, asked: Asked) -> Answer:
    """The online gradient of the loss that `asked.step_fn` gives at each step, block by block."""
    _refuse_wrapped(sequences)
    refuse_bad_mask(asked.mask)
    learning.how.rule.check_modulator(asked.modulator)
    length = sequence_length(sequences)
    compiled = _of_loss(learning, sequences, asked)
    _refuse_strangers(learning, compiled, weights)
    core = compiled.core
    loss = core.program.step.outs[0].aval
    steps = core.sizes.window_length(asked.window, length)
    run = Run(length, steps, asked.fresh, asked.progress)

    def make() -> Callable:
        def gradient(weights, carried, inputs, mask, extra):
            given, mask = mask, spread_mask(mask, (length, *loss.shape), loss.dtype)
            inputs = unread(inputs, given)
            cotangents = [weigh(mask, asked.reduction)]
            return core.grad(Weights(*weights), carried, inputs, cotangents, run, extra)

        return jax.jit(gradient)

    key = 'grad', core, run, asked.reduction
    jitted = learning.own.cache.get(key, make, lambda _: compiled.lasting)
    inputs = _over_time(learning, sequences, length)
    extra = learning.extra(asked.modulator, length, steps)
    weights_now, carried = weights_of(compiled), take(learning, compiled)
    grads, outs, after = jitted(weights_now, carried, inputs, asked.mask, extra)
    block = Block(weights_now, inputs, length, outs[:1], extra, asked.fresh)
    refuse_losses(core, carried, block, after)
    give(learning, compiled, after, with_traces=not asked.fresh)
    aux = compiled.traced.out_tree.unflatten(outs)[1] if asked.has_aux else None
    return Answer(_by_weight(learning, compiled, grads, weights), outs[0], aux)


def _of_loss(learning: Learning, sequences: tuple, asked: Asked) -> CompiledModel:
    """The program of one step of the user's function, loss included, for sequences like these."""
    settings, moving = learning.framework.surroundings()
    shapes = shapes_of_one_step(sequences)
    key = 'loss', asked.step_fn, asked.has_aux, learning.own_key(settings, (moving, shapes))

    def make() -> CompiledModel:
        def step(*data):
            return _one_loss(asked.step_fn(*data), asked.has_aux)

        learning.own.cache.count(asked.step_fn, 'step_fn')
        with driving(learning) as here:

            def counted(*data):
                here.calls = 0  # a step may be traced again
                return step(*data)

            compiled = build(learning, counted, moving, first_of(sequences), graded=(0,))
        if here.calls != 1:
            raise ValueError(
                f'`step_fn` must call the learner once in each step, it did so {here.calls} times.'
            )
        if not learning.how.rule.modulated:
            refuse_constant('step_fn', compiled.core)
        return compiled

    return learning.program(key, make)


def loss_type(learning: Learning, sequences: tuple, asked: Asked) -> Any:
    """The shape and dtype of the loss of one step."""
    loss = _of_loss(learning, sequences, asked).core.program.step.outs[0].aval
    return jax.ShapeDtypeStruct(loss.shape, loss.dtype)


def _one_loss(result: Any, has_aux: bool) -> Any:
    loss, aux = split_aux(result, has_aux)
    check_loss('step_fn', loss)
    return loss, aux


def _refuse_strangers(learning: Learning, compiled: CompiledModel, weights: Mapping) -> None:
    """Refuse states that neither the model nor the step has as a parameter."""
    met = {id(h.holder) for h in compiled.traced.of_role(PARAM)}
    for key, s in weights.items():
        if id(s) in met:
            continue
        own = any(s is mine for mine in learning.held().states.values())
        if not own or learning.framework.role(s) != PARAM:
            raise ValueError(
                f'`weights`: the state under {key!r} is no parameter of the model, nor of what '
                '`step_fn` calls, so it has no gradient. Take them from `learner.param_states`.'
            )


def _by_weight(
    learning: Learning, compiled: CompiledModel, grads: list[Any], weights: Mapping
) -> Any:
    """Gradients of the parameters in the form of the framework; zero for a parameter that the step
    does not meet."""
    framework, of_role = learning.framework, compiled.traced.of_role(PARAM)
    values = compiled.traced.values(PARAM, grads)
    of = {id(h.holder): value for h, value in zip(of_role, values, strict=True)}
    by_key = {
        key: of[id(s)] if id(s) in of else jax.tree.map(jnp.zeros_like, framework.read(s))
        for key, s in weights.items()
    }
    return framework.gradients(weights, by_key)


def _over_time(learning: Learning, sequences: tuple, length: int) -> list[Any]:
    """The leaves of all inputs with time as first axis; what moves in the surroundings stands still
    meanwhile."""
    moving = jax.tree.leaves(learning.framework.surroundings().moving)
    still = [jnp.broadcast_to(a, (length, *jnp.shape(a))) for a in moving]
    return still + [jnp.asarray(a) for a in jax.tree.leaves(sequences)]


def _refuse_wrapped(sequences: tuple) -> None:
    if any(map(is_wrapped, jax.tree.leaves(sequences, is_leaf=is_wrapped))):
        raise TypeError('`etrace_grad` takes plain sequences: wrap the data inside `step_fn`.')


def grad_by_chunks(
    learning: Learning, sequences: tuple, chunk: int, weights: Mapping, asked: Asked
) -> Answer:
    """The sum of ordinary gradients of a learner that is called on chunks of the sequence."""
    _refuse_wrapped(sequences)
    length = sequence_length(sequences)
    if isinstance(chunk, bool) or not hasattr(chunk, '__index__'):
        raise TypeError(f'`chunk_size` must be an int, got {chunk!r}.')
    if chunk < 1 or length % chunk:
        raise ValueError(
            f'`chunk_size` must be at least 1 and divide the length {length}, got {chunk}.'
        )
    if learning.how.single_step:
        raise ValueError(
            "`chunk_size` needs a learner with vjp_method='multi-step'. For blocks of the "
            'classical rule use `window`.'
        )
    mask = spread_mask(asked.mask, (length,), jnp.result_type(float))

    def one(part):
        data, weight = part

        def objective():
            losses, aux = _losses(asked.step_fn(*data), asked.has_aux, chunk)
            return masked_losses(losses, weight).sum(), (losses, aux)

        return learning.framework.grad(objective, weights)()

    leaves, tree = jax.tree.flatten(sequences)
    sequences = jax.tree.unflatten(tree, unread(leaves, asked.mask))
    parts = _cut((sequences, weigh(mask, asked.reduction)), length // chunk, chunk)
    grads, (losses, aux) = learning.framework.loop(one, parts)
    total = jax.tree.map(lambda g: g.sum(0), grads)
    return Answer(total, losses.reshape(length, *losses.shape[2:]), aux)


def _losses(result: Any, has_aux: bool, chunk: int) -> tuple[Any, Any]:
    losses, aux = split_aux(result, has_aux)
    aux = aux if has_aux else jnp.zeros(())
    if jnp.shape(losses) != (chunk,):
        raise ValueError(
            f'With chunk_size={chunk} `step_fn` must return a loss for each step, shape '
            f'({chunk},), got {jnp.shape(losses)}.'
        )
    return losses, aux


def _cut(tree: Any, parts: int, steps: int) -> Any:
    """The first `parts * steps` entries of every leaf, as parts of so many steps."""

    def one(a):
        return jnp.reshape(a[: parts * steps], (parts, steps, *jnp.shape(a)[1:]))

    return jax.tree.map(one, tree)


# ---- learning while the data go by ----


def learn(
    learning: Learning,
    sequences: tuple,
    weights: Mapping,
    asked: Asked,
    update_weights: Callable,
    steps: int,
) -> jax.Array:
    """A gradient, and `update_weights(grads)`, after every `steps` steps; the loss of each step."""
    length = sequence_length(sequences)
    refuse_bad_mask(asked.mask)
    if asked.mask is not None and jnp.shape(asked.mask)[:1] != (length,):
        raise ValueError(
            f'`mask` has shape {jnp.shape(asked.mask)}, but the sequence has {length} steps.'
        )

    def one(part):
        slices, mask, modulator = part
        here = asked._replace(mask=mask, modulator=modulator, progress=False)
        grads, losses, _ = grad(learning, slices, weights, here)
        update_weights(grads)
        if asked.progress:
            advance(len(losses), length)
        return losses

    whole, data = length // steps, (sequences, asked.mask, per_step(asked.modulator, length))
    losses = learning.framework.loop(one, _cut(data, whole, steps))
    losses = losses.reshape(whole * steps, *losses.shape[2:])
    if whole * steps == length:
        return losses
    rest = one(jax.tree.map(lambda a: a[whole * steps :], data))
    return jnp.concatenate([losses, rest])


def stream(
    learning: Learning, weights: Mapping, asked: Asked, update_weights: Callable
) -> Callable:
    """`live(data, modulator)`: one step, its gradient and `update_weights(grads)` in one compiled
    call."""

    def one(data, modulator):
        data, modulator = jax.tree.map(lambda a: jnp.asarray(a)[None], (data, modulator))
        grads, losses, aux = grad(learning, data, weights, asked._replace(modulator=modulator))
        update_weights(grads)
        return first_of((losses, aux) if asked.has_aux else losses)

    return learning.framework.compiled(one, learning.watch())


# ---- running without a loss ----


def evolve(learning: Learning, sequences: tuple, step_fn: Callable | None, window: Any) -> Any:
    """States and traces go on over a sequence; the stacked outputs."""
    length = sequence_length(sequences)
    compiled = _of_evolution(learning, sequences, step_fn)
    core = compiled.core
    run = Run(length, core.sizes.window_length(window, length))

    def make() -> Callable:
        def go_on(weights, carried, inputs):
            return core.evolve(Weights(*weights), carried, inputs, run)

        return jax.jit(go_on)

    jitted = learning.own.cache.get(('evolve', core, run), make, lambda _: compiled.lasting)
    inputs = _over_time(learning, sequences, length)
    weights, before = weights_of(compiled), take(learning, compiled)
    outs, carried = jitted(weights, before, inputs)
    refuse(core, before, Block(weights, inputs, length), carried)
    give(learning, compiled, carried)
    return compiled.traced.out_tree.unflatten(outs)


def _of_evolution(learning: Learning, sequences: tuple, step_fn: Callable | None) -> CompiledModel:
    """The program of one step without a loss, of the user's function or of the model."""
    settings, moving = learning.framework.surroundings()
    shapes = shapes_of_one_step(sequences)
    key = 'evolution', step_fn, learning.own_key(settings, (moving, shapes))

    def make() -> CompiledModel:
        f = learning.step if step_fn is None else step_fn
        with driving(learning):
            return build(learning, f, moving, first_of(sequences), graded=())

    return learning.program(key, make)
