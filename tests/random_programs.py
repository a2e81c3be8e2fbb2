"""Random programs of two hidden states."""

import os

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from jax import lax

PROGRAMS = int(os.environ.get('BRAINTRACE_PROGRAMS', 40))
# Every value has shape (R, C), whatever happens on the way. Both are larger than the number of maps
# that a value may have, so that what mixes an axis is not position by position.
R, C = 5, 6


@jax.custom_jvp
def spike(x):
    return (x > 0).astype(x.dtype)


spike.defjvp(lambda p, t: (spike(*p), t[0] / (1 + p[0] ** 2)))


@jax.custom_jvp
def spiking_layer(x, w):
    return (x @ w > 0).astype(x.dtype)


spiking_layer.defjvp(lambda p, t: (spiking_layer(*p), 0.3 * (t[0] @ p[1] + p[0] @ t[1])))


@jax.custom_vjp
def straight_through(x, w):
    return jnp.round(x * w)


straight_through.defvjp(
    lambda x, w: (straight_through(x, w), (x, w)), lambda r, g: (g * r[1], g * jnp.cos(r[0]))
)

PERMUTED = np.random.RandomState(0).permutation(C)


def flip(a):
    return a.T.reshape(R, C)


def beside(a, b):
    return jnp.concatenate([a, b], -1)


# Each takes two values, the weights and the input, and gives a value.
OPS = [
    lambda a, b, p, x: jnp.tanh(a),
    lambda a, b, p, x: a * b,
    lambda a, b, p, x: a + 0.5 * b,
    lambda a, b, p, x: jnp.where(a > 0, a, b),
    lambda a, b, p, x: jnp.maximum(jnp.sin(a), b * lax.stop_gradient(a)),
    lambda a, b, p, x: jax.nn.relu(a) - jax.nn.softplus(b),
    lambda a, b, p, x: spike(a),
    lambda a, b, p, x: straight_through(a, b),
    lambda a, b, p, x: jnp.roll(a, 1, -1),
    lambda a, b, p, x: a[:, ::-1],
    lambda a, b, p, x: flip(a),
    lambda a, b, p, x: a[:, PERMUTED],
    lambda a, b, p, x: jnp.concatenate([a[:, :1], b[:, 1:]], -1),
    lambda a, b, p, x: jnp.pad(a, ((0, 0), (1, 1)))[:, :C],
    lambda a, b, p, x: jnp.stack([a, b])[1],
    lambda a, b, p, x: jnp.broadcast_to(a[:1], (R, C)),
    lambda a, b, p, x: lax.dynamic_slice(jnp.concatenate([a, b]), (1, 0), (R, C)),
    lambda a, b, p, x: a.at[:, 1].set(b[:, 0]),
    lambda a, b, p, x: sum(jnp.split(jnp.concatenate([a, b], -1), 2, -1)),
    lambda a, b, p, x: jax.vmap(lambda row, other: row * other[::-1])(a, b),
    lambda a, b, p, x: a - a.mean(-1, keepdims=True),
    lambda a, b, p, x: jnp.broadcast_to(a.max(0), (R, C)) * b,
    lambda a, b, p, x: jnp.cumsum(a, -1),
    lambda a, b, p, x: jax.nn.softmax(a, -1),
    lambda a, b, p, x: jnp.einsum('ij,kj->ik', a, jnp.ones((C, C)) * 0.3),
    lambda a, b, p, x: jax.jit(lambda a: jnp.tanh(a) + b)(a),
    lambda a, b, p, x: jax.checkpoint(lambda a: jnp.sin(a) * b)(a),
    lambda a, b, p, x: lax.cond(x[0, 0] > 0, lambda a, b: a * b, lambda a, b: a[:, ::-1], a, b),
    lambda a, b, p, x: lax.scan(lambda c, y: (jnp.tanh(c) + y, c), a, jnp.stack([b, a]))[0],
    lambda a, b, p, x: lax.scan(lambda c, _: (0.9 * c + 0.1 * jnp.sin(b), None), a, length=20)[0],
    lambda a, b, p, x: lax.fori_loop(0, 20, lambda i, c: jnp.roll(c, 1, -1) * 0.9, a),
    lambda a, b, p, x: a @ p['W'],
    lambda a, b, p, x: jnp.roll((p['W'].T * 2 @ a.T).T, 1, -1),
    lambda a, b, p, x: (
        jnp.einsum('ij,jk->ki', a, jnp.abs(p['W']))[:, :R].reshape(C * R)[: R * C].reshape(R, C)
    ),
    lambda a, b, p, x: p['v'] * a + p['v'],
    lambda a, b, p, x: jnp.concatenate([a @ p['W'], x @ p['U'][:C]], -1)[:, 1 : 1 + C],
    lambda a, b, p, x: x @ (p['U'][:C] + p['W']),
    lambda a, b, p, x: a * p['s'] + jnp.where(x > 0, p['s'], b),
    lambda a, b, p, x: p['U'][(x[:, 0] > 0).astype(int) + 2],
    lambda a, b, p, x: spiking_layer(a, p['W']),
    lambda a, b, p, x: straight_through(x, jnp.broadcast_to(p['v'], (R, C))),
    lambda a, b, p, x: lax.scan(
        lambda c, w: (jnp.tanh(c + x @ w), None), a, jnp.stack([p['W'], p['W'].T])
    )[0],
    lambda a, b, p, x: lax.cond(x[0, 1] > 0, lambda a: a @ p['W'], lambda a: p['v'] + a, a),
    lambda a, b, p, x: (a[:, :, None] * p['W']).sum(1),
    lambda a, b, p, x: (jnp.sin(x)[:, :, None] * p['W'] + b[:, None]).sum(1),
    lambda a, b, p, x: jnp.einsum('ijk,k->ij', a[..., None] * p['W'], x[0]),
    lambda a, b, p, x: beside(a, b).reshape(R, C, 2).mean(-1),
    lambda a, b, p, x: lax.reduce_window(beside(a, b), 0.0, lax.add, (1, 2), (1, 2), 'VALID'),
    lambda a, b, p, x: lax.reduce_window(beside(a, b), -jnp.inf, lax.max, (1, 2), (1, 2), 'VALID'),
    lambda a, b, p, x: (
        lax.reduce_window(a, 0.0, lax.add, (1, 2), (1, 1), 'SAME') + beside(x @ p['W'], a)[:, ::2]
    ),
    lambda a, b, p, x: b.at[:, np.resize([2, 0, 2], C)].add(a),
    lambda a, b, p, x: (
        jnp.zeros((R, C)).at[:, np.resize([1, 1, 1, 0, 2, 2], 2 * C)].add(beside(a, x @ p['W']))
    ),
    lambda a, b, p, x: jnp.concatenate(
        [sum(jnp.split(beside(a, x @ p['W']), 2 * C, -1)), b[:, 1:]], -1
    ),
    lambda a, b, p, x: jax.nn.relu(beside(x @ p['W'], a)).reshape(R, C, 2).prod(-1),
    lambda a, b, p, x: jnp.ones((R, C)) * jnp.tanh(x.sum() * p['s'] + a[0, 0]),
    lambda a, b, p, x: jnp.tanh(x.sum(0) @ p['W'][:, :1]) * b,
    lambda a, b, p, x: jnp.repeat(jnp.sin(p['v'][:1] * x[0, :1]), R * C).reshape(R, C) + spike(a),
]


def programs(least, most):
    return st.lists(
        st.tuples(st.integers(0, len(OPS) - 1), st.integers(0, 7), st.integers(0, 7)),
        min_size=least,
        max_size=most,
    )


def build(code):
    """A step with two hidden states from a list of (op, operand, operand)."""

    def step(p, state, x):
        pool = [state['h'], state['g'], x]
        for op, a, b in code:
            pool.append(OPS[op](pool[a % len(pool)], pool[b % len(pool)], p, x))
        return {'h': 0.5 * pool[-1], 'g': pool[-2] + 0.1 * pool[-1]}, pool[-1]

    return step


def example(seed=0):
    rng = np.random.RandomState(seed)

    def draw(*s):
        return jnp.asarray(rng.randn(*s))

    return (
        dict(W=draw(C, C), U=draw(C + 2, C), v=draw(C), s=draw()),
        dict(h=draw(R, C), g=draw(R, C)),
        draw(R, C),
    )


lasting = settings(
    max_examples=PROGRAMS // 2,
    deadline=None,
    derandomize='BRAINTRACE_PROGRAMS' not in os.environ,
    suppress_health_check=list(HealthCheck),
)
