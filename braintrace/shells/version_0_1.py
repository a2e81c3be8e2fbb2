"""Learners of versions before 0.2 that only forward."""

from __future__ import annotations

from typing import Any

from ..rules.options import count
from .unit_rules import D_RTRL


class DiagTruncatedAlgorithm(D_RTRL):
    """`D_RTRL`, which looks back as far as there is something to see.

    Args:
        model: a `brainstate.nn.Module`.
        n_truncation: how many steps the trace goes back at least; here it goes back all the way,
            at no cost.
        more: as for `D_RTRL`.
    """

    def __init__(self, model: Any, n_truncation: int, *args: Any, **more: Any):
        self.n_truncation = count('n_truncation', n_truncation)
        super().__init__(model, *args, **more)
