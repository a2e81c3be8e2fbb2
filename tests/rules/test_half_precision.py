"""Traces in half precision, and of models in half precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import braintrace
from braintrace.rules.registry import BY_NAME
from braintrace.rules.stored import halve, whole_again

rng = np.random.RandomState(0)
STEPS = 10_000


def leaky(p, h, x):
    h = 0.999 * h + x @ p
    return h, h


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_a_long_stream(dtype):
    """Step by step, for inputs that come and go and for one that stops and fades away."""
    xs = rng.randn(STEPS, 1, 4).astype('float32')
    xs[:, :, 1] = 0.5
    xs[1000:, :, 2] = 0
    xs[:1000, :, 2] = 1
    p, h = jnp.ones((4, 2), 'float32'), jnp.zeros((1, 2), 'float32')
    ends = []
    for option in (None, dtype):
        learner = braintrace.compile(leaky, 'd_rtrl', p, h, xs[0], trace_dtype=option)
        _, carry = learner.evolve(p, learner.init(p, h), xs, window=1)
        ends.append(np.asarray(carry.traces['params->state'], float))
    assert carry.traces['params->state'].dtype == dtype
    np.testing.assert_allclose(ends[1], ends[0], rtol=0.01)


@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_there_and_back(dtype):
    a = jnp.asarray([*rng.randn(200) * 10.0 ** rng.randint(-3, 3, 200), 0.0, 1.0], 'float32')
    near, rest = jax.jit(halve, static_argnums=1)(a, jnp.dtype(dtype))
    assert near.dtype == dtype and near[-2] == 0 and whole_again(near, rest, 'float32')[-1] == 1
    digits = jnp.finfo(dtype).eps / 254
    np.testing.assert_allclose(whole_again(near, rest, 'float32'), a, rtol=float(digits))


OPTIONS = {
    'pp_prop': {'decay_or_rank': 0.5},
    'hybrid': {'decay_or_rank': 0.5},
    'rflo': {'decay': 0.5},
    'ottt': {'decay': 0.5},
    'eprop': {'kappa_filter_decay': 0.5},
    'low_rank': {'rank': 2},
}


@pytest.mark.parametrize('name', [n for n in BY_NAME if n != 'dni'])
def test_traces_of_half_models_are_float32(name):
    rule = BY_NAME[name]
    p, h = jnp.ones((4, 2), 'bfloat16'), jnp.zeros((3, 2), 'bfloat16')
    xs = jnp.ones((2, 3, 4), 'bfloat16')
    for method in rule.credits:
        learner = braintrace.compile(
            leaky, name, p, h, xs[0], vjp_method=method, **OPTIONS.get(name, {})
        )

        def grad(p, h, xs, learner=learner):
            return learner.grad(
                lambda out: out.sum(),
                p,
                learner.init(p, h),
                xs,
                window=1,
                modulator=1.0 if rule.modulated else None,
            )

        (grads, _), carry = jax.eval_shape(grad, p, h, xs)
        assert grads.dtype == carry.state.dtype == 'bfloat16'
        assert not any(a.dtype == 'bfloat16' for a in carry.traces.values())
