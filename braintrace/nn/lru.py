"""A linear recurrent unit."""

from __future__ import annotations

from typing import Any

import brainstate
import jax.numpy as jnp

from ..ops.functions import element_wise
from .initial import WithStates, check_sizes, lecun_normal
from .linear import ZERO, Linear


class LRUCell(WithStates, brainstate.nn.Module):  # type: ignore[misc]
    """A linear recurrence with a complex eigenvalue a for each unit.

    `h = a h + exp(gamma_log) B x, y = Re(C h) + D x` with
    `a = exp(-exp(nu_log) + i exp(theta_log))`.

    Args:
        d_model, d_hidden: number of inputs and outputs, and of hidden units.
        r_min, r_max: between these the |a| start.
        max_phase: up to this the angles of a start.
        param_type: class of the parameters.

    Example:
        >>> import brainstate, jax.numpy as jnp, braintrace
        >>> brainstate.nn.init_all_states(braintrace.nn.LRUCell(3, 4))(jnp.ones(3)).shape
        (3,)
    """

    def __init__(
        self,
        d_model: int,
        d_hidden: int,
        r_min: float = 0.0,
        r_max: float = 1.0,
        max_phase: float = 6.28,
        param_type: type = brainstate.ParamState,
    ):
        super().__init__()
        check_sizes(self, d_model=d_model, d_hidden=d_hidden)
        if not (0 <= r_min < r_max <= 1 and max_phase > 0):
            raise ValueError(
                f'`LRUCell` needs 0 <= r_min < r_max <= 1 and max_phase > 0, got {r_min=}, '
                f'{r_max=}, {max_phase=}.'
            )
        self.in_size, self.out_size = d_model, d_hidden
        self.d_model, self.d_hidden = d_model, d_hidden
        self.r_min, self.r_max, self.max_phase = r_min, r_max, max_phase
        self._initial = {'h_re': ZERO, 'h_im': ZERO}
        phase = max_phase * brainstate.random.uniform(size=(d_hidden,))
        squared_size = (
            brainstate.random.uniform(size=(d_hidden,)) * (r_max**2 - r_min**2) + r_min**2
        )
        nu_log = jnp.log(-0.5 * jnp.log(squared_size))
        gamma_log = jnp.log(jnp.sqrt(1 - jnp.exp(-2 * jnp.exp(nu_log))))
        self.theta_log = param_type(jnp.log(phase))
        self.nu_log = param_type(nu_log)
        self.gamma_log = param_type(gamma_log)

        def linear(inputs: int, outputs: int) -> Linear:
            return Linear(inputs, outputs, lecun_normal, None, param_type=param_type)

        self.B_re, self.B_im = linear(d_model, d_hidden), linear(d_model, d_hidden)
        self.C_re, self.C_im = linear(d_hidden, d_model), linear(d_hidden, d_model)
        self.D = param_type(brainstate.random.randn(d_model))

    def update(self, x: Any) -> Any:
        logarithms = self.nu_log, self.theta_log, self.gamma_log
        nu, theta, gamma = (element_wise(s.value, weight_fn=jnp.exp) for s in logarithms)
        re, im = jnp.exp(-nu) * jnp.cos(theta), jnp.exp(-nu) * jnp.sin(theta)
        h_re, h_im = self.h_re.value, self.h_im.value
        self.h_re.value = re * h_re - im * h_im + gamma * self.B_re(x)
        self.h_im.value = re * h_im + im * h_re + gamma * self.B_im(x)
        read = self.C_re(self.h_re.value) - self.C_im(self.h_im.value)
        return read + element_wise(self.D.value) * x
