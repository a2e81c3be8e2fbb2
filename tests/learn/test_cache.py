"""What is compiled again and what is not: as `jax.jit` does it, and never a stale result."""

import contextlib
import gc
import weakref

import brainstate as bs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from module_learner import T, X, Y, assert_same, learner_of, restart
from told import GATE

import braintrace

pytestmark = GATE

KEPT = 18  # compiled programs that a learner may keep


def leaky(p, h, x):
    h = 0.5 * h + x * p
    return h, h


def function_learner():
    learner = braintrace.compile(leaky, 'd_rtrl', jnp.ones(2), jnp.zeros(2), jnp.ones(2))
    return learner, learner.init(jnp.ones(2), jnp.zeros(2))


def gradient(learner, loss, carry):
    return learner.grad(loss, jnp.ones(2), carry, jnp.ones((2, 2)), window=1)[0][0]


def test_one_function_is_traced_once_and_an_equal_one_again():
    learner, carry = function_learner()
    traced = []

    def new(scale):
        def loss(out):
            traced.append(scale)
            return scale * out.sum()

        return loss

    for scale in (1.0, 2.0):
        loss = new(scale)
        for _ in range(3):
            gradient(learner, loss, carry)
    assert set(traced) == {1.0, 2.0} and traced.count(1.0) == traced.count(2.0)
    once = traced.count(1.0)
    gradient(learner, new(1.0), carry)
    assert traced.count(1.0) == 2 * once


@pytest.mark.filterwarnings('ignore:.*was a new function')
def test_fresh_functions_are_forgotten():
    learner, carry = function_learner()
    losses = []
    for k in range(KEPT + 4):

        def loss(out, k=k):
            return k * out.sum()

        losses.append(weakref.ref(loss))
        np.testing.assert_allclose(gradient(learner, loss, carry), 1.25 * k)
    del loss
    gc.collect()
    assert sum(ref() is not None for ref in losses) <= KEPT


def test_a_new_function_sees_a_changed_attribute():
    learner, _ = learner_of()

    class Task:
        gain = 1.0

    def step_of(task):
        return lambda x, y: task.gain * jnp.mean((learner(x) - y) ** 2)

    once = learner.etrace_grad(X, Y, step_fn=step_of(Task))
    Task.gain = 2.0
    restart(learner)
    twice = learner.etrace_grad(X, Y, step_fn=step_of(Task))
    assert_same(twice, jax.tree.map(lambda g: 2 * g, dict(once)))


def test_a_step_that_raises_leaves_the_learner_usable():
    learner, step = learner_of()
    expected = learner.etrace_grad(X, Y, step_fn=step)
    restart(learner)

    def raising(x, y):
        step(x, y)
        raise KeyError('mine')

    for drive in (learner.etrace_grad, learner.etrace_evolve):
        with pytest.raises(KeyError, match='mine'):
            drive(X, Y, step_fn=raising)
    assert_same(learner.etrace_grad(X, Y, step_fn=step), expected)


def test_a_learner_used_inside_shard_map_works_outside():
    """Whether it works inside is a question of placing; what it leaves behind must be sound."""
    learner, carry = function_learner()
    expected = gradient(function_learner()[0], jnp.sum, carry)
    everywhere = jax.sharding.PartitionSpec()
    inside = jax.shard_map(
        lambda carry: gradient(learner, jnp.sum, carry),
        mesh=jax.make_mesh((1,), ('batch',), axis_types=(jax.sharding.AxisType.Auto,)),
        in_specs=everywhere,
        out_specs=everywhere,
    )
    with contextlib.suppress(Exception):
        np.testing.assert_allclose(inside(carry), expected)
    np.testing.assert_allclose(gradient(learner, jnp.sum, carry), expected)


@pytest.mark.parametrize('change', ['setting', 'input type'])
def test_traces_are_kept_when_a_program_is_made_anew(change):
    found = []
    for changing in (False, True):
        bs.random.seed(0)
        learner, _ = learner_of()
        for t, x in enumerate(X):
            x = jnp.asarray(x).astype(jnp.bfloat16)
            other = changing and t % 2
            if change == 'setting':
                with bs.environ.context(fit=not other):
                    learner(x)
            else:
                learner(x if other else x.astype(float))
        assert int(learner.running_index.value) == T
        found.append({k: s.value for k, s in learner.etrace.items()})
    assert_same(*found)


def test_a_step_function_may_hold_a_value_of_an_outer_trace():
    params, state, xs = jnp.ones(2), jnp.zeros(2), jnp.ones((4, 2))

    def run(target):
        def step(p, h, x):
            h = 0.5 * h + x * p
            return h, ((h - target) ** 2).sum()

        learner = braintrace.compile(step, 'd_rtrl', params, state, xs[0])
        carry = learner.init(params, state)
        return learner.grad(lambda out: out, params, carry, xs, window=2)[0][0]

    for target in (jnp.ones(2), jnp.zeros(2)):
        np.testing.assert_allclose(jax.jit(run)(target), run(target), atol=1e-12)


def test_a_module_may_hold_a_value_of_an_outer_trace():
    cell = bs.nn.GRUCell(3, 2)

    class Loss(bs.nn.Module):
        def __init__(self, target):
            super().__init__()
            self.cell, self.target = cell, target

        def update(self, x):
            return jnp.mean((self.cell(x) - self.target) ** 2)

    def run(target):
        learner = braintrace.compile(Loss(target), 'd_rtrl', X[0], batch_size=len(target))
        learner(X[0])
        return bs.transform.grad(lambda: learner(X[1]), learner.param_states)()

    expected = run(Y[0])
    assert_same(bs.transform.jit(run)(Y[0]), expected)
    assert_same(bs.transform.jit(run)(Y[1]), run(Y[1]))
