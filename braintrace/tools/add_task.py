"""The Add task: a recurrent network learns, one step at a time, from a stream that never repeats.

Inputs x[t] are coin flips. A label is 1 with probability 1/2 + x[t-5]/2 - x[t-10]/4, so its
cross-entropy has three floors: for a guesser without memory, for one that remembers the first lag,
and for one that remembers both.

The network is one that suits D-RTRL, which is exact for it, and starts out forgetful, so that
memory has to be learned; it, the lags and the rate were picked by trial, the same for all rules.
With dense recurrent weights D-RTRL is an approximation and does less well: `braintrace.compare`
tells for your model.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LAGS = 5, 10
RECURRENT = 'W', 'decay', 'angle'  # the parameters that need traces


def floors() -> dict[str, float]:
    """The least cross-entropy that can be had with no memory, with the first lag, and with both.

    Example:
        >>> {k: round(v, 4) for k, v in floors().items()}
        {'no memory': 0.6616, 'one lag': 0.5192, 'both lags': 0.4545}
    """
    first, second = np.array([0, 1])[:, None], np.array([0, 1])
    p = 0.5 + 0.5 * first - 0.25 * second
    return {
        'no memory': _mean_entropy(p.mean()),
        'one lag': _mean_entropy(p.mean(1)),
        'both lags': _mean_entropy(p),
    }


def _mean_entropy(p: Any) -> float:
    """The mean entropy, in nats, of coins with these probabilities; a sure one has none."""
    p = np.ravel(p)
    sure = (p <= 0) | (p >= 1)
    q = np.where(sure, 0.5, p)
    return float(np.where(sure, 0.0, -(q * np.log(q) + (1 - q) * np.log(1 - q))).mean())


def stretch(key: jax.Array, past: jax.Array, length: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The next `length` steps of the streams.

    Args:
        key: a random key.
        past: the last inputs, `(10, streams)`.
        length: number of steps.

    Returns:
        The inputs `(length, streams, 1)`, the labels `(length, streams)`, and the inputs to
        remember for the labels that follow, like `past`.
    """
    input_key, label_key = jax.random.split(key)
    near, far = LAGS
    flips = jax.random.bernoulli(input_key, 0.5, (length, past.shape[1])).astype(jnp.float32)
    x = jnp.concatenate([past, flips])
    p = 0.5 + 0.5 * x[far - near : far - near + length] - 0.25 * x[:length]
    labels = jax.random.bernoulli(label_key, p).astype(jnp.float32)
    return x[far:, :, None], labels, x[-far:]


def init(key: jax.Array, units: int) -> dict[str, jax.Array]:
    """A network that forgets: only learning makes its memory long enough."""
    keys = jax.random.split(key, 3)

    def matrix(key: jax.Array, n: int, m: int) -> jax.Array:
        return jax.random.normal(key, (n, m)) / np.sqrt(n)

    return {
        'W': matrix(keys[0], 1, 2 * units),
        'decay': jnp.zeros(units) - 0.3,
        'angle': jnp.linspace(0, 0.7, units),
        'V': matrix(keys[1], 2 * units, units),
        'b': jnp.zeros(units),
        'out': matrix(keys[2], units, 1),
        'c': jnp.zeros(1),
    }


def step(p: Any, state: Any, x: Any) -> Any:
    """Units that turn and decay, read by a layer of tanh.

    Each turns and decays at its own learned pace (a linear recurrent unit). The state is a pair of
    `(streams, units)`, the input `(streams, 1)`, the output `(streams,)`.
    """
    a, b = state
    size = jnp.exp(-jnp.exp(p['decay']))
    cos, sin = jnp.cos(p['angle']), jnp.sin(p['angle'])
    u, v = jnp.split(x @ p['W'], 2, -1)
    a, b = size * (cos * a - sin * b) + u, size * (sin * a + cos * b) + v
    layer = jnp.tanh(jnp.concatenate([a, b], -1) @ p['V'] + p['b'])
    return (a, b), (layer @ p['out'] + p['c'])[..., 0]


def cross_entropy(logit: Any, label: Any) -> Any:
    return (jax.nn.softplus(logit) - label * logit).mean()


def adam(params: Any, moments: Any, grads: Any, t: Any, rate: Any) -> tuple[Any, Any]:
    """One step of Adam."""
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], grads)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, moments[1], grads)

    def move(p: Any, m: Any, v: Any) -> Any:
        return p - rate * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8)

    return jax.tree.map(move, params, first, second), (first, second)
