"""Learners on four devices, in a process of its own: `four_devices.py directory`. What it finds is
printed as JSON."""

import os
import re
import sys

os.environ['XLA_FLAGS'] = (
    '--xla_force_host_platform_device_count=4 --xla_cpu_use_fusion_emitters=false'
)
os.environ['JAX_PLATFORMS'] = 'cpu'

import json

import brainstate as bs
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, PartitionSpec

import braintrace

jax.config.update('jax_disable_most_optimizations', True)  # compiling is what takes the time

T, B, D, H, C = 4, 4, 6, 8, 2
rng = np.random.RandomState(0)


def draw(*shape):
    return jnp.asarray(rng.randn(*shape) * 0.5, 'float32')


P = {'W': draw(D, H), 'R': draw(H, H), 'a': draw(H), 'o': draw(H, C)}
X, Y, S = draw(T, B, D), draw(T, B, C), draw(B, H)
RULES = {
    'd_rtrl': {},
    'pp_prop': {'decay_or_rank': 0.9},
    'rtrl': {},
    'eprop': {'feedback': 'random', 'random_feedback_key': 0, 'kappa_filter_decay': 0.5},
}


def step(p, h, x):
    h = jnp.tanh(p['a'] * h + x @ p['W'] + h @ p['R'])
    return h, h @ p['o']


def error(out, y):
    return ((out - y) ** 2).mean(-1)


def mesh_of(**axes):
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def meshes():
    return {
        'both': (mesh_of(data=2, model=2), {}),
        'batch': (mesh_of(data=4), {'units': None}),
        'units': (mesh_of(model=4), {'batch': None}),
    }


def difference(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(np.abs(np.asarray(x) - np.asarray(y)).max()) for x, y in pairs)


def placed(rule, mesh, axes):
    """The distance of gradients with and without devices, the share of its traces that a device
    holds, and the largest gather in elements, as a share of the largest trace."""
    learner = braintrace.compile(step, rule, P, S, X[0], **RULES[rule])
    (true, _), carry = learner.grad(error, P, learner.init(P, S), X, Y, window=2)
    params, carries, inputs = learner.shardings(mesh, **axes)
    [xs] = inputs
    p, s = jax.device_put((P, S), (params, carries.state))
    x, y = jax.device_put((X, Y), (xs, xs))
    begin = learner.init(p, s, shardings=carries)

    def gradient(p, carry, x, y):
        return learner.grad(error, p, carry, x, y, window=2)

    compiled = jax.jit(gradient).lower(p, begin, x, y).compile()
    (grads, _), after = compiled(p, begin, x, y)
    shares = {
        name: max(shard.data.size for shard in a.addressable_shards) / a.size
        for name, a in begin.traces.items()
    }
    largest = max([a.size for a in begin.traces.values()])
    gathers = re.findall(r'= \w+\[([\d,]*)\]\S* all-gather', compiled.as_text())
    sizes = [int(np.prod([int(n) for n in g.split(',') if n])) for g in gathers]
    return {
        'gradient': difference(grads, true),
        'carry': difference(after.state, carry.state),
        'shares': shares,
        'gathered': max(sizes, default=0) / largest,
    }


def manual(rule):
    """The distance of gradients inside `jax.shard_map` with its defaults."""
    mesh = mesh_of(data=4)
    learner = braintrace.compile(step, rule, P, S[:1], X[0, :1], **RULES[rule])
    whole = braintrace.compile(step, rule, P, S, X[0], **RULES[rule])
    (true, _), _ = whole.grad(error, P, whole.init(P, S), X, Y, window=2)

    def one(p, s, x, y):
        (grads, _), _ = learner.grad(error, p, learner.init(p, s), x, y, window=2)
        return jax.lax.pmean(grads, 'data')

    spec = PartitionSpec
    by_sample = spec(None, 'data')
    f = jax.shard_map(
        one, mesh=mesh, in_specs=(spec(), spec('data'), by_sample, by_sample), out_specs=spec()
    )
    return difference(f(P, S, X, Y), true)


def module(directory):
    """A placed module: its gradient, the shares of its traces, and a checkpoint that is restored
    without devices."""

    class Net(bs.nn.Module):
        def __init__(self):
            super().__init__()
            self.inp, self.out = bs.nn.Linear(D, H), bs.nn.Linear(H, C)

        def init_state(self, batch_size=None, **_):
            self.h = bs.HiddenState(jnp.zeros((batch_size, H)))

        def update(self, x):
            self.h.value = 0.9 * self.h.value + jnp.tanh(self.inp(x))
            return self.out(self.h.value)

    def learner_of():
        bs.random.seed(0)
        learner = braintrace.compile(Net(), 'd_rtrl', X[0], batch_size=B)
        return learner, lambda x, y: error(learner(x), y)

    (one, one_step), (many, many_step) = learner_of(), learner_of()
    many.place(meshes()['both'][0], units='model')
    true = one.etrace_grad(X, Y, step_fn=one_step, window=1)
    found = many.etrace_grad(X, Y, step_fn=many_step, window=1)
    traces = [part.value for part in many.etrace.values()]
    shares = [max(s.data.size for s in a.addressable_shards) / a.size for a in traces]
    with braintrace.Checkpoints(directory) as checkpoints:
        checkpoints.save(1, many)
        other, _ = learner_of()
        checkpoints.restore(other)
        other_shares = [len(part.value.devices()) for part in other.etrace.values()]
        many.etrace_evolve(X)
        checkpoints.restore(many)
        again = [p.value.sharding for p in many.etrace.values()]
    kept = {n: np.asarray(a) for n, a in many.snapshot().arrays.items()}
    back = {n: np.asarray(a) for n, a in other.snapshot().arrays.items()}
    return {
        'gradient': difference(found, true),
        'shares': shares,
        'restored': difference(kept, back),
        'devices': other_shares,
        'in place': again == [a.sharding for a in traces],
    }


if __name__ == '__main__':
    found = {
        'placed': {
            f'{rule}, {name}': placed(rule, *meshes()[name])
            for rule in RULES
            for name in (meshes() if rule == 'd_rtrl' else ['both'])
            if rule != 'eprop'
        },
        'manual': {rule: manual(rule) for rule in ('rtrl', 'eprop')},
        'module': module(sys.argv[1]),
    }
    print(json.dumps(found, indent=1))
