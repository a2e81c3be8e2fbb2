"""Gates that the loop keeps in the place of the products they are made of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inside import graph_of

import braintrace
from braintrace.engine.curves import SLOPES, curves_of
from braintrace.engine.program import Program
from braintrace.plan.layout import lay_out

RNG = np.random.default_rng(0)
W, H, X = RNG.standard_normal((3, 4)), RNG.standard_normal((2, 4)), RNG.standard_normal((7, 2, 3))


def gate(w, h, x):
    return 0.5 * h + jax.nn.sigmoid(x @ w + 1)


def gates_in_one_product(w, h, x):
    keep, new = jnp.split(x @ jnp.concatenate([w, w], 1), 2, -1)
    return jax.nn.sigmoid(keep) * h + jnp.tanh(-new)


def of_exponential(w, h, x):
    return h * jnp.exp(-jnp.exp(x @ w))


def sum_read_beside(w, h, x):
    return 0.5 * h + jax.nn.silu(x @ w)


def of_state_alone(w, h, x):
    return jnp.tanh(0.9 * h) + x @ w


def beside_a_constant(w, h, x):
    return 0.5 * h + jnp.tanh(x @ w) + jnp.tanh(1.0)


CELLS = {
    beside_a_constant: ['tanh'],
    gate: ['logistic'],
    gates_in_one_product: ['logistic', 'tanh'],
    of_exponential: ['exp'],
    sum_read_beside: [],
    of_state_alone: [],
}


@pytest.mark.parametrize('cell', CELLS, ids=lambda cell: cell.__name__)
def test_what_is_kept_and_that_the_gradient_is_as_of_bptt(cell):
    def step(w, h, x):
        new = cell(w, h, x)
        return new, (new**2).sum()

    program = Program(lay_out(graph_of(step, W, H, X[0])))
    made_by = {e.outvars[0]: e.primitive.name for e in program.step.jaxpr.eqns}
    assert [made_by[v] for v in curves_of(program.step, program.products)] == CELLS[cell]

    learner = braintrace.compile(step, 'd_rtrl', W, H, X[0])
    grads, *_ = learner.grad(jnp.sum, W, learner.init(W, H), X, window=3)
    expected = jax.grad(lambda w: jax.lax.scan(lambda h, x: step(w, h, x), H, X)[1].mean())(W)
    np.testing.assert_allclose(grads[0], expected, rtol=1e-12)
    assert np.abs(expected).max() > 0.01


def test_an_output_may_be_a_constant():
    def step(w, h, x):
        return gate(w, h, x), 0.0

    program = Program(lay_out(graph_of(step, W, H, X[0])))
    assert len(curves_of(program.step, program.products)) == 1


@pytest.mark.parametrize('name', SLOPES)
def test_slopes_follow_from_values(name):
    f = {'logistic': jax.nn.sigmoid, 'tanh': jnp.tanh, 'exp': jnp.exp}[name]
    x = jnp.linspace(-3, 3, 13)
    np.testing.assert_allclose(SLOPES[name](f(x)), jax.vmap(jax.grad(f))(x), rtol=1e-12)
