"""The base of the learning rules as learners of brainstate models."""

from __future__ import annotations

from typing import Any

from ..compat.executors import ETraceVjpGraphExecutor
from ..learn.core import BUDGET, KEEP
from ..learn.how import how_to_learn
from ..rules.carrier import MULTI_STEP, SINGLE_STEP
from ..rules.config import ETraceConfig
from ..rules.configured import of_config
from .brainstate import ETraceAlgorithm, brainstate

# parts of a learner of 0.2 that a subclass could replace, and that are not parts of this one
_HOOKS = {
    '_update_etrace_data': 'traces',
    '_get_etrace_data': 'traces',
    '_assign_etrace_data': 'traces',
    '_make_etrace_stepper': 'traces',
    '_solve_weight_gradients': 'gradients',
    '_compute_learning_signal': 'credit',
    '_get_update_aux': 'credit',
    '_inject_exit_cotangent': 'credit',
}
_INSTEAD = {
    'traces': 'pass `on_traces=`, a function of the traces after each step, or write a carrier',
    'gradients': 'write a carrier, whose `read` and `block` give the gradients',
    'credit': 'write a signal, and a `Rule` with it',
}


class ETraceVjpAlgorithm(ETraceAlgorithm):
    """A learner: call it like the model, differentiate it like the model, and the gradient is the
    online one. The base of all rules.

    Args:
        model: a `brainstate.nn.Module`.
        name: of the module.
        vjp_method: 'single-step', the classical rule, or 'multi-step', exact credit inside each
            call's window.
        control_flow: what to do with control flow inside a step.
        config: the rule as an `ETraceConfig` instead of the class's own.
        random_feedback_key: the random key (or seed) of the feedback weights, where there are any.
        trace: which weights may have a trace: 'all', 'marked', or a function of the parameter's
            path.
        memory_budget: bytes that one block of steps may keep, for `window='auto'`, as a number or
            as text ('10MB').
        nonfinite: 'keep' takes numbers as they come. With 'skip' a sample whose state, trace or
            gradient would not be finite after a step keeps those it had, adds nothing, and is
            counted in `skipped`. With 'raise' an error says which state of which sample it was, in
            which step.
        on_traces: a function `{name: trace} -> {name: trace}` that the traces go through after each
            step.
        choice: how the compiler found the rule, where that was left to it; the report tells it.
        fast_solve: accepted for old code, as `chunked_trace`, `snap_max_jacobian_elements` and
            `mode` are: there is one way, and batches are known by their shapes.
        more: options of the rule.
    """

    def __init__(
        self,
        model: Any,
        name: str | None = None,
        vjp_method: str | None = None,
        control_flow: Any = None,
        config: ETraceConfig | None = None,
        random_feedback_key: Any = None,
        *,
        trace: Any = 'all',
        memory_budget: float | str = BUDGET,
        nonfinite: str = KEEP,
        on_traces: Any = None,
        choice: Any = None,
        fast_solve: bool = True,
        chunked_trace: bool = True,
        snap_max_jacobian_elements: int = 16777216,
        mode: Any = None,
        **more: Any,
    ):
        _refuse_hooks(type(self))
        if config is not None:
            if not isinstance(config, ETraceConfig):
                raise TypeError(f'`config` must be an ETraceConfig, got {type(config).__name__}.')
            self.rule = of_config(config)
        if random_feedback_key is not None:
            more['random_feedback_key'] = random_feedback_key
        name = _without_mode(name, mode)
        how = how_to_learn(
            self.rule,
            more,
            vjp_method=vjp_method,
            policy=control_flow,
            traced=trace,
            budget=memory_budget,
            nonfinite=nonfinite,
            on_traces=on_traces,
            choice=choice,
        )
        config = how.rule.coordinates(how.options)
        self.vjp_method = SINGLE_STEP if how.single_step else MULTI_STEP
        executor = ETraceVjpGraphExecutor(
            model,
            self.vjp_method,
            config is not None and config.include_recurrent_mixing,
            None if config is None else config.sparse_n,
            snap_max_jacobian_elements,
            control_flow,
        )
        super().__init__(model, executor, name)
        self.config, self._said = config, how
        self.fast_solve, self.chunked_trace = fast_solve, chunked_trace
        self.trace_dtype = how.options.get('trace_dtype')


def _without_mode(name: Any, mode: Any) -> str | None:
    """The name, where 0.1 had the mode in its place; whoever says a mode says a right one."""
    if isinstance(name, brainstate.mixin.Mode):
        name, mode = None, name
    if mode is not None and not isinstance(mode, brainstate.mixin.Mode):
        raise TypeError(f'`mode` must be a brainstate.mixin.Mode, got {type(mode).__name__}.')
    return name


def _refuse_hooks(cls: type) -> None:
    """Refuse a subclass whose methods nobody would call."""
    for name, part in _HOOKS.items():
        if hasattr(cls, name):
            raise TypeError(
                f'`{cls.__name__}.{name}` would never be called: a learner does not make its '
                f'{part} there. Instead, {_INSTEAD[part]} (`docs/extending/carriers.md`).'
            )


def check_factorization(config: ETraceConfig | None, wanted: str) -> None:
    """Refuse a configuration of another engine."""
    if config is not None and config.trace_factorization != wanted:
        raise ValueError(
            f'`config`: this engine is for trace_factorization={wanted!r}, got '
            f'{config.trace_factorization!r}.'
        )
