"""The base of the learning rules as learners of brainstate models."""

from __future__ import annotations

from typing import Any

from ..rules.config import ETraceConfig
from .brainstate import ETraceAlgorithm

# accepted for old code: there is one way, and it is the fast one
_OLD = ('fast_solve', 'chunked_trace', 'snap_max_jacobian_elements')


class ETraceVjpAlgorithm(ETraceAlgorithm):
    """A learner whose `update` can be differentiated; the base of all rules here."""

    def __init__(
        self,
        model: Any,
        name: str | None = None,
        vjp_method: str | None = None,
        control_flow: Any = None,
        config: ETraceConfig | None = None,
        random_feedback_key: Any = None,
        **more: Any,
    ):
        options = {k: v for k, v in more.items() if k not in _OLD}
        if random_feedback_key is not None:
            options['random_feedback_key'] = random_feedback_key
        fed_back = config is not None and config.learning_signal == 'random_feedback'
        if fed_back and random_feedback_key is None:
            raise ValueError(
                "A configuration with learning_signal='random_feedback' needs "
                '`random_feedback_key`.'
            )
        super().__init__(model, name, vjp_method, control_flow, config=config, **options)


def check_factorization(config: ETraceConfig | None, wanted: str) -> None:
    if config is not None and config.trace_factorization != wanted:
        raise ValueError(
            f'`config`: this engine is for trace_factorization={wanted!r}, '
            f'got {config.trace_factorization!r}.'
        )
