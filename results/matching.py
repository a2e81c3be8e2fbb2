"""Delayed match to sample with a network of generalised integrate-and-fire (GIF) neurons.

Two stimuli come one after the other with a silence between them; the network says whether they were
the same. Each neuron has a slow current that its own spikes feed, and half of them hold it for
about as long as the delay lasts: it is what can bridge the silence.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import braintrace

STIMULI, WIRES, SHOW, DECIDE = 2, 10, 25, 10
MEMBRANE, SYNAPSE, READ_OUT = np.exp(-1 / np.array([20.0, 10.0, 10.0]))
RULES = {
    'd_rtrl': {},
    'pp_prop': {'decay_or_rank': 0.99},
    'bptt': {},
}


@jax.custom_jvp
def spike(v):
    """1 where `v` is above the threshold; its slope is a triangle of width 1 around it."""
    return (v >= 0).astype(v.dtype)


@spike.defjvp
def spike_jvp(primals, tangents):
    (v,), (dv,) = primals, tangents
    return spike(v), 0.3 * jnp.maximum(0, 1 - jnp.abs(v)) * dv


class State(NamedTuple):
    """Synaptic current, slow current, membrane `(batch, units)`, and read-out `(batch, 2)`."""

    current: jax.Array
    slow: jax.Array
    v: jax.Array
    y: jax.Array


def gif(slow_decay):
    """One step of the network; `slow_decay`, `(units,)`, is what is left of the slow current."""

    def step(p, s, x):
        z = spike(s.v - 1)
        current = SYNAPSE * s.current + jnp.concatenate([x, z], -1) @ p['W']
        slow = slow_decay * (s.slow + z)
        v = MEMBRANE * (s.v - z) + (1 - MEMBRANE) * (current + slow)
        y = READ_OUT * s.y + spike(v - 1) @ p['out'] + p['bias']
        return State(current, slow, v, y), y

    return step


def initial(key, units, delay):
    """Random weights, and the decays of the slow currents: fast ones, and as long as the delay."""
    keys = jax.random.split(key, 5)
    inputs = STIMULI * WIRES
    into = jax.random.normal(keys[0], (inputs, units)) * 3 / np.sqrt(inputs)
    among = jax.random.normal(keys[1], (units, units)) / np.sqrt(units)
    taus = jnp.concatenate(
        [
            jax.random.uniform(keys[2], (units // 2,), minval=1, maxval=5),
            jax.random.uniform(
                keys[3], (units - units // 2,), minval=delay / 2, maxval=1.5 * delay
            ),
        ]
    )
    params = {
        'W': jnp.concatenate([into, among]),
        'out': jax.random.normal(keys[4], (units, 2)) * 0.1 / np.sqrt(units),
        'bias': jnp.zeros(2),
    }
    return params, jnp.exp(-1 / taus)


def zero_state(batch, units):
    zero = jnp.zeros((batch, units))
    return State(zero, zero, zero, jnp.zeros((batch, 2)))


def trials(key, n, delay):
    """Spikes `(time, trial, wire)`, and whether the second stimulus is the first, `(trial,)`."""
    which, noise = jax.random.split(key)
    first, second = jax.random.randint(which, (2, n), 0, STIMULI)
    wires, silence = jnp.repeat(jnp.eye(STIMULI), WIRES, 1), jnp.zeros((n, STIMULI * WIRES))
    phases = [(wires[first], SHOW), (silence, delay), (wires[second], SHOW), (silence, DECIDE)]
    shown = jnp.concatenate([jnp.tile(phase, (steps, 1, 1)) for phase, steps in phases])
    spikes = jax.random.bernoulli(noise, 0.01 + 0.2 * shown)
    return spikes.astype(jnp.float32), (first == second).astype(jnp.int32)


def cross_entropy(y, label):
    return optax.softmax_cross_entropy_with_integer_labels(y, label)


def learn(rule, rate, seed, *, units=64, delay=150, batch=32, updates=120, every=10, held_out=256):
    """Learn from `updates` batches of new trials; look at `held_out` validation trials now and
    then, and at four times as many test trials at the end.

    Returns:
        `at` and `validation`, the numbers of updates at which it looked and the accuracies; `test`,
        the accuracy at the end, and `spikes`, the share of steps in which a neuron spikes.
    """
    steps = 2 * SHOW + delay + DECIDE
    key = jax.random.key(seed)
    weights, training, validation, test = jax.random.split(key, 4)
    params, slow_decay = initial(weights, units, delay)
    step, state = gif(slow_decay), zero_state(batch, units)
    learner = braintrace.compile(
        step, rule, params, state, jnp.zeros((batch, STIMULI * WIRES)), **RULES[rule]
    )
    window = steps if rule == 'bptt' else 'auto'
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))
    deciding = jnp.arange(steps) >= steps - DECIDE

    @jax.jit
    def update(params, moments, t):
        xs, labels = trials(jax.random.fold_in(training, t), batch, delay)
        carry = learner.init(params, state)
        (grads, _), _ = learner.grad(
            cross_entropy,
            params,
            carry,
            xs,
            jnp.tile(labels, (steps, 1)),
            mask=deciding,
            window=window,
            fresh=True,
        )
        changes, moments = optimizer.update(grads, moments, params)
        return optax.apply_updates(params, changes), moments

    @partial(jax.jit, static_argnums=2)
    def accuracy(params, key, n):
        xs, labels = trials(key, n, delay)

        def one(s, x):
            s, y = step(params, s, x)
            return s, (y, spike(s.v - 1).mean())

        _, (ys, rates) = jax.lax.scan(one, zero_state(n, units), xs)
        said = ys[-DECIDE:].mean(0).argmax(-1)
        return (said == labels).mean(), rates.mean()

    moments, looks = optimizer.init(params), []
    for t in range(updates + 1):
        if t % every == 0:
            looks.append((t, float(accuracy(params, validation, held_out)[0])))
        params, moments = update(params, moments, t)
    told, spikes = accuracy(params, test, 4 * held_out)
    at, found = zip(*looks, strict=True)
    return {'at': at, 'validation': found, 'test': float(told), 'spikes': float(spikes)}


def temporary_bytes(rule, delay, units=64, batch=32):
    """What the compiled gradient of one batch keeps beside its arguments and results."""
    steps = 2 * SHOW + delay + DECIDE
    params, slow_decay = initial(jax.random.key(0), units, delay)
    state, x = zero_state(batch, units), jnp.zeros((batch, STIMULI * WIRES))
    learner = braintrace.compile(gif(slow_decay), rule, params, state, x, **RULES[rule])
    window = steps if rule == 'bptt' else 50

    def gradient(params, xs, labels):
        carry = learner.init(params, state)
        return learner.grad(cross_entropy, params, carry, xs, labels, window=window)[0][0]

    spikes = jax.ShapeDtypeStruct((steps, *x.shape), x.dtype)
    labels = jax.ShapeDtypeStruct((steps, batch), jnp.int32)
    compiled = jax.jit(gradient).lower(params, spikes, labels).compile()
    return compiled.memory_analysis().temp_size_in_bytes
