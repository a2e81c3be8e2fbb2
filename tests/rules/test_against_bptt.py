"""Online gradients against BPTT in float64, with windows shorter than the sequence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from small_models import (
    OTHERS,
    POSITION_WISE,
    H,
    T,
    assert_close,
    bptt,
    in_windows,
    model,
    one,
    online,
    tanh_rnn,
)
from told import LOST

import braintrace

pytestmark = LOST


@pytest.mark.parametrize('name', POSITION_WISE)
def test_d_rtrl_is_exact_where_the_recurrence_is_position_wise(name):
    """Step by step in short windows, and with exact credit inside of them for every other model."""
    (step, state), turn = POSITION_WISE[name], list(POSITION_WISE).index(name) % 2
    true = bptt(step, state)
    assert_close(online(step, state, 'd_rtrl', [1, 3][turn])[0], true)
    if turn:
        assert_close(online(step, state, 'd_rtrl', 2, vjp_method='multi-step')[0], true)


@pytest.mark.parametrize('method', ['single-step', 'multi-step'])
def test_a_product_written_by_hand_has_the_trace_of_a_product(method):
    def product(x, w):
        # a sum over old units, each times a weight: the paths of weights go on where units' end
        return (x[..., None] * w).sum(-2)

    by_hand = model(lambda p, h, x: jnp.tanh(product(x, p['W']) + product(h, p['R']) + p['b']))
    found, true = (
        in_windows(step, one, 'd_rtrl', (1, 3), vjp_method=method) for step in (by_hand, tanh_rnn)
    )
    for (a, _), (b, _) in zip(found, true, strict=True):
        assert_close(a, b)


@pytest.mark.parametrize('name', [*OTHERS, 'lif', 'substeps'])
def test_rtrl_is_exact(name):
    step, state = (OTHERS | POSITION_WISE)[name]
    true = bptt(step, state)
    for grads, _ in in_windows(step, state, 'rtrl', (1, 3) if name in ('gru', 'lif') else (3,)):
        assert_close(grads, true)


def test_a_model_without_inputs():
    def step(p, h, x):
        h = jnp.tanh(x @ p['W'] + h @ p['R'])
        return h, h

    def loss(p):
        return jnp.mean(lax.scan(lambda h, x: step(p, h, x), start, xs)[1] ** 2)

    params, start = dict(W=jnp.zeros((0, 3)), R=jnp.eye(3) + 0.1), jnp.ones((2, 3))
    xs = jnp.zeros((4, 2, 0))
    learner = braintrace.compile(step, 'rtrl', params, start, xs[0])
    carry = learner.init(params, start)
    (grads, _), _ = learner.grad(lambda out: jnp.mean(out**2), params, carry, xs, window=2)
    np.testing.assert_allclose(grads['R'], jax.grad(loss)(params)['R'], atol=1e-10)


@pytest.mark.parametrize(
    'name, rule, options',
    [
        *[(name, 'd_rtrl', {}) for name in OTHERS if name not in ('tanh rnn', 'gru', 'lstm')],
        *[
            (name, rule, dict(decay_or_rank=0.8))
            for name in ('layer norm between', 'two layers')
            for rule in ('pp_prop', 'hybrid')
        ],
    ],
)
def test_classical_rules_do_not_depend_on_the_window(name, rule, options):
    """For single cells `test_textbook.py` has the recursion itself."""
    step, state = OTHERS[name]
    first, other = in_windows(step, state, rule, (3, 'auto'), **options)
    assert_close(other, first)
    np.testing.assert_allclose(
        first[0]['o'], bptt(step, state)['o'], atol=1e-12
    )  # the read-out needs no trace


@pytest.mark.parametrize('rule', ['d_rtrl', 'pp_prop', 'bptt', 'hybrid'])
def test_a_window_over_the_whole_sequence_is_bptt(rule):
    step, state = OTHERS['gru']
    options = {} if rule in ('d_rtrl', 'bptt') else dict(decay_or_rank=0.8)
    assert_close(
        online(step, state, rule, T, vjp_method='multi-step', **options)[0], bptt(step, state)
    )


def test_no_parameter_is_forgotten():
    """GRU's reset gate has no position-wise path and still gets its same-step gradient; an idle
    parameter gets zeros."""
    step, state = OTHERS['gru']
    grads, _ = online(step, state, 'd_rtrl', 3)
    assert np.abs(grads['G'][:, H:]).max() > 1e-4 and not np.asarray(grads['E']).any()
