"""`braintrace.compile`: from a model and the name of a rule to a learner."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..frontends.base import advice_for, framework_of

_SHELLS = {'brainstate': '.algorithms', 'nnx': '.nnx'}  # by the front-end of the model
_HIDDEN = (
    '`hidden` says which variables of a Flax NNX module are recurrent. Leave it out: a module of '
    'brainstate keeps such state in a `brainstate.HiddenState`, a function is given it as `state`.'
)


def compile(model: Any, algorithm: Any, *example_inputs: Any, **options: Any) -> Any:
    """Make a learner that gives online gradients of a recurrent model.

    Args:
        model: a `brainstate.nn.Module`, a `flax.nnx.Module` that holds its state, or a plain
            function `step(params, state, *inputs) -> (state, out)`.
        algorithm: a rule by name ('d_rtrl', 'pp_prop', ..., whatever the case), by class, as an
            `ETraceConfig` or as a `Rule` of one's own; 'auto' for the most exact rule whose traces
            and one block fit into `memory_budget` bytes, a quarter of the free memory by default.
            The report says what was taken and why.
        example_inputs: for a module the inputs of one step; for a function
            `params, state, *inputs`, where `params` is any pytree, an Equinox or NNX module, or
            the variables of a Linen module.
        options: of the learner and the rule, see `PureLearner`, `NNXLearner`,
            `ETraceVjpAlgorithm` and the rule's class. For a module of NNX `hidden`, the type of
            its recurrent variables. For one of brainstate also `batch_size` and `seed` of its
            states, which are initialised here; `verbose`, 1 to print the report, 2 with
            diagnostics; `vmap`, to map a model of one sample over the batch.

    Returns:
        For a module of brainstate an `ETraceAlgorithm`, for one of NNX an `NNXLearner`, for a
        function a `PureLearner`.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> step = lambda p, h, x: (jnp.tanh(h * p + x), h)
        >>> learner = braintrace.compile(step, 'd_rtrl', jnp.ones(2), jnp.zeros(2), jnp.ones(2))
        >>> learner.report.etrace_weights
        [(('params',), [0])]
    """
    framework = framework_of(model)
    is_nnx = framework is not None and framework.__name__.endswith('.nnx')
    if 'hidden' in options and callable(model) and not (is_nnx or isinstance(model, type)):
        raise TypeError(_HIDDEN)
    if framework is not None:
        shell = import_module(_SHELLS[framework.__name__.split('.')[-1]], __package__)
        return shell.compile_module(model, algorithm, *example_inputs, **options)
    if isinstance(model, type):
        raise TypeError(f'`model` is the class {model.__name__}: pass a model that is made of it.')
    advice = advice_for(model)
    if advice is not None:
        raise TypeError(advice)
    if not callable(model):
        raise TypeError(
            '`model` must be a module of brainstate or Flax NNX, or a function '
            f'step(params, state, *inputs), got {type(model).__name__}. The model comes first, '
            'then the rule: `compile(model, rule, ...)`.'
        )
    if len(example_inputs) < 2:
        raise ValueError(
            'A plain step function needs `compile(step, rule, params, state, *inputs)`.'
        )
    if 'batch_size' in options:
        raise TypeError(
            '`batch_size` is for modules, whose states are made here. A function has as many '
            'samples as the `state` that it is given.'
        )
    from .function import PureLearner

    return PureLearner(model, algorithm, *example_inputs, **options)
