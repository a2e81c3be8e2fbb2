"""The learner of plain functions: carries, masks, types, transforms, progress and errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import (
    OTHERS,
    POSITION_WISE,
    B,
    P,
    T,
    X,
    Y,
    assert_close,
    loss,
    one,
    online,
    rng,
)
from told import LOST

import braintrace

pytestmark = LOST


def test_carrying_on():
    step, state = OTHERS['lstm']
    for rule, options in (('d_rtrl', {}), ('rtrl', {}), ('pp_prop', dict(decay_or_rank=3))):
        learner = braintrace.compile(step, rule, P, state, X[0], **options)
        carry = learner.init(P, state)
        (whole, losses), end = learner.grad(loss, P, carry, X, Y, reduction='sum', window=3)
        (first, a), middle = learner.grad(loss, P, carry, X[:3], Y[:3], reduction='sum')
        (second, b), last = learner.grad(loss, P, middle, X[3:], Y[3:], reduction='sum', window=2)
        assert_close(jax.tree.map(jnp.add, first, second), whole, 1e-10 if rule != 'rtrl' else 1e-9)
        assert_close(last.traces, end.traces) if rule != 'rtrl' else None
        np.testing.assert_allclose(jnp.concatenate([a, b]), losses)
        _, warm = learner.evolve(P, carry, X[:3])
        assert_close(warm, middle)


TWICE = {
    'd_rtrl': {},
    'pp_prop': dict(decay_or_rank=3),
    'snap': {},
    'ostl_recurrent': {},
    'eprop': dict(feedback='random', random_feedback_key=1),
    'uoro': {},
    'kf_rtrl': {},
}


@pytest.mark.parametrize('rule', TWICE)
def test_gradients_have_derivatives(rule):
    """A gradient as a function of the weights, as in learning to learn, against differences."""
    step, state = OTHERS['gru']
    learner = braintrace.compile(step, rule, P, state, X[0], **TWICE[rule])

    def size(params):
        (grads, _), _ = learner.grad(loss, params, learner.init(params, state), X, Y, window=3)
        return sum(jnp.sum(g**2) for g in jax.tree.leaves(grads))

    drawn = np.random.RandomState(0)
    towards = jax.tree.map(lambda a: drawn.normal(size=a.shape), P)
    moved = [jax.tree.map(lambda a, d, e=e: a + e * d, P, towards) for e in (1e-4, -1e-4)]
    slope = jax.jvp(jax.jit(size), (P,), (towards,))[1]
    np.testing.assert_allclose(slope, (size(moved[0]) - size(moved[1])) / 2e-4, rtol=1e-5)


def test_fresh_sequences_stand_alone():
    step, state = OTHERS['gru']
    learner = braintrace.compile(step, 'd_rtrl', P, state, X[0])
    _, used = learner.grad(loss, P, learner.init(P, state), X, Y)
    again, expected = used._replace(state=state), online(step, state, 'd_rtrl', 3)[0]
    for window in (3, 'auto'):
        (grads, _), after = learner.grad(loss, P, again, X, Y, fresh=True, window=window)
        assert_close(grads, expected)
        assert all(
            np.array_equal(a, b)
            for a, b in zip(after.traces.values(), used.traces.values(), strict=True)
        )


def test_mixed_types():
    """Parameters, states and counters of different types; an effect inside the step."""

    def step(p, s, x):
        h = jnp.tanh(0.5 * s['h'] + (x.astype('bfloat16') @ p['W']).astype('float32')) * (
            s['n'] < 100
        )
        jax.debug.callback(lambda a: None, h[0, 0])
        return dict(h=h, n=s['n'] + 1), h @ p['o'].astype('float32')

    p = dict(W=P['W'].astype('bfloat16'), o=P['o'], n=jnp.arange(3))
    state, xs, ys = (
        dict(h=one.astype('float32'), n=jnp.int32(0)),
        X.astype('float32'),
        Y.astype('float32'),
    )
    found = []
    for rule, options in (
        ('d_rtrl', {}),
        ('rtrl', {}),
        ('pp_prop', dict(decay_or_rank=0.5)),
        ('pp_prop', dict(decay_or_rank=0.5, vjp_method='multi-step')),
    ):
        learner = braintrace.compile(step, rule, p, state, xs[0], **options)
        (grads, _), carry = learner.grad(loss, p, learner.init(p, state), xs, ys, window=2)
        assert (
            grads['W'].dtype == p['W'].dtype
            and carry.state['n'] == T
            and not np.asarray(grads['n']).any()
        )
        found.append(grads)
    np.testing.assert_allclose(
        np.asarray(found[0]['W'], float), np.asarray(found[1]['W'], float), atol=2e-2
    )
    assert all(np.isfinite(np.asarray(g['W'], float)).all() for g in found)


def test_masks():
    step, state = OTHERS['gru']
    learner = braintrace.compile(step, 'd_rtrl', P, state, X[0])

    def by_sample(out, y):
        return ((out - y) ** 2).mean(-1)

    def weighted(out, y, w):
        return (by_sample(out, y) * w).sum()

    mask = jnp.asarray(rng.rand(T, B) > 0.4, float)
    for m in (mask, mask[:, 0]):
        (grads, losses), _ = learner.grad(
            by_sample, P, learner.init(P, state), X, Y, mask=m, window=2
        )
        full = jnp.broadcast_to(m.reshape(T, -1), (T, B))
        (expected, _), _ = learner.grad(
            weighted, P, learner.init(P, state), X, Y, full / full.sum(), reduction='sum'
        )
        assert_close(grads, expected)
        assert losses.shape == (T, B)


def test_transforms_and_types():
    step, state = POSITION_WISE['leaky']
    learner = braintrace.compile(step, 'd_rtrl', P, state, X[0])
    carry = learner.init(P, state)

    def run(p, c, x, y):
        return learner.grad(loss, p, c, x, y, window=3)[0]

    expected = run(P, carry, X, Y)
    assert_close(jax.jit(run)(P, carry, X, Y), expected)
    single = braintrace.compile(step, 'd_rtrl', P, state[0], X[0, 0])
    lanes = jax.vmap(
        lambda s, x, y: single.grad(loss, P, single.init(P, s), x, y, window=3)[0][0], (0, 1, 1)
    )(state, X, Y)
    assert_close(jax.tree.map(lambda g: g.mean(0), lanes), expected[0])
    low = jax.tree.map(lambda a: a.astype('float32'), (P, state, X, Y))
    for dtype, tolerance in ((None, 1e-5), ('bfloat16', 2e-2)):
        learner = braintrace.compile(step, 'd_rtrl', low[0], low[1], low[2][0], trace_dtype=dtype)
        (grads, _), carry = learner.grad(
            loss, low[0], learner.init(low[0], low[1]), low[2], low[3], window=3
        )
        stored = {'float32'} if dtype is None else {dtype, 'int8'}
        assert {a.dtype.name for a in carry.traces.values()} == stored
        assert_close(grads, expected[0], tolerance)


def test_one_compilation_for_each_shape():
    calls = []

    def step(p, h, x):
        calls.append(1)
        return jnp.tanh(h * p + x), h

    learner = braintrace.compile(step, 'd_rtrl', jnp.ones(2), jnp.zeros(2), jnp.zeros(2))
    carry, before = learner.init(jnp.ones(2), jnp.zeros(2)), len(calls)

    def total(out):
        return out.sum()

    for scale in (1.0, 2.0, 3.0):
        _, carry = learner.grad(total, jnp.ones(2) * scale, carry, jnp.ones((5, 2)))
    assert len(calls) == before + 1


def run(f, xs, ys, loss=loss, state=None, **kw):
    learner = braintrace.compile(f, 'd_rtrl', P, one, X[0])
    carry = learner.init(P, one)
    return learner.grad(
        loss, P, carry if state is None else carry._replace(state=state), xs, ys, **kw
    )


def test_progress_and_plan(capsys):
    step, state = OTHERS['gru']
    learner = braintrace.compile(step, 'd_rtrl', P, state, X[0], memory_budget=5000)
    (grads, _), _ = learner.grad(loss, P, learner.init(P, state), X, Y, window=3, progress=True)
    jax.effects_barrier()
    assert f'{T}/{T}' in capsys.readouterr().err
    assert_close(grads, online(step, state, 'd_rtrl', 3)[0])
    memory = learner.report.memory
    assert (
        memory['trace_bytes'] == sum(a.nbytes for a in learner.init(P, state).traces.values())
        and memory['block_bytes'] <= 5000
    )
    assert 'all traces' in learner.report.to_str()


@pytest.mark.parametrize(
    'error, message, call',
    [
        (
            ValueError,
            "Did you mean 'd_rtrl'",
            lambda f: braintrace.compile(f, 'drtrl', P, one, X[0]),
        ),
        (
            TypeError,
            'has no option `decay`',
            lambda f: braintrace.compile(f, 'd_rtrl', P, one, X[0], decay=0.9),
        ),
        (
            TypeError,
            'needs the option `decay_or_rank`, a decay in',
            lambda f: braintrace.compile(f, 'pp_prop', P, one, X[0]),
        ),
        (
            AssertionError,
            'decay must be in',
            lambda f: braintrace.compile(f, 'pp_prop', P, one, X[0], decay_or_rank=1.5),
        ),
        (
            ValueError,
            "`vjp_method` must be 'single-step' or 'multi-step', got 'both'",
            lambda f: braintrace.compile(f, 'd_rtrl', P, one, X[0], vjp_method='both'),
        ),
        (
            ValueError,
            "must be 'multi-step'",
            lambda f: braintrace.compile(f, 'rtrl', P, one, X[0], vjp_method='single-step'),
        ),
        (ValueError, 'different lengths', lambda f: run(f, X, Y[:3])),
        (
            ValueError,
            'scalar or one for each sample',
            lambda f: run(f, X, Y, loss=lambda o, y: o - y),
        ),
        (ValueError, 'mask', lambda f: run(f, X, Y, mask=jnp.ones(3))),
        (ValueError, 'at least 1', lambda f: run(f, X, Y, window=0)),
        (TypeError, 'window', lambda f: run(f, X, Y, window='long')),
        (ValueError, 'reduction', lambda f: run(f, X, Y, reduction='max')),
        (
            ValueError,
            'another model, rule or batch size',
            lambda f: run(f, X[:, :1], Y[:, :1], state=one[:1]),
        ),
        (
            TypeError,
            'module of brainstate or Flax NNX, or a function',
            lambda f: braintrace.compile(3, 'd_rtrl'),
        ),
    ],
)
def test_bad_input(error, message, call):
    with pytest.raises(error, match=message):
        call(OTHERS['gru'][0])
