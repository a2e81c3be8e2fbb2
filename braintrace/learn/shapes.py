"""What is said when shapes do not fit together, and how a batch size is found in them."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..step import Leaf
from .core import Core


@contextlib.contextmanager
def explained(
    state: Any, inputs: Sequence[Any], remedy: str, known: Sequence[Any] = ()
) -> Iterator[None]:
    """Inside, a step that fails because of the shapes that it is given says so; one that fails for
    another reason says what it was given.

    Args:
        state: the hidden state.
        inputs: what else the step takes, with the targets of a loss behind.
        remedy: for state and inputs that count different samples.
        known: the state and the inputs that a learner was compiled for.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        names = ['state', *[f'xs[{i}]' if len(known) > 2 else 'xs' for i in range(len(inputs))]]
        for name, given, like in zip(names, (state, *inputs), known, strict=False):
            if not _alike_but_for_samples(given, like):
                raise ValueError(
                    f'`{name}` is {told(given)} in one step, and the learner was compiled for '
                    f'{told(like)}. Only the number of samples may differ.'
                ) from error
        of_state = _leading(state)
        of_others = set[int]().union(
            *[_leading(a) for a in inputs if of_state.isdisjoint(_leading(a))]
        )
        if not of_state or not of_others:
            note = f'The step has {told(inputs)} as inputs and {told(state)} as state.'
            error.add_note(f'{note} If the inputs have a batch: {remedy}' if of_others else note)
            raise
        raise ValueError(
            f'The step fails for {told(inputs)} as inputs and {told(state)} as state: the number '
            f'of samples differs, {_list(of_others)} and {_list(of_state)}. {remedy}'
        ) from error


@contextlib.contextmanager
def explained_loss(out: Any, targets: tuple, name: str = 'loss_fn') -> Iterator[None]:
    """Inside, the loss that is the argument `name` says what it was given in one step if it
    fails."""
    try:
        yield
    except (TypeError, ValueError) as error:
        error.add_note(
            f'`{name}(out, *targets)` was given {told(out)} as `out` and {told(targets)} as '
            '`targets`, which are one step of the sequences behind `xs`.'
        )
        raise


@contextlib.contextmanager
def explained_order(step: Callable, params: Any, state: Any, inputs: tuple) -> Iterator[None]:
    """Inside, a step that fails because of how its arguments were given says so: too few of them,
    state and input exchanged, or a whole sequence in the place of one step."""
    try:
        yield
    except (TypeError, ValueError) as error:
        call = '`compile(step, rule, params, state, *inputs)`'
        if _runs(step, params, state, *inputs):
            raise
        missing = _refused(step, params, state, *inputs)
        if missing:
            raise TypeError(f'{call}: the step cannot be called so, {missing}.') from error
        given = f'the step fails for `state` {told(state)} and the input {told(inputs)}, and runs'
        apart = len(inputs) == 1 and not same_shapes(inputs[0], state)
        if apart and _runs(step, params, inputs[0], state):
            raise ValueError(
                f'{call}: {given} with the two exchanged. The state comes first.'
            ) from error
        leaves = jax.tree.leaves(inputs)
        if leaves and all(map(jnp.ndim, leaves)):
            one = [jax.ShapeDtypeStruct(jnp.shape(a)[1:], jnp.result_type(a)) for a in leaves]
            if _runs(step, params, state, *jax.tree.unflatten(jax.tree.structure(inputs), one)):
                raise ValueError(
                    f'{call}: {given} without the first axis of the input. Inputs are those of one '
                    'step, `xs[0]` of a sequence, for as many samples as the state has.'
                ) from error
        raise


def _refused(step: Callable, *arguments: Any) -> str:
    """Why a function cannot be called with so many arguments; nothing if it can."""
    try:
        inspect.signature(step).bind(*arguments)
    except (TypeError, ValueError) as error:  # the second for functions without a signature
        return str(error) if isinstance(error, TypeError) else ''
    return ''


def _runs(step: Callable, params: Any, state: Any, *inputs: Any) -> bool:
    """Whether a step takes this state and inputs, and gives such a state."""
    try:
        new, _ = jax.eval_shape(lambda state, *xs: step(params, state, *xs), state, *inputs)
        return same_shapes(new, state)
    except Exception:  # whatever a function of the user raises
        return False


def _alike_but_for_samples(given: Any, like: Any) -> bool:
    """Whether two trees differ in the first axis of their arrays at most, which one of them may not
    have."""
    pairs = zip(jax.tree.leaves(given), jax.tree.leaves(like), strict=False)
    shapes = [(jnp.shape(a), jnp.shape(b)) for a, b in pairs]
    return all(a[1:] in (b[1:], b) for a, b in shapes)


@contextlib.contextmanager
def explained_time(sequences: tuple, one_step: Callable[[], list[tuple]]) -> Iterator[None]:
    """Inside, what fails because sequences have no axis of time says so. `one_step()` gives the
    shapes of the inputs of one step."""
    try:
        yield
    except (TypeError, ValueError) as error:
        wanted = one_step()
        given = [jnp.shape(a) for a in jax.tree.leaves(sequences)][: len(wanted)]
        if not wanted or given != wanted:
            raise
        raise ValueError(
            f'The sequences have no time axis: their shapes are those of the inputs of one step, '
            f'{_list_of_shapes(given)}. Time is the first axis of a sequence; one step is a '
            'sequence of length 1, `x[None]`.'
        ) from error


def _list_of_shapes(shapes: Sequence[tuple]) -> str:
    return ', '.join(map(str, shapes))


def _leading(tree: Any) -> set[int]:
    """The first axes of arrays with more than one."""
    return {jnp.shape(a)[0] for a in jax.tree.leaves(tree) if jnp.ndim(a) > 1}


def _list(numbers: set[int]) -> str:
    return ', '.join(map(str, sorted(numbers)))


def told(tree: Any) -> str:
    """The types of all arrays of a tree."""
    leaves = [_type(a) for a in jax.tree.leaves(tree)]
    return ', '.join(leaves) or 'nothing'


def _type(a: Any) -> str:
    return f'{jnp.result_type(a)}{list(jnp.shape(a))}'


def refuse_others(known: Sequence[Any], given: Sequence[Any], names: Sequence[Leaf]) -> None:
    """Refuse parameters of other shapes than those that a learner was compiled for, which have
    these names."""
    if same_shapes(known, given):
        return
    differing = [f'{len(given)} arrays, not {len(known)}']
    if len(known) == len(given):
        triples = zip(names, known, given, strict=True)
        differing = [
            f'{leaf.name} is {told(b)}, not {told(a)}'
            for leaf, a, b in triples
            if jnp.shape(a) != jnp.shape(b)
        ]
    raise ValueError(
        f'`params` is not like those that the learner was compiled for: {"; ".join(differing)}. '
        'Compile a learner for this model.'
    )


def same_shapes(a: Any, b: Any) -> bool:
    """Whether the arrays of two trees have the same shapes. The trees themselves need not know when
    they are equal (`eqx.nn.State` does not)."""
    return [jnp.shape(v) for v in jax.tree.leaves(a)] == [jnp.shape(v) for v in jax.tree.leaves(b)]


def batch_of(old: Any, new: Any) -> tuple[int, int] | None:
    """How many axes a state has more than the example, 0 or 1, and its number of samples, if it is
    the example's with another number of samples; else None."""
    a, b = jax.tree.leaves(old), jax.tree.leaves(new)
    batches = set()
    for x, y in zip(a, b, strict=True):
        more = jnp.ndim(y) - jnp.ndim(x)
        if jnp.shape(x) == jnp.shape(y):
            continue
        rest = jnp.shape(x) if more else jnp.shape(x)[1:]
        if more not in (0, 1) or jnp.shape(y)[1:] != rest:
            return None
        batches.add((more, jnp.shape(y)[0]))
    return batches.pop() if len(batches) == 1 else None


def with_batch(inputs: Any, more: int, size: int, counts_samples: Sequence[bool]) -> Any:
    """Inputs of one step with this number of samples: on an axis of its own if `more`, else on the
    first axis of those that count samples there."""
    leaves, tree = jax.tree.flatten(inputs)

    def one(a: Any, counts: bool) -> jax.ShapeDtypeStruct:
        rest = jnp.shape(a) if more else jnp.shape(a)[1:]
        shape = (size, *rest) if counts or more else jnp.shape(a)
        return jax.ShapeDtypeStruct(shape, jnp.result_type(a))

    made = [one(*of) for of in zip(leaves, counts_samples, strict=True)]
    return jax.tree.unflatten(tree, made)


def inputs_for(state: Any, known: Any, inputs: tuple, core: Callable[[], Core]) -> tuple:
    """The shapes of one step's inputs for a state, which may have another number of samples than
    the `known` one that goes with `inputs` and `core`."""
    structures: list[Any] = [jax.tree.structure(tree) for tree in (state, known)]
    if structures[0] != structures[1]:
        raise ValueError(
            f'`state` has the structure {structures[0]}, and the learner was compiled for '
            f'{structures[1]}.'
        )
    if same_shapes(state, known):
        return inputs
    batch = batch_of(known, state)
    if batch is None:
        raise ValueError(
            f'`state` is {told(state)}, and the learner was compiled for {told(known)}. Only the '
            'number of samples may differ: compile a learner for this state.'
        )
    axes = core().samples.axes
    counted = [axes.get(v) == 0 for v in core().program.step.input_vars]
    return with_batch(inputs, *batch, counted)


def check_time(inputs: tuple, state: Any, known_inputs: tuple, known_state: Any) -> None:
    """Refuse sequences without an axis of time, by what one step of the example takes."""
    states = zip(jax.tree.leaves(state), jax.tree.leaves(known_state), strict=False)
    more = max([jnp.ndim(a) - jnp.ndim(b) for a, b in states], default=0)
    leaves, known = jax.tree.leaves(inputs), jax.tree.leaves(known_inputs)
    for a, b in zip(leaves, known, strict=False):
        if jnp.ndim(a) - 1 != jnp.ndim(b) + more:
            raise ValueError(
                f'`xs` has no time axis, or one too many: an array is {told(a)}, and one step '
                f'takes {told(b)}. Time is the first axis of a sequence.'
            )
