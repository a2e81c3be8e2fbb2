"""e-prop: feedback weights, and two outside results to the digit."""

import jax
import jax.numpy as jnp
import numpy as np
from cells import CELLS, DATA, C, H, loss, online, same, step_of
from inside import feedback_weights, with_feedback

import braintrace


def test_random_feedback_goes_through_its_own_weights():
    """With feedback weights equal to the read-out's it is the true gradient; adaptive ones follow
    the read-out."""
    cell, params, start = CELLS['gru']
    xs, ys = DATA[3]

    def mean(out, y):
        return loss(out, y).mean()

    true = online('gru', 'eprop', 3, 3, kappa_filter_decay=0.5)
    for kind in ('random', 'adaptive'):
        learner = braintrace.compile(
            step_of(cell),
            'eprop',
            params,
            start(3),
            xs[0],
            feedback=kind,
            random_feedback_key=0,
            kappa_filter_decay=0.5,
        )
        carry = learner.init(params, start(3))
        assert list(feedback_weights(carry)) == ['o']

        def run(c):
            return learner.grad(mean, params, c, xs, ys, window=3)[0][0]

        same(run(carry)['o'], true['o'])
        assert not np.allclose(run(carry)['N'], true['N'])
        equal = params['o'] if kind == 'random' else jnp.zeros((H, C))
        same(run(with_feedback(carry, 'o', equal)), true)

    def multi(feedback):
        start = with_feedback(carry, 'o', feedback)
        return learner_multi.grad(mean, params, start, xs, ys, window=2)[0][0]

    learner_multi = braintrace.compile(
        step_of(cell),
        'eprop',
        params,
        start(3),
        xs[0],
        feedback='random',
        random_feedback_key=0,
        kappa_filter_decay=0.5,
        vjp_method='multi-step',
    )
    true = online('gru', 'eprop', 3, 2, kappa_filter_decay=0.5, vjp_method='multi-step')
    same(multi(params['o']), true)
    assert not np.allclose(multi(-params['o'])['Z'], true['Z'])
    square = online('gru', 'eprop', 3, 4, feedback='square', random_feedback_key=0)
    same(square, online('gru', 'eprop', 3, 1, feedback='square', random_feedback_key=0))


def test_eprop_pattern_generation():
    """Five losses of a regression test that other implementations agree on to 1e-7."""
    n, steps, alpha, threshold = 100, 1000, np.exp(-1 / 30), 0.03
    random = np.random.RandomState(1)
    W_in, W, W_out, B = (
        np.float64(np.float32(random.randn(*shape) / 10))
        for shape in ((n, n), (n, n), (n, 1), (n, 1))
    )
    x = np.float64(random.rand(steps, n) < 0.05)
    x[0] = 0
    amplitudes, phases = random.uniform(0.5, 2, 4), random.uniform(0, 2 * np.pi, 4)
    waves = zip(amplitudes, phases, (1000, 500, 333, 200), strict=True)
    target = sum(
        a * np.sin(np.linspace(p, p + 2 * np.pi * (1000 // period), steps))
        for a, p, period in waves
    )
    target = (target - target[0]) / np.abs(target - target[0]).max()
    off = 1 - np.eye(n)

    @jax.custom_jvp
    def spike(v):
        return (v >= threshold).astype(v.dtype)

    spike.defjvp(
        lambda p, t: (
            spike(*p),
            t[0] * (0.3 / threshold) * jnp.maximum(0, 1 - jnp.abs((p[0] - threshold) / threshold)),
        )
    )

    def step(p, s, x):
        z = jax.lax.stop_gradient(s['z'])
        v = alpha * s['v'] + (1 - alpha) * (x @ p['W_in'] + s['z'] @ (p['W'] * off)) - threshold * z
        z = spike(v)
        y = alpha * s['y'] + (1 - alpha) * z @ p['W_out']
        return {'v': v, 'z': z, 'y': y}, (y, z)

    params, zero = (
        dict(W_in=W_in, W=W * off, W_out=W_out),
        dict(v=jnp.zeros(n), z=jnp.zeros(n), y=jnp.zeros(1)),
    )
    params = jax.tree.map(jnp.asarray, params)
    eprop = braintrace.compile(
        step,
        'eprop',
        params,
        zero,
        x[0],
        feedback='random',
        random_feedback_key=0,
        kappa_filter_decay=float(alpha),
    )
    rates = braintrace.compile(step, 'd_rtrl', params, zero, x[0])

    def square(out, t):
        return 0.5 * ((out[0] - t) ** 2).sum()

    def pushed(out, push):
        return (out[1] * push).sum()

    @jax.jit
    def mean_rate(p):
        return jax.lax.scan(lambda s, x: step(p, s, x), zero, x)[1][1].mean(0)

    losses = []
    for _ in range(5):
        carry = eprop.init(params, zero)
        carry = with_feedback(carry, 'W_out', jnp.asarray(B))
        (grads, loss), _ = eprop.grad(square, params, carry, x, target, reduction='sum', window=100)
        losses.append(float(loss.sum()))
        push = jnp.broadcast_to(300 * (mean_rate(params) - 0.01) / steps, (steps, n))
        carry = rates.init(params, zero)
        (more, _), _ = rates.grad(pushed, params, carry, x, push, reduction='sum', window=100)
        params = {
            k: w - 1e-4 * (grads[k] + (more[k] if k != 'W_out' else 0)) for k, w in params.items()
        }
    np.testing.assert_allclose(
        losses,
        [101.964356999041, 103.466731126205, 103.340607074771, 103.680244037686, 104.412775748752],
        rtol=1e-9,
    )


# ---- evidence accumulation ----

STEPS, INPUTS, UNITS, RECALL, CUE, GAP = 2250, 40, 100, 150, 100, 50
LEAK, ADAPT, THRESHOLD = np.exp(-1 / 20), np.exp(-1 / 2000), 0.6
BETA = np.where(np.arange(UNITS) < UNITS // 2, 0.0, 1.7 * (1 - ADAPT) / (1 - LEAK))
OTHERS = 1 - np.eye(UNITS)


@jax.custom_jvp
def fires(v):
    return (v >= 0).astype(v.dtype)


@fires.defjvp
def fires_jvp(primals, tangents):
    slope = 0.3 / THRESHOLD * jnp.maximum(0, 1 - jnp.abs(primals[0]) / THRESHOLD)
    return fires(*primals), tangents[0] * slope


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


def test_eprop_evidence_accumulation():
    """Five losses of the classification task of the same regression tests: adaptive thresholds,
    random feedback, a loss in the last steps only, and a rate term on the eligibility."""
    random = np.random.RandomState(1)
    most = np.sqrt(3 / (UNITS + 2) * 2)
    drawn = dict(
        W_in=random.randn(INPUTS, UNITS) / np.sqrt(INPUTS),
        W=random.randn(UNITS, UNITS) / 10,
        W_out=random.uniform(-most, most, (UNITS, 2)),
        B=random.randn(UNITS, 2),
    )
    drawn = {k: jnp.asarray(np.float64(np.float32(a))) for k, a in drawn.items()}
    feedback = drawn.pop('B')
    params = {**drawn, 'W': drawn['W'] * OTHERS}
    zero = {k: jnp.zeros(UNITS) for k in 'vaz'}
    zero |= dict(silent=jnp.zeros(UNITS, jnp.int32), y=jnp.zeros(2))
    options = dict(feedback='random', random_feedback_key=0, kappa_filter_decay=float(LEAK))
    example = params, zero, jnp.zeros(INPUTS)
    eprop = braintrace.compile(adaptive, 'eprop', *example, **options)
    rates = braintrace.compile(adaptive, 'd_rtrl', *example)

    def entropy(out, label):
        return -jax.nn.log_softmax(out[0])[label]

    def pushed(out, push):
        return (out[1] * push).sum()

    @jax.jit
    def mean_rate(p, x):
        return jax.lax.scan(lambda s, x: adaptive(p, s, x), zero, x)[1][1].mean(0)

    mask, losses = jnp.arange(STEPS) >= STEPS - RECALL, []
    first = second = jax.tree.map(jnp.zeros_like, params)
    for k in range(1, 6):
        x, label = evidence(random)
        carry = with_feedback(eprop.init(params, zero), 'W_out', feedback)
        labels = jnp.full(STEPS, label)
        (grads, loss), _ = eprop.grad(entropy, params, carry, x, labels, mask=mask, window=150)
        losses.append(float(loss[-RECALL:].mean()))
        push = jnp.broadcast_to(300 * (mean_rate(params, x) - 0.01) / STEPS, (STEPS, UNITS))
        carry = rates.init(params, zero)
        (more, _), _ = rates.grad(pushed, params, carry, x, push, reduction='sum', window=150)
        grads = {k: g + (more[k] / RECALL if k != 'W_out' else 0) for k, g in grads.items()}
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, grads)
        second = jax.tree.map(lambda m, g: 0.999 * m + 0.001 * g * g, second, grads)
        rate = 5e-3 * np.sqrt(1 - 0.999**k) / (1 - 0.9**k)
        params = jax.tree.map(
            lambda w, m, v, rate=rate: w - rate * m / (jnp.sqrt(v) + 1e-8), params, first, second
        )
    np.testing.assert_allclose(
        losses,
        [0.741152550006, 0.740388187700, 0.665785233177, 0.663644193322, 0.729428962844],
        rtol=1e-9,
    )
