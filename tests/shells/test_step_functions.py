"""The function given to a driver: what it may use besides the model."""

import brainstate as bs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from module_learner import B, T, X, Y, assert_same, learner_of, restart, rng
from told import GATE

import braintrace

pytestmark = GATE


def test_a_readout_outside_the_model_learns_too():
    learner, _ = learner_of()
    outside = bs.ParamState(rng.randn(2, 2))

    def step(x, y):
        return ((learner(x) @ outside.value - y) ** 2).mean()

    grads = learner.etrace_grad(
        X, Y, step_fn=step, weights={**learner.param_states, ('outside',): outside}
    )
    restart(learner)
    expected = bs.transform.grad(
        lambda: bs.transform.for_loop(step, X, Y).mean(),
        {**learner.param_states, ('outside',): outside},
    )()
    assert_same(grads, expected)


def test_an_encoder_outside_the_model_is_traced_too():
    class Leaky(bs.nn.Module):
        def init_state(self, batch_size=None, **kw):
            self.h = bs.HiddenState(jnp.zeros((batch_size, 2)))

        def update(self, x):
            self.h.value = 0.9 * self.h.value + x
            return jnp.tanh(self.h.value)

    encoder, model = bs.nn.Linear(3, 2), Leaky()
    learner = braintrace.compile(model, 'd_rtrl', Y[0], batch_size=B)
    weights = {('encoder',): encoder.weight}

    def step(x, y):
        return ((learner(encoder(x)) - y) ** 2).mean()

    run = bs.transform.jit(
        lambda x, y: learner.etrace_grad(x, y, step_fn=step, weights=weights, window=2)
    )
    with pytest.raises(ValueError, match='outside the model'):
        run(X, Y)
    learner.etrace_evolve(X, Y, step_fn=lambda x, y: step(x, y))
    model.h.value = jnp.zeros((B, 2))
    learner.reset_state()
    found = run(X, Y)
    model.h.value = jnp.zeros((B, 2))

    def plain(x, y):
        return ((model(encoder(x)) - y) ** 2).mean()

    assert_same(
        found, bs.transform.grad(lambda: bs.transform.for_loop(plain, X, Y).mean(), weights)()
    )


def test_functions_are_told_apart():
    learner, _ = learner_of()
    norms = []
    for scale in (1.0, 0.0):
        restart(learner)
        SCALE['k'] = scale  # a global that the function names
        grads = learner.etrace_grad(
            X, Y, step_fn=lambda x, y: SCALE['k'] * ((learner(x) - y) ** 2).mean()
        )
        norms.append(sum(float(jnp.abs(g).sum()) for g in jax.tree.leaves(grads)))
    assert norms[0] > 0 and norms[1] == 0


SCALE = {}


def test_dropout_and_two_encoders():
    class Noisy(bs.nn.Module):
        def __init__(self):
            super().__init__()
            self.drop, self.cell = bs.nn.Dropout(0.5), bs.nn.LSTMCell(2, 2)

        def update(self, x):
            return self.drop(self.cell(x))

    with bs.environ.context(fit=True):
        learner = braintrace.compile(Noisy(), 'd_rtrl', Y[0], batch_size=B)
        first, second = bs.ParamState(rng.randn(2, 2)), bs.ParamState(rng.randn(2, 2))
        for w in (first, second):
            grads = learner.etrace_grad(
                Y, step_fn=lambda y, w=w: (learner(y @ w.value) ** 2).mean(), weights={'w': w}
            )
            assert np.abs(grads['w']).max() > 0
    assert len(learner._own.outside) == 2


def test_rtrl_keeps_its_traces_between_programs():
    class TwoHeads(bs.nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.w, self.o = bs.nn.Linear(3, 2), bs.nn.Linear(3, 4), bs.nn.Linear(4, 2)

        def init_state(self, batch_size=None, **kw):
            self.h = bs.HiddenState(jnp.zeros((batch_size, 4)))

        def update(self, x):
            q = self.q(x)
            self.h.value = 0.9 * self.h.value + self.w(x)
            return q, self.o(self.h.value)

    model = TwoHeads()
    learner = braintrace.compile(model, 'rtrl', X[0], batch_size=B)

    def step(x, y):
        return ((learner(x)[1] - y) ** 2).mean()

    learner.etrace_evolve(X[:3])
    found = learner.etrace_grad(X[3:], Y[3:], step_fn=step, reduction='sum')
    model.h.value = jnp.zeros((B, 4))
    learner.reset_state()
    assert_same(
        found, learner.etrace_grad(X, Y, step_fn=step, reduction='sum', mask=jnp.arange(T) >= 3)
    )
