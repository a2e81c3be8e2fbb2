"""Cells of Flax NNX, Flax Linen and Equinox as they are: RTRL is BPTT in short windows, D_RTRL its
textbook rule; and a module of NNX that holds its state learns like a step that is given it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from jax.flatten_util import ravel_pytree

import braintrace
from braintrace.frontends.base import form_of

D, H, T, B = 2, 2, 4, 2
rng = np.random.RandomState(0)
X, Y = jnp.asarray(rng.randn(T, B, D)), jnp.asarray(rng.randn(T, B, H))
F = jnp.float64


def loss(out, y):
    return ((out - y) ** 2).mean()


class Of(nnx.Module):
    """Cells of NNX, which take and give `(carry, x)`."""

    def __init__(self, *kinds):
        rngs = nnx.Rngs(0)
        self.cells = nnx.List([k(H, H, dtype=F, param_dtype=F, rngs=rngs) for k in kinds])

    def layer(self, i, state, x):
        return self.cells[i](state, x)


class Modules(eqx.Module):
    """Cells of Equinox, which take `(x, state)` of one sample and give a state."""

    cells: list

    def __init__(self, *kinds):
        keys = jax.random.split(jax.random.key(0), len(kinds))
        self.cells = [k(H, H, key=key, dtype=F) for k, key in zip(kinds, keys, strict=True)]

    def layer(self, i, state, x):
        cell = self.cells[i]
        state = cell(x, state) if x.ndim == 1 else jax.vmap(cell)(x, state)
        return state, state[0] if isinstance(state, tuple) else state


def linen_model(*kinds):
    """Variables of cells of Linen, and a layer as a function of them."""
    cells = [k(H, param_dtype=F, dtype=F) for k in kinds]
    key = jax.random.key(0)
    first = [c.initialize_carry(key, (D,)) for c in cells]
    params = [c.init(key, h, X[0, 0]) for c, h in zip(cells, first, strict=True)]

    def layer(params, i, state, x):
        return cells[i].apply(params[i], state, x)

    return params, layer


def method(model, i, state, x):
    return model.layer(i, state, x)


CASES = {
    'nnx Simple, GRU': (Of, 'SimpleCell GRUCell', nnx, B),
    'nnx OptimizedLSTM': (Of, 'OptimizedLSTMCell', nnx, B),
    'nnx LSTM': (Of, 'LSTMCell', nnx, None),
    'linen MGU, GRU': (linen_model, 'MGUCell GRUCell', linen, B),
    'linen LSTM': (linen_model, 'LSTMCell', linen, B),
    'linen OptimizedLSTM': (linen_model, 'OptimizedLSTMCell', linen, None),
    'linen Simple': (linen_model, 'SimpleCell', linen, None),
    'equinox GRU, LSTM': (Modules, 'GRUCell LSTMCell', eqx.nn, B),
    'equinox GRU': (Modules, 'GRUCell', eqx.nn, None),
}


def case(name):
    """A model, a layer of it as a function, its start, and data."""
    make, kinds, library, batch = CASES[name]
    made = make(*[getattr(library, k) for k in kinds.split()])
    model, layer = made if isinstance(made, tuple) else (made, method)
    shape = (H,) if batch is None else (B, H)

    def start(kind):
        return (jnp.zeros(shape),) * 2 if 'LSTM' in kind else jnp.zeros(shape)

    xs, ys = (X[:, 0], Y[:, 0]) if batch is None else (X, Y)
    return model, layer, [start(k) for k in kinds.split()], xs, ys


def stepped(layer):
    def step(model, states, x):
        new = []
        for i, state in enumerate(states):
            state, x = layer(model, i, state, x)
            new.append(state)
        return new, x

    return step


def bptt(step, model, state, xs, ys):
    """The gradient in the form of the framework's own `grad`."""

    def total(model):
        def body(state, data):
            state, out = step(model, state, data[0])
            return state, loss(out, data[1])

        return jax.lax.scan(body, state, (xs, ys))[1].mean()

    if isinstance(model, nnx.Module):
        return nnx.jit(nnx.grad(total))(model)
    return eqx.filter_jit(eqx.filter_grad(total))(model)


def same(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    assert max(np.abs(v).max() for v in jax.tree.leaves(b)) > 1e-3
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-10), a, b)


def gradient(step, rule, model, state, xs, ys, window):
    learner = braintrace.compile(step, rule, model, state, xs[0])
    carry = learner.init(model, state)
    return learner.grad(loss, model, carry, xs, ys, window=window)[0][0]


@pytest.mark.parametrize('name', CASES)
def test_rtrl_is_bptt(name):
    model, layer, state, xs, ys = case(name)
    step = stepped(layer)
    same(gradient(step, 'rtrl', model, state, xs, ys, 2), bptt(step, model, state, xs, ys))


def own_paths(f):
    """`f(state)` in which units act on each other no more: products with a matrix are constant."""

    def walk(jaxpr, consts, *args):
        env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
        for eqn in jaxpr.eqns:
            given = [a.val if hasattr(a, 'val') else env[a] for a in eqn.invars]
            if 'jaxpr' in eqn.params:
                inner = eqn.params['jaxpr']
                outs = walk(inner.jaxpr, inner.consts, *given)
            else:
                outs = eqn.primitive.bind(*given, **eqn.params)
                outs = outs if eqn.primitive.multiple_results else [outs]
                if eqn.primitive.name == 'dot_general':
                    outs = [jax.lax.stop_gradient(outs[0])]
            env.update(zip(eqn.outvars, outs, strict=True))
        return [a.val if hasattr(a, 'val') else env[a] for a in jaxpr.outvars]

    def g(*args):
        closed = jax.make_jaxpr(f)(*args)
        return walk(closed.jaxpr, closed.consts, *args)[0]

    return g


def textbook(layer, model, states, xs, ys):
    """`E <- D E + M` for each layer, with D what each unit does to itself; the credit of a layer is
    what the loss of the same step says through the layers above. States of one sample, data
    `(T, samples, features)`."""
    leaves, rest = form_of(model).take_apart(model)
    p0, of_p = ravel_pytree(leaves)
    flat = [ravel_pytree(s) for s in states]

    def new(i, p, s, x):
        state, y = layer(rest.with_params(of_p(p)), i, flat[i][1](s), x)
        at = next((k for k, part in enumerate(jax.tree.leaves(state)) if part is y), 0)
        return ravel_pytree(state)[0], at * H

    def derive(ss, Es, x, y):
        def onward(added):
            here, fed = x, []
            for i, s in enumerate(ss):
                fed.append(here)
                state, at = new(i, p0, s, here)
                here = (state + added[i])[at : at + H]
            return loss(here, y), fed

        credit, fed = jax.grad(onward, has_aux=True)([jnp.zeros_like(s) for s in ss])
        after, traces = [], []
        for i, (s, E, x) in enumerate(zip(ss, Es, fed, strict=True)):
            M = jax.jacrev(lambda p: new(i, p, s, x)[0])(p0)
            D = jax.jacrev(own_paths(lambda s: new(i, p0, s, x)[0]))(s)
            after.append(new(i, p0, s, x)[0])
            traces.append(D @ E + M)
        return after, traces, sum(c @ E for c, E in zip(credit, traces, strict=True))

    samples, step, total = xs.shape[1], jax.jit(jax.vmap(derive)), 0.0
    ss = [jnp.tile(s, (samples, 1)) for s, _ in flat]
    Es = [jnp.zeros((samples, len(s), len(p0))) for s, _ in flat]
    for x, y in zip(xs, ys, strict=True):
        ss, Es, g = step(ss, Es, x, y)
        total = total + g.mean(0) / T
    return rest.gradients(of_p(total))


@pytest.mark.parametrize('name', CASES)
def test_d_rtrl_is_its_textbook_rule(name):
    model, layer, state, xs, ys = case(name)
    found = gradient(stepped(layer), 'd_rtrl', model, state, xs, ys, 2)
    if xs.ndim == 3:
        state = jax.tree.map(lambda a: a[0], state)
    by_sample = [a.reshape(T, -1, a.shape[-1]) for a in (xs, ys)]
    same(found, textbook(layer, model, state, *by_sample))
