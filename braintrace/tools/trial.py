"""The gradient of a model over a sequence, in one way for plain functions and for modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ..errors import NotSupportedError
from ..frontends.base import framework_of
from ..learn.choice import is_auto
from ..shells.entry import compile


class Data(NamedTuple):
    """A sequence of `length` steps: its inputs and targets, time first, and the loss of a step."""

    inputs: tuple
    targets: tuple
    loss: Callable
    length: int


class Trial(Protocol):
    """A model whose gradient is computed again and again from the same start."""

    inputs: tuple  # example inputs of one step

    def learner(self, rule: str, options: dict[str, Any]) -> Any:
        """A new learner of this rule."""

    def grad(self, learner: Any, data: Data, window: Any) -> Any:
        """The gradients of the mean loss by the parameters, in their tree."""

    def restore(self) -> None:
        """Leave the model as it was."""


class FunctionTrial:
    """A plain function `step(params, state, *inputs)`; `example` are its arguments."""

    def __init__(self, step: Callable, example: tuple):
        self._step, self._example = step, example
        self.inputs = example[2:]

    def learner(self, rule: str, options: dict[str, Any]) -> Any:
        return compile(self._step, rule, *self._example, **options)

    def grad(self, learner: Any, data: Data, window: Any) -> Any:
        params, state, *_ = self._example
        xs = data.inputs[0] if len(data.inputs) == 1 else data.inputs
        carry = learner.init(params, state)
        (grads, _), _ = learner.grad(data.loss, params, carry, xs, *data.targets, window=window)
        return grads

    def restore(self) -> None:
        """A function holds nothing that could have changed."""


class ModuleTrial:
    """A module that holds its states; `example` are the inputs of one step."""

    def __init__(self, model: Any, example: tuple):
        self._model, self.inputs = model, example
        self._before = [(state, state.value) for state in model.states().values()]
        self._losses: dict[Any, Callable] = {}

    def learner(self, rule: str, options: dict[str, Any]) -> Any:
        self.restore()
        return ready(self._model, rule, *self.inputs, **options)

    def grad(self, learner: Any, data: Data, window: Any) -> Any:
        self.restore()
        learner.reset_state()
        loss = self._loss_of(learner, data)
        return learner.etrace_grad(*data.inputs, *data.targets, step_fn=loss, window=window)

    def _loss_of(self, learner: Any, data: Data) -> Callable:
        """One and the same function in every call, so that JAX compiles it once."""

        def loss(*of_step: Any) -> Any:
            inputs, targets = of_step[: len(data.inputs)], of_step[len(data.inputs) :]
            return data.loss(learner(*inputs), *targets)

        return self._losses.setdefault(learner, loss)

    def restore(self) -> None:
        for state, value in self._before:
            state.value = value


def trial_of(model: Any, example_inputs: tuple) -> Trial:
    """How the gradient of this model is computed; `example_inputs` as for `compile`."""
    if is_module(model) and not hasattr(model, 'states'):
        raise NotSupportedError(
            f'`model` is the module {type(model).__name__}: pass a step that is given it, '
            '`step, module, state, *inputs`.'
        )
    return (ModuleTrial if is_module(model) else FunctionTrial)(model, example_inputs)


def is_module(model: Any) -> bool:
    """Whether a model holds its parameters and states itself."""
    return framework_of(model) is not None


def ready(
    model: Any, rule: Any, *example_inputs: Any, batch_size: int | None = None, **options: Any
) -> Any:
    """A compiled learner, made with as little change to the model as possible.

    Unlike `compile` it leaves the states of a module alone if there are any and no `batch_size` is
    given.
    """
    if not is_module(model):
        return compile(model, rule, *example_inputs, **options)
    from ..shells.algorithms import find_algorithm  # it imports brainstate: for modules only

    if is_auto(rule):
        return compile(model, rule, *example_inputs, batch_size=batch_size, **options)
    learner = find_algorithm(rule)(model, **options)
    if batch_size is not None or not learner.hidden_states:
        return compile(model, rule, *example_inputs, batch_size=batch_size, **options)
    learner.compile_graph(*example_inputs)
    return learner
