"""Gradients in float32 at a size at which XLA calls its libraries for sums and products, with its
ordinary optimisations: `python float32_at_size.py gradients.npz`. One of them gave wrong sums over
the states of a unit in loops. The test beside this file compares with float64."""

import sys

import jax
import jax.numpy as jnp
import numpy as np

import braintrace

INPUTS, UNITS, BATCH, STEPS = 64, 128, 16, 12
RULES = {
    'd_rtrl': {},
    'ostl_recurrent': {},
    'eprop': {'kappa_filter_decay': 0.8},
    'pp_prop': {'decay_or_rank': 0.9},
}
CASES = [  # name of the model, rule, window
    *[('lstm', rule, STEPS) for rule in RULES],
    *[('lstm', rule, 1) for rule in ('d_rtrl', 'pp_prop')],
    ('gru', 'd_rtrl', STEPS),
    *[('synapse', 'd_rtrl', window) for window in (1, STEPS)],
]


def lstm(p, state, x):
    c, h = state
    i, f, o, g = jnp.split(jnp.concatenate([x, h], -1) @ p['W'], 4, -1)
    c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (c, h), h


def gru(p, h, x):
    z = jax.nn.sigmoid(jnp.concatenate([x, h], -1) @ p['Z'])
    r = jax.nn.sigmoid(jnp.concatenate([x, h], -1) @ p['Y'])
    h = (1 - z) * h + z * jnp.tanh(jnp.concatenate([x, r * h], -1) @ p['N'])
    return h, h


def synapse(p, state, x):
    """Position by position: D-RTRL is exact."""
    g = 0.8 * state[0] + x @ p['W']
    v = 0.9 * state[1] + jnp.tanh(g * p['gain'])
    return (g, v), v


def model(name, dtype):
    """The step, its parameters, its state and the inputs."""
    draw = np.random.RandomState(0)

    def normal(*shape):
        return jnp.asarray(np.float32(draw.randn(*shape)), dtype)

    xs, zero = normal(STEPS, BATCH, INPUTS), jnp.zeros((BATCH, UNITS), dtype)
    both = INPUTS + UNITS
    if name == 'lstm':
        return lstm, {'W': normal(both, 4 * UNITS) / 10}, (zero, zero), xs
    if name == 'gru':
        return gru, {k: normal(both, UNITS) / 10 for k in 'ZYN'}, zero, xs
    return synapse, {'W': normal(INPUTS, UNITS) / 10, 'gain': normal(UNITS)}, (zero, zero), xs


def gradient(name, rule, window, dtype):
    """The gradient of a mean square by each parameter."""
    step, params, state, xs = model(name, dtype)
    learner = braintrace.compile(step, rule, params, state, xs[0], **RULES[rule])
    carry = learner.init(params, state)
    return learner.grad(lambda out: (out**2).mean(), params, carry, xs, window=window)[0][0]


if __name__ == '__main__':
    np.savez(
        sys.argv[1],
        **{
            f'{name} {rule} {window} {k}': g
            for name, rule, window in CASES
            for k, g in gradient(name, rule, window, jnp.float32).items()
        },
    )
