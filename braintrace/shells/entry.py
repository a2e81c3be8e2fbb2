"""`braintrace.compile`: from a model and the name of a rule to a learner."""

from __future__ import annotations

from typing import Any

from ..frontends.base import framework_of


def compile(model: Any, algorithm: Any, *example_inputs: Any, **options: Any) -> Any:
    """Make a learner that gives online gradients of a recurrent model.

    Args:
        model: a `brainstate.nn.Module`, or a plain function
            `step(params, state, *inputs) -> (state, out)`.
        algorithm: a rule by name ('d_rtrl', 'pp_prop', ..., whatever the case), by class, as an
            `ETraceConfig` or as a `Rule` of one's own.
        example_inputs: for a module the inputs of one step; for a function
            `params, state, *inputs`.
        options: of the learner and the rule, see `PureLearner`, `ETraceAlgorithm` and the rule's
            class. For a module also `batch_size` and `seed` of its states, which are initialised
            here; `verbose`, 1 to print the report, 2 with diagnostics; `vmap`, to map a model of
            one sample over the batch.

    Returns:
        For a module an `ETraceAlgorithm`, for a function a `PureLearner`.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> step = lambda p, h, x: (jnp.tanh(h * p + x), h)
        >>> learner = braintrace.compile(step, 'd_rtrl', jnp.ones(2), jnp.zeros(2), jnp.ones(2))
        >>> learner.report.etrace_weights
        [(('params',), [0])]
    """
    if framework_of(model) is not None:
        from .algorithms import compile_module

        return compile_module(model, algorithm, *example_inputs, **options)
    if not callable(model):
        raise TypeError(
            '`model` must be a brainstate.nn.Module or a function step(params, state, *inputs), '
            f'got {type(model).__name__}.'
        )
    if len(example_inputs) < 2:
        raise ValueError(
            'A plain step function needs `compile(step, rule, params, state, *inputs)`.'
        )
    from .function import PureLearner

    return PureLearner(model, algorithm, *example_inputs, **options)
