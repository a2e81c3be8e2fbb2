"""Keys of traces."""

import jax.numpy as jnp

import braintrace
from braintrace.plan.keys import TraceKey, distinct
from braintrace.step import Leaf


def test_keys_that_read_alike_are_numbered_whatever_numbers_they_had():
    weight, other = (Leaf(('cell', 'W'), ('weight',)),), (Leaf(('out',)),)
    keys = distinct([TraceKey(weight, ('h',)), TraceKey(other), TraceKey(weight, ('h',))])
    assert [str(key) for key in keys] == ['cell.W.weight->h', 'out', 'cell.W.weight->h#1']
    again = distinct([keys[0], keys[0], keys[2]])
    assert [str(key) for key in again] == [f'cell.W.weight->h{n}' for n in ('', '#1', '#2')]


def test_a_key_tells_what_it_is_of():
    key = TraceKey((Leaf(('cell', 'W'), ('weight',)),), ('cell', 'h'))
    assert key.is_of(('cell', 'W')) and not key.is_of(('cell', 'W', 'weight'))
    assert str(key.of('kappa')) == 'kappa:cell.W.weight->cell.h' and key < key.of('kappa')
    assert str(TraceKey(kind='bound')) == 'bound' and str(TraceKey(group=())) == 'state'


def test_a_weight_that_one_use_keeps_as_a_product_and_another_as_factors():
    def step(p, h, x):
        h = 0.9 * h + (x[:, :, None] * p['W']).sum(1) + x @ p['W']
        return h, h

    params, h, xs = {'W': jnp.ones((6, 6))}, jnp.zeros((2, 6)), jnp.ones((3, 2, 6))
    learner = braintrace.compile(step, 'hybrid', params, h, xs[0], decay_or_rank=0.5)
    carry = learner.init(params, h)
    shapes = {name: a.shape for name, a in carry.traces.items()}
    assert shapes == {'W->state': (1, 2, 6, 6), 'W->state#1': (1, 2, 6), 'x:W': (2, 6)}
    learner.grad(jnp.sum, params, carry, xs, window=1)
