"""Single precision at size, as users run it, against a float64 oracle."""

import os
import pathlib
import runpy
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from told import LOST

pytestmark = LOST

SCRIPT = pathlib.Path(__file__).with_name('float32_at_size.py')
at_size = runpy.run_path(str(SCRIPT))


def gradients_in_single_precision(folder):
    """From a process of its own, since this one runs without XLA's optimisations."""
    path = folder / 'gradients.npz'
    env = {k: v for k, v in os.environ.items() if k != 'XLA_FLAGS' and not k.startswith('JAX_')}
    env |= {'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, str(SCRIPT), str(path)], check=True, env=env)
    return np.load(path)


def bptt(name):
    step, params, state, xs = at_size['model'](name, jnp.float64)

    def loss(p):
        return jnp.mean(lax.scan(lambda s, x: step(p, s, x), state, xs)[1] ** 2)

    return jax.jit(jax.grad(loss))(params)


@pytest.mark.long
def test_single_precision_at_size(tmp_path):
    """Where the rule is exact the oracle is BPTT, else the rule in float64 in other windows."""
    single = gradients_in_single_precision(tmp_path)
    double = {('synapse', 'd_rtrl'): bptt('synapse')}
    for name, rule, window in at_size['CASES']:
        if (name, rule) not in double:
            double[name, rule] = at_size['gradient'](name, rule, 4, jnp.float64)
        for k, true in double[name, rule].items():
            case = f'{name} {rule} {window} {k}'
            assert single[case].dtype == np.float32 and true.dtype == np.float64
            atol = 2e-5 * np.abs(true).max()
            np.testing.assert_allclose(single[case], true, atol=atol, err_msg=case)
