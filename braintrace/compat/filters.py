"""Parts of the e-prop family: a low-pass, a fixed random projection, a leaky sum of gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..frontends import brainstate as frontend

brainstate: Any = frontend.brainstate


class KappaFilter(brainstate.ShortTermState):  # type: ignore[misc]
    """A low-pass `value <- (1 - kappa) x + kappa value`.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> f = braintrace.KappaFilter(jnp.zeros(()), .75)
        >>> float(f.update(jnp.ones(())))
        0.25
    """

    def __init__(self, init_value: Any, kappa: float):
        if not 0 <= kappa < 1:
            raise ValueError(f'`kappa` must be in [0, 1), got {kappa}.')
        super().__init__(init_value)
        self.kappa, self._shape = kappa, jnp.shape(init_value)

    def update(self, x: Any) -> Any:
        """Take in `x`; gives the new value."""
        self.value = (1 - self.kappa) * x + self.kappa * self.value  # type: ignore[has-type]
        return self.value

    def reset_state(self, batch_size: int | None = None) -> None:
        """Zero, at the first shape; `batch_size` replaces its first axis."""
        shape = self._shape if batch_size is None else (batch_size, *self._shape[1:])
        self.value = jnp.zeros(shape, jnp.result_type(self.value))


class FixedRandomFeedback:
    """A fixed random matrix from the outputs to a layer, `project(y) = y @ B`.

    Example:
        >>> import jax, jax.numpy as jnp, braintrace
        >>> braintrace.FixedRandomFeedback(2, 5, jax.random.key(0)).project(jnp.ones(2)).shape
        (5,)
    """

    def __init__(self, n_target: int, n_layer: int, key: Any, init_scale: float = 0.1):
        self.B = jax.lax.stop_gradient(init_scale * jax.random.normal(key, (n_target, n_layer)))

    def project(self, y: Any) -> Any:
        """`y @ B`."""
        return y @ self.B


class GradExpon(brainstate.nn.Module):  # type: ignore[misc]
    """A leaky sum of gradients, `g <- decay g + grads`.

    Args:
        grad_shape: gradients, or arrays like them.
        tau_or_decay: a decay in (0, 1), or a time constant with a unit, for `exp(-dt / tau)`.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> total = braintrace.GradExpon({'w': jnp.zeros(1)}, .5)
        >>> total.update({'w': jnp.ones(1)})['w'], total.update({'w': jnp.ones(1)})['w']
        (Array([1.], dtype=float32), Array([1.5], dtype=float32))
    """

    def __init__(self, grad_shape: Any, tau_or_decay: Any):
        super().__init__()
        if isinstance(tau_or_decay, float):
            if not 0 < tau_or_decay < 1:
                raise AssertionError(
                    f'`tau_or_decay` as a decay must be in (0, 1), got {tau_or_decay}.'
                )
            self.decay: Any = tau_or_decay
        elif hasattr(tau_or_decay, 'mantissa'):
            self.decay = jnp.exp(-jnp.asarray(brainstate.environ.get_dt() / tau_or_decay))
        else:
            raise TypeError(
                '`tau_or_decay` must be a float, or a time with a unit, got '
                f'{type(tau_or_decay).__name__}.'
            )
        zeros = jax.tree.map(lambda g: jnp.zeros(g.shape, g.dtype), grad_shape)
        self.gradients = brainstate.LongTermState(zeros)

    def update(self, grads: Any) -> Any:
        """Take in gradients; gives the sum."""
        self.gradients.value = jax.tree.map(
            lambda old, g: self.decay * old + g, self.gradients.value, grads
        )
        return self.gradients.value
