"""A rule of one's own: RTRL whose influence fades by gamma from window to window."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from braintrace.rules import REQUIRED, Contribution, Layout, Rule


@dataclass(frozen=True, eq=False)
class Forgetful:
    """`J_b = gamma Phi J_a + M`, for every element of the hidden state and every parameter."""

    layout: Layout
    gamma: float

    def init(self):
        """The influence `(states, *shape)` on all states, by name of the parameter: none yet."""
        step = self.layout.graph.step
        n = sum(v.aval.size for v in step.hidden_vars)
        return {
            leaf.name: jnp.zeros((n, *v.aval.shape), v.aval.dtype)
            for leaf, v in zip(step.params, step.param_vars, strict=True)
        }

    def read(self, traces, credit):
        """What the credit of the state at the window's entry adds to the gradients."""
        lam = ravel_pytree(credit.hidden)[0]
        names = [leaf.name for leaf in self.layout.graph.step.params]
        return Contribution(params=[jnp.tensordot(lam, traces[name], 1) for name in names])

    def advance(self, traces, window):
        """The influence on the state at the window's exit."""
        exit_state, of = ravel_pytree(list(window.hidden))

        def pull(unit):
            # One element of the exit state, back to the parameters and to the entry state.
            params, entry, _, _ = window.pull(hidden=of(unit))
            return params, ravel_pytree(entry)[0]

        M, Phi = jax.vmap(pull)(jnp.eye(exit_state.size, dtype=exit_state.dtype))
        return {
            leaf.name: m + self.gamma * jnp.tensordot(Phi, traces[leaf.name], 1)
            for leaf, m in zip(self.layout.graph.step.params, M, strict=True)
        }

    def block(self, traces, window, credit, steps, keep):
        """Single-step credit, which this rule does not have."""
        raise NotImplementedError("Use vjp_method='multi-step'.")


forgetful = Rule(
    'forgetful', Forgetful, 'multi-step', {'gamma': REQUIRED}, traces=False, multi_only=True
)
