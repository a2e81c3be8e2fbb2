"""Learners on four devices, in a process of its own: `four_devices.py directory`. What it finds is
printed as JSON."""

import os
import pathlib
import sys

os.environ.setdefault(
    'XLA_FLAGS',
    '--xla_force_host_platform_device_count=4 --xla_cpu_use_fusion_emitters=false '
    '--xla_cpu_parallel_codegen_split_count=1',
)
os.environ['JAX_PLATFORMS'] = 'cpu'
sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / 'benchmarks'))

import functools
import json

import brainstate as bs
import jax
import jax.numpy as jnp
import numpy as np
from collectives import collectives
from jax.sharding import AxisType, PartitionSpec

import braintrace
from braintrace.rules.registry import BY_NAME

jax.config.update('jax_disable_most_optimizations', True)  # compiling is what takes the time

T, B, D, H, C = 3, 4, 6, 8, 2
rng = np.random.RandomState(0)


def draw(*shape):
    return (rng.randn(*shape) * 0.5).astype('float32')


P = {'W': draw(D, H), 'R': draw(H, H), 'a': draw(H), 'o': draw(H, C)}
X, Y, S = draw(T, B, D), draw(T, B, C), draw(B, H)
OPTIONS = {
    'pp_prop': {'decay_or_rank': 0.9},
    'hybrid': {'decay_or_rank': 0.9},
    'eprop': {'feedback': 'random', 'random_feedback_key': 0, 'kappa_filter_decay': 0.5},
    'rflo': {'decay': 0.5},
    'ottt': {'decay': 0.5},
    'low_rank': {'rank': 2},
}
RULES = [name for name in BY_NAME if name != 'dni']  # which needs a guess beside it


def step(p, h, x):
    h = jnp.tanh(p['a'] * h + x @ p['W'] + h @ p['R'])
    return h, h @ p['o']


def error(out, y):
    return ((out - y) ** 2).mean(-1)


def mesh_of(kind=AxisType.Auto, **axes):
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(kind,) * len(axes))


AXES = {
    'both': (dict(data=2, model=2), {}),
    'batch': (dict(data=4), {'units': None}),
    'units': (dict(model=4), {'batch': None}),
}


def difference(a, b):
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(np.abs(np.asarray(x) - np.asarray(y)).max()) for x, y in pairs)


def numbers(a):
    """As numbers, if it is a random key."""
    return jax.random.key_data(a) if jnp.issubdtype(a.dtype, jax.dtypes.prng_key) else a


@functools.cache
def on_one_device(rule):
    """A learner, what else its `grad` is given, and the gradients and the carry that it gives."""
    learner = braintrace.compile(step, rule, P, S, X[0], **OPTIONS.get(rule, {}))
    given = dict(window=1, modulator=0.5 if learner.rule.modulated else None)
    (grads, _), carry = learner.grad(error, P, learner.init(P, S), X, Y, **given)
    return learner, given, grads, carry


def placed(rule, axes, kind=AxisType.Auto):
    """The distance of gradients with and without devices, the share of its traces that a device
    holds, and the numbers of the largest trace and of the largest array that is gathered."""
    sizes, asked = AXES[axes]
    learner, given, true, carry = on_one_device(rule)
    params, carries, [xs] = learner.shardings(mesh_of(kind, **sizes), **asked)
    p, s = jax.device_put((P, S), (params, carries.state))
    x, y = jax.device_put((X, Y), (xs, xs))
    begin = learner.init(p, s, shardings=carries)

    def gradient(p, carry, x, y):
        return learner.grad(error, p, carry, x, y, **given)

    compiled = jax.jit(gradient).lower(p, begin, x, y).compile()
    (grads, _), after = compiled(p, begin, x, y)
    shares = {
        name: max(shard.data.size for shard in a.addressable_shards) / a.size
        for name, a in zip(begin.traces, map(numbers, begin.traces.values()), strict=True)
    }
    gathers = [c.numbers for c in collectives(compiled) if c.kind != 'all-reduce']
    return {
        'gradient': difference(grads, true),
        'carry': difference(
            [after.state, *map(numbers, after.traces.values())],
            [carry.state, *map(numbers, carry.traces.values())],
        ),
        'shares': shares,
        'trace': max([a.size for a in begin.traces.values()], default=0),
        'gathered': max(gathers, default=0),
        'reduced': max([c.numbers for c in collectives(compiled)], default=0),
    }


def manual(rule):
    """The distance of gradients and carry inside `jax.shard_map` with its defaults, where the carry
    comes from outside and goes there again, and of gradients without it afterwards."""
    mesh, by_sample = mesh_of(data=4), PartitionSpec(None, 'data')
    learner, given, true, after = on_one_device(rule)
    of_carry = jax.tree.map(lambda s: s.spec, learner.shardings(mesh, units=None)[1])

    def one(p, carry, x, y):
        (grads, _), carry = learner.grad(error, p, carry, x, y, **given)
        return jax.lax.pmean(grads, 'data'), carry

    f = jax.shard_map(
        one,
        mesh=mesh,
        in_specs=(PartitionSpec(), of_carry, by_sample, by_sample),
        out_specs=(PartitionSpec(), of_carry),
    )
    grads, carry = jax.jit(f)(P, learner.init(P, S), X, Y)
    (again, _), _ = learner.grad(error, P, learner.init(P, S), X, Y, **given)
    return {
        'gradient': max(difference(grads, true), difference(again, true)),
        'carry': difference([carry.state, carry.traces], [after.state, after.traces]),
    }


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
    many.place(mesh_of(data=2, model=2), units='model')
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


def cases():
    """Every rule on some axes, D-RTRL on all of them, and explicit meshes."""
    for k, rule in enumerate(RULES):
        axes = list(AXES) if rule == 'd_rtrl' else [list(AXES)[k % 3]]
        yield from ((rule, name, AxisType.Auto) for name in axes)
    yield 'd_rtrl', 'both', AxisType.Explicit
    yield 'rtrl', 'units', AxisType.Explicit
    yield 'pp_prop', 'batch', AxisType.Explicit
    yield 'low_rank', 'batch', AxisType.Explicit


if __name__ == '__main__':
    found = {
        'placed': {
            f'{rule}, {axes}, {kind.name}': placed(rule, axes, kind) for rule, axes, kind in cases()
        },
        'manual': {
            rule: manual(rule) for rule in ('d_rtrl', 'eprop', 'uoro', 'kf_rtrl', 'low_rank')
        },
        'module': module(sys.argv[1]),
    }
    print(json.dumps(found))
