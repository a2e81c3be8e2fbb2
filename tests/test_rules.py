"""Every rule against its textbook recursion, written out step by step: dense RNN, GRU, LSTM and adaptive spiking units, in float64."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.flatten_util import ravel_pytree

import braintrace

D, H, C, T = 3, 4, 2, 6
rng = np.random.RandomState(3)
draw = lambda *s: jnp.asarray(rng.randn(*s) * 0.7)
sig, cat, hold = jax.nn.sigmoid, lambda *a: jnp.concatenate(a, -1), lax.stop_gradient
loss = lambda out, y: ((out - y) ** 2).sum(-1)


@jax.custom_jvp
def spike(v):
    return (v > 0).astype(v.dtype)


spike.defjvp(lambda p, t: (spike(*p), t[0] * jnp.maximum(0, 1 - jnp.abs(p[0]))))


# cell(p, s, q, x): the new state and what the read-out sees. `q` is the old state where units act on themselves, `s` where they act on each other.
def rnn(p, s, q, x):
    h = jnp.tanh(x @ p['W'] + s @ p['R'] + p['b'])
    return h, h


def gru(p, s, q, x):
    z, r = sig(cat(x, s) @ p['Z']), sig(cat(x, s) @ p['Y'])
    h = (1 - z) * q + z * jnp.tanh(cat(x, r * s) @ p['N'] + p['b'])
    return h, h


def lstm(p, s, q, x):
    i, f, o, u = jnp.split(cat(x, s[1]) @ p['L'], 4, -1)
    c = sig(f + 1) * q[0] + sig(i) * jnp.tanh(u)
    h = sig(o) * jnp.tanh(c)
    return (c, h), h


def alif(p, s, q, x):
    z = spike(s[0] - s[1] - 0.2)
    a = 0.9 * q[1] + 0.3 * spike(q[0] - q[1] - 0.2)
    v = 0.8 * q[0] + x @ p['W'] + z @ p['R'] - hold(z) * 0.5
    return (v, a), spike(v - a - 0.2)


CELLS = {
    'rnn': (
        rnn,
        dict(W=draw(D, H), R=draw(H, H), b=draw(H), o=draw(H, C)),
        lambda B: jnp.zeros((B, H)),
    ),
    'gru': (
        gru,
        dict(Z=draw(D + H, H), Y=draw(D + H, H), N=draw(D + H, H), b=draw(H), o=draw(H, C)),
        lambda B: jnp.zeros((B, H)),
    ),
    'lstm': (
        lstm,
        dict(L=draw(D + H, 4 * H), o=draw(H, C)),
        lambda B: (jnp.zeros((B, H)), jnp.zeros((B, H))),
    ),
    'alif': (
        alif,
        dict(W=draw(D, H), R=draw(H, H), o=draw(H, C)),
        lambda B: (jnp.zeros((B, H)), jnp.zeros((B, H))),
    ),
}
DATA = {B: (draw(T, B, D) * 2, draw(T, B, C)) for B in (1, 3)}


def step_of(cell):
    def step(p, s, x):
        s, seen = cell(p, s, s, x)
        return s, seen @ p['o']

    return step


def online(name, rule, B, window, **options):
    cell, params, start = CELLS[name]
    xs, ys = DATA[B]
    learner = braintrace.compile(step_of(cell), rule, params, start(B), xs[0], **options)
    mean = lambda out, y: loss(out, y).mean()
    return learner.grad(mean, params, learner.init(params, start(B)), xs, ys, window=window)[0][0]


@functools.cache
def derivatives(name):
    """Of one step and one sample, on flat vectors: the new state, its derivative by the parameters, across units and by a unit's own old state; and credit
    of the new state, as the read-out sees it, and of the parameters with the new state fixed."""
    cell, params, start = CELLS[name]
    p0, of_p = ravel_pytree(params)
    s0, of_s = ravel_pytree(jax.tree.map(lambda a: a[0], start(1)))
    flat = lambda p, s, q, x: ravel_pytree(cell(of_p(p), of_s(s), of_s(q), x)[0])[0]
    derive = jax.jit(lambda s, x: (flat(p0, s, s, x), *jax.jacrev(flat, (0, 1, 2))(p0, s, s, x)))
    credit = jax.jit(
        lambda n, y: jax.grad(lambda p, n: loss(_visible(name, of_s(n)) @ of_p(p)['o'], y), (1, 0))(
            p0, n
        )
    )
    return p0, of_p, s0, derive, credit


def textbook(name, B, rule):
    """The sum over steps and samples of what `rule` says; it makes an object for each sample and feeds it the derivatives of each step."""
    p0, of_p, s0, derive, credit = derivatives(name)
    xs, ys = DATA[B]
    total = np.zeros(p0.size)
    for b in range(B):
        s, trace = s0, rule(s0.size, p0.size, of_p)
        for x, y in zip(xs[:, b], ys[:, b], strict=True):
            n, M, across, own = derive(s, x)
            signal, direct = (np.asarray(a) / (T * B) for a in credit(n, y))
            total += (
                np.asarray(trace(np.asarray(across), np.asarray(own), np.asarray(M), signal, x, s))
                + direct
            )
            s = n
    return of_p(jnp.asarray(total))


def _visible(name, state):
    return {'lstm': lambda s: s[1], 'alif': lambda s: spike(s[0] - s[1] - 0.2)}.get(
        name, lambda s: s
    )(state)


def exact(n, size, of_p):
    J = np.zeros((n, size))

    def trace(across, own, M, s, x, h):
        nonlocal J
        J = (across + own) @ J + M
        return s @ J

    return trace


def same(a, b, tolerance=1e-10):
    assert max(np.abs(v).max() for v in jax.tree.leaves(b)) > 1e-3
    for (path, x), y in zip(
        jax.tree_util.tree_leaves_with_path(a), jax.tree.leaves(b), strict=True
    ):
        np.testing.assert_allclose(x, y, atol=tolerance, err_msg=str(path))


KEPT = {}


def kept(name, of_p, size, n):
    """Which state each parameter feeds position by position (what a trace may hold), and all that it reaches in its own step."""
    if name not in KEPT:
        cell, params, start = CELLS[name]
        p0, of_p = ravel_pytree(params)
        s0, of_s = ravel_pytree(jax.tree.map(lambda a: a[0], start(1)))
        M = (
            jax.jacrev(
                lambda p: ravel_pytree(
                    cell(
                        of_p(p),
                        of_s(s0 + 0.5 + (jnp.arange(len(s0)) < H)),
                        of_s(s0 + 0.1),
                        DATA[1][0][0, 0],
                    )[0]
                )[0]
            )(p0)
            != 0
        )
        unit = ravel_pytree(
            {k: jnp.broadcast_to(jnp.arange(v.shape[-1]) % H, v.shape) for k, v in params.items()}
        )[0]
        traced = ravel_pytree({k: jnp.full(v.shape, k not in 'Yo') for k, v in params.items()})[0]
        KEPT[name] = np.asarray((np.arange(len(s0))[:, None] % H == unit) & traced), np.asarray(M)
    return KEPT[name]


def carried(name, transition, within='own', kappa=0.0):
    """`E <- transition(E) + M` on what is kept, credit meets E, or its low-pass."""

    def rule(n, size, of_p):
        own_unit, own_step = kept(name, of_p, size, n)
        keep = own_unit if within == 'own' else own_step
        E, low = np.zeros((n, size)), np.zeros((n, size))

        def trace(across, own, M, s, x, h):
            nonlocal E, low
            E = keep * (transition(across, own, E) + M)
            low = kappa * low + E
            return s @ low + s @ (M * ~keep)

        return trace

    return rule


def blocks(A):
    n = len(A)
    return A * (np.arange(n)[:, None] % H == np.arange(n) % H)


LEAK = 0.6
TEXTBOOK = {
    'd_rtrl': ('d_rtrl', {}, lambda name: carried(name, lambda across, own, E: own @ E)),
    'eprop': (
        'eprop',
        dict(kappa_filter_decay=0.7),
        lambda name: carried(name, lambda across, own, E: own @ E, kappa=0.7),
    ),
    'ostl': (
        'ostl_recurrent',
        {},
        lambda name: carried(name, lambda across, own, E: blocks(across + own) @ E),
    ),
    'rflo': ('rflo', dict(decay=LEAK), lambda name: carried(name, lambda across, own, E: LEAK * E)),
    'snap 1': (
        'snap',
        dict(n=1),
        lambda name: carried(name, lambda across, own, E: (across + own) @ E, 'step'),
    ),
}


@pytest.mark.parametrize('name', CELLS)
@pytest.mark.parametrize('rule', TEXTBOOK)
def test_textbook(rule, name):
    algorithm, options, reference = TEXTBOOK[rule]
    for B, window in ((1, 1), (3, 3)):
        same(online(name, algorithm, B, window, **options), textbook(name, B, reference(name)))


@pytest.mark.parametrize('name', ['rnn', 'lstm'])
def test_block_scope_keeps_the_weight_from_each_unit_to_itself(name):
    same(online(name, 'd_rtrl', 3, 3, scope='block'), textbook(name, 3, TEXTBOOK['ostl'][2](name)))


@pytest.mark.parametrize('name', CELLS)
def test_saturated_snap_is_exact(name):
    true = textbook(name, 3, exact)
    same(online(name, 'snap', 3, 2, n=3), true)
    same(online(name, 'snap', 3, 3, n=3, vjp_method='multi-step'), true)
    same(online(name, 'low_rank', 3, 3, rank=100), true)


OPERANDS = {  # what multiplies each weight that has a trace; state as a flat vector
    'rnn': lambda p, h, x: dict(W=x, R=h, b=None),
    'gru': lambda p, h, x: dict(Z=cat(x, h), N=cat(x, sig(cat(x, h) @ p['Y']) * h), b=None),
    'lstm': lambda p, h, x: dict(L=cat(x, h[H:])),
    'alif': lambda p, h, x: dict(W=x, R=spike(h[:H] - h[H:] - 0.2)),
}


def factorised(name, decay_x, decay_f):
    """`ex <- a_x ex + x, ef <- a_f D ef + (1 - a_f) df`, credit meets their product."""

    def rule(n, size, of_p):
        params, ex, ef, steps = CELLS[name][1], {}, {}, itertools.count(1)
        own_unit, _ = kept(name, of_p, size, n)

        def trace(across, own, M, s, x, h):
            found, xs = (
                {k: np.zeros(v.shape) for k, v in params.items()},
                OPERANDS[name](params, h, x),
            )
            by_weight = jax.vmap(of_p)(jnp.asarray(M * own_unit))
            for k, x in xs.items():
                like = 'W' if k == 'R' else k  # W and R are added up, and h or z may be zero
                M_k = np.asarray(by_weight[like])
                df = (
                    M_k
                    if x is None
                    else np.einsum('nij,i->nj', M_k, xs[like]) / (xs[like] @ xs[like])
                )
                at_unit = np.arange(n)[:, None] % H == np.arange(df.shape[1]) % H
                ef[k] = (
                    decay_f * at_unit * (own @ ef.get(k, np.zeros_like(df))) + (1 - decay_f) * df
                )
                ex[k] = None if x is None else decay_x * ex.get(k, 0) + np.asarray(x)
            correction = 1 - decay_f ** next(steps)
            for k, e in ef.items():
                found[k] = (s @ e if ex[k] is None else np.outer(ex[k], s @ e)) / correction
            return ravel_pytree(found)[0] + s @ (M * ~own_unit)

        return trace

    return rule


@pytest.mark.parametrize('name', CELLS)
def test_ottt_and_pp_prop_follow_their_recursions(name):
    """OTTT: an input leak times the instantaneous derivative."""
    for B, window in ((1, 1), (3, 3)):
        same(
            online(name, 'ottt', B, window, decay=LEAK),
            textbook(name, B, factorised(name, LEAK, 0.0)),
        )
        same(
            online(name, 'pp_prop', B, window, decay_or_rank=0.9),
            textbook(name, B, factorised(name, 0.9, 0.9)),
        )


@pytest.mark.parametrize('name', CELLS)
def test_three_factor_multiplies_the_trace_by_the_modulator(name):
    cell, params, start = CELLS[name]
    per_step = jnp.asarray(rng.randn(T))
    for B, window in ((1, 1), (3, 3)):
        xs, ys = DATA[B]
        learner = braintrace.compile(step_of(cell), 'three_factor', params, start(B), xs[0])
        run = lambda m: learner.grad(
            lambda out, y: loss(out, y).mean(),
            params,
            learner.init(params, start(B)),
            xs,
            ys,
            window=window,
            modulator=m,
        )[0][0]
        times = itertools.cycle(np.asarray(per_step))

        def rule(n, size, of_p, times=times):
            trace = carried(name, lambda across, own, E: own @ E)(n, size, of_p)
            return lambda across, own, M, s, x, h: trace(
                across, own, M, np.full(n, next(times)), x, h
            )

        traced = lambda grads: {
            k: v for k, v in grads.items() if k != 'Y'
        }  # without a trace the reset gate gets the gradient of the loss
        same(traced(run(per_step)), traced(textbook(name, B, rule)))
        units = jnp.broadcast_to(per_step[:, None, None], (T, B, H))
        same(run(units), run(per_step))
    with pytest.raises(ValueError, match='broadcast'):
        run(jnp.ones((T, 5)))
    with pytest.raises(RuntimeError, match='modulator'):
        run(None)


def window_of(name, B, k):
    """An executor of the cell for RTRL and one window of two steps."""
    from braintrace.engine.window import Window

    cell, params, start = CELLS[name]
    xs, ys = DATA[B]
    learner = braintrace.compile(step_of(cell), 'rtrl', params, start(B), xs[0])
    program = learner._executor(None, params, start(B), (xs[0],), ())[0].program
    state = jax.tree.map(lambda a: a + 0.3, start(B))
    return program.layout, Window(
        program, jax.tree.leaves(params), jax.tree.leaves(state), [], [xs[2 * k : 2 * k + 2]], 2
    )


def test_uoro_is_unbiased():
    """The mean over all signs of one update is the exact one, from an arbitrary rank-one start."""
    from braintrace.rules.rtrl import Full
    from braintrace.rules.uoro import RankOne

    layout, window = window_of('rnn', 1, 0)
    carrier = RankOne(layout)
    start = {
        k: v if k == 'key' else jnp.asarray(rng.randn(*v.shape)) for k, v in carrier.init().items()
    }
    names = [k for k in start if k.startswith('theta:')]
    [state] = [k for k in start if k.startswith('s:')]
    product = lambda t: {n: jnp.tensordot(t[state].ravel(), t[n], 0) for n in names}
    all_signs = jnp.asarray(list(itertools.product([-1.0, 1.0], repeat=H)))

    def one(nu):
        return product(
            RankOne(layout, draw=lambda key, shape, dtype: nu.reshape(shape)).advance(start, window)
        )

    mean = jax.tree.map(lambda a: a.mean(0), jax.vmap(one)(all_signs))
    exactly = Full(layout).advance(
        {n.removeprefix('theta:'): a for n, a in product(start).items()}, window
    )
    same(mean, {f'theta:{n}': a for n, a in exactly.items()})
    assert (
        max(
            np.abs(a - b).max()
            for a, b in zip(jax.tree.leaves(one(all_signs[0])), jax.tree.leaves(mean), strict=True)
        )
        > 1e-3
    )


@pytest.mark.parametrize('name', ['rnn', 'lstm'])
def test_kf_rtrl_is_unbiased(name):
    from braintrace.rules.rtrl import FullOfSamples
    from braintrace.rules.uoro import Kronecker

    layout, window = window_of(name, 3, 1)
    carrier, exactly = Kronecker(layout), FullOfSamples(layout)
    start = {
        k: v if k == 'key' else jnp.asarray(rng.randn(*v.shape)) for k, v in carrier.init().items()
    }

    def product(t):
        return {
            n: t[f'A:{n}']
            if op.axes.x is None
            else jnp.einsum(f'Z{op.axes.y},{op.axes.x}->Z{op.axes.trace}', t[f'A:{n}'], t[f'u:{n}'])
            for n, _, op, _ in carrier.uses
        }

    all_signs = jnp.asarray(list(itertools.product([-1.0, 1.0], repeat=3)))
    means = jax.vmap(
        lambda c: product(
            Kronecker(layout, draw=lambda key, shape, dtype: c).advance(start, window)
        )
    )(all_signs)
    same(jax.tree.map(lambda a: a.mean(0), means), exactly.advance(product(start), window))


def test_low_rank_reports_a_bound_that_holds():
    from braintrace.rules.low_rank import LowRank
    from braintrace.rules.rtrl import Full

    layout, window = window_of('rnn', 1, 0)
    low, full = LowRank(layout, 2), Full(layout)
    a, b = low.init(), full.init()
    for k in range(3):
        window = window_of('rnn', 1, k)[1]
        a, b = low.advance(a, window), full.advance(b, window)
        error = np.sqrt(
            sum(((jnp.tensordot(a['U'], a[f'V:{n}'], 1) - J) ** 2).sum() for n, J in b.items())
        )
        assert 1e-3 < error <= a['bound'] * (1 + 1e-9) < 100 * error


def test_random_streams_repeat_and_differ():
    grads = [online('gru', 'uoro', 3, 1, projection_key=k) for k in (1, 1, 2)]
    same(grads[0], grads[1], 0.0)
    assert not np.allclose(grads[0]['Z'], grads[2]['Z'])


def test_random_feedback_goes_through_its_own_weights():
    """With feedback weights equal to the read-out's it is the true gradient; adaptive ones follow the read-out."""
    cell, params, start = CELLS['gru']
    xs, ys = DATA[3]
    for kind in ('random', 'adaptive'):
        learner = braintrace.compile(
            step_of(cell),
            'eprop',
            params,
            start(3),
            xs[0],
            feedback=kind,
            random_feedback_key=0,
            kappa_filter_decay=0.5,
        )
        mean = lambda out, y: loss(out, y).mean()
        carry = learner.init(params, start(3))
        assert [k for k in carry.traces if k.startswith('feedback:')] == ['feedback:o']
        run = lambda c: learner.grad(mean, params, c, xs, ys, window=4)[0][0]
        true = online('gru', 'eprop', 3, 4, kappa_filter_decay=0.5)
        same(run(carry)['o'], true['o'])
        assert not np.allclose(run(carry)['N'], true['N'])
        equal = carry._replace(
            traces={
                **carry.traces,
                'feedback:o': params['o'] if kind == 'random' else jnp.zeros((H, C)),
            }
        )
        same(run(equal), true)
    multi = lambda feedback: learner_multi.grad(
        mean,
        params,
        carry._replace(traces={**carry.traces, 'feedback:o': feedback}),
        xs,
        ys,
        window=2,
    )[0][0]
    learner_multi = braintrace.compile(
        step_of(cell),
        'eprop',
        params,
        start(3),
        xs[0],
        feedback='random',
        random_feedback_key=0,
        kappa_filter_decay=0.5,
        vjp_method='multi-step',
    )
    true = online('gru', 'eprop', 3, 2, kappa_filter_decay=0.5, vjp_method='multi-step')
    same(multi(params['o']), true)
    assert not np.allclose(multi(-params['o'])['Z'], true['Z'])
    square = online('gru', 'eprop', 3, 4, feedback='square', random_feedback_key=0)
    same(square, online('gru', 'eprop', 3, 1, feedback='square', random_feedback_key=0))


def test_uoro_step_by_step_is_unbiased_too():
    """The mean of many streams comes close to the exact gradient; the same-step part is exact in each of them."""
    cell, params, start = CELLS['rnn']
    xs, ys = DATA[1]
    learner = braintrace.compile(
        step_of(cell), 'uoro', params, start(1), xs[0], vjp_method='single-step'
    )
    carry = learner.init(params, start(1))
    keys = jax.vmap(jax.random.key_data)(jax.random.split(jax.random.key(0), 4000))
    one = lambda k: learner.grad(
        lambda out, y: loss(out, y).mean(),
        params,
        carry._replace(traces={**carry.traces, 'key': k}),
        xs,
        ys,
    )[0][0]
    found, true = jax.vmap(one)(keys), textbook('rnn', 1, exact)
    same(found['o'][0], true['o'])
    for k in 'WRb':
        assert np.abs(found[k].mean(0) - true[k]).max() < 6 * found[k].std(0).max() / np.sqrt(
            len(keys)
        )


PATHS = {  # ways of a unit back to itself
    'fused': lambda p, h, x: (lambda z, r: (1 - z) * h + z * jnp.tanh(cat(x, r * h) @ p['N']))(
        *jnp.split(sig(cat(x, h) @ p['A']), 2, -1)
    ),
    'permuted': lambda p, h, x: (
        0.5 * h + jnp.tanh((sig(h @ p['R'])[..., ::-1] * h) @ p['S'] + x @ p['W'])[..., ::-1]
    ),
    'both ways': lambda p, h, x: (
        lambda y: 0.5 * h + 0.3 * jnp.tanh(y) + jnp.tanh((y * h) @ p['S'] + x @ p['W'])
    )(h @ p['R']),
    'two places': lambda p, h, x: 0.4 * h + jnp.tanh(cat(h, 2 * h, x) @ p['B']),
    'grouped': lambda p, h, x: (
        lambda m: 0.5 * h + jnp.tanh(m(sig(m(h, p['G'])) * h, p['F']) + x @ p['W'])
    )(
        lambda a, w: jnp.einsum('...gi,gio->...go', a.reshape(*a.shape[:-1], 2, 2), w).reshape(
            a.shape
        )
    ),
    'transposed': lambda p, h, x: (
        0.5 * h
        + jnp.tanh(
            jnp.einsum('oi,...i->...o', p['S'], sig(jnp.einsum('oi,...i->...o', p['R'], h)) * h)
            + x @ p['W']
        )
    ),
    'three products': lambda p, h, x: (
        0.3 * h + jnp.tanh(jnp.tanh(jnp.tanh(h @ p['R']) @ p['S']) @ p['R'] + x @ p['W'])
    ),
    'mean': lambda p, h, x: (
        0.3 * h + jnp.tanh((h.mean(-1, keepdims=True) * h) @ p['R'] + x @ p['W'])
    ),
}


@pytest.mark.parametrize('way', PATHS)
def test_a_unit_s_own_block_of_the_jacobian(way):
    """Over one and two products it comes from the position-wise program with bridges; only what mixes more takes a pull for each unit."""
    from braintrace.engine.window import Window

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
        learner = braintrace.compile(
            lambda p, h, x: 2 * (PATHS[way](p, h, x),), 'ostl_recurrent', params, h, x[0]
        )
        program = learner._executor(None, params, h, (x[0],), ())[0].program
        by_pulls = program.layout.scope == 'coupled'
        assert by_pulls == (way in ('three products', 'mean'))
        block = jax.jit(
            lambda h: (lambda w: w.diagonal(0) if by_pulls else w.transition(0))(
                Window(program, jax.tree.leaves(params), [h], [], [x], 1)
            )
        )
        true = (
            jax.jacrev(lambda h: PATHS[way](params, h, x[0]))(h)
            .reshape(h.size, h.size)
            .diagonal()
            .reshape(h.shape)
        )
        same(block(h)[0, 0, 0], true)


@pytest.mark.parametrize('rule', ['d_rtrl', 'pp_prop', 'eprop', 'rflo', 'snap 1'])
def test_what_outputs_read_of_the_old_state_is_credit_of_the_step_before(rule):
    """A read-out of the old state gives, one step later, what a read-out of the new state gives."""
    name, options, _ = {**TEXTBOOK, 'pp_prop': ('pp_prop', dict(decay_or_rank=0.9), None)}[rule]
    cell, params, start = CELLS['gru']
    xs, ys = DATA[3]
    found = []
    for old, x, y in ((True, xs, ys), (False, xs[:-1], ys[1:])):
        step = lambda p, h, x, old=old: (lambda n: (n, (h if old else n) @ p['o']))(
            cell(p, h, h, x)[0] + 0.1 * h.mean(-1, keepdims=True)
        )
        learner = braintrace.compile(step, name, params, start(3), xs[0], **options)
        found.append(
            learner.grad(
                lambda out, y: loss(out, y).sum(),
                params,
                learner.init(params, start(3)),
                x,
                y,
                window=2,
                reduction='sum',
            )[0][0]
        )
    found[1]['Y'] = (
        found[0]['Y'] if rule != 'snap 1' else found[1]['Y']
    )  # a weight without a trace: its same-step gradient is gone when the credit comes
    same(*found)


@pytest.mark.parametrize('name', ['rnn', 'gru'])
def test_snap_of_masked_weights_follows_its_recursion_on_the_pattern(name):
    """Traces hold only weights that are not masked out, and units within reach."""
    cell, params, start = CELLS[name]
    two = lambda m, n: (
        (np.arange(m)[:, None] + 3 * np.arange(n)) % m < 2
    )  # two weights for each output
    mask = {
        k: two(*v.shape) if v.ndim == 2 and k != 'o' else np.ones(v.shape)
        for k, v in params.items()
    }
    masked = lambda p, s, q, x: cell({k: v * mask[k] for k, v in p.items()}, s, q, x)
    CELLS['masked'] = masked, params, start
    derivatives.cache_clear()
    try:
        n, M, across, own = (
            np.asarray(a) for a in derivatives('masked')[3](jnp.full(H, 0.5), DATA[1][0][0, 0])
        )
        for steps in (1, 2):
            reach = (
                (M != 0)
                if steps == 1
                else (M != 0) | ((across + own != 0).astype(int) @ (M != 0) > 0)
            )

            def rule(n, size, of_p, reach=reach):
                E = np.zeros((n, size))

                def trace(across, own, M, s, x, h):
                    nonlocal E
                    E = reach * ((across + own) @ E + M)
                    return s @ E

                return trace

            same(online('masked', 'snap', 3, 3, n=steps), textbook('masked', 3, rule))
    finally:
        del CELLS['masked']
        derivatives.cache_clear()
    sizes = [
        {
            k: v.size
            for k, v in braintrace.compile(step_of(f), 'snap', params, start(3), DATA[3][0][0], n=1)
            .init(params, start(3))
            .traces.items()
        }
        for f in (masked, cell)
    ]
    assert all(sizes[0][k] < sizes[1][k] for k in set('RZYN') & set(params))


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
    """Two states to a unit, in float32 and large enough that XLA calls its libraries for sums and products: one of them gave wrong sums in loops."""

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
