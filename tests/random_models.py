"""Random models of the kinds that people write: layers of units, and what reads them.

Each part is drawn from a list, so that a model is exact under some rules rather often, and a wrong
word about it is found.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from random_programs import spike

B, D, H, C, LAYERS = 2, 3, 4, 2, 2
LEAK = 0.7  # of units and of read-outs, where it is one number
RING = np.roll(np.eye(H), 1, 1)
MASK = np.random.RandomState(0).rand(H, H) < 0.4
SHUFFLED = np.array([2, 0, 3, 1])


def window_of(a, kernel):
    """A convolution over the units, of one channel."""
    return lax.conv_general_dilated(a[:, None], kernel[None, None], (1,), 'SAME')[:, 0]


def substeps(w, z):
    return lax.scan(lambda c, w: (c + 0.3 * jnp.tanh(z @ w), None), 0.0 * z, jnp.stack([w, 2 * w]))[
        0
    ]


def half(a, f):
    """A function of one half of the units, and nothing of the other."""
    rest, units = jnp.split(a, 2, -1)
    return jnp.concatenate([jnp.zeros_like(rest), f(units)], -1)


# What comes to units, from what is below them `(B, H)` and the step's noise.
FED = [
    lambda p, z, noise: z @ p['W'],
    lambda p, z, noise: z @ (p['W'] * MASK) + p['b'],
    lambda p, z, noise: z @ p['W'] + jnp.sin(z) @ p['W'],
    lambda p, z, noise: (z * (noise > 0)) @ p['W'],
    lambda p, z, noise: z * p['b'],
    lambda p, z, noise: window_of(z, p['b'][:3]),
    lambda p, z, noise: p['W'][(noise[:, 0] > 0).astype(int) + 1],
    lambda p, z, noise: substeps(p['W'], z),
    lambda p, z, noise: jnp.tanh(z @ p['W']) @ p['R'],
    lambda p, z, noise: (z @ p['W'])[:, SHUFFLED] + p['W'].sum(0),
    lambda p, z, noise: jnp.repeat(z @ p['W'][:, : H // 2], 2, -1),
    lambda p, z, noise: lax.cond(noise[0, 0] > 0, lambda: z @ p['W'], lambda: z * p['b']),
    lambda p, z, noise: jnp.broadcast_to(z.mean(-1, keepdims=True) * p['b'][0], z.shape),
]


# How units go on, from their old state, what comes to them, and the noise.
GOES_ON = [
    lambda p, h, y, noise: LEAK * h + y,
    lambda p, h, y, noise: jnp.tanh(LEAK * h + y),
    lambda p, h, y, noise: jnp.tanh(p['a'] * h) + y,
    lambda p, h, y, noise: jnp.tanh(y),
    lambda p, h, y, noise: jax.nn.sigmoid(y) * h + (1 - jax.nn.sigmoid(y)) * jnp.tanh(y),
    lambda p, h, y, noise: jnp.tanh(h @ p['R'] + y),
    lambda p, h, y, noise: jnp.tanh(h @ (p['R'] * np.eye(H)) + y),
    lambda p, h, y, noise: jnp.tanh(h @ (p['R'] * RING) + y),
    lambda p, h, y, noise: 0.5 * jnp.roll(h, 1, -1) + y,
    lambda p, h, y, noise: jnp.tanh(0.5 * (h - h.mean(-1, keepdims=True)) + y),
    lambda p, h, y, noise: 0.8 * h + y - lax.stop_gradient(spike(h)),
    lambda p, h, y, noise: jnp.where(noise > 0, LEAK * h + y, h),
    lambda p, h, y, noise: lax.fori_loop(0, 2, lambda i, c: c + 0.2 * (y - c * p['a'] ** 2), h),
    lambda p, h, y, noise: jnp.maximum(h, y) * 0.9,
    lambda p, h, y, noise: jnp.cos(y).sum(0) * p['a'] * h,
    lambda p, h, y, noise: LEAK * h + half(h, jnp.tanh) + y,
    lambda p, h, y, noise: LEAK * h + y + half(y, jnp.cos),
]
POSITION_WISE = [GOES_ON[i] for i in (0, 1, 2, 3, 4, 6, 10, 11, 12, 13, 15, 16)]


def second_of(kind, p, g, h):
    """The second state of the units, where they have one."""
    if kind == 'slow':
        return 0.6 * g + h
    if kind == 'spike':
        return spike(h)
    if kind == 'mixed':
        return 0.5 * g + jnp.tanh(h @ p['R'])
    return 0.5 * g + jnp.tanh(h) * p['b']


# What is graded, from old and new units, the old read-out and the noise; and the new read-out.
READ = [
    lambda p, old, h, y, noise: (h @ p['o'], y),
    lambda p, old, h, y, noise: 2 * (LEAK * y + h @ p['o'],),
    lambda p, old, h, y, noise: 2 * (LEAK * y + spike(h) @ p['o'],),
    lambda p, old, h, y, noise: 2 * (LEAK * y + (h * (noise > 0)) @ p['o'],),
    lambda p, old, h, y, noise: 2 * (0.5 * y + h @ p['o'],),
    lambda p, old, h, y, noise: (y, LEAK * y + h @ p['o']),
    lambda p, old, h, y, noise: (old @ p['o'], y),
    lambda p, old, h, y, noise: (h @ p['o'] + old @ p['o'], jnp.tanh(LEAK * y + h @ p['o'])),
    lambda p, old, h, y, noise: (jnp.tanh(h)[:, :C] * p['o'][0], y),
    lambda p, old, h, y, noise: 2 * (p['l'] * y + h @ p['o'],),
]
SECOND = [None, None, 'slow', 'spike', 'bent', 'mixed']


def complex_units(p, z, x):
    """A linear recurrence in complex numbers, with a real weight into it."""
    return (0.8 * jnp.exp(1j * p['a'])) * z + x @ p['W']


def _one_of(rng, parts):
    return parts[rng.randint(len(parts))]


def random_model(seed):
    """A step, its parameters, state and a sequence, `(T, B, D)`, with noise beside it."""
    rng = np.random.RandomState(seed)
    layers = rng.choice([1, 1, LAYERS])
    plain = rng.rand() < 0.5  # units that do not see each other, as likely as all others together
    goes_on = [f for f in GOES_ON if not plain or f in POSITION_WISE]
    parts = [(_one_of(rng, FED), _one_of(rng, goes_on)) for _ in range(layers)]
    second, read = _one_of(rng, SECOND), _one_of(rng, READ)
    shared, is_complex, reset = rng.rand() < 0.15, rng.rand() < 0.12, rng.rand() < 0.2

    def step(p, state, x):
        x, noise = x[..., :H], x[..., H:]
        new, below = {}, x
        for i, (fed, goes_on) in enumerate(parts):
            own = p['0'] if shared else p[str(i)]
            old = state[f'h{i}']
            come = fed(own, below, noise)
            if reset and second and not i:
                come = come + 0.3 * state['g']
            below = new[f'h{i}'] = goes_on(own, old, come, noise)
        if is_complex:
            new['z'] = complex_units(p['0'], state['z'], below)
            old, below = state['z'].real, new['z'].real
        if second:
            new['g'] = second_of(second, p['0'], state['g'], new['h0'])
            below = below + (new['g'] if not reset else 0)
        out, new['y'] = read(p, old, below, state['y'], noise)
        return new, out

    def draw(*shape):
        return jnp.asarray(rng.randn(*shape) * 0.7)

    of_layer = dict(W=(H, H), R=(H, H), a=(H,), b=(H,))
    params = {str(i): {k: draw(*s) for k, s in of_layer.items()} for i in range(layers)}
    params |= dict(o=draw(H, C), l=draw(C) * 0.5)
    state = {f'h{i}': draw(B, H) for i in range(layers)} | dict(y=draw(B, C))
    if second:
        state['g'] = draw(B, H)
    if is_complex:
        state['z'] = draw(B, H) + 1j * draw(B, H)
    return step, params, state, draw(4, B, 2 * H), draw(4, B, C)
