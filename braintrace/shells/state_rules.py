"""Learners whose weights remember what they have done to the whole state, or nothing."""

from __future__ import annotations

from typing import Any

import jax

from ..rules.config import ETraceConfig
from ..rules.low_rank import BOUND
from ..rules.registry import BY_NAME
from .unit_rules import ParamDimVjpAlgorithm
from .vjp_algorithm import ETraceVjpAlgorithm, check_factorization


class BPTT(ETraceVjpAlgorithm):
    """Backpropagation through time inside each window, and nothing across its edge: BPTT when the
    window is the sequence, truncated otherwise."""

    rule = BY_NAME['bptt']


class RTRL(ETraceVjpAlgorithm):
    """Real-time recurrent learning: the whole influence `J_b = Phi J_a + M`. Exact for any model
    and any window; memory states x parameters."""

    rule = BY_NAME['rtrl']


class SnAp(ParamDimVjpAlgorithm):
    """SnAp-n: each weight remembers the units it reaches within n steps. With an n that reaches
    everything it is RTRL.

    Args:
        n: the number of steps, at least 1.
        far_reach: whether a weight also reaches in its own step the units that it acts on through
            the product of another weight, as the reset gate of a GRU does. Without, its trace is
            as small as that of the other gates, and it has its same-step gradient.
    """

    rule = BY_NAME['snap']

    def __init__(
        self,
        model: Any,
        n: int = 2,
        name: str | None = None,
        vjp_method: str = 'single-step',
        far_reach: bool = True,
        **more: Any,
    ):
        if 'config' in more:
            raise TypeError(
                '`config`: SnAp is a configuration of its own; use compile(model, '
                'ETraceConfig(...)).'
            )
        self.n = n
        super().__init__(model, name, vjp_method, n=n, far_reach=far_reach, **more)


class RandomProjectionVjpAlgorithm(ETraceVjpAlgorithm):
    """UORO: one random rank-one product for the whole influence. Unbiased, and noisy; memory states
    + parameters.

    Args:
        projection_key: the key (or seed) of its random stream.
        projection_eps: keeps the balance of the two factors finite.
    """

    rule = BY_NAME['uoro']

    def __init__(
        self,
        model: Any,
        name: str | None = None,
        vjp_method: str | None = None,
        fast_solve: bool = True,
        control_flow: Any = None,
        config: ETraceConfig | None = None,
        projection_key: Any = 42,
        projection_eps: float = 1e-12,
        **more: Any,
    ):
        check_factorization(config, 'random_projection')
        super().__init__(
            model,
            name,
            vjp_method,
            control_flow,
            config,
            projection_key=projection_key,
            projection_eps=projection_eps,
            fast_solve=fast_solve,
            **more,
        )
        self.projection_key, self.projection_eps = projection_key, projection_eps


class UORO(RandomProjectionVjpAlgorithm):
    __doc__ = RandomProjectionVjpAlgorithm.__doc__


class KFRTRL(ETraceVjpAlgorithm):
    """KF-RTRL: for each weight a random Kronecker product for its influence. Unbiased, with less
    noise than UORO; memory states x outputs.

    Args:
        projection_key, projection_eps: as for `UORO`.
    """

    rule = BY_NAME['kf_rtrl']


class LowRankRTRL(ETraceVjpAlgorithm):
    """RTRL with the influence kept in `rank` columns, compressed once a window; `error_bound` says
    what that has cost.

    Args:
        rank: the number of columns, at least 1.
    """

    rule = BY_NAME['low_rank']

    @property
    def error_bound(self) -> jax.Array:
        """A bound of the Frobenius norm of the error of the influence: twice an estimate that is
        right on average, so the error is hardly ever above it."""
        return self.etrace[str(BOUND)].value
