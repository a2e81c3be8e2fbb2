"""Small models as plain functions, with BPTT and online gradients of them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import braintrace

D, H, C, T, B = 3, 4, 2, 6, 2
rng = np.random.RandomState(1)


def draw(*s):
    return rng.randn(*s) * 0.6


sig = jax.nn.sigmoid


def cat(*parts):
    return jnp.concatenate(parts, -1)


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


def low(p, h, x):
    return jnp.tanh(x @ p['W'] + h @ p['R'])


def high(p, h, x):
    return jnp.tanh(x @ p['U'] + 0.5 * h * p['a'])


def minimal_gru(p, h, x):
    u, n = jnp.split(x @ p['M'], 2, -1)
    return (1 - sig(u)) * h + sig(u) * jnp.tanh(n)


def synapse_membrane(p, s, x):
    g = 0.6 * s[0] + x @ p['W']
    return g, 0.9 * s[1] + jnp.tanh(g * p['g'])


def spike_before_its_reset(p, h, x):
    v = 0.8 * h + x @ p['W']
    return v - lax.stop_gradient(spike(v)), spike(v) @ p['o']


POSITION_WISE = {
    'leaky': (model(lambda p, h, x: jnp.tanh(p['a'] * h + x @ p['W'] + p['b'])), one),
    'minimal gru': (model(minimal_gru), one),
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
    'synapse and membrane': (model(synapse_membrane, lambda s: s[1]), two),
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
    'spike before its reset': (spike_before_its_reset, one),
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


def loss(out, y):
    return jnp.mean((out - y) ** 2)


@functools.partial(jax.jit, static_argnums=0)
@functools.partial(jax.grad, argnums=2)
def _bptt(step, state, params, xs, ys):
    def one_step(s, xy):
        s, out = step(params, s, xy[0])
        return s, loss(out, xy[1])

    return lax.scan(one_step, state, (xs, ys))[1].mean()


def bptt(step, state, params=P, xs=X, ys=Y):
    return _bptt(step, state, params, xs, ys)


def in_windows(step, state, rule, windows, **options):
    """Gradients and the last carry of one learner, for each of the windows."""
    learner = braintrace.compile(step, rule, P, state, X[0], **options)
    for window in windows:
        (grads, _), carry = learner.grad(loss, P, learner.init(P, state), X, Y, window=window)
        yield grads, carry


def online(step, state, rule, window, **options):
    return next(in_windows(step, state, rule, [window], **options))


def assert_close(a, b, tolerance=1e-10):
    assert any(np.abs(v).max() > 1e-3 for v in jax.tree.leaves(b)), 'a dead model proves nothing'
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(
            np.asarray(x, float),
            np.asarray(y, float),
            atol=tolerance * max(1, np.abs(np.asarray(y)).max()),
        )
