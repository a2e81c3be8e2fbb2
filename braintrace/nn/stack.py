"""Layers one after another."""

from __future__ import annotations

from typing import Any

import brainstate


class Stack(brainstate.nn.Module):  # type: ignore[misc]
    """Layers applied in order; their states are found under `layers`, by number.

    Args:
        layers: modules, or plain functions.
        name: of the module.

    Example:
        >>> import brainstate, jax.numpy as jnp
        >>> from braintrace.nn import GRUCell, Linear, stack
        >>> net = brainstate.nn.init_all_states(stack(GRUCell(3, 4), jnp.tanh, Linear(4, 2)))
        >>> net(jnp.ones(3)).shape, sorted(net.states(brainstate.HiddenState))
        ((2,), [('layers', 0, 'h')])
    """

    def __init__(self, *layers: Any, name: str | None = None):
        super().__init__(name=name)
        for i, layer in enumerate(layers):
            if not callable(layer):
                raise TypeError(
                    f'`Stack`: layer {i} must be a module or a function, got '
                    f'{type(layer).__name__}.'
                )
        self.layers = list(layers)

    def update(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


def stack(*layers: Any) -> Stack:
    """A `Stack` of these layers."""
    return Stack(*layers)
