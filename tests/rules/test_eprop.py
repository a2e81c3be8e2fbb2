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

        def mean(out, y):
            return loss(out, y).mean()

        carry = learner.init(params, start(3))
        assert list(feedback_weights(carry)) == ['o']

        def run(c):
            return learner.grad(mean, params, c, xs, ys, window=4)[0][0]

        true = online('gru', 'eprop', 3, 4, kappa_filter_decay=0.5)
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
    losses = []
    for _ in range(5):
        carry = eprop.init(params, zero)
        carry = with_feedback(carry, 'W_out', jnp.asarray(B))
        (grads, loss), _ = eprop.grad(
            lambda out, t: 0.5 * ((out[0] - t) ** 2).sum(),
            params,
            carry,
            x,
            target,
            reduction='sum',
            window=100,
        )
        losses.append(float(loss.sum()))
        z = rates.evolve(params, rates.init(params, zero), x, window=100)[0][1]
        push = 300 * (z.mean(0) - 0.01) / steps
        (more, _), _ = rates.grad(
            lambda out, m: (out[1] * m).sum(),
            params,
            rates.init(params, zero),
            x,
            jnp.broadcast_to(push, (steps, n)),
            reduction='sum',
            window=100,
        )
        params = {
            k: w - 1e-4 * (grads[k] + (more[k] if k != 'W_out' else 0)) for k, w in params.items()
        }
    np.testing.assert_allclose(
        losses,
        [101.964356999041, 103.466731126205, 103.340607074771, 103.680244037686, 104.412775748752],
        rtol=1e-9,
    )
