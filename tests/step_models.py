"""Plain step functions for the compiler: what it must find in each of them."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from braintrace import (
    DiagnosticKind,
)

D, H, B = 3, 6, 2
rng = np.random.RandomState(0)


def draw(*s):
    return rng.randn(*s) * 0.5


sig = jax.nn.sigmoid


def cat(*parts):
    return jnp.concatenate(parts, -1)


P = dict(
    W=draw(D, H),
    V=draw(D, H),
    R=draw(H, H),
    b=draw(H),
    s=draw(),
    o=draw(H, 2),
    W2=draw(D, 2 * H),
    G=draw(D + H, 2 * H),
    L=draw(D + H, 4 * H),
    N=draw(D + H, H),
    T=draw(5, H),
    A=draw(D, 3),
    Q=draw(3, H),
    S=draw(2, D, H),
    K=draw(H, D, 1),
    Z=draw(2, D, 3),
)
h, pair, x = draw(B, H), (draw(B, H), draw(B, H)), draw(B, D)


@jax.custom_jvp
def heaviside(v):
    return (v > 0).astype(v.dtype)


heaviside.defjvp(lambda p, t: (heaviside(*p), t[0] * jnp.maximum(0, 1 - jnp.abs(p[0]))))


@jax.custom_vjp
def scaled_dot(x, w):
    return x @ w


scaled_dot.defvjp(
    lambda x, w: (x @ w, (x, w)), lambda r, g: (g @ r[1].T, 3 * r[0].T @ g)
)  # not the ordinary derivative


def layer(u, bias=0.0):
    return lambda p, h, x: (jnp.tanh(0.5 * h + u(p, h, x) + bias), h)


def gru(p, h, x):
    u, r = jnp.split(sig(cat(x, h) @ p['G'] + cat(p['b'], p['b'])), 2, -1)
    h = (1 - u) * h + u * jnp.tanh(cat(x, r * h) @ p['N'])
    return h, h @ p['o']


def lstm(p, s, x):
    i, f, o, u = jnp.split(cat(x, s[1]) @ p['L'], 4, -1)
    c = sig(f) * s[0] + sig(i) * jnp.tanh(u)
    return (c, sig(o) * jnp.tanh(c)), c


def fused_minimal_gru(p, h, x):
    u, n = jnp.split(x @ p['W2'], 2, -1)
    return (1 - sig(u)) * h + sig(u) * jnp.tanh(n), h


def synapse_membrane(p, s, x):
    syn = 0.6 * s[0] + x @ p['W'] + heaviside(s[1]) @ p['R']
    return (syn, 0.9 * s[1] - lax.stop_gradient(heaviside(s[1])) + jnp.tanh(syn)), s[1]


def two_in_one_equation(p, s, x):
    d = s[0] - s[1]
    return (jnp.tanh(d + x @ p['W']), 0.3 * d), d


def equal_layers(p, s, x):
    a = jnp.tanh(0.5 * s[0] + x @ p['W'])
    return (a, jnp.tanh(0.5 * s[1] + a @ p['R'])), a


def sum_and_parts(p, h, x):
    y = x @ p['W']
    return cat(y.sum(-1, keepdims=True), y[:, 1:])


def substeps(length):
    return lambda p, h, x: (
        lax.fori_loop(0, length, lambda i, v: v + 0.1 * (x @ p['W'] - v**3), h),
        h,
    )


def newton(p, h, x):
    """A while loop that solves y + y**3 = h + drive, unit by unit."""
    drive = h + x @ p['W']

    def turn(c):
        return (c[0] + 1, c[1] - (c[1] + c[1] ** 3 - drive) / (1 + 3 * c[1] ** 2))

    return lax.while_loop(lambda c: c[0] < 30, turn, (0, jnp.zeros_like(h)))[1], h


KIND = DiagnosticKind


# model, state, {weight: ops it is traced through}, groups as the leaves of their states, kinds
# that must be told
def solve(a, b):
    return lax.linalg.triangular_solve(a, b, left_side=True, lower=True)


FIRST, SECOND = ('state', 0), ('state', 1)  # paths of the states of a tuple
MODELS = {
    'leaky': (layer(lambda p, h, x: x @ p['W']), h, {'W': 'dot_general'}, [[('state',)]], []),
    'weight on the left': (
        layer(lambda p, h, x: (p['W'].T @ x.T).T),
        h,
        {'W': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'three axes': (
        layer(lambda p, h, x: jnp.einsum('bi,hij->bhj', x, p['K'])[..., 0]),
        h,
        {'K': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'grouped product': (
        layer(
            lambda p, h, x: jnp.einsum('gbi,gih->bgh', jnp.stack([x, jnp.sin(x)]), p['Z']).reshape(
                B, H
            )
        ),
        h,
        {'Z': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'bias, gain and scalar': (
        lambda p, h, x: (jnp.tanh(p['s'] * h + p['b'] * x[:, :1] + p['b']), h),
        h,
        {'s': 'mul', 'b': 'mul'},
        [[('state',)]],
        [],
    ),
    'scaled, masked, transposed': (
        layer(lambda p, h, x: x @ (2 * (p['W'] * (p['W'] > 0)).T).T),
        h,
        {'W': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'sum of weights': (
        layer(lambda p, h, x: x @ (p['W'] + jnp.abs(p['V']))),
        h,
        {'W': 'dot_general', 'V': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'shared weight': (
        layer(lambda p, h, x: x @ p['W'] + jnp.sin(x) @ p['W']),
        h,
        {'W': 'dot_general dot_general'},
        [[('state',)]],
        [],
    ),
    'slices of a weight': (
        layer(lambda p, h, x: x @ p['W2'][:, :H] + jnp.cos(x) @ p['W2'][:, H:]),
        h,
        {'W2': 'dot_general dot_general'},
        [[('state',)]],
        [],
    ),
    'low rank product': (
        layer(lambda p, h, x: x @ (p['A'] @ p['Q'])),
        h,
        {'A': 'dot_general', 'Q': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'normalised weight': (
        layer(lambda p, h, x: x @ (p['W'] / jnp.linalg.norm(p['W'], axis=0))),
        h,
        {'W': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'table look-up': (
        layer(lambda p, h, x: p['T'][jnp.argmax(x, -1)]),
        h,
        {'T': 'gather'},
        [[('state',)]],
        [],
    ),
    'table with clipped index': (
        layer(lambda p, h, x: p['T'].at[jnp.argmax(x, -1) + 4].get(mode='clip')),
        h,
        {'T': 'gather'},
        [[('state',)]],
        [],
    ),
    'rolled and reversed tail': (
        layer(lambda p, h, x: jnp.roll(x @ p['W'], 1, -1)[:, ::-1]),
        h,
        {'W': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'permuted tail': (
        layer(lambda p, h, x: (x @ p['W'])[:, np.array([2, 0, 5, 3, 1, 4])]),
        h,
        {'W': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'padded tail': (
        layer(lambda p, h, x: jnp.pad(x @ p['A'], ((0, 0), (1, 2)))),
        h,
        {'A': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'reshaped tail': (
        layer(lambda p, h, x: (x @ p['W']).reshape(B, 2, 3).swapaxes(1, 2).reshape(B, H)),
        h,
        {'W': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'one output for two units': (
        layer(lambda p, h, x: jnp.repeat(x @ p['A'], 2, -1)),
        h,
        {'A': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'one output for all units': (
        layer(lambda p, h, x: x @ p['A'][:, :1]),
        h,
        {'A': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'one weight for all units': (
        layer(lambda p, h, x: jnp.ones(H) * jnp.tanh(x.sum() * p['s'] + p['b'][0])),
        h,
        {'s': 'mul', 'b': 'add'},
        [[('state',)]],
        [],
    ),
    'one row for all samples': (
        lambda p, h, x: (jnp.tanh(0.5 * h + p['T'][jnp.argmax(x[0])][:, None] * jnp.ones(7)), h),
        draw(H, 7),
        {'T': 'dynamic_slice'},
        [[('state',)]],
        [],
    ),
    'repeated and tiled': (
        lambda p, h, x: (
            jnp.tanh(0.5 * h + jnp.tile(jnp.repeat(x[:, :2] @ p['W'][:2, :2], 5, -1), (3, 1))),
            h,
        ),
        draw(3 * B, 10),
        {'W': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'spread and mixed': (
        layer(lambda p, h, x: jnp.cumsum(jnp.ones(H) * jnp.sum(x * p['s']), -1)),
        h,
        {},
        [[('state',)]],
        [KIND.RELATION_EXCLUDED_MIXED_TAIL],
    ),
    'hand-written product': (
        layer(lambda p, h, x: (x[:, :, None] * p['W']).sum(1)),
        h,
        {'W': 'mul'},
        [[('state',)]],
        [],
    ),
    'hand-written recurrence': (
        layer(lambda p, h, x: (h[:, :, None] * p['R']).sum(1) + p['b']),
        h,
        {'R': 'mul', 'b': 'add'},
        [[('state',)]],
        [KIND.TRANSITION_MIXED],
    ),
    'two factors': (
        layer(lambda p, h, x: jnp.einsum('bhi,i->bh', x[:, None] * p['W'].T, jnp.cos(x[0]))),
        h,
        {'W': 'mul'},
        [[('state',)]],
        [],
    ),
    'mean pool': (
        layer(lambda p, h, x: (x @ p['W2']).reshape(B, H, 2).mean(-1)),
        h,
        {'W2': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'max pool': (
        layer(
            lambda p, h, x: lax.reduce_window(
                x @ p['W2'] + cat(p['b'], p['b']), -jnp.inf, lax.max, (1, 2), (1, 2), 'VALID'
            )
        ),
        h,
        {'W2': 'dot_general', 'b': 'add'},
        [[('state',)]],
        [],
    ),
    'pool that overlaps': (
        layer(lambda p, h, x: lax.reduce_window(x @ p['W'], 0.0, lax.add, (1, 2), (1, 1), 'SAME')),
        h,
        {},
        [[('state',)]],
        [KIND.RELATION_EXCLUDED_MIXED_TAIL],
    ),
    'segments': (
        layer(
            lambda p, h, x: (
                jnp.zeros((B, H)).at[:, np.arange(2 * H) % 5].add(heaviside(x @ p['W2']))
            )
        ),
        h,
        {'W2': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'segments of many slices': (
        layer(lambda p, h, x: cat(sum(jnp.split(x @ p['W2'], 2 * H, -1)), jnp.zeros((B, H - 1)))),
        h,
        {'W2': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'a sum and its parts': (
        layer(sum_and_parts),
        h,
        {'W': 'dot_general'},
        [[('state',)]],
        [KIND.RELATION_PARTIAL_PATH],
    ),
    'fused gates': (fused_minimal_gru, h, {'W2': 'dot_general'}, [[('state',)]], []),
    'gru': (
        gru,
        h,
        {'G': 'dot_general', 'b': 'add', 'N': 'dot_general'},
        [[('state',)]],
        [KIND.RELATION_PARTIAL_PATH, KIND.RELATION_EXCLUDED_NON_TEMPORAL],
    ),
    'lstm': (lstm, pair, {'L': 'dot_general'}, [[FIRST, SECOND]], [KIND.HIDDEN_GROUP_MERGED]),
    'synapse and membrane': (
        synapse_membrane,
        pair,
        {'W': 'dot_general', 'R': 'dot_general'},
        [[FIRST, SECOND]],
        [KIND.TRANSITION_MIXED],
    ),
    'two states in one equation': (
        two_in_one_equation,
        pair,
        {'W': 'dot_general'},
        [[FIRST, SECOND]],
        [],
    ),
    'two layers of equal width': (
        equal_layers,
        pair,
        {'W': 'dot_general', 'R': 'dot_general'},
        [[FIRST], [SECOND]],
        [],
    ),
    'weight behind a weight': (
        layer(lambda p, h, x: jnp.tanh(x @ p['A']) @ p['Q']),
        h,
        {'Q': 'dot_general'},
        [[('state',)]],
        [KIND.RELATION_EXCLUDED_WEIGHT_TO_WEIGHT],
    ),
    'mixed tail': (
        layer(lambda p, h, x: jnp.cumsum(x @ p['W'], -1)),
        h,
        {},
        [[('state',)]],
        [KIND.RELATION_EXCLUDED_MIXED_TAIL],
    ),
    'partly mixed tail': (
        layer(lambda p, h, x: jax.nn.softmax(x @ p['W'], -1)),
        h,
        {'W': 'dot_general'},
        [[('state',)]],
        [KIND.RELATION_PARTIAL_PATH],
    ),
    'mixed transition': (
        layer(lambda p, h, x: x @ p['W'] - 0.3 * h.mean(-1, keepdims=True)),
        h,
        {'W': 'dot_general'},
        [[('state',)]],
        [KIND.TRANSITION_MIXED],
    ),
    'rolled transition': (
        layer(lambda p, h, x: x @ p['W'] + 0.3 * jnp.roll(h, 1, -1)),
        h,
        {'W': 'dot_general'},
        [[('state',)]],
        [KIND.TRANSITION_MIXED],
    ),
    'op without a rule': (
        layer(lambda p, h, x: solve(jnp.tril(p['R']) + 3 * jnp.eye(H), jnp.tile(x, 2)[:, :H].T).T),
        h,
        {},
        [[('state',)]],
        [KIND.RELATION_EXCLUDED_NO_RULE],
    ),
    'jit': (
        layer(lambda p, h, x: jax.jit(lambda x, w: jax.jit(jnp.dot)(x, w))(x, p['W'])),
        h,
        {'W': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'checkpoint': (
        layer(lambda p, h, x: jax.checkpoint(lambda x, w: jnp.sin(x @ w))(x, p['W'])),
        h,
        {'W': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'custom_vjp around the op': (
        layer(lambda p, h, x: scaled_dot(x, p['W'])),
        h,
        {'W': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'element-wise custom_jvp': (
        layer(lambda p, h, x: jnp.logaddexp(h, jnp.broadcast_to(p['b'], h.shape))),
        h,
        {'b': 'custom_jvp_call'},
        [[('state',)]],
        [],
    ),
    'broadcasting custom_jvp': (
        layer(lambda p, h, x: jnp.logaddexp(h, p['b'])),
        h,
        {'b': 'mul'},
        [[('state',)]],
        [],
    ),
    'cond': (
        layer(lambda p, h, x: lax.cond(x[0, 0] > 0, lambda: x @ p['W'], lambda: h * p['b'])),
        h,
        {'W': 'dot_general', 'b': 'select_n'},
        [[('state',)]],
        [KIND.COND_IF_CONVERTED],
    ),
    'cond with singular branches': (
        layer(
            lambda p, h, x: lax.switch(
                (x[0, 0] < 9) + 1,
                [
                    lambda: jnp.sqrt(h - h) @ p['R'],
                    lambda: jnp.log(h * 0) * p['b'],
                    lambda: x @ p['W'],
                ],
            )
        ),
        h,
        {'W': 'dot_general', 'b': 'select_n', 'R': 'dot_general'},
        [[('state',)]],
        [KIND.COND_IF_CONVERTED],
    ),
    'cond with a known index': (
        layer(lambda p, h, x: lax.switch(1, [lambda: x @ p['V'], lambda: x @ p['W']])),
        h,
        {'W': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'short scan': (
        substeps(3),
        h,
        {'W': 'dot_general dot_general dot_general'},
        [[('state',)]],
        [KIND.SCAN_UNROLLED],
    ),
    'long scan with a weight': (
        substeps(20),
        h,
        {'W': ' '.join(['dot_general'] * 20)},
        [[('state',)]],
        [KIND.SCAN_DESCENT_APPLIED],
    ),
    'long scan without': (
        layer(lambda p, h, x: x @ p['W'] + lax.fori_loop(0, 20, lambda i, v: v - 0.1 * v**3, h)),
        h,
        {'W': 'dot_general'},
        [[('state',)]],
        [KIND.SCAN_UNROLL_SKIPPED],
    ),
    'scan over stacked weights': (
        lambda p, h, x: (
            lax.scan(lambda h, w: (jnp.tanh(h + x @ w), None), h, p['S'], reverse=True)[0],
            h,
        ),
        h,
        {'S': 'dot_general dot_general'},
        [[('state',)]],
        [],
    ),
}
