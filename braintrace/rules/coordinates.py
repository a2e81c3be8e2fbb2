"""The rules in the coordinates of `ETraceConfig`: `f(**options)` for each that has them."""

from __future__ import annotations

from typing import Any

from ..plan.layout import Scope
from .config import ETraceConfig
from .options import decays

_SCOPES = {Scope.DIAGONAL: 'diagonal', Scope.COUPLED: 'coupled'}


def d_rtrl(scope: Scope, **_: Any) -> ETraceConfig | None:
    return ETraceConfig(recurrence_scope=_SCOPES[scope]) if scope in _SCOPES else None


def pp_prop(decay_or_rank: Any, **_: Any) -> ETraceConfig:
    return ETraceConfig('io_factorized', decay=decays(decay_or_rank))


def eprop(feedback: str, kappa_filter_decay: float, **_: Any) -> ETraceConfig:
    return ETraceConfig(
        learning_signal='symmetric' if feedback == 'symmetric' else 'random_feedback',
        trace_filter='kappa' if kappa_filter_decay else 'none',
        kappa=kappa_filter_decay or None,
    )


def ostl_recurrent(**_: Any) -> ETraceConfig:
    return ETraceConfig(recurrence_scope='coupled')


def rflo(decay: Any, **_: Any) -> ETraceConfig | None:
    if not isinstance(decay, float):
        return None
    return ETraceConfig(temporal_recursion='scalar_leak', decay=decay)


def ottt(decay: float, **_: Any) -> ETraceConfig:
    return ETraceConfig('io_factorized', ('scalar_leak', 'none'), decay=(decay, 0.0))


def three_factor(**_: Any) -> ETraceConfig:
    return ETraceConfig(learning_signal='modulatory')


def snap(n: int, **_: Any) -> ETraceConfig:
    return ETraceConfig(recurrence_scope='sparse_n', sparse_n=n)


def uoro(**_: Any) -> ETraceConfig:
    return ETraceConfig('random_projection', recurrence_scope='coupled')


def dni(**_: Any) -> ETraceConfig:
    return ETraceConfig(learning_signal='bootstrapped')
