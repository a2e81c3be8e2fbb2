"""Cells that others use, as plain functions: parameters, state and the rule that is exact."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import braintrace

D, H, C, T, B = 3, 4, 2, 4, 2
rng = np.random.RandomState(7)


def draw(*shape):
    return rng.randn(*shape) * 0.6


def complex_draw(*shape):
    return draw(*shape) + 1j * draw(*shape)


class Cell(NamedTuple):
    """`step(params, state, x)`, where `state(*lead)` has the axes `lead` in front of the units;
    `rule` and `options` are exact for it, besides RTRL."""

    step: object
    params: dict
    state: object
    rule: str = 'rtrl'
    options: dict = {}


def real(*lead):
    return jnp.full((*lead, H), 0.3)


def pair(*lead):
    return real(*lead), -real(*lead)


def imaginary(*lead):
    return real(*lead) * (1 - 0.5j)


def continuous_time(p, h, x):
    drive = jnp.tanh(h @ p['R'] + x @ p['W'] + p['b'])
    h = h + 0.2 * jnp.exp(p['rate']) * (drive - h)
    return h, h @ p['o']


WIRING = np.kron(np.eye(H // 2), np.ones((2, 2)))  # circuits of two units


def liquid(p, h, x):
    f = jax.nn.sigmoid(h @ (p['R'] * WIRING) + x @ p['W'] + p['b'])
    h = (h + 0.3 * f * p['A']) / (1 + 0.3 * (jnp.exp(p['rate']) + f))
    return h, h @ p['o']


def lru(p, h, x):
    h = jnp.exp(-jnp.exp(p['nu']) + 1j * p['angle']) * h + jnp.exp(p['gain']) * (x @ p['B'])
    return h, (h @ p['C']).real + x @ p['D']


def trace_unit(p, h, x):
    leak, angle = jnp.exp(-jnp.exp(p['nu'])), p['angle']
    a, b = leak * jnp.cos(angle), leak * jnp.sin(angle)
    h = (jnp.tanh(a * h[0] - b * h[1] + x @ p['V']), jnp.tanh(b * h[0] + a * h[1] + x @ p['W']))
    return h, h[0] @ p['o'] + h[1] @ p['u']


def s5(p, h, x):
    lam = -jnp.exp(p['nu']) + 1j * p['angle']
    kept = jnp.exp(lam * jnp.exp(p['time']))
    h = kept * h + (kept - 1) / lam * (x @ p['B'])
    return h, jax.nn.gelu(2 * (h @ p['C']).real + x @ p['D'])


def hopfield(p, h, x):
    weights = p['R'] + p['R'].T
    h = h + 0.3 * (jnp.tanh(h) @ weights + x @ p['W'] - h)
    return h, jnp.tanh(h) @ p['o']


DENSE = dict(R=draw(H, H), W=draw(D, H), b=draw(H), rate=draw(H), A=draw(H), o=draw(H, C))
SPIRAL = dict(nu=draw(H), angle=draw(H), D=draw(D, C), C=complex_draw(H, C))
UNITS = dict(nu=draw(H), angle=draw(H), V=draw(D, H), W=draw(D, H), o=draw(H, C), u=draw(H, C))

CELLS = {
    'continuous-time RNN': Cell(continuous_time, DENSE, real),
    'liquid time-constant': Cell(liquid, DENSE, real, 'snap', dict(n=2)),
    'LRU': Cell(lru, SPIRAL | dict(gain=draw(H), B=draw(D, H)), imaginary, 'd_rtrl'),
    'recurrent trace unit': Cell(trace_unit, UNITS, pair, 'd_rtrl'),
    'S5': Cell(s5, SPIRAL | dict(time=draw(H), B=complex_draw(D, H)), imaginary, 'd_rtrl'),
    'Hopfield': Cell(hopfield, DENSE, real, 'low_rank', dict(rank=B * H)),
}
X, Y = draw(T, B, D), draw(T, B, C)


def loss(out, y):
    return ((out - y) ** 2).sum(-1).mean()


def bptt(cell, lead=(B,)):
    """The gradient by reverse mode through the whole sequence."""
    xs, ys = data(lead)

    def mean(p):
        def turn(h, at):
            h, out = cell.step(p, h, at[0])
            return h, loss(out, at[1])

        return jax.lax.scan(turn, cell.state(*lead), (xs, ys))[1].mean()

    return jax.grad(mean)(cell.params)


def online(cell, rule, window, lead=(B,), **options):
    """The gradient by a rule, in windows."""
    xs, ys = data(lead)
    start = cell.state(*lead)
    learner = braintrace.compile(cell.step, rule, cell.params, start, xs[0], **options)
    carry = learner.init(cell.params, start)
    return learner.grad(loss, cell.params, carry, xs, ys, window=window)[0][0]


def data(lead):
    """Inputs and targets, of a batch or of its first sample."""
    return (X, Y) if lead else (X[:, 0], Y[:, 0])
