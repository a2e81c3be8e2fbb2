"""Pages escape what they print."""

import jax
import jax.numpy as jnp
import pytest

import braintrace
from braintrace.tools.page import page

BAD = '<script>alert("x")</script>'


@pytest.mark.filterwarnings('ignore:.*reaches')
def test_names_are_text():
    def step(p, s, x):
        return {BAD: jnp.tanh(s[BAD] + jnp.cumsum(x @ p[BAD], -1)), 'key': s['key']}, s[BAD]

    params, state = {BAD: jnp.ones((2, 2))}, {BAD: jnp.zeros((1, 2)), 'key': jax.random.key(0)}
    learner = braintrace.compile(step, 'd_rtrl', params, state, jnp.ones((1, 2)))
    text = page(BAD, learner.report)
    assert '<script' not in text and '&lt;script&gt;' in text
