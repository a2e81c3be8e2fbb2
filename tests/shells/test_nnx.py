"""A learner of a Flax NNX module that holds its state: every way to drive it gives the same."""

import copy
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import braintrace

T, B, H = 6, 2, 3
rng = np.random.RandomState(0)
X, Y = jnp.asarray(rng.randn(T, B, H)), jnp.asarray(rng.randn(T, B, H))
F = jnp.float64


class Hidden(nnx.Variable):
    pass


class Net(nnx.Module):
    """A recurrent layer with dropout on its input and a normalised read-out."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.cell = nnx.SimpleCell(H, H, dtype=F, param_dtype=F, rngs=rngs)
        self.norm = nnx.BatchNorm(H, momentum=0.5, dtype=F, param_dtype=F, rngs=rngs)
        self.norm.mean.set_value(jnp.zeros(H))  # it makes them in float32
        self.norm.var.set_value(jnp.ones(H))
        self.drop, self.scale = nnx.Dropout(0.3, rngs=rngs), jnp.arange(1.0, 1 + H)
        self.h = Hidden(jnp.zeros((B, H)))

    def __call__(self, x):
        self.h[...], y = self.cell(self.h[...], self.drop(x))
        return self.norm(y) * self.scale


def loss(out, y):
    return ((out - y) ** 2).mean()


def ready(rule, **options):
    """A net without chance, its learner, and the loss of a step."""
    net = Net()
    net.eval()
    learner = braintrace.compile(net, rule, X[0], hidden=Hidden, **options)
    return net, learner, lambda x, y: loss(learner(x), y)


def same(a, b, tolerance=1e-10):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_allclose(x, y, atol=tolerance)


def test_random_streams_and_statistics_are_carried_along():
    net = Net()
    graph, params, rest = nnx.split(copy.deepcopy(net), nnx.Param, ...)

    @jax.jit
    @jax.grad
    def bptt(params):
        net = nnx.merge(graph, params, rest, copy=True)
        return sum(loss(net(x), y) for x, y in zip(X, Y, strict=True)) / T

    learner = braintrace.compile(net, 'rtrl', X[0], hidden=Hidden)
    found = learner.etrace_grad(X, Y, step_fn=lambda x, y: loss(learner(x), y), window=2)
    same(found, bptt(params))
    assert int(net.drop.rngs.count[...]) == T == int(learner.steps)
    alone = nnx.merge(graph, params, rest, copy=True)
    for x in X:
        alone(x)
    same(nnx.state(net, Hidden, nnx.BatchStat), nnx.state(alone, Hidden, nnx.BatchStat))
    traced = {'.'.join(p) for p, _ in learner.report.etrace_weights}
    assert traced == {'cell.dense_i.kernel', 'cell.dense_i.bias', 'cell.dense_h.kernel'}


def test_a_learner_is_a_module():
    _, learner, step = ready('d_rtrl')
    true = learner.etrace_grad(X, Y, step_fn=step, reduction='sum')
    for jit in (nnx.jit, lambda f: f):
        _, learner, _ = ready('d_rtrl')
        one = jit(lambda learner, x, y: nnx.grad(lambda m: loss(m(x), y))(learner))
        total = [one(learner, x, y)['model'] for x, y in zip(X, Y, strict=True)]
        same(jax.tree.map(lambda *g: sum(g), *total), true)
        assert int(learner.steps) == T


@nnx.jit
def train(learner, optimizer, x, y):
    """A step of a user's own training."""
    grads, losses = learner.etrace_grad(
        x[None], y[None], step_fn=lambda x, y: loss(learner(x), y), return_value=True
    )
    optimizer.update(learner.model, grads)
    return losses[0]


def test_learning_in_a_loop_and_from_a_stream():
    answers = []
    for way in ('learn', 'stream', 'own'):
        net, learner, step = ready('d_rtrl')
        optimizer = nnx.Optimizer(net, optax.adam(0.1), wrt=nnx.Param)

        def update(grads):
            optimizer.update(net, grads)

        if way == 'learn':
            losses = learner.etrace_learn(X, Y, step_fn=step, update=update)
        else:
            live = functools.partial(train, learner, optimizer)
            if way == 'stream':
                live = learner.etrace_stream(step_fn=step, update=update)
            losses = jnp.stack([live(x, y) for x, y in zip(X, Y, strict=True)])
        assert int(optimizer.step[...]) == T
        answers.append((losses, nnx.state(net), learner.etrace))
    same(answers[0], answers[1])
    same(answers[0], answers[2])


def test_chunks_and_chosen_weights():
    _, learner, step = ready('rtrl')
    true = learner.etrace_grad(X, Y, step_fn=step, window=3)
    _, learner, _ = ready('rtrl')

    def chunk(x, y):
        return jax.vmap(loss)(learner(braintrace.MultiStepData(x)), y)

    kernels = nnx.PathContains('kernel')
    found = learner.etrace_grad(X, Y, step_fn=chunk, chunk_size=3, weights=kernels)
    same(found, nnx.filter_state(true, kernels))
    with pytest.raises(ValueError, match="`weights` picks none of the parameters .*'cell.dense_h"):
        learner.etrace_grad(X, Y, step_fn=chunk, chunk_size=3, weights=nnx.BatchStat)


def test_what_the_step_names_outside_of_the_model_is_not_frozen():
    net, learner, _ = ready('d_rtrl')
    read_out = nnx.Linear(H, H, dtype=F, param_dtype=F, rngs=nnx.Rngs(1))

    def step(x, y):
        return loss(read_out(learner(x)), y)

    before = learner.etrace_grad(X, Y, step_fn=step)
    read_out.kernel[...] = 2 * read_out.kernel[...]
    net.h[...] = jnp.zeros((B, H))
    learner.reset_state()
    after = learner.etrace_grad(X, Y, step_fn=step)
    assert not np.allclose(before['cell']['dense_h']['kernel'], after['cell']['dense_h']['kernel'])


def test_train_and_eval_are_different_programs():
    net, learner, _ = ready('d_rtrl')
    quiet = learner(X[0])
    net.train()
    assert not np.allclose(quiet, learner(X[0])) and int(net.drop.rngs.count[...]) == 1


def test_an_array_that_is_no_variable_may_be_replaced():
    net, learner, _ = ready('d_rtrl')
    before = learner(X[0])
    net.h[...], net.scale = jnp.zeros((B, H)), 2 * net.scale
    np.testing.assert_allclose(learner(X[0]), 2 * before)


@pytest.mark.parametrize('make', [copy.deepcopy, nnx.clone])
def test_a_copy_is_independent(make):
    _, learner, step = ready('d_rtrl')
    learner.etrace_evolve(X[:2])
    other = make(learner)
    before = nnx.state(copy.deepcopy(learner))
    found = other.etrace_grad(X, Y, step_fn=lambda x, y: loss(other(x), y), window=1)
    same(nnx.state(learner), before, 0)
    same(found, learner.etrace_grad(X, Y, step_fn=step, window=1))


class Writes(Net):
    def __call__(self, x):
        self.cell.dense_h.kernel[...] = 2 * self.cell.dense_h.kernel[...]
        return super().__call__(x)


class Grows(Net):
    def __call__(self, x):
        self.h.set_value(jnp.concatenate([self.h[...], x], 1))
        return x


@pytest.mark.parametrize(
    'model, message, options',
    [
        (Net, 'hidden=Hidden', {}),
        (Net, 'no variable that `hidden` marks', dict(hidden=nnx.Cache)),
        (Net, '`hidden` must be a subclass', dict(hidden=3)),
        (Net, 'pass its type, Hidden', dict(hidden=Hidden(0.0))),
        (Net, 'leaves no parameter', dict(hidden=...)),
        (Net, '`batch_size` is for modules of brainstate', dict(hidden=Hidden, batch_size=2)),
        (Writes, 'cell.dense_h.kernel is written', dict(hidden=Hidden)),
        (Grows, r'Variable h enters the step as float64\[2,3\]', dict(hidden=Hidden)),
    ],
)
def test_bad_input(model, message, options):
    net = model()
    before = nnx.state(copy.deepcopy(net))
    with pytest.raises(Exception, match=message):
        braintrace.compile(net, 'd_rtrl', X[0], **options)
    same(nnx.state(net), before, 0)
    net.h[...] = net.h[...]  # it may be written again
