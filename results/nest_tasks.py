"""The two regression tests of NEST for e-prop: pattern generation and evidence accumulation.

Everything in them follows from one seed, so the losses of their first five iterations are known to
many digits. The neuron is an ordinary step function; gradients come from the rule `'eprop'`.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import braintrace

PATTERN = 101.964356999041, 103.466731126205, 103.340607074771, 103.680244037686, 104.412775748752
EVIDENCE = 0.741152550006, 0.740388187700, 0.665785233177, 0.663644193322, 0.729428962844


def spike_with_slope(threshold):
    """1 where `v >= threshold`, with a triangle of that width as its slope."""

    @jax.custom_jvp
    def spike(distance):
        return (distance >= 0).astype(distance.dtype)

    @spike.defjvp
    def jvp(primals, tangents):
        (distance,), (moved,) = primals, tangents
        slope = 0.3 / threshold * jnp.maximum(0, 1 - jnp.abs(distance) / threshold)
        return spike(distance), moved * slope

    return spike


def as_published(**drawn):
    """Weights rounded to float32, for use in float64."""
    return {name: jnp.asarray(np.float64(np.float32(values))) for name, values in drawn.items()}


def with_feedback(carry, weight, values):
    """A carry whose feedback weights beside `weight` are these values."""
    return carry._replace(traces={**carry.traces, f'feedback:{weight}': values})


class Learners:
    """The gradient of a task by e-prop with given feedback, and that of the firing rates."""

    def __init__(self, step, params, state, x, kappa, feedback, window):
        options = dict(feedback='random', random_feedback_key=0, kappa_filter_decay=float(kappa))
        self.step, self.state, self.feedback, self.window = step, state, feedback, window
        self.eprop = braintrace.compile(step, 'eprop', params, state, x, **options)
        self.rates = braintrace.compile(step, 'd_rtrl', params, state, x)
        self.mean_rate = jax.jit(self._mean_rate)

    def _mean_rate(self, params, xs):
        return jax.lax.scan(lambda s, x: self.step(params, s, x), self.state, xs)[1][1].mean(0)

    def task(self, loss, params, xs, targets, **options):
        """Gradient and losses of the task."""
        carry = with_feedback(self.eprop.init(params, self.state), 'W_out', self.feedback)
        return self.eprop.grad(loss, params, carry, xs, targets, window=self.window, **options)[0]

    def firing(self, params, xs):
        """Gradient of the term that pulls the mean rates to 0.01, weighted by 300."""
        steps = len(xs)
        excess = 300 * (self.mean_rate(params, xs) - 0.01) / steps
        push = jnp.broadcast_to(excess, (steps, *excess.shape))
        carry = self.rates.init(params, self.state)
        (grads, _), _ = self.rates.grad(
            pushed, params, carry, xs, push, reduction='sum', window=self.window
        )
        return {**grads, 'W_out': jnp.zeros_like(grads['W_out'])}


def pushed(out, push):
    return (out[1] * push).sum()


# ---- pattern generation ----


def pattern_generation(iterations=5):
    """The loss of each iteration: a network learns to draw a sum of four sine waves."""
    n, steps, alpha, threshold = 100, 1000, np.exp(-1 / 30), 0.03
    random = np.random.RandomState(1)
    params = as_published(
        W_in=random.randn(n, n) / 10,
        W=random.randn(n, n) / 10,
        W_out=random.randn(n, 1) / 10,
        B=random.randn(n, 1) / 10,
    )
    feedback, others = params.pop('B'), 1 - jnp.eye(n)
    params['W'] = params['W'] * others
    xs = np.float64(random.rand(steps, n) < 0.05)
    xs[0] = 0
    target = sum_of_sines(random, steps)
    spike = spike_with_slope(threshold)

    def step(p, s, x):
        reset = threshold * jax.lax.stop_gradient(s['z'])
        v = alpha * s['v'] + (1 - alpha) * (x @ p['W_in'] + s['z'] @ (p['W'] * others)) - reset
        z = spike(v - threshold)
        y = alpha * s['y'] + (1 - alpha) * z @ p['W_out']
        return {'v': v, 'z': z, 'y': y}, (y, z)

    def square_error(out, t):
        return 0.5 * ((out[0] - t) ** 2).sum()

    state = dict(v=jnp.zeros(n), z=jnp.zeros(n), y=jnp.zeros(1))
    learners = Learners(step, params, state, xs[0], alpha, feedback, window=100)
    losses = []
    for _ in range(iterations):
        grads, loss = learners.task(square_error, params, xs, target, reduction='sum')
        losses.append(float(loss.sum()))
        more = learners.firing(params, xs)
        params = jax.tree.map(lambda w, g, r: w - 1e-4 * (g + r), params, grads, more)
    return losses


def sum_of_sines(random, steps):
    """Four sine waves of random amplitude and phase, from 0 and with 1 as largest magnitude."""
    amplitudes, phases = random.uniform(0.5, 2, 4), random.uniform(0, 2 * np.pi, 4)
    waves = zip(amplitudes, phases, (1000, 500, 333, 200), strict=True)
    target = sum(
        a * np.sin(np.linspace(p, p + 2 * np.pi * (1000 // period), steps))
        for a, p, period in waves
    )
    return (target - target[0]) / np.abs(target - target[0]).max()


# ---- evidence accumulation ----

STEPS, INPUTS, UNITS, RECALL, CUE, GAP = 2250, 40, 100, 150, 100, 50
LEAK, ADAPT, THRESHOLD = np.exp(-1 / 20), np.exp(-1 / 2000), 0.6
BETA = np.where(np.arange(UNITS) < UNITS // 2, 0.0, 1.7 * (1 - ADAPT) / (1 - LEAK))
OTHERS = 1 - np.eye(UNITS)
fires = spike_with_slope(THRESHOLD)


def adaptive(p, s, x):
    """Half of the units adapt their threshold; after a spike a unit is silent for four steps."""
    reset = jax.lax.stop_gradient(s['z'])
    v = LEAK * s['v'] + x @ p['W_in'] + s['z'] @ (p['W'] * OTHERS) - THRESHOLD * reset
    a = ADAPT * s['a'] + s['z']
    z = jnp.where(s['silent'] == 0, fires(v - THRESHOLD - BETA * a), 0.0)
    silent = jnp.where(z > 0, 4, jnp.maximum(s['silent'] - 1, 0))
    y = LEAK * s['y'] + (1 - LEAK) * z @ p['W_out']
    return dict(v=v, a=a, z=z, silent=silent, y=y), (y, z)


def evidence(random):
    """Spikes of one sequence, and whether most cues came from the second side."""
    side = random.choice([0, 1])
    cues = random.choice([0, 1], 7, p=[(0.3, 0.7), (0.7, 0.3)][side])
    rates = np.zeros((STEPS, INPUTS))
    for k, cue in enumerate(cues):
        start = k * (CUE + GAP) + GAP
        rates[start : start + CUE, 10 * cue : 10 * cue + 10] = 0.04
    rates[-RECALL:, 20:30], rates[:, 30:] = 0.04, 0.01
    spikes = np.float64(rates > random.rand(STEPS, INPUTS))
    spikes[0] = 0
    return jnp.asarray(spikes), int(cues.sum() > 3)


def cross_entropy(out, label):
    return -jax.nn.log_softmax(out[0])[label]


def evidence_accumulation(iterations=5):
    """The loss of each iteration: on which side were more cues?"""
    random = np.random.RandomState(1)
    most = np.sqrt(3 / (UNITS + 2) * 2)
    params = as_published(
        W_in=random.randn(INPUTS, UNITS) / np.sqrt(INPUTS),
        W=random.randn(UNITS, UNITS) / 10,
        W_out=random.uniform(-most, most, (UNITS, 2)),
        B=random.randn(UNITS, 2),
    )
    feedback = params.pop('B')
    params['W'] = params['W'] * OTHERS
    state = {k: jnp.zeros(UNITS) for k in 'vaz'}
    state |= dict(silent=jnp.zeros(UNITS, jnp.int32), y=jnp.zeros(2))
    learners = Learners(adaptive, params, state, jnp.zeros(INPUTS), LEAK, feedback, window=150)
    recalling, losses = jnp.arange(STEPS) >= STEPS - RECALL, []
    first = second = jax.tree.map(jnp.zeros_like, params)
    for k in range(1, iterations + 1):
        xs, label = evidence(random)
        labels = jnp.full(STEPS, label)
        grads, loss = learners.task(cross_entropy, params, xs, labels, mask=recalling)
        losses.append(float(loss[-RECALL:].mean()))
        grads = jax.tree.map(lambda g, r: g + r / RECALL, grads, learners.firing(params, xs))
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
        second = jax.tree.map(lambda m, g: 0.999 * m + 0.001 * g * g, second, grads)
        rate = 5e-3 * np.sqrt(1 - 0.999**k) / (1 - 0.9**k)
        params = jax.tree.map(partial(moved, rate), params, first, second)
    return losses


def moved(rate, w, m, v):
    """Adam as TensorFlow writes it: the small number stands outside of the correction."""
    return w - rate * m / (jnp.sqrt(v) + 1e-8)
