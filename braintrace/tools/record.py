"""What a learner does, step by step, as curves: traces, credit, gradients and weights over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..errors import NotSupportedError
from ..learn.core import Core
from ..learn.options import check_loss, first_of, per_step, sequence_length
from ..learn.records import Carried, Weights
from ..learn.shapes import explained_loss
from ..learn.stateful import weights_of
from ..learn.watching import Seen, watch_step
from ..rules.signals import Extra
from ..shells.drivers import SequenceDriverMixin
from ..shells.function import PureLearner
from ..shells.packing import unpack
from ..show.recording import Recording, small_image


def record(
    learner: Any,
    xs: Any,
    *targets: Any,
    loss: Callable,
    params: Any = None,
    carry: Any = None,
    update: Any = None,
    elements: Mapping[str, Any] | None = None,
    modulator: Any = None,
) -> Recording:
    """How traces, credit, gradients and weights move while a learner goes over a sequence.

    Steps are made one at a time, in windows of one step. Nothing is left behind: the learner, its
    model and `carry` are as before.

    Args:
        learner: of a plain function or of a module, compiled.
        xs: the inputs, with time as first axis; a tuple if the step takes several.
        targets: further sequences, given to `loss`.
        loss: `loss(out, *target)`, a number, or one for each sample, of which the mean is taken.
        params, carry: of a plain learner, as for `grad`.
        update: changes the weights after every step: a function `(params, grads) -> params` of
            dicts of arrays by name, or an optimiser of optax. None: they stay.
        elements: by name of a trace, a parameter or a hidden state (there it is its credit), an
            index or a list of indices: single elements that are recorded too.
        modulator: for rules that take one, as for `grad`.

    Returns:
        A `Recording`; `plot()` draws it, `animate()` shows the traces as they change.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> def leaky(p, h, x):
        ...     h = 0.9 * h + x @ p['W']
        ...     return h, h
        >>> params, h = {'W': jnp.ones((3, 2))}, jnp.zeros(2)
        >>> learner = braintrace.compile(leaky, 'd_rtrl', params, h, jnp.ones(3))
        >>> seen = braintrace.record(
        ...     learner, jnp.ones((20, 3)), params=params, carry=learner.init(params, h),
        ...     loss=lambda out: (out**2).mean(), elements={'W->state': (0, 0, 1)},
        ... )
        >>> seen.losses.shape, list(seen.traces), list(seen.elements)
        ((20,), ['W->state'], ['W->state[0, 0, 1]'])
        >>> [round(float(e), 2) for e in seen.elements['W->state[0, 0, 1]'][:3]]
        [1.0, 1.9, 2.71]
    """
    subject = _subject_of(learner, params, carry)
    length = sequence_length((xs, *targets))
    xs = _as_the_step_takes_them(subject, xs)
    learner.rule.check_modulator(modulator)
    chosen = _Chosen(subject.core, elements or {})
    begin, change = _updating(update)
    recorder = _Recorder(subject, loss, change, chosen)
    sequences = jax.tree.map(jnp.asarray, (xs, targets, per_step(modulator, length)))
    _check_loss(learner, subject, loss, first_of(sequences[1]))
    start = recorder.first, begin(recorder.first), subject.carried

    @jax.jit
    def run(start: tuple, sequences: tuple) -> Recording:
        return jax.lax.scan(recorder.step, start, sequences)[1]

    return jax.device_get(run(start, sequences))


_CALLS = (
    '`record`: `loss` calls the learner. It gets the output of a step and its targets, '
    '`loss(out, *targets)`, and computes from these; the function that calls the learner is the '
    '`step_fn` of `etrace_grad`.'
)


class _Subject(NamedTuple):
    """A learner as its core: what it holds, the tree of the outputs of a step, and the leaves of
    inputs that stand still (what a model reads from its surroundings)."""

    core: Core
    weights: Weights
    carried: Carried
    out_tree: Any
    still: list[Any]


class _Recorder:
    """Makes steps of a learner and records what is seen; `first` are the parameters by name, as
    they are at the beginning."""

    def __init__(self, subject: _Subject, loss: Callable, change: Callable, chosen: _Chosen):
        self._subject, self._loss, self._change, self._chosen = subject, loss, change, chosen
        self._names = [leaf.name or 'params' for leaf in subject.core.program.step.params]
        self.first = dict(zip(self._names, subject.weights.params, strict=True))

    def step(self, held: tuple, now: tuple) -> tuple[tuple, Recording]:
        """`(params, memory of the update, carried)` after a step, and what was seen in it."""
        params, memory, carried = held
        seen = self._watched(params, carried, *now)
        grads = dict(zip(self._names, seen.grads, strict=True))
        params, memory = self._change(params, grads, memory)
        hidden = self._subject.core.program.step.hidden
        credit = {hidden[i].name or 'state': c for i, c in seen.credit.items()}
        traces = {str(key): e for key, e in seen.carried.traces.items() if _is_inexact(e)}
        told = Recording(
            losses=seen.loss,
            traces=_norms(traces),
            credit=_norms(credit),
            gradients=_norms(grads),
            weights=_norms(params),
            moved=_norms({name: p - self.first[name] for name, p in params.items()}),
            elements=self._chosen.of({**credit, **params, **traces}),
            images={name: small_image(e) for name, e in traces.items()},
        )
        return (params, memory, seen.carried), told

    def _watched(
        self, params: dict, carried: Carried, inputs: Any, target: Any, modulator: Any
    ) -> Seen:
        subject = self._subject

        def loss_of(outs: list[Any]) -> Any:
            return jnp.mean(self._loss(subject.out_tree.unflatten(outs), *target))

        weights = Weights(subject.weights.captured, [params[name] for name in self._names])
        given = Extra(None, jax.tree.map(lambda m: m[None], modulator))
        leaves = [*subject.still, *jax.tree.leaves(inputs)]
        return watch_step(subject.core, weights, carried, leaves, loss_of, given)


def _subject_of(learner: Any, params: Any, carry: Any) -> _Subject:
    if isinstance(learner, PureLearner):
        if params is None or carry is None:
            raise TypeError(
                '`record`: a learner of a plain function holds no values. Pass `params` and '
                '`carry`, from `learner.init(params, state)`.'
            )
        plain = learner.compiled_step()
        weights, carried = plain.weights(learner.leaves_of(params)), unpack(plain, carry)
        return _Subject(plain.core, weights, carried, plain.traced.out_tree, [])
    if not isinstance(learner, SequenceDriverMixin):
        raise NotSupportedError(
            f'`record` takes a learner of `braintrace.compile`, got {type(learner).__name__}.'
        )
    if params is not None or carry is not None:
        raise TypeError(
            '`record`: a learner of a module holds its parameters and states. Leave `params` and '
            '`carry` away.'
        )
    compiled = learner.compiled_step()
    carried, still = learner.values_now()
    return _Subject(compiled.core, weights_of(compiled), carried, compiled.traced.out_tree, still)


def _check_loss(learner: Any, subject: _Subject, loss: Callable, targets: tuple) -> None:
    """Refuse what is no loss of the outputs and targets of one step."""
    if not callable(loss):
        raise TypeError(f'`loss` must be a function, got {type(loss).__name__}.')
    avals = [v.aval for v in subject.core.program.step.outs]
    out = subject.out_tree.unflatten([jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals])
    holds = isinstance(learner, SequenceDriverMixin)
    trying = learner.uncalled(_CALLS) if holds else nullcontext()
    with explained_loss(out, targets, 'loss'), trying:
        made = jax.eval_shape(loss, out, *targets)
    if len(jax.tree.leaves(made)) != 1:
        raise TypeError(f'`loss` must return the loss alone, got a {type(made).__name__}.')
    check_loss('loss', *jax.tree.leaves(made))


def _as_the_step_takes_them(subject: _Subject, xs: Any) -> Any:
    """The sequences, in the types that the step was compiled for; refused if shapes differ."""
    wanted = [v.aval for v in subject.core.program.step.input_vars][len(subject.still) :]
    leaves, tree = jax.tree.flatten(xs)
    got, needed = [jnp.shape(x) for x in leaves], [a.shape for a in wanted]
    if [shape[1:] for shape in got] != needed:
        raise ValueError(
            f'`xs` has the shapes {got}: the step takes {needed}, and time is one more axis in '
            'front of that.'
        )
    return jax.tree.unflatten(
        tree, [jnp.asarray(x, a.dtype) for x, a in zip(leaves, wanted, strict=True)]
    )


def _updating(update: Any) -> tuple[Callable, Callable]:
    """What an update keeps at the beginning, and `(params, grads, kept) -> (params, kept)`."""
    if update is None:
        return (lambda params: ()), (lambda params, grads, kept: (params, kept))
    if hasattr(update, 'init') and hasattr(update, 'update'):

        def by_optimiser(params: dict, grads: dict, kept: Any) -> tuple[dict, Any]:
            moves, kept = update.update(grads, kept, params)
            return jax.tree.map(jnp.add, params, moves), kept

        return update.init, by_optimiser
    return (lambda params: ()), (lambda params, grads, kept: (update(params, grads), kept))


def _norms(arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {name: jnp.sqrt((jnp.abs(a) ** 2).sum()) for name, a in arrays.items()}


def _is_inexact(a: Any) -> bool:
    return jnp.issubdtype(a.dtype, jnp.inexact)


class _Chosen:
    """The elements that a user wants to see, checked."""

    def __init__(self, core: Core, elements: Mapping[str, Any]):
        step = core.program.step
        states = zip(step.hidden, step.hidden_vars, strict=True)
        params = zip(step.params, step.param_vars, strict=True)
        shapes = {leaf.name or 'state': v.aval.shape for leaf, v in states}
        shapes |= {leaf.name or 'params': v.aval.shape for leaf, v in params}
        shapes |= {str(key): e.shape for key, e in core.shapes.items() if _is_inexact(e)}
        self.indices: dict[str, list[tuple[int, ...]]] = {}
        for name, given in elements.items():
            if name not in shapes:
                known = ', '.join(shapes)
                raise ValueError(f'`elements`: there is no {name!r}. Known are {known}.')
            self.indices[name] = [_index(name, i, shapes[name]) for i in _listed(given)]

    def of(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        return {
            f'{name}[{", ".join(map(str, index))}]': arrays[name][index]
            for name, indices in self.indices.items()
            for index in indices
        }


def _listed(given: Any) -> Sequence[Any]:
    return given if isinstance(given, list) else [given]


def _index(name: str, given: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    index = tuple(given) if isinstance(given, tuple) else (given,)
    fits = len(index) == len(shape) and all(-n <= i < n for i, n in zip(index, shape, strict=True))
    if not fits:
        raise ValueError(f'`elements`: {given} is no index of {name}, which has shape {shape}.')
    return index
