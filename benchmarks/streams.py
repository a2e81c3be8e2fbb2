"""A stream: one compiled call and one update for each step: `streams.py ours | reference [inline]`.

`inline` has the caller's thread run each program. By default JAX hands it to another thread on a
CPU, and the calls of a stream, of which each waits for the last, wait for threads to wake up.
"""

import sys
from functools import partial

import brainstate
import jax
import jax.numpy as jnp
from lockstep import in_turns
from models import Net
from worker import LINEAR, OURS, mean_square, say

import braintrace

STREAMED = 100  # steps


def streamed(steps, traces=True):
    """Steps of a stream in brainstate's `jit`, each with an update of the weights, as a function of
    nothing. GRU 16-64-4, one sample; without traces it is what brainstate itself costs."""
    model, xs = Net('gru', LINEAR, 16, 64, 4), inputs_of_stream()
    if traces:
        learner = braintrace.compile(model, braintrace.D_RTRL, xs[0], batch_size=1, seed=0)
    else:
        learner = brainstate.nn.init_all_states(model, batch_size=1)
    weights = model.states(brainstate.ParamState)

    @brainstate.transform.jit
    def step(x):
        descend(weights, brainstate.transform.grad(lambda: jnp.mean(learner(x) ** 2), weights)())

    return one_by_one(step, xs, weights, steps)


def own_streamed(steps):
    """The same steps in the learner's own `etrace_stream`."""
    model, xs = Net('gru', LINEAR, 16, 64, 4), inputs_of_stream()
    learner = braintrace.compile(model, braintrace.D_RTRL, xs[0], batch_size=1, seed=0)
    weights = model.states(brainstate.ParamState)
    live = learner.etrace_stream(
        step_fn=lambda x: jnp.mean(learner(x) ** 2), update=lambda grads: descend(weights, grads)
    )
    return one_by_one(live, xs, weights, steps)


def inputs_of_stream():
    return list(jax.random.normal(jax.random.key(0), (8, 1, 16)))


def one_by_one(step, xs, weights, steps):
    """So many calls of a step, as a function of nothing that gives the weights."""

    def run():
        for t in range(steps):
            step(xs[t % len(xs)])
        return [s.value for s in weights.values()]

    return run


def descend(weights, grads):
    """A small step down the gradient."""
    for path, state in weights.items():
        state.value = moved(state.value, grads[path])


def moved(params, grads):
    """Parameters after that step."""
    return jax.tree.map(lambda w, g: w - 1e-3 * g, params, grads)


def pure_streams(steps):
    """Steps of a stream of the same GRU as a plain function, and calls with the same arguments and
    results that do nothing else, each as a function of nothing."""

    def step(p, h, x):
        sig = jax.nn.sigmoid
        xh = jnp.concatenate([x, h], -1)
        z, r = sig(xh @ p['Wz'] + p['bz']), sig(xh @ p['Wr'] + p['br'])
        h = (1 - z) * h + z * jnp.tanh(jnp.concatenate([x, r * h], -1) @ p['Wh'] + p['bh'])
        return h, h @ p['Wo'] + p['bo']

    *keys, data_key = jax.random.split(jax.random.key(0), 5)
    sizes = dict(z=(80, 64), r=(80, 64), h=(80, 64), o=(64, 4))
    params = {}
    for key, (name, size) in zip(keys, sizes.items(), strict=True):
        params[f'W{name}'] = jax.random.normal(key, size) / 9
        params[f'b{name}'] = jnp.zeros(size[1])
    xs = list(jax.random.normal(data_key, (8, 1, 1, 16)))
    learner = braintrace.compile(step, 'd_rtrl', params, jnp.zeros((1, 64)), xs[0][0])

    @partial(jax.jit, donate_argnums=(0, 1))
    def one(params, carry, x):
        (grads, _), carry = learner.grad(mean_square, params, carry, x, window=1)
        return moved(params, grads), carry

    @partial(jax.jit, donate_argnums=(0, 1))
    def empty(params, carry, x):
        return jax.lax.optimization_barrier((params, carry))

    def run_of(step):
        now = jax.tree.map(jnp.copy, params), learner.init(params, jnp.zeros((1, 64)))

        def run():
            nonlocal now
            for t in range(steps):
                now = step(*now, xs[t % 8])
            return now

        return run

    return [run_of(step) for step in (one, empty)]


def main(inline=None):
    if inline:
        jax.config.update('jax_cpu_enable_async_dispatch', False)  # before the first computation
    streams = {'stream': streamed(STREAMED)}
    if OURS:
        streams['own stream'] = own_streamed(STREAMED)
        streams['floor'] = streamed(STREAMED, traces=False)
        streams['pure stream'], streams['empty stream'] = pure_streams(STREAMED)
    for case, times in zip(streams, in_turns(*streams.values()), strict=True):
        say(case=case, us=[ms / STREAMED * 1e3 for ms in times])


if __name__ == '__main__':
    main(*sys.argv[2:])
