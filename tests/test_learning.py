"""Online gradients against BPTT and against the textbook recursions, in float64, with windows shorter than the sequence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import braintrace

D, H, C, T, B = 3, 4, 2, 7, 2
rng = np.random.RandomState(1)
draw = lambda *s: jnp.asarray(rng.randn(*s) * 0.6)
sig, cat = jax.nn.sigmoid, lambda *a: jnp.concatenate(a, -1)
P = dict(
    W=draw(D, H),
    R=draw(H, H),
    a=draw(H),
    b=draw(H),
    o=draw(H, C),
    G=draw(D + H, 2 * H),
    N=draw(D + H, H),
    L=draw(D + H, 4 * H),
    M=draw(D, 2 * H),
    g=draw(H),
    U=draw(H, H),
    E=draw(D, H),
)
X, Y = draw(T, B, D), draw(T, B, C)
one, two = draw(B, H), (draw(B, H), draw(B, H))


@jax.custom_jvp
def spike(v):
    return (v > 0).astype(v.dtype)


spike.defjvp(lambda p, t: (spike(*p), t[0] * jnp.maximum(0, 1 - jnp.abs(p[0]))))


def model(new, read=lambda h: h):
    def step(p, h, x):
        h = new(p, h, x)
        return h, read(h) @ p['o']

    return step


def lif(p, s, x):
    v = 0.8 * s + x @ p['W'] + p['b'] - lax.stop_gradient(spike(s))
    return v


def lstm_cell(p, s, x):
    i, f, o, u = jnp.split(cat(x, s[1]) @ p['L'], 4, -1)
    c = sig(f + 1) * s[0] + sig(i) * jnp.tanh(u)
    return c, sig(o) * jnp.tanh(c)


def gru_cell(p, h, x):
    z, r = jnp.split(sig(cat(x, h) @ p['G']), 2, -1)
    return (1 - z) * h + z * jnp.tanh(cat(x, r * h) @ p['N'] + p['b'])


def norm(h):
    return (h - h.mean(-1, keepdims=True)) / jnp.sqrt(h.var(-1, keepdims=True) + 0.1)


def stacked(*layers):
    """Layers one above the other, each with its own state."""

    def new(p, s, x):
        out = []
        for f, h in zip(layers, s, strict=True):
            out.append(f(p, h, x))
            x = out[-1]
        return tuple(out)

    return model(new, lambda s: s[-1])


tanh_rnn = model(lambda p, h, x: jnp.tanh(x @ p['W'] + h @ p['R'] + p['b']))
low, high = (
    lambda p, h, x: jnp.tanh(x @ p['W'] + h @ p['R']),
    lambda p, h, x: jnp.tanh(x @ p['U'] + 0.5 * h * p['a']),
)
POSITION_WISE = {
    'leaky': (model(lambda p, h, x: jnp.tanh(p['a'] * h + x @ p['W'] + p['b'])), one),
    'minimal gru': (
        model(
            lambda p, h, x: (lambda u, n: (1 - sig(u)) * h + sig(u) * jnp.tanh(n))(
                *jnp.split(x @ p['M'], 2, -1)
            )
        ),
        one,
    ),
    'linear recurrent unit': (
        model(
            lambda p, s, x: (
                p['a'] * s[0] - p['b'] * s[1] + x @ p['W'],
                p['b'] * s[0] + p['a'] * s[1] + x @ p['E'],
            ),
            lambda s: s[0] + s[1],
        ),
        two,
    ),
    'synapse and membrane': (
        model(
            lambda p, s, x: (lambda g: (g, 0.9 * s[1] + jnp.tanh(g * p['g'])))(
                0.6 * s[0] + x @ p['W']
            ),
            lambda s: s[1],
        ),
        two,
    ),
    'lif': (model(lif, spike), one),
    'rolled tail, one sample': (
        model(lambda p, h, x: jnp.tanh(0.5 * h + jnp.roll(x.sum(0) @ p['W'], 1))),
        draw(H),
    ),
    'one output, two units': (
        model(lambda p, h, x: jnp.tanh(0.5 * h + jnp.repeat(x @ p['W'][:, : H // 2], 2, -1))),
        one,
    ),
    'shared weight': (
        model(lambda p, h, x: jnp.tanh(0.5 * h + x @ p['W'] + jnp.sin(x) @ p['W'])),
        one,
    ),
    'substeps': (
        model(
            lambda p, h, x: lax.fori_loop(
                0, 3, lambda i, v: v + 0.2 * (x @ p['W'] - v * p['a'] ** 2), h
            )
        ),
        one,
    ),
    'spike before its reset': (
        lambda p, h, x: (lambda v: (v - lax.stop_gradient(spike(v)), spike(v) @ p['o']))(
            0.8 * h + x @ p['W']
        ),
        one,
    ),
    'read-out of the old state': (
        lambda p, h, x: (jnp.tanh(p['a'] * h + x @ p['W']), h @ p['o']),
        one,
    ),
    'one weight, all units': (
        model(
            lambda p, h, x: jnp.tanh(
                0.5 * h + jnp.ones((B, H)) * jnp.tanh(x.sum() * p['a'][0] + p['b'][0])
            )
        ),
        one,
    ),
    'one output, all units': (
        model(lambda p, h, x: jnp.tanh(0.5 * h + jnp.tanh(x.sum(0) @ p['W'][:, :1]) * p['b'])),
        one,
    ),
    'hand-written product': (
        model(lambda p, h, x: jnp.tanh(0.5 * h + (x[:, :, None] * p['W']).sum(1))),
        one,
    ),
    'mean pooling': (
        model(lambda p, h, x: jnp.tanh(0.5 * h + jnp.tanh(x @ p['M']).reshape(B, H, 2).mean(-1))),
        one,
    ),
    'max pooling': (
        model(
            lambda p, h, x: jnp.tanh(
                0.5 * h + lax.reduce_window(x @ p['M'], -jnp.inf, lax.max, (1, 2), (1, 2), 'VALID')
            )
        ),
        one,
    ),
    'segment sums': (
        model(
            lambda p, h, x: jnp.tanh(
                h - 0.5 * h.at[:, np.arange(2 * H) % 3].add(jnp.sin(x @ p['M']))
            )
        ),
        one,
    ),
    'conditional': (
        model(
            lambda p, h, x: lax.cond(
                x[0, 0] > 0, lambda: jnp.tanh(h + x @ p['W']), lambda: h * p['a']
            )
        ),
        one,
    ),
}
OTHERS = {
    'tanh rnn': (tanh_rnn, one),
    'gru': (model(gru_cell), one),
    'lstm': (model(lstm_cell, lambda s: s[1]), two),
    'two layers': (stacked(low, high), two),
    'three layers': (
        stacked(
            low,
            lambda p, h, x: jnp.tanh(x @ p['U'] + h * p['g']),
            lambda p, h, x: jnp.tanh(0.5 * h + x @ p['R']),
        ),
        (*two, one),
    ),
    'layer norm between': (
        stacked(low, lambda p, h, x: jnp.tanh(norm(x) * p['g'] @ p['U'] + 0.5 * h)),
        two,
    ),
    'mean field': (
        model(lambda p, h, x: jnp.tanh(0.5 * h - 0.3 * h.mean(-1, keepdims=True) + x @ p['W'])),
        one,
    ),
    'rolled transition': (
        model(lambda p, h, x: jnp.tanh(0.4 * h + 0.7 * jnp.roll(h, 1, -1) + x @ p['W'])),
        one,
    ),
}
loss = lambda out, y: jnp.mean((out - y) ** 2)


def bptt(step, state, params=P, xs=X, ys=Y):
    total = lambda p: lax.scan(
        lambda s, xy: (lambda o: (o[0], loss(o[1], xy[1])))(step(p, s, xy[0])), state, (xs, ys)
    )[1].mean()
    return jax.grad(total)(params)


def online(step, state, rule, window, **options):
    learner = braintrace.compile(step, rule, P, state, X[0], **options)
    (grads, _), carry = learner.grad(loss, P, learner.init(P, state), X, Y, window=window)
    return grads, carry


def assert_close(a, b, tolerance=1e-10):
    assert any(np.abs(v).max() > 1e-3 for v in jax.tree.leaves(b)), 'a dead model proves nothing'
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(
            np.asarray(x, float),
            np.asarray(y, float),
            atol=tolerance * max(1, np.abs(np.asarray(y)).max()),
        )


@pytest.mark.parametrize('method', ['single-step', 'multi-step'])
@pytest.mark.parametrize('name', POSITION_WISE)
def test_d_rtrl_is_exact_where_the_recurrence_is_position_wise(name, method):
    step, state = POSITION_WISE[name]
    assert_close(
        online(step, state, 'd_rtrl', 1 if method == 'single-step' else 3, vjp_method=method)[0],
        bptt(step, state),
    )


@pytest.mark.parametrize('method', ['single-step', 'multi-step'])
def test_a_product_written_by_hand_has_the_trace_of_a_product(method):
    product = (
        lambda x, w: (x[..., None] * w).sum(-2)
    )  # a sum over old units, each times a weight: the weights' paths go on where those of the units end
    by_hand = model(lambda p, h, x: jnp.tanh(product(x, p['W']) + product(h, p['R']) + p['b']))
    for window in (1, 3):
        assert_close(
            *[
                online(step, one, 'd_rtrl', window, vjp_method=method)[0]
                for step in (by_hand, tanh_rnn)
            ]
        )


@pytest.mark.parametrize('name', [*OTHERS, 'lif', 'substeps'])
def test_rtrl_is_exact(name):
    step, state = (OTHERS | POSITION_WISE)[name]
    for window in (1, 3):
        assert_close(online(step, state, 'rtrl', window)[0], bptt(step, state))


@pytest.mark.parametrize(
    'name, rule, options',
    [
        *[(name, 'd_rtrl', {}) for name in OTHERS],
        *[
            (name, rule, dict(decay_or_rank=0.8))
            for name in ('gru', 'layer norm between', 'two layers')
            for rule in ('pp_prop', 'hybrid')
        ],
    ],
)
def test_classical_rules_do_not_depend_on_the_window(name, rule, options):
    step, state = OTHERS[name]
    first, other = (online(step, state, rule, window, **options) for window in (3, 'auto'))
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


# ---- the textbook rules, step by step, written out by hand ----


def test_no_parameter_is_forgotten():
    """GRU's reset gate has no position-wise path and still gets its same-step gradient; an idle parameter gets zeros."""
    step, state = OTHERS['gru']
    grads, _ = online(step, state, 'd_rtrl', 3)
    assert np.abs(grads['G'][:, H:]).max() > 1e-4 and not np.asarray(grads['E']).any()


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


def test_fresh_sequences_stand_alone():
    step, state = OTHERS['gru']
    learner = braintrace.compile(step, 'd_rtrl', P, state, X[0])
    _, used = learner.grad(loss, P, learner.init(P, state), X, Y)
    again = used._replace(state=state)
    for window in (3, 'auto'):
        (grads, _), after = learner.grad(loss, P, again, X, Y, fresh=True, window=window)
        assert_close(grads, online(step, state, 'd_rtrl', 3)[0])
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
    by_sample = lambda out, y: ((out - y) ** 2).mean(-1)
    weighted = lambda out, y, w: (by_sample(out, y) * w).sum()
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
    run = lambda p, c, x, y: learner.grad(loss, p, c, x, y, window=3)[0]
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
        assert {a.dtype.name for a in carry.traces.values()} == {dtype or 'float32'}
        assert_close(grads, expected[0], tolerance)


def test_one_compilation_for_each_shape():
    calls = []

    def step(p, h, x):
        calls.append(1)
        return jnp.tanh(h * p + x), h

    learner = braintrace.compile(step, 'd_rtrl', jnp.ones(2), jnp.zeros(2), jnp.zeros(2))
    carry, before = learner.init(jnp.ones(2), jnp.zeros(2)), len(calls)
    total = lambda out: out.sum()
    for scale in (1.0, 2.0, 3.0):
        _, carry = learner.grad(total, jnp.ones(2) * scale, carry, jnp.ones((5, 2)))
    assert (
        len(calls) == before + 1
        and learner._jitted[total, 'auto', 'mean', False, False]._cache_size() == 1
    )


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
            'needs the option `decay_or_rank`',
            lambda f: braintrace.compile(f, 'pp_prop', P, one, X[0]),
        ),
        (
            AssertionError,
            'decay must be in',
            lambda f: braintrace.compile(f, 'pp_prop', P, one, X[0], decay_or_rank=1.5),
        ),
        (
            AssertionError,
            'vjp_method',
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
            'brainstate.nn.Module or a function',
            lambda f: braintrace.compile(3, 'd_rtrl'),
        ),
    ],
)
def test_bad_input(error, message, call):
    with pytest.raises(error, match=message):
        call(OTHERS['gru'][0])
