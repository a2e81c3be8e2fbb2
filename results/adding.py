"""The Add task: learned on one stream, the rate chosen on a second, the loss told on a third.

Network, task and online learning are those of `braintrace demo`.
"""

import jax
import jax.numpy as jnp

import braintrace
from braintrace.tools.add_task import LAGS, cross_entropy, init, step, stretch
from braintrace.tools.demo import online

RULES = {'d_rtrl': {}, 'pp_prop': {'decay_or_rank': 0.9}, 'bptt': {}}
UNITS, STREAMS, CHUNK = 24, 16, 250
LOOK = 4000  # steps of the streams for validation and test
VALIDATION, TEST = jax.random.key(1000), jax.random.key(1001)


def learn(rule, rate, seed, steps=20000):
    """Learn from a stream of `steps`.

    Returns:
        `losses` along the stream, the mean of each chunk, and, of the network at the end, the loss
        on two other streams, `validation` and `test`.
    """
    key = jax.random.key(seed)
    zero = jnp.zeros((STREAMS, UNITS))
    params, state = init(key, UNITS), (zero, zero)
    learner = braintrace.compile(step, rule, params, state, jnp.zeros((STREAMS, 1)), **RULES[rule])
    zeros = jax.tree.map(jnp.zeros_like, params)
    held = params, (zeros, zeros), learner.init(params, state), jnp.zeros(())
    run, past, losses = online(learner, steps, rate), jnp.zeros((LAGS[1], STREAMS)), []
    for k in range(steps // CHUNK):
        xs, ys, past = stretch(jax.random.fold_in(key, k), past, CHUNK)
        held, loss = run(held, xs, ys)
        losses.append(float(loss.mean()))
    validation, test = (float(loss_on(held[0], key)) for key in (VALIDATION, TEST))
    return {'losses': losses, 'validation': validation, 'test': test}


@jax.jit
def loss_on(params, key):
    """The cross-entropy on a new stream, with these weights as they are."""
    zero = jnp.zeros((STREAMS, UNITS))
    xs, ys, _ = stretch(key, jnp.zeros((LAGS[1], STREAMS)), LOOK)
    _, logits = jax.lax.scan(lambda s, x: step(params, s, x), (zero, zero), xs)
    return cross_entropy(logits[LAGS[1] :], ys[LAGS[1] :])
