"""Leaky read-outs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import brainstate
import jax
import jax.numpy as jnp
import saiunit as u
from brainstate.nn import init

from ..ops.functions import matmul
from .initial import WithStates, check_sizes, kaiming_normal
from .linear import ZERO

ZERO_MV = init.ZeroInit(unit=u.mV)


@jax.custom_jvp
def relu_grad(x: jax.Array) -> jax.Array:
    """A spike where x >= 0, with the slope 0.3 max(0, 1 - |x|) for learning."""
    return (x >= 0).astype(x.dtype)


relu_grad.defjvps(lambda t, y, x: 0.3 * jnp.maximum(0, 1 - jnp.abs(x)) * t)


class _Leaky(WithStates, brainstate.nn.Module):  # type: ignore[misc]
    """A weight `W` from the input to the units, and their decay in one step."""

    def __init__(
        self,
        in_size: Any,
        out_size: Any,
        tau: Any,
        w_init: Any,
        name: str | None,
        param_type: type,
    ):
        super().__init__(name=name)
        check_sizes(self, in_size=in_size, out_size=out_size)
        self.in_size, self.out_size = in_size, out_size
        self.tau = init.param(tau, self.out_size)
        self.decay = u.math.exp(-brainstate.environ.get_dt() / self.tau)
        self.W = param_type(init.param(w_init, (self.in_size[-1], self.out_size[-1])))


class LeakyRateReadout(_Leaky):
    """`r <- exp(-dt / tau) r + x @ W`; gives r.

    Args:
        in_size, out_size: of the input and the output.
        tau: time constant; dt is `brainstate.environ.get_dt()`.
        w_init, r_init: initial values, or functions of a shape.
        name: of the module.
        param_type: class of the parameter.

    Example:
        >>> import brainstate, saiunit as u, jax.numpy as jnp, braintrace
        >>> with brainstate.environ.context(dt=1. * u.ms):
        ...     layer = braintrace.nn.LeakyRateReadout(2, 3)
        >>> layer = brainstate.nn.init_all_states(layer, batch_size=4)
        >>> layer(jnp.ones((4, 2))).shape
        (4, 3)
    """

    def __init__(
        self,
        in_size: Any,
        out_size: Any,
        tau: Any = 5.0 * u.ms,
        w_init: Any = kaiming_normal,
        r_init: Any = ZERO,
        name: str | None = None,
        param_type: type = brainstate.ParamState,
    ):
        super().__init__(in_size, out_size, tau, w_init, name, param_type)
        self.r_init, self._initial = r_init, {'r': r_init}

    def update(self, x: Any) -> Any:
        self.r.value = self.decay * self.r.value + matmul(x, self.W.value)
        return self.r.value


class LeakySpikeReadout(_Leaky):
    """`V <- a (V - reset) + (1 - a) x @ W` with `a = exp(-dt / tau)`; gives the spikes of V.

    The spikes of the step before reset it.

    Args:
        in_size, out_size, tau, name, param_type: as in `LeakyRateReadout`.
        V_th: threshold.
        w_init, V_init: initial values, or functions of a shape.
        spk_fun: spikes from `(V - V_th) / V_th`, with a slope for learning.
        spk_reset: 'soft' takes V_th away, 'hard' all of V.

    Example:
        >>> import brainstate, saiunit as u, jax.numpy as jnp, braintrace
        >>> with brainstate.environ.context(dt=1. * u.ms):
        ...     layer = braintrace.nn.LeakySpikeReadout(2, 3)
        >>> layer = brainstate.nn.init_all_states(layer, batch_size=4)
        >>> layer(jnp.ones((4, 2))).shape
        (4, 3)
    """

    def __init__(
        self,
        in_size: Any,
        out_size: Any,
        tau: Any = 5.0 * u.ms,
        V_th: Any = 1.0 * u.mV,
        w_init: Any = lambda s: kaiming_normal(s) * u.mV,
        V_init: Any = ZERO_MV,
        spk_fun: Callable = relu_grad,
        spk_reset: str = 'soft',
        name: str | None = None,
        param_type: type = brainstate.ParamState,
    ):
        super().__init__(in_size, out_size, tau, w_init, name, param_type)
        if spk_reset not in ('soft', 'hard'):
            raise ValueError(
                f"`LeakySpikeReadout`: `spk_reset` must be 'soft' or 'hard', got {spk_reset!r}."
            )
        if not callable(spk_fun):
            raise TypeError(
                f'`LeakySpikeReadout`: `spk_fun` must be a function, got {type(spk_fun).__name__}.'
            )
        self.V_th, self.V_init = init.param(V_th, self.out_size), V_init
        self.spk_fun, self.spk_reset = spk_fun, spk_reset
        self._initial = {'V': V_init}

    @property
    def varshape(self) -> tuple[int, ...]:
        return self.out_size

    @property
    def spike(self) -> Any:
        return self.get_spike(self.V.value)

    def get_spike(self, V: Any) -> Any:
        return self.spk_fun((V - self.V_th) / self.V_th)

    def update(self, x: Any) -> Any:
        V = self.V.value
        taken = self.V_th if self.spk_reset == 'soft' else jax.lax.stop_gradient(V)
        V = V - self.spike * taken
        self.V.value = self.decay * V + (1 - self.decay) * matmul(x, self.W.value)
        return self.spike
