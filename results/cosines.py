"""How near the gradients of the rules come to BPTT's, on four spiking networks.

The neurons leak (LIF) or leak and adapt (ALIF); a spike acts on the membrane at once (delta
synapse) or through a current that decays (exponential synapse). Each network has one recurrent
layer and a leaky read-out, and is driven by random spikes; the loss is at every step.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matching import spike

import braintrace

INPUTS, UNITS, CLASSES, BATCH, STEPS = 40, 60, 5, 8, 120
MEMBRANE, CURRENT, THRESHOLD, READ_OUT = np.exp(-1 / np.array([10.0, 10.0, 100.0, 10.0]))
RULES = {
    'rtrl': {},
    'd_rtrl': {},
    'ostl_recurrent': {},
    'eprop': {'kappa_filter_decay': float(READ_OUT)},
    'pp_prop': {'decay_or_rank': 0.9},
    'ottt': {'decay': float(MEMBRANE)},
    'bptt': {},  # in windows of one step: no trace at all
}


def network(adapts, exponential):
    """One step of such a network: membrane `v`, threshold `a`, current `i`, read-out `y`."""

    def step(p, s, x):
        z = spike(s['v'] - 1 - 0.5 * s['a'])
        fed = jnp.concatenate([x, z], -1) @ p['W']
        current = CURRENT * s['i'] + fed if exponential else fed
        v = MEMBRANE * s['v'] + (0.3 * current if exponential else current) - z
        a = THRESHOLD * s['a'] + (z if adapts else 0.0)
        y = READ_OUT * s['y'] + spike(v - 1 - 0.5 * a) @ p['out']
        return {'v': v, 'a': a, 'i': current, 'y': y}, y

    return step


NETWORKS = {
    'LIF, delta': network(False, False),
    'LIF, exponential': network(False, True),
    'ALIF, delta': network(True, False),
    'ALIF, exponential': network(True, True),
}


def problem(seed):
    """Random weights, zero state, spikes `(time, sample, wire)` and classes `(time, sample)`."""
    keys = jax.random.split(jax.random.key(seed), 4)
    into = jax.random.normal(keys[0], (INPUTS, UNITS)) / np.sqrt(INPUTS)
    among = jax.random.normal(keys[1], (UNITS, UNITS)) / np.sqrt(UNITS)
    params = {
        'W': jnp.concatenate([2 * into, among]),
        'out': jax.random.normal(keys[2], (UNITS, CLASSES)) / np.sqrt(UNITS),
    }
    state = {k: jnp.zeros((BATCH, UNITS)) for k in 'vai'} | {'y': jnp.zeros((BATCH, CLASSES))}
    spiking, which = jax.random.split(keys[3])
    xs = jax.random.bernoulli(spiking, 0.1, (STEPS, BATCH, INPUTS)).astype(jnp.float32)
    labels = jax.random.randint(which, (BATCH,), 0, CLASSES)
    return params, state, xs, jnp.tile(labels, (STEPS, 1))


def cross_entropy(y, label):
    return optax.softmax_cross_entropy_with_integer_labels(y, label)


def cosine_with_bptt(network, rule, seed):
    """The cosine of a rule's gradient of the recurrent layer with the true one."""
    step, (params, state, xs, labels) = NETWORKS[network], problem(seed)
    learner = braintrace.compile(step, rule, params, state, xs[0], **RULES[rule])
    carry, window = learner.init(params, state), 1 if rule == 'bptt' else 'auto'
    (grads, _), _ = learner.grad(cross_entropy, params, carry, xs, labels, window=window)

    def unrolled(p):
        return cross_entropy(jax.lax.scan(lambda s, x: step(p, s, x), state, xs)[1], labels).mean()

    a, b = grads['W'], jax.jit(jax.grad(unrolled))(params)['W']
    return float((a * b).sum() / jnp.linalg.norm(a) / jnp.linalg.norm(b))


def firing_rate(network, seed):
    """The share of steps in which a neuron spikes."""
    params, state, xs, _ = problem(seed)

    def one(s, x):
        s, _ = NETWORKS[network](params, s, x)
        return s, spike(s['v'] - 1 - 0.5 * s['a']).mean()

    return float(jax.lax.scan(one, state, xs)[1].mean())
