"""A process ends although a kernel that calls back into Python is still at work."""

import importlib.util
import os
import subprocess
import sys

import pytest

PROGRAM = """
import brainevent, jax, jax.numpy as jnp, numpy as np, braintrace
n = 8
rows, starts = jnp.tile(jnp.arange(n), n), jnp.arange(n + 1) * n
def step(p, h, x):
    h = jnp.tanh(0.5 * h + x @ brainevent.CSR((p, rows, starts), shape=(n, n)))
    return h, h
p, h, xs = jnp.full(n * n, 0.1), jnp.zeros((2, n)), jnp.ones((5000, 2, n))
learner = braintrace.compile(step, 'd_rtrl', p, h, xs[0])
outs, carry = learner.evolve(p, learner.init(p, h), xs, window=1)
print(outs.shape, flush=True)
"""


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec('numba') is None, reason='the kernels need numba')
def test_a_process_waits_for_its_kernels():
    environment = {**os.environ, 'JAX_PLATFORMS': 'cpu'}
    made = subprocess.run(
        [sys.executable, '-c', PROGRAM], env=environment, capture_output=True, timeout=300
    )
    assert made.returncode == 0 and b'(5000, 2, 8)' in made.stdout, made.stderr[-2000:]
