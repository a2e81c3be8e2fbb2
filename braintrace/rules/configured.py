"""From an `ETraceConfig` to the rule it describes."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..plan.layout import Layout, Scope
from .carrier import MULTI_STEP, SINGLE_STEP, Carrier
from .config import ETraceConfig
from .d_rtrl import PositionWise
from .eprop import Filtered
from .making import everyone, fed_back, filtered
from .pp_prop import Factorised
from .rule import Rule
from .signals import GRADIENT, Signal, guessed_future, modulator
from .snap import SparseInfluence
from .uoro import RankOne


def of_config(config: ETraceConfig) -> Rule:
    """The rule that a configuration describes."""
    bootstrapped = config.learning_signal == 'bootstrapped'
    modulated = config.learning_signal == 'modulatory'
    credit: tuple[str, ...] | None = None
    if bootstrapped:
        credit = (MULTI_STEP,)
    elif modulated:
        credit = (SINGLE_STEP,)
    elif (
        config.trace_factorization == 'random_projection' and config.learning_signal != 'symmetric'
    ):
        credit = (SINGLE_STEP, MULTI_STEP)
    return Rule(
        config.describe(),
        _carrier_class(config),
        {
            'trace_dtype': None,
            'random_feedback_key': None,
            'projection_key': 42,
            'projection_eps': 1e-12,
            'guess': None,
        },
        make=partial(_carrier_of_config, config),
        credit=credit,
        signal=partial(_signal_of_config, config),
        scope=partial(_scope_of_config, config),
        modulated=modulated,
        config=partial(_itself, config),
    )


def _itself(config: ETraceConfig, **options: Any) -> ETraceConfig:
    return config


def _carrier_class(config: ETraceConfig) -> type[Carrier]:
    if config.trace_factorization == 'random_projection':
        return RankOne
    if config.is_factorized:
        return Factorised
    if config.recurrence_scope == 'sparse_n':
        return SparseInfluence
    return Filtered if config.trace_filter == 'kappa' else PositionWise


def _carrier_of_config(
    config: ETraceConfig,
    layout: Layout,
    projection_key: Any,
    projection_eps: float,
    trace_dtype: Any,
    **_: Any,
) -> Carrier:
    kind = _carrier_class(config)
    if kind is RankOne:
        return RankOne(layout, projection_key, projection_eps)
    if kind is Factorised:
        decay_x = 0.0 if config.recursion_x == 'none' else config.decay_x
        decay_f = 0.0 if config.recursion_f == 'none' else config.decay_f
        identity = config.recursion_f == 'scalar_leak'
        return Factorised(layout, everyone(layout), decay_x, decay_f, identity)
    if kind is SparseInfluence:
        assert config.sparse_n is not None
        return SparseInfluence(layout, int(config.sparse_n))
    leak = None if config.temporal_recursion == 'jacobian' else config.decay
    return filtered(layout, config.kappa if kind is Filtered else 0.0, trace_dtype, leak)


def _signal_of_config(
    config: ETraceConfig, layout: Layout, random_feedback_key: Any, guess: Any, **_: Any
) -> Signal:
    kind = config.learning_signal
    if kind == 'modulatory':
        return modulator(layout)
    if kind == 'bootstrapped':
        return guessed_future(layout, guess)
    if kind == 'symmetric':
        return GRADIENT
    return fed_back(layout, 'square', random_feedback_key, feedback_scale=0.1)


def _scope_of_config(config: ETraceConfig, **options: Any) -> Scope:
    own_recursion = config.recursion_f if config.is_factorized else config.temporal_recursion
    if config.is_factorized and own_recursion == 'scalar_leak':
        return Scope.LEAK
    if not config.is_factorized and own_recursion != 'jacobian':
        return Scope.LEAK
    if config.recurrence_scope == 'coupled' and config.is_factorized:
        return Scope.BLOCK
    if config.recurrence_scope == 'coupled' and config.trace_factorization == 'per_param':
        return Scope.COUPLED
    return Scope.FILTERED if config.trace_filter == 'kappa' else Scope.DIAGONAL
