"""Two states to a unit in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import braintrace


@pytest.mark.parametrize(
    'rule, options',
    [
        ('d_rtrl', {}),
        ('rflo', {'decay': 0.9}),
        ('ostl_recurrent', {}),
        ('eprop', {}),
        ('pp_prop', {'decay_or_rank': 0.9}),
    ],
)
def test_single_precision_at_size(rule, options):
    """Two states to a unit, in float32 and large enough that XLA calls its libraries for sums and
    products: one of them gave wrong sums in loops."""

    def step(p, state, x):
        c, h = state
        i, f, o, g = jnp.split(jnp.concatenate([x, h], -1) @ p['W'], 4, -1)
        c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (c, h), h

    a, b = jax.random.split(jax.random.key(0))
    params, xs = (
        {'W': jax.random.normal(a, (192, 512), jnp.float32) / 10},
        jax.random.normal(b, (30, 16, 64), jnp.float32),
    )
    state = (jnp.zeros((16, 128), jnp.float32),) * 2
    learner = braintrace.compile(step, rule, params, state, xs[0], **options)
    found = [
        learner.grad(
            lambda out: (out**2).mean(), params, learner.init(params, state), xs, window=w
        )[0][0]['W']
        for w in (1, 30)
    ]
    np.testing.assert_allclose(found[0], found[1], atol=1e-5 * np.abs(found[1]).max())
