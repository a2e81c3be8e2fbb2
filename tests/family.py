"""One model for all rules: as a module with a learner, and as a plain function."""

import brainstate
import jax
import jax.numpy as jnp
import numpy as np

import braintrace

T, D, H, C = 6, 3, 4, 2
rng = np.random.RandomState(0)
X, Y = jnp.asarray(rng.randn(T, 2, D)), jnp.asarray(rng.randn(T, 2, C))


class Net(brainstate.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = braintrace.nn.GRUCell(D, H), brainstate.nn.Linear(H, C)

    def update(self, x):
        return self.out(self.cell(x))


def learner_of(rule, **options):
    with brainstate.random.seed_context(1):
        model = Net()
    return braintrace.compile(model, rule, X[0], batch_size=2, **options)


def grads_of(learner, window=3, **options):
    return learner.etrace_grad(
        X, Y, step_fn=lambda x, y: jnp.mean((learner(x) - y) ** 2), window=window, **options
    )


def same(a, b, tolerance=1e-10):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, atol=tolerance)


P = dict(
    W=jnp.asarray(rng.randn(D, H)), R=jnp.asarray(rng.randn(H, H)), o=jnp.asarray(rng.randn(H, C))
)


def rnn(p, h, x):
    h = 0.5 * h + 0.5 * jnp.tanh(x @ p['W'] + h @ p['R'])
    return h, h @ p['o']
