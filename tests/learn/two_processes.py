"""Learners on two processes with two devices each, connected by gloo on the loopback address:
`two_processes.py rank port directory`. Each prints what it finds as JSON."""

import json
import os
import pathlib
import sys

os.environ['XLA_FLAGS'] = (
    '--xla_force_host_platform_device_count=2 --xla_cpu_use_fusion_emitters=false '
    '--xla_cpu_parallel_codegen_split_count=1'
)

import four_devices as four
import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

import braintrace

RULES = 'd_rtrl', 'rtrl'


def mesh():
    """Samples over processes, units inside of each."""
    made = four.mesh_of(data=2, model=2)
    assert {d.process_index for d in made.devices[0]} == {0}
    return made


def whole(tree):
    """All of each array, in every process."""
    everywhere = NamedSharding(mesh(), PartitionSpec())
    return jax.tree.map(np.asarray, jax.jit(lambda t: t, out_shardings=everywhere)(tree))


def placed(rule):
    """Parameters and carry of a run on all devices, its learner, the distance of its gradients from
    those of one device, and the largest share of a trace that a device here holds."""
    learner = braintrace.compile(four.step, rule, four.P, four.S, four.X[0])
    (true, _), carry = learner.grad(
        four.error, four.P, learner.init(four.P, four.S), four.X, four.Y, window=1
    )
    params, carries, [xs] = learner.shardings(mesh())
    p, s, x, y = jax.device_put((four.P, four.S, four.X, four.Y), (params, carries.state, xs, xs))
    begin = learner.init(p, s, shardings=carries)
    (grads, _), after = learner.grad(four.error, p, begin, x, y, window=1)
    shares = [
        max(shard.data.size for shard in a.addressable_shards) / a.size
        for a in map(four.numbers, begin.traces.values())
        if a.ndim > 2
    ]
    numbers, wanted = (
        [g, c.state, *map(four.numbers, c.traces.values())]
        for g, c in ((grads, after), (true, carry))
    )
    found = {'error': four.difference(whole(numbers), wanted), 'share': max(shares, default=0)}
    return learner, {'params': p, 'carry': after}, found


def saved(learner, run, directory):
    """Whether a checkpoint written by both is read by both, in place."""
    blank = {
        'params': jax.tree.map(lambda a: 0 * a, run['params']),
        'carry': run['carry']._replace(steps=0 * run['carry'].steps),
    }
    with braintrace.Checkpoints(directory) as checkpoints:
        checkpoints.save(4, learner, run=run)
        assert checkpoints.restore(learner, run=blank) == 4
    same = jax.tree.map(np.array_equal, whole(run), whole(blank))
    there = jax.tree.map(lambda a, b: a.sharding.is_equivalent_to(b.sharding, a.ndim), run, blank)
    return all(jax.tree.leaves((same, there)))


if __name__ == '__main__':
    rank, port, directory = int(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
    jax.distributed.initialize(f'127.0.0.1:{port}', 2, rank)
    assert jax.process_count() == 2 and jax.device_count() == 4
    found = {}
    for rule in RULES:
        learner, run, found[rule] = placed(rule)
        if rule == 'd_rtrl':
            found['saved'] = saved(learner, run, directory / 'saves')
            kept = whole(run)
            if rank == 0:
                np.savez(directory / 'true.npz', *jax.tree.leaves(kept))
    multihost_utils.sync_global_devices('end')
    print(json.dumps(found))
