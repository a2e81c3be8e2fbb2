"""What a report promises of memory is what XLA takes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from told import LOST

import braintrace

pytestmark = LOST
N_IN, N, BATCH, STEPS = 16, 48, 8, 40
rng = np.random.RandomState(0)


def draw(*shape):
    return jnp.asarray(rng.randn(*shape) / np.sqrt(shape[0]), jnp.float32)


P = {
    'W': draw(N_IN, N),
    'R': draw(N, N),
    'out': draw(N, 4),
    **{gate: draw(N_IN + N, N) for gate in 'zrnifoc'},
}


@jax.custom_jvp
def spike(v):
    return (v > 0).astype(v.dtype)


@spike.defjvp
def _(primals, tangents):
    [v], [dv] = primals, tangents
    return spike(v), dv / (1 + jnp.abs(v)) ** 2


def leaky(p, v, x):
    v = 0.9 * v + x @ p['W'] + spike(v - 1) @ p['R']
    return v, spike(v - 1) @ p['out']


def adaptive(p, s, x):
    v, a = s
    z = spike(v - 1 - a)
    v, a = 0.9 * v + x @ p['W'] + z @ p['R'] - z, 0.95 * a + 0.1 * z
    return (v, a), spike(v - 1 - a) @ p['out']


def gru(p, h, x):
    xh = jnp.concatenate([x, h], -1)
    z, r = jax.nn.sigmoid(xh @ p['z']), jax.nn.sigmoid(xh @ p['r'])
    h = (1 - z) * h + z * jnp.tanh(jnp.concatenate([x, r * h], -1) @ p['n'])
    return h, h @ p['out']


def lstm(p, s, x):
    c, h = s
    xh = jnp.concatenate([x, h], -1)
    i, f, o = (jax.nn.sigmoid(xh @ p[name]) for name in 'ifo')
    c = f * c + i * jnp.tanh(xh @ p['c'])
    h = o * jnp.tanh(c)
    return (c, h), h @ p['out']


ONE = jnp.zeros((BATCH, N), jnp.float32)
MODELS = {
    'leaky': (leaky, ONE, ('W', 'R')),
    'adaptive': (adaptive, (ONE, ONE), ('W', 'R')),
    'gru': (gru, ONE, ('z', 'r', 'n')),
    'lstm': (lstm, (ONE, ONE), tuple('ifoc')),
}
RULES = {
    'carried': ('d_rtrl', {}),
    'fresh': ('d_rtrl', {}),
    'factors': ('pp_prop', {'decay_or_rank': 0.9}),
    'filtered': ('eprop', {'kappa_filter_decay': 0.8}),
}


@pytest.mark.parametrize('how', RULES)
@pytest.mark.parametrize('name', MODELS)
def test_a_gradient_takes_what_is_promised(name, how):
    step, state, weights = MODELS[name]
    params = {k: P[k] for k in (*weights, 'out')}
    xs = jnp.zeros((STEPS, BATCH, N_IN), jnp.float32)
    (rule, options), fresh = RULES[how], how == 'fresh'
    learner = braintrace.compile(step, rule, params, state, xs[0], **options)

    def run(params, carry, xs):
        def loss(out):
            return (out**2).mean()

        made, carry = learner.grad(loss, params, carry, xs, window=STEPS, fresh=fresh)
        return made if fresh else (made, carry)

    carry = learner.init(params, state)
    taken = jax.jit(run).lower(params, carry, xs).compile().memory_analysis()
    memory = learner.report.memory
    before = 0 if fresh else memory['trace_bytes']
    gradients = memory['peak_bytes'] - memory['block_bytes'] - 2 * memory['trace_bytes']
    block = memory['alone_bytes'] - gradients if fresh else memory['block_bytes']
    promised = gradients + 2 * before + block * STEPS // memory['block_steps']
    ratio = promised / (taken.temp_size_in_bytes + taken.output_size_in_bytes + before)
    assert 0.75 < ratio < 1.25  # XLA's programs differ from machine to machine
