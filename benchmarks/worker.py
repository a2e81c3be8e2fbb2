"""Measures one library in its own environment and prints a line of JSON for each case: `worker.py ours | reference`.

With the number of a case it computes the first gradient of that case and ends: who starts the process takes the time.
"""

import json
import sys
import time
import warnings

import brainstate
import jax
import jax.numpy as jnp
from by_hand import pp_prop
from models import CASES, Net, data, loss

import braintrace

warnings.simplefilter('ignore')
OURS = sys.argv[1] == 'ours'
LINEAR = brainstate.nn.Linear if OURS else braintrace.nn.Linear
OPTIONS = {'pp_prop': {'decay_or_rank': 0.9}}


def best(f, repeat=40, limit=20):
    """Milliseconds of the first and of the best of some later calls, as many as fit into so many seconds."""
    times, end = [], time.perf_counter() + limit
    while len(times) < 2 or len(times) <= repeat and time.perf_counter() < end:
        start = time.perf_counter()
        jax.block_until_ready(f())
        times.append((time.perf_counter() - start) * 1e3)
    return times[0], min(times[1:])


def driver(cell, rule, shape, options):
    """A new learner's compiled gradient of a sequence, as a function of nothing."""
    n_in, n, batch, _ = shape
    xs, ys = data(shape)
    model = Net(cell, LINEAR, n_in, n)
    learner = braintrace.compile(
        model, getattr(braintrace, rule), xs[0], batch_size=batch, seed=0, **OPTIONS.get(rule, {})
    )
    options = options if OURS else {}
    grad = brainstate.transform.jit(
        lambda xs, ys: learner.etrace_grad(
            xs, ys, step_fn=lambda x, y: loss(learner(x), y), **options
        )
    )
    return learner, lambda: jax.tree.leaves(grad(xs, ys))


def sequence(cell, rule, shape, options, again=3):
    """Milliseconds of a first call, the best of some new learners', and of a later one."""
    first, ms = best(driver(cell, rule, shape, options)[1])
    return min(
        [first]
        + [
            best(driver(cell, rule, shape, options)[1], 1)[0]
            for _ in range(again if first < 3000 else 0)
        ]
    ), ms


def hand_written(shape):
    """Milliseconds of pp_prop written out for this GRU; it must give what ours gives."""
    n_in, n, batch, _ = shape
    xs, ys = data(shape)
    learner, _ = driver('gru', 'pp_prop', shape, {})
    names = [
        ('cell', 'Wz', 'weight'),
        ('cell', 'Wr', 'weight'),
        ('cell', 'Wh', 'weight'),
        ('out', 'weight'),
    ]
    params = [
        (learner.param_states[k].value['weight'], learner.param_states[k].value['bias'])
        for k in names
    ]
    zero = lambda width: (jnp.zeros((batch, width)),) * 2
    f = jax.jit(pp_prop)
    run = lambda: f(params, (jnp.zeros((batch, n)), zero(n), zero(n_in + n), 0), xs, ys)
    ours = learner.etrace_grad(xs, ys, step_fn=lambda x, y: loss(learner(x), y))
    for k, (weight, bias) in zip(names, run()[0], strict=True):
        for a, b in ((weight, ours[k]['weight']), (bias, ours[k]['bias'])):
            assert jnp.abs(a - b).max() < 1e-4 * jnp.abs(a).max(), (
                f'{k}: written out by hand it must be the same rule'
            )
    return best(run)[1]


def bptt(cell, shape):
    n_in, n, batch, _ = shape
    xs, ys = data(shape)
    model = brainstate.nn.init_all_states(
        Net(cell, brainstate.nn.Linear, n_in, n), batch_size=batch
    )
    weights = model.states(brainstate.ParamState)
    run = lambda xs, ys: brainstate.transform.for_loop(
        lambda x, y: loss(model(x), y), xs, ys
    ).mean()
    grad = brainstate.transform.jit(
        lambda xs, ys: brainstate.transform.grad(lambda: run(xs, ys), weights)()
    )
    return best(lambda: jax.tree.leaves(grad(xs, ys)))


def stream(steps=2000, traces=True):
    """Microseconds for one jitted step with an update of the weights, GRU 16-64-4, one sample; without traces it is what brainstate itself costs."""
    model = Net('gru', LINEAR, 16, 64, 4)
    xs = list(jax.random.normal(jax.random.key(0), (8, 1, 16)))
    if traces:
        learner = braintrace.compile(model, braintrace.D_RTRL, xs[0], batch_size=1, seed=0)
        weights = learner.param_states
    else:
        learner = brainstate.nn.init_all_states(model, batch_size=1)
        weights = model.states(brainstate.ParamState)

    @brainstate.transform.jit
    def step(x):
        grads = brainstate.transform.grad(lambda: jnp.mean(learner(x) ** 2), weights)()
        for k, s in weights.items():
            s.value = jax.tree.map(lambda w, g: w - 1e-3 * g, s.value, grads[k])

    def run():
        for t in range(steps):
            step(xs[t % 8])
        return [s.value for s in weights.values()]

    return best(run, 3)[1] / steps * 1e3


def own_stream(steps=2000):
    """The same through the learner's own `etrace_stream`."""
    xs = list(jax.random.normal(jax.random.key(0), (8, 1, 16)))
    learner = braintrace.compile(
        Net('gru', LINEAR, 16, 64, 4), braintrace.D_RTRL, xs[0], batch_size=1, seed=0
    )
    weights = learner.param_states

    def update(grads):
        for k, s in weights.items():
            s.value = jax.tree.map(lambda w, g: w - 1e-3 * g, s.value, grads[k])

    live = learner.etrace_stream(step_fn=lambda x: jnp.mean(learner(x) ** 2), update=update)

    def run():
        for t in range(steps):
            live(xs[t % 8])
        return [s.value for s in weights.values()]

    return best(run, 3)[1] / steps * 1e3


def pure_stream(steps=2000):
    def step(p, h, x):
        sig = jax.nn.sigmoid
        xh = jnp.concatenate([x, h], -1)
        z, r = sig(xh @ p['Wz'] + p['bz']), sig(xh @ p['Wr'] + p['br'])
        h = (1 - z) * h + z * jnp.tanh(jnp.concatenate([x, r * h], -1) @ p['Wh'] + p['bh'])
        return h, h @ p['Wo'] + p['bo']

    key = jax.random.split(jax.random.key(0), 5)
    sizes = dict(z=(80, 64), r=(80, 64), h=(80, 64), o=(64, 4))
    params = {
        f'W{k}': jax.random.normal(a, s) / 9 for a, (k, s) in zip(key, sizes.items(), strict=False)
    }
    params |= {f'b{k}': jnp.zeros(s[1]) for k, s in sizes.items()}
    xs = list(jax.random.normal(key[4], (8, 1, 1, 16)))
    learner = braintrace.compile(step, 'd_rtrl', params, jnp.zeros((1, 64)), xs[0][0])
    total = lambda out: jnp.mean(out**2)

    def one(params, carry, x):
        (grads, _), carry = learner.grad(total, params, carry, x, window=1)
        return jax.tree.map(lambda w, g: w - 1e-3 * g, params, grads), carry

    one = jax.jit(one, donate_argnums=(0, 1))

    def run():
        p, c = jax.tree.map(jnp.copy, params), learner.init(params, jnp.zeros((1, 64)))
        for t in range(steps):
            p, c = one(p, c, xs[t % 8])
        return p

    return best(run, 3)[1] / steps * 1e3


def rtrl():
    """Milliseconds of exact RTRL, tanh RNN with 64 units, batch 8, 64 steps, step by step and in blocks of 32."""

    def step(p, h, x):
        h = jnp.tanh(x @ p['W'] + h @ p['R'])
        return h, h @ p['o']

    k = jax.random.split(jax.random.key(0), 5)
    params = dict(
        W=jax.random.normal(k[0], (16, 64)) / 4,
        R=jax.random.normal(k[1], (64, 64)) / 8,
        o=jax.random.normal(k[2], (64, 4)) / 8,
    )
    xs, ys = jax.random.normal(k[3], (64, 8, 16)), jax.random.normal(k[4], (64, 8, 4))
    learner = braintrace.compile(step, 'rtrl', params, jnp.zeros((8, 64)), xs[0])
    carry = learner.init(params, jnp.zeros((8, 64)))
    return [
        best(lambda w=w: learner.grad(loss, params, carry, xs, ys, window=w)[0][0], 2)[1]
        for w in (1, 32)
    ]


def memory(length):
    """Temporary bytes of the compiled driver of a sequence of this length."""

    def step(p, h, x):
        h = jnp.tanh(x @ p['W'] + p['a'] * h)
        return h, h

    params, state, xs = (
        dict(W=jnp.ones((16, 64)), a=jnp.ones(64)),
        jnp.zeros((4, 64)),
        jnp.zeros((length, 4, 16)),
    )
    learner = braintrace.compile(step, 'd_rtrl', params, state, xs[0])
    f = jax.jit(lambda p, c, x: learner.grad(lambda out: (out**2).mean(), p, c, x))
    return (
        f.lower(params, learner.init(params, state), xs)
        .compile()
        .memory_analysis()
        .temp_size_in_bytes
    )


def compiling():
    """Seconds to compile a GRU, a stack of 100 of them, and a layer of a million units."""
    from braintrace.frontends.function import trace
    from braintrace.graph.etrace_graph import compile_step

    def timed(f):
        start = time.perf_counter()
        f()
        return time.perf_counter() - start

    x = jnp.ones((2, 8))
    stack = lambda n: brainstate.nn.init_all_states(
        brainstate.nn.Sequential(*[brainstate.nn.GRUCell(8, 8) for _ in range(n)]), batch_size=2
    )
    one, many = stack(1), stack(100)
    big = jnp.ones(1_000_000)
    unit = lambda p, h, x: (jnp.tanh(p * h + jnp.roll(x, 1)), h)
    return dict(
        gru=timed(lambda: braintrace.compile_etrace_graph(one, x)),
        stack=timed(lambda: braintrace.compile_etrace_graph(many, x)),
        million=timed(lambda: compile_step(trace(unit, big, big, big)[0])),
    )


def say(**row):
    print(json.dumps(row), flush=True)


if __name__ == '__main__' and len(sys.argv) > 2:
    jax.block_until_ready(driver(*CASES[int(sys.argv[2])][1:])[1]())
elif __name__ == '__main__':
    for name, cell, rule, shape, options in CASES:
        first, ms = sequence(cell, rule, shape, options)
        say(case=name, cell=cell, shape=shape, first=first, ms=ms)
        if OURS:
            first, ms = bptt(cell, shape)
            say(case='BPTT', cell=cell, shape=shape, first=first, ms=ms)
    if OURS:
        for cell in ('gru', 'fused gru', 'lstm', 'fused lstm'):
            say(
                case='fused',
                cell=cell,
                ms=best(driver(cell, 'D_RTRL', (64, 128, 16, 100), {})[1])[1],
            )
    say(case='stream', us=stream())
    if OURS:
        say(case='pp_prop by hand', ms=hand_written((64, 128, 16, 100)))
        say(case='own stream', us=own_stream())
        say(case='floor', us=stream(traces=False))
        say(case='pure stream', us=pure_stream())
        say(case='rtrl', ms=rtrl())
        say(case='compiling', seconds=compiling())
        say(case='memory', bytes={n: memory(n) for n in (100, 1000, 10000)})
