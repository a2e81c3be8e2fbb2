"""Outputs that go into one sum share what is carried for them, and only those."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import braintrace

RNG = np.random.default_rng(0)
PARAMS = {'W': RNG.standard_normal((2, 3)), 'R': RNG.standard_normal((3, 3)), 'b': np.ones(3)}
XS = RNG.standard_normal((7, 4, 2))
TWICE = {'times': lambda y: 2 * y, 'added to itself': lambda y: y + y}


@pytest.mark.parametrize('rule', ['pp_prop', 'ottt'])
def test_a_product_that_is_added_to_itself_counts_twice_and_its_bias_once(rule):
    options = {'decay_or_rank': 0.9} if rule == 'pp_prop' else {'decay': 0.9}

    def gradients(twice):
        def step(p, h, x):
            h = jnp.tanh(0.5 * h + (twice(x @ p['W']) + h @ p['R'] + p['b']))
            return h, h**2

        h = jnp.zeros((4, 3))
        learner = braintrace.compile(step, rule, PARAMS, h, XS[0], **options)

        @jax.jit
        def grad(params):
            return learner.grad(jnp.mean, params, learner.init(params, h), XS, window=3)[0][0]

        return grad(PARAMS)

    plain, added = (gradients(twice) for twice in TWICE.values())
    assert all(np.abs(g).max() > 0.01 for g in plain.values())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), plain, added)
