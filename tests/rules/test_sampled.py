"""Rules that carry a sample or a part of the influence: unbiased, repeatable, within the bound."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cells import CELLS, DATA, H, exact, loss, online, rng, same, step_of, textbook
from inside import program_and_window, with_random_key

import braintrace
from braintrace.plan.keys import TRACE
from braintrace.rules.kf_rtrl import Kronecker
from braintrace.rules.low_rank import BOUND, LowRank
from braintrace.rules.random_bits import norm
from braintrace.rules.rtrl import Rtrl, RtrlOfSamples
from braintrace.rules.uoro import RankOne


def window_of(name, B, k):
    """The plan of the cell for RTRL and one window of two steps."""
    cell, params, start = CELLS[name]
    xs, _ = DATA[B]
    learner = braintrace.compile(step_of(cell), 'rtrl', params, start(B), xs[0])
    state = jax.tree.map(lambda a: a + 0.3, start(B))
    program, window = program_and_window(learner, params, state, xs[2 * k : 2 * k + 2])
    return program.layout, window


def drawn(carrier):
    """Arbitrary traces, with the random stream as it is."""
    return {
        k: v if k.kind == 'key' else jnp.asarray(rng.randn(*v.shape))
        for k, v in carrier.init().items()
    }


def test_uoro_is_unbiased():
    """The mean over all signs of one update is the exact one, from an arbitrary rank-one start."""
    start = drawn(RankOne(window_of('rnn', 1, 0)[0]))
    [state] = [k for k in start if k.kind == 's']

    def product(t):
        s = t[state].ravel()
        return {k.of(TRACE): jnp.tensordot(s, a, 0) for k, a in t.items() if k.kind == 'theta'}

    all_signs = jnp.asarray(list(itertools.product([-1.0, 1.0], repeat=H)))

    @jax.jit
    def advance():
        layout, window = window_of('rnn', 1, 0)

        def one(nu):
            carrier = RankOne(layout, draw=lambda key, shape, dtype: nu.reshape(shape))
            return product(carrier.advance(start, window))

        return jax.vmap(one)(all_signs), Rtrl(layout).advance(product(start), window)

    found, true = advance()
    mean = jax.tree.map(lambda a: a.mean(0), found)
    same(mean, true)
    apart = jax.tree.map(lambda a, b: np.abs(a[0] - b).max(), found, mean)
    assert max(jax.tree.leaves(apart)) > 1e-3


@pytest.mark.parametrize('name', ['rnn', 'lstm'])
def test_kf_rtrl_is_unbiased(name):
    carrier = Kronecker(window_of(name, 3, 1)[0])
    start = drawn(carrier)

    def product(t):
        products = {}
        for u in carrier.state.uses:
            A, axes = t[u.key.of('A')], u.op.axes
            if axes.x is not None:
                labels = f'Z{axes.y},{axes.x}->Z{axes.trace}'
                A = jnp.einsum(labels, A, t[u.key.of('u')])
            products[u.key] = A
        return products

    all_signs = jnp.asarray(list(itertools.product([-1.0, 1.0], repeat=3)))

    @jax.jit
    def advance():
        layout, window = window_of(name, 3, 1)

        def one(c):
            carrier = Kronecker(layout, draw=lambda key, shape, dtype: jnp.broadcast_to(c, shape))
            return product(carrier.advance(start, window))

        return jax.vmap(one)(all_signs), RtrlOfSamples(layout).advance(product(start), window)

    found, true = advance()
    same(jax.tree.map(lambda a: a.mean(0), found), true)


@pytest.mark.parametrize('rank', [2, 6])
def test_low_rank_reports_a_bound_that_holds(rank):

    @jax.jit
    def errors_and_bounds():
        layout, _ = window_of('gru', 3, 0)
        low, full = LowRank(layout, rank), Rtrl(layout)
        a, b, found = low.init(), full.init(), []
        for k in range(3):
            window = window_of('gru', 3, k)[1]
            a, b = low.advance(a, window), full.advance(b, window)
            [U] = [trace.reshape(len(trace), -1).T for key, trace in a.items() if key.kind == 'U']
            parts = [jnp.tensordot(U, a[key.of('V')], 1) - J for key, J in b.items()]
            J = jnp.concatenate([J.reshape(len(J), -1) for J in b.values()], 1)
            best = jnp.linalg.svd(J, compute_uv=False)[rank:]
            found.append((norm(parts), a[BOUND], norm([best])))
        return found

    for error, bound, best in errors_and_bounds():
        assert 1e-3 < best <= error * (1 + 1e-9) < 1.2 * best
        assert error < bound < 4 * error


def test_random_streams_repeat_and_differ():
    grads = [online('gru', 'uoro', 3, 1, projection_key=k) for k in (1, 1, 2)]
    same(grads[0], grads[1], 0.0)
    assert not np.allclose(grads[0]['Z'], grads[2]['Z'])


def test_uoro_step_by_step_is_unbiased_too():
    """The mean of many streams comes close to the exact gradient; the same-step part is exact in
    each of them."""
    cell, params, start = CELLS['rnn']
    xs, ys = DATA[1]
    learner = braintrace.compile(
        step_of(cell), 'uoro', params, start(1), xs[0], vjp_method='single-step'
    )
    carry = learner.init(params, start(1))
    keys = jax.vmap(jax.random.key_data)(jax.random.split(jax.random.key(0), 4000))

    def one(k):
        return learner.grad(
            lambda out, y: loss(out, y).mean(),
            params,
            with_random_key(carry, k),
            xs,
            ys,
        )[0][0]

    found, true = jax.vmap(one)(keys), textbook('rnn', 1, exact)
    same(found['o'][0], true['o'])
    for k in 'WRb':
        spread = found[k].std(0).max() / np.sqrt(len(keys))
        assert np.abs(found[k].mean(0) - true[k]).max() < 6 * spread
