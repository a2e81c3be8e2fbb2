"""Four cells, their online gradients, and any rule written out step by step on them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

import braintrace

D, H, C, T = 3, 4, 2, 6
rng = np.random.RandomState(3)


def draw(*s):
    return rng.randn(*s) * 0.7


sig, hold = jax.nn.sigmoid, lax.stop_gradient


def cat(*parts):
    return jnp.concatenate(parts, -1)


def loss(out, y):
    return ((out - y) ** 2).sum(-1)


@jax.custom_jvp
def spike(v):
    return (v > 0).astype(v.dtype)


spike.defjvp(lambda p, t: (spike(*p), t[0] * jnp.maximum(0, 1 - jnp.abs(p[0]))))


# cell(p, s, q, x): the new state and what the read-out sees. `q` is the old state where units act
# on themselves, `s` where they act on each other.
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
        lambda B: np.zeros((B, H)),
    ),
    'gru': (
        gru,
        dict(Z=draw(D + H, H), Y=draw(D + H, H), N=draw(D + H, H), b=draw(H), o=draw(H, C)),
        lambda B: np.zeros((B, H)),
    ),
    'lstm': (
        lstm,
        dict(L=draw(D + H, 4 * H), o=draw(H, C)),
        lambda B: (np.zeros((B, H)), np.zeros((B, H))),
    ),
    'alif': (
        alif,
        dict(W=draw(D, H), R=draw(H, H), o=draw(H, C)),
        lambda B: (np.zeros((B, H)), np.zeros((B, H))),
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

    def mean(out, y):
        return loss(out, y).mean()

    return learner.grad(mean, params, learner.init(params, start(B)), xs, ys, window=window)[0][0]


@functools.cache
def derivatives(name):
    """Of one step and one sample, on flat vectors: the new state, its derivative by the parameters,
    across units and by a unit's own old state; and credit of the new state, as the read-out sees
    it, and of the parameters with the new state fixed."""
    cell, params, start = CELLS[name]
    p0, of_p = ravel_pytree(params)
    s0, of_s = ravel_pytree(jax.tree.map(lambda a: a[0], start(1)))
    of_p = jax.jit(of_p)  # one program, for all that is said of a cell

    def flat(p, s, q, x):
        return ravel_pytree(cell(of_p(p), of_s(s), of_s(q), x)[0])[0]

    derive = jax.jit(lambda s, x: (flat(p0, s, s, x), *jax.jacrev(flat, (0, 1, 2))(p0, s, s, x)))
    credit = jax.jit(
        lambda n, y: jax.grad(lambda p, n: loss(_visible(name, of_s(n)) @ of_p(p)['o'], y), (1, 0))(
            p0, n
        )
    )
    return p0, of_p, s0, derive, credit


def textbook(name, B, rule):
    """The sum over steps and samples of what `rule` says; it makes an object for each sample and
    feeds it the derivatives of each step."""
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
    return of_p(total)


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
