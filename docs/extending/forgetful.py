"""A rule of one's own: RTRL whose influence fades by gamma from window to window."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from braintrace.engine.window import Cotangents
from braintrace.rules import REQUIRED, Carrier, Contribution, Layout, Rule, TraceKey


@dataclass(frozen=True, eq=False)
class Forgetful(Carrier):
    """`J_b = gamma Phi J_a + M`, for every element of the hidden state and every parameter."""

    layout: Layout
    gamma: float

    @property
    def keys(self):
        """A key for the trace of each parameter."""
        return [TraceKey((leaf,)) for leaf in self.layout.graph.step.params]

    def init(self):
        """The influence `(states, *shape)` on all states, by parameter: none yet."""
        step = self.layout.graph.step
        n = sum(v.aval.size for v in step.hidden_vars)
        pairs = zip(self.keys, step.param_vars, strict=True)
        return {key: jnp.zeros((n, *v.aval.shape), v.aval.dtype) for key, v in pairs}

    def read(self, traces, entry):
        """What the credit of the state at the window's entry adds to the gradients."""
        lam = ravel_pytree(entry.hidden)[0]
        return Contribution(params=[jnp.tensordot(lam, traces[key], 1) for key in self.keys])

    def advance(self, traces, window):
        """The influence on the state at the window's exit."""
        exit_state, of = ravel_pytree(list(window.hidden))

        def pull(unit):
            # One element of the exit state, back to the parameters and to the entry state.
            pulled = window.reverse(Cotangents(hidden=of(unit)))
            return pulled.params, ravel_pytree(pulled.hidden)[0]

        M, Phi = jax.vmap(pull)(jnp.eye(exit_state.size, dtype=exit_state.dtype))
        return {
            key: m + self.gamma * jnp.tensordot(Phi, traces[key], 1)
            for key, m in zip(self.keys, M, strict=True)
        }


forgetful = Rule('forgetful', Forgetful, {'gamma': REQUIRED})
