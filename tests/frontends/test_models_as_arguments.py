"""What may stand in the place of `params`: which of its leaves learn, how gradients look, and what
a mistake is told."""

from collections.abc import Callable

import brainstate
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

import braintrace

H, T = 3, 4
rng = np.random.RandomState(0)
X, Y = jnp.asarray(rng.randn(T, H)), jnp.asarray(rng.randn(T, H))
ZERO, W = jnp.zeros(H), jnp.asarray(rng.randn(H, H))
D_RTRL = 'd_rtrl'


class Cell(eqx.Module):
    """Units that take over from each other, with all that a module may hold."""

    W: jax.Array
    order: jax.Array
    act: Callable = jnp.tanh
    leak: float = 0.5
    name: str = 'cell'
    copies: int = eqx.field(static=True, default=2)

    def __call__(self, h, x):
        return self.act(self.leak * h[self.order] + self.copies * x @ self.W)


def step(cell, h, x):
    h = cell(h, x)
    return h, h


def step_of_module(model, state, x):
    return model(state, x)


def loss(out, y):
    return ((out - y) ** 2).sum()


def bptt(model, step=step):
    def total(model):
        return jax.vmap(loss)(jax.lax.scan(lambda h, x: step(model, h, x), ZERO, X)[1], Y).mean()

    return eqx.filter_grad(total)(model)


def online(learner, model):
    return learner.grad(loss, model, learner.init(model, ZERO), X, Y, window=2)[0][0]


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-10), a, b)


def test_only_inexact_arrays_learn():
    cell = Cell(W, jnp.asarray([1, 2, 0]))
    learner = braintrace.compile(step, 'rtrl', cell, ZERO, X[0])
    grads = online(learner, cell)
    same(grads, bptt(cell))
    assert (grads.order, grads.act, grads.leak, grads.name) == (None,) * 4
    assert [p.name for p in learner.graph.step.params] == ['W']
    cell = eqx.apply_updates(cell, jax.tree.map(lambda g: -g, grads))
    same(online(learner, cell), bptt(cell))
    other = eqx.tree_at(lambda c: c.order, cell, jnp.asarray([2, 0, 1]))  # other constants
    same(online(learner, other), bptt(other))


def test_a_step_of_training_in_one_jit():
    cell, optimizer = Cell(W, jnp.asarray([1, 2, 0])), optax.adam(0.1)
    learner = braintrace.compile(step, 'rtrl', cell, ZERO, X[0])

    def train(cell, memory):
        updates, memory = optimizer.update(online(learner, cell), memory)
        return eqx.filter(eqx.apply_updates(cell, updates), eqx.is_array), memory

    start = optimizer.init(eqx.filter(cell, eqx.is_inexact_array))
    same(eqx.filter_jit(train)(cell, start), train(cell, start))


class Held(eqx.Module):
    """Units whose state stands in an `eqx.nn.State`, with what they count."""

    W: jax.Array
    h: eqx.nn.StateIndex
    steps: eqx.nn.StateIndex

    def __init__(self):
        self.W, self.h, self.steps = (
            W,
            eqx.nn.StateIndex(ZERO),
            eqx.nn.StateIndex(jnp.zeros(2, int)),
        )

    def __call__(self, state, x):
        h = jnp.tanh(0.5 * state.get(self.h) + x @ self.W)
        state = state.set(self.steps, state.get(self.steps) + 1)
        return state.set(self.h, h), h


def test_a_state_of_equinox():
    cell, state = eqx.nn.make_with_state(Held)()
    learner = braintrace.compile(step_of_module, D_RTRL, cell, state, X[0])
    (grads, _), carry = learner.grad(loss, cell, learner.init(cell, state), X, Y, window=2)
    same(grads.W, bptt(P, leaky)['W'])
    assert carry.state.get(cell.steps).tolist() == [T, T]
    assert [name for [(_, [name])] in [learner.report.hidden_groups]] == [('state', 0)]


def test_constants_of_a_plain_tree():
    params = {'W': W, 'leak': 0.5, 'steps': 2, 'act': jnp.tanh, 'name': 'rnn'}

    def step(p, h, x):
        h = p['act'](p['leak'] * h + p['steps'] * x @ p['W'])
        return h, h

    learner = braintrace.compile(step, D_RTRL, params, ZERO, X[0])
    grads = online(learner, params)
    assert (grads['steps'], grads['act'], grads['name']) == (None,) * 3
    true = bptt({**params, 'leak': jnp.asarray(0.5)}, step)  # a float of Python learns here
    same([grads['W'], grads['leak']], [true['W'], true['leak']])


class Tied(nnx.Module):
    def __init__(self):
        self.read_in = self.read_out = nnx.Linear(H, H, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
        self.drop = nnx.Dropout(0.5, rngs=nnx.Rngs(0))

    def __call__(self, h, x):
        h = jnp.tanh(0.5 * h + self.read_in(x))
        return h, self.read_out(h)


def test_tied_weights_of_nnx_and_its_optimizer():
    net = Tied()
    learner = braintrace.compile(step_of_module, D_RTRL, net, ZERO, X[0])
    grads = online(learner, net)

    def total(net):
        state, loss_of = ZERO, 0.0
        for x, y in zip(X, Y, strict=True):
            state, out = net(state, x)
            loss_of += loss(out, y) / T
        return loss_of

    same(grads, nnx.grad(total)(net))
    before = net.read_in.kernel[...]
    nnx.Optimizer(net, optax.sgd(0.1), wrt=nnx.Param).update(net, grads)
    np.testing.assert_allclose(net.read_in.kernel[...], before - 0.1 * grads['read_in']['kernel'])


def leaky(p, h, x):
    h = jnp.tanh(0.5 * h + x @ p['W'])
    return h, h


def with_dropout(net, h, x):
    return step_of_module(net, h, net.drop(x))


P = {'W': W}
CELL = eqx.nn.GRUCell(H, H, key=jax.random.key(0))


def ready():
    learner = braintrace.compile(leaky, D_RTRL, P, ZERO, X[0])
    return learner, learner.init(P, ZERO)


@pytest.mark.parametrize(
    'message, call',
    [
        (
            r'Equinox module GRUCell.*`compile\(step, rule, module, state',
            lambda: braintrace.compile(CELL, D_RTRL, X[0], ZERO),
        ),
        (
            r'Linen module GRUCell.*`compile\(step, rule, variables, state',
            lambda: braintrace.compile(linen.GRUCell(H), D_RTRL, X[0]),
        ),
        (
            r'Flax NNX module Tied.*hidden=Hidden.*`compile\(step, rule, module',
            lambda: braintrace.compile(Tied(), D_RTRL, X[0]),
        ),
        (
            '`model` is the class GRUCell: pass a model',
            lambda: braintrace.compile(eqx.nn.GRUCell, D_RTRL, X[0]),
        ),
        (
            'returned a state alone',
            lambda: braintrace.compile(lambda c, h, x: c(x, h), D_RTRL, CELL, ZERO, X[0]),
        ),
        (
            'returned a state alone',
            lambda: braintrace.compile(lambda p, s, x: s, D_RTRL, P, (ZERO, ZERO), X[0]),
        ),
        (
            r'got tuple of 3.*`return state, \(a, b\)`',
            lambda: braintrace.compile(lambda p, s, x: (s, s, x), D_RTRL, P, ZERO, X[0]),
        ),
        (
            'returns one of',
            lambda: braintrace.compile(lambda p, s, x: ([s], x), D_RTRL, P, ZERO, X[0]),
        ),
        (
            r'`state` must hold arrays, and has a \w+ at act',
            lambda: braintrace.compile(leaky, D_RTRL, P, {'h': ZERO, 'act': jnp.tanh}, X[0]),
        ),
        (
            r'`inputs\[0\]` must hold arrays, and has a str',
            lambda: braintrace.compile(leaky, D_RTRL, P, ZERO, 'x'),
        ),
        (
            'writes into its first argument.*hidden=',
            lambda: braintrace.compile(with_dropout, D_RTRL, Tied(), ZERO, X[0]),
        ),
        (
            'holds no inexact array',
            lambda: braintrace.compile(
                lambda p, h, x: (h + p(x), h), D_RTRL, brainstate.nn.Linear(H, H), ZERO, X[0]
            ),
        ),
        (
            'holds no inexact array.* Of a Linen module give the variables',
            lambda: braintrace.compile(step, D_RTRL, linen.GRUCell(H), ZERO, X[0]),
        ),
        (
            '`hidden` says which variables of a Flax NNX module',
            lambda: braintrace.compile(step, D_RTRL, CELL, ZERO, X[0], hidden=nnx.Variable),
        ),
        (
            'has no time axis',
            lambda: ready()[0].grad(loss, P, ready()[1], X[0], Y),
        ),
        (
            r'`grad\(loss_fn, params, carry, xs, .*`carry` must be what `init`.* got dict',
            lambda: ready()[0].grad(loss, ready()[1], P, X, Y),
        ),
        (
            r'`params` is not like .* W is float64\[4, 3\], not float64\[3, 3\]',
            lambda: ready()[0].grad(loss, {'W': jnp.ones((4, H))}, ready()[1], X, Y),
        ),
        (
            '`params` is not like .* 4 arrays, not 1',
            lambda: ready()[0].evolve(CELL, ready()[1], X),
        ),
        (
            r'The step has float64\[5\] as inputs and float64\[3\] as state',
            lambda: braintrace.compile(leaky, D_RTRL, P, ZERO, jnp.ones(5)),
        ),
        (
            '`loss_fn` must return one loss, .* got 2 arrays',
            lambda: ready()[0].grad(lambda o, y: (loss(o, y), o), P, ready()[1], X, Y),
        ),
    ],
)
def test_a_mistake_is_told_what_to_write(message, call):
    with pytest.raises((TypeError, ValueError), match=message):
        call()
