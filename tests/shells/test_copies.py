"""A copy of a learner is a learner: independent, with the same gradients."""

import copy
import pickle

import brainstate as bs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from told import GATE

import braintrace

pytestmark = GATE

T, B = 5, 2
rng = np.random.RandomState(0)
X, Y = rng.randn(T, B, 3), rng.randn(T, B, 2)
RULES = {
    'd_rtrl': {},
    'pp_prop': {'decay_or_rank': 0.9},
    'rtrl': {},
    'eprop': {'feedback': 'random', 'random_feedback_key': 0, 'kappa_filter_decay': 0.5},
    'uoro': {},
}


class Net(bs.nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = bs.nn.GRUCell(3, 4), bs.nn.Linear(4, 2)

    def update(self, x):
        return self.out(self.rnn(x))


def through_pickle(learner):
    return pickle.loads(pickle.dumps(learner))


def through_the_graph(learner):
    return bs.graph.treefy_merge(*bs.graph.treefy_split(learner))


COPIES = [copy.deepcopy, through_pickle, through_the_graph]


def warm_learner(rule, **options):
    """A learner that has seen two steps."""
    bs.random.seed(1)
    learner = braintrace.compile(Net(), rule, X[0], batch_size=B, **RULES[rule], **options)
    learner.etrace_evolve(X[:2])
    return learner


def gradient(learner):
    """Of the other steps, in windows of one: what the traces remember counts."""
    return learner.etrace_grad(
        X[2:], Y[2:], step_fn=lambda x, y: jnp.mean((learner(x) - y) ** 2), window=1
    )


def values(learner):
    return [s.value for s in learner.states().values()]


def same(a, b, tolerance=1e-12):
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(b)) > 1e-4
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_allclose(x, y, atol=tolerance)


@pytest.mark.parametrize(
    'rule, make',
    [
        *[('d_rtrl', make) for make in COPIES],
        ('eprop', through_pickle),
        ('pp_prop', through_the_graph),
        ('rtrl', through_pickle),
        ('uoro', copy.deepcopy),
    ],
)
def test_a_copy_is_independent(rule, make):
    learner = warm_learner(rule)
    other = make(learner)
    assert type(other) is type(learner) and other.model4compile is not learner.model4compile
    before = values(learner)
    found = gradient(other)
    same(values(learner), before, 0)
    assert int(learner.running_index.value) == 2 and int(other.running_index.value) == T
    same(found, gradient(learner))


@pytest.mark.parametrize('make', COPIES)
def test_calls_of_a_copy_leave_the_original_alone(make):
    learner = warm_learner('d_rtrl')
    other = make(learner)
    before = values(learner)
    grads = bs.transform.grad(lambda: jnp.mean(other(X[2]) ** 2), other.param_states)()
    same(values(learner), before, 0)
    true = bs.transform.grad(lambda: jnp.mean(learner(X[2]) ** 2), learner.param_states)()
    same(grads, true)


@pytest.mark.parametrize('make', [copy.deepcopy, through_the_graph])
def test_a_copy_of_a_mapped_learner(make):
    learner = warm_learner('d_rtrl', vmap=True)
    before = values(learner)
    found = gradient(make(learner))
    same(values(learner), before, 0)
    same(found, gradient(learner))


@pytest.mark.parametrize('make', [through_pickle, through_the_graph])
def test_a_copy_before_compiling(make):
    bs.random.seed(1)
    learner = braintrace.D_RTRL(bs.nn.init_all_states(Net(), batch_size=B))
    other = make(learner)
    for one in (learner, other):
        assert not one.is_compiled
        one.compile_graph(X[0])
    same(gradient(other), gradient(learner))


def leaky(p, h, x):
    h = jnp.tanh(0.9 * h + x @ p['W'])
    return h, h


def square(out):
    return (out**2).sum()


@pytest.mark.parametrize('make', [copy.deepcopy, through_pickle])
def test_a_copy_of_a_function_learner(make):
    params, state = {'W': jnp.ones((3, 4))}, jnp.zeros((B, 4))
    learner = braintrace.compile(leaky, 'd_rtrl', params, state, X[0])
    true = learner.grad(square, params, learner.init(params, state), X)
    other = make(learner)
    same(other.grad(square, params, other.init(params, state), X), true)
