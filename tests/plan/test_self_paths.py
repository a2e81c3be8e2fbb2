"""The ways of a unit back to itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cells import D, H, cat, rng, same, sig
from inside import program_and_window
from told import LOST

import braintrace
from braintrace.engine.factors import diagonal
from braintrace.plan.layout import Scope

pytestmark = LOST


def fused(p, h, x):
    z, r = jnp.split(sig(cat(x, h) @ p['A']), 2, -1)
    return (1 - z) * h + z * jnp.tanh(cat(x, r * h) @ p['N'])


def both_ways(p, h, x):
    y = h @ p['R']
    return 0.5 * h + 0.3 * jnp.tanh(y) + jnp.tanh((y * h) @ p['S'] + x @ p['W'])


def in_groups(a, w):
    return jnp.einsum('...gi,gio->...go', a.reshape(*a.shape[:-1], 2, 2), w).reshape(a.shape)


def grouped(p, h, x):
    gate = sig(in_groups(h, p['G']))
    return 0.5 * h + jnp.tanh(in_groups(gate * h, p['F']) + x @ p['W'])


def transposed(p, h, x):
    gate = sig(jnp.einsum('oi,...i->...o', p['R'], h))
    return 0.5 * h + jnp.tanh(jnp.einsum('oi,...i->...o', p['S'], gate * h) + x @ p['W'])


PATHS = {  # ways of a unit back to itself
    'fused': fused,
    'both ways': both_ways,
    'grouped': grouped,
    'transposed': transposed,
    'permuted': lambda p, h, x: (
        0.5 * h + jnp.tanh((sig(h @ p['R'])[..., ::-1] * h) @ p['S'] + x @ p['W'])[..., ::-1]
    ),
    'two places': lambda p, h, x: 0.4 * h + jnp.tanh(cat(h, 2 * h, x) @ p['B']),
    'three products': lambda p, h, x: (
        0.3 * h + jnp.tanh(jnp.tanh(jnp.tanh(h @ p['R']) @ p['S']) @ p['R'] + x @ p['W'])
    ),
    'mean': lambda p, h, x: (
        0.3 * h + jnp.tanh((h.mean(-1, keepdims=True) * h) @ p['R'] + x @ p['W'])
    ),
}


@pytest.mark.parametrize('way', PATHS)
def test_a_unit_s_own_block_of_the_jacobian(way):
    """Over one and two products it comes from the position-wise program with bridges; only what
    mixes more takes a pull for each unit."""

    def step(p, h, x):
        h = PATHS[way](p, h, x)
        return h, h

    shapes = dict(
        W=(D, H),
        R=(H, H),
        S=(H, H),
        N=(D + H, H),
        A=(D + H, 2 * H),
        B=(D + 2 * H, H),
        G=(2, 2, 2),
        F=(2, 2, 2),
    )
    params = {
        k: jnp.asarray(np.random.RandomState(i).randn(*s))
        for i, (k, s) in enumerate(shapes.items())
    }
    for samples in ((), (2,)):
        h, x = jnp.asarray(rng.randn(*samples, H)), jnp.asarray(rng.randn(1, *samples, D))
        learner = braintrace.compile(step, 'ostl_recurrent', params, h, x[0])

        def block(h, learner=learner, x=x):
            program, window = program_and_window(learner, params, h, x)
            by_pulls = program.layout.scope is Scope.COUPLED
            assert by_pulls == (way in ('three products', 'mean'))
            return diagonal(window, 0) if by_pulls else window.factors.transition(0)

        true = jax.jacrev(lambda h, x=x: PATHS[way](params, h, x[0]))(h)
        true = true.reshape(h.size, h.size).diagonal().reshape(h.shape)
        same(jax.jit(block)(h)[0, 0, 0], true)
