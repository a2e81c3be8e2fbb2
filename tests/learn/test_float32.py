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

SCRIPT = pathlib.Path(__file__).with_name('float32_at_size.py')
at_size = runpy.run_path(str(SCRIPT))


@pytest.fixture(scope='module')
def single(tmp_path_factory):
    """The gradients of a process of its own, since this one runs without XLA's optimisations."""
    found = tmp_path_factory.mktemp('float32') / 'gradients.npz'
    env = {k: v for k, v in os.environ.items() if k != 'XLA_FLAGS' and not k.startswith('JAX_')}
    env |= {'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, str(SCRIPT), str(found)], check=True, env=env)
    return np.load(found)


def same(single, name, rule, double, tolerance):
    for window in at_size['WINDOWS'][name]:
        for k, true in double.items():
            found = single[f'{name} {rule} {window} {k}']
            assert found.dtype == np.float32 and true.dtype == np.float64
            np.testing.assert_allclose(found, true, atol=tolerance * np.abs(true).max())


@pytest.mark.parametrize('name', ['lstm', 'gru'])
@pytest.mark.parametrize('rule', at_size['RULES'])
def test_every_rule_in_other_windows(single, name, rule):
    same(single, name, rule, at_size['gradient'](name, rule, 5, jnp.float64), 2e-5)


def test_an_exact_rule_is_bptt(single):
    step, params, state, xs = at_size['model']('synapse', jnp.float64)

    def loss(p):
        return jnp.mean(lax.scan(lambda s, x: step(p, s, x), state, xs)[1] ** 2)

    same(single, 'synapse', 'd_rtrl', jax.grad(loss)(params), 2e-5)
