"""A sequence that stands alone, in parts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import OTHERS, POSITION_WISE, P, X, Y, assert_close, bptt, loss, one
from told import LOST

import braintrace
from braintrace.learn import block_sizes, core

pytestmark = LOST
EXACT = [
    'linear recurrent unit',
    'read-out of the old state',
    'rolled tail, one sample',
    'spike before its reset',
    'synapse and membrane',
]


def alone(step, state, rule, **options):
    """Gradients, losses and the state after a sequence that stands alone, compiled anew."""
    learner = braintrace.compile(step, rule, P, state, X[0], **options)
    carry = learner.init(P, state)
    (grads, losses), after = learner.grad(loss, P, carry, X, Y, fresh=True)
    return grads, losses, after.state


def in_parts(monkeypatch, steps):
    """From here on a part has so many steps; the lengths of the sequences that were cut."""
    cut, run = [], core.grad_in_parts

    def spied(*given):
        cut.append(given[-2].length)
        return run(*given)

    monkeypatch.setattr(block_sizes.BlockSizes, 'part_of', lambda self, length: steps)
    monkeypatch.setattr(core, 'grad_in_parts', spied)
    return cut


@pytest.mark.parametrize('steps', [1, 4])
@pytest.mark.parametrize('name', EXACT)
def test_exact_models_get_the_gradient_of_bptt(name, steps, monkeypatch):
    step, state = POSITION_WISE[name]
    cut = in_parts(monkeypatch, steps)
    assert_close(alone(step, state, 'd_rtrl')[0], bptt(step, state))
    assert cut == [len(X)] and len(X) % 4, 'the last part is to be shorter'


def test_complex_units_get_it_too(monkeypatch):
    def step(p, h, x):
        h = jnp.exp(1j * p['b'] - jnp.abs(p['a'])) * h + x @ (p['W'] + 0.5j * p['E'])
        return h, h.real @ p['o']

    state = jnp.zeros(one.shape, complex)
    cut = in_parts(monkeypatch, 4)
    assert_close(alone(step, state, 'd_rtrl')[0], bptt(step, state))
    assert cut == [len(X)]


@pytest.mark.parametrize('rule', ['d_rtrl', 'rflo'])
@pytest.mark.parametrize('name', ['gru', 'lstm', 'two layers'])
def test_parts_change_nothing(name, rule, monkeypatch):
    step, state = OTHERS[name]
    options = dict(decay=0.5) if rule == 'rflo' else {}
    whole = alone(step, state, rule, **options)
    cut = in_parts(monkeypatch, 4)
    for found, expected in zip(alone(step, state, rule, **options), whole, strict=True):
        assert_close(found, expected)
    assert cut == [len(X)]


def test_a_large_sequence_is_cut(monkeypatch):
    """What does not fit into a cache is run in parts, and takes less memory."""
    step, state = OTHERS['gru']
    learner = braintrace.compile(step, 'd_rtrl', P, state, X[0])

    def memory():
        carry = learner.init(P, state)
        run = jax.jit(lambda c: learner.grad(loss, P, c, xs, ys, fresh=True, window=len(xs))[0])
        return run.lower(carry).compile().memory_analysis().temp_size_in_bytes

    xs, ys = (np.concatenate([a] * 40) for a in (X, Y))
    whole = memory()
    monkeypatch.setattr(block_sizes, 'IN_CACHE', 20_000)
    learner = braintrace.compile(step, 'd_rtrl', P, state, X[0])
    assert memory() < 0.8 * whole
