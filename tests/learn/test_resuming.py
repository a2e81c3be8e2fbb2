"""`etrace_learn` with checkpoints: interrupted and called again, it ends as without."""

import brainstate as bs
import braintools
import jax.numpy as jnp
import numpy as np
import pytest

import braintrace

T = 9
rng = np.random.RandomState(0)
X, Y = rng.randn(2, T, 2, 3)


class Net(bs.nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.out = bs.nn.Linear(3, 4), bs.nn.Linear(4, 3)

    def init_state(self, batch_size=None, **_):
        self.h = bs.HiddenState(jnp.zeros((batch_size, 4)))

    def update(self, x):
        self.h.value = 0.9 * self.h.value + jnp.tanh(self.inp(x))
        return self.out(self.h.value)


def learn(xs, checkpoints=None):
    """The losses and all values of a run with an optimiser, and noise in the user's own step."""
    bs.random.seed(0)
    learner = braintrace.compile(Net(), 'd_rtrl', X[0], batch_size=2)
    adam = braintools.optim.Adam(0.1)
    adam.register_trainable_weights(learner.param_states)

    def step(x, y):
        return ((learner(x + 0.1 * bs.random.normal(size=x.shape)) - y) ** 2).mean(-1)

    losses = learner.etrace_learn(
        xs,
        Y,
        step_fn=step,
        update=adam.update,
        schedule='window',
        window_size=2,
        checkpoints=checkpoints,
    )
    return np.asarray(losses), learner.snapshot().arrays, adam.step_count.value


class Interrupted(braintrace.Checkpoints):
    """As if the process were killed after the save at step 4."""

    def save(self, step, learner, **more):
        super().save(step, learner, **more)
        if step == 4:
            raise KeyboardInterrupt


def test_it_ends_as_without(tmp_path):
    true, values, steps = learn(X)
    with Interrupted(tmp_path / 'once', every=3) as checkpoints:
        with pytest.raises(KeyboardInterrupt):
            learn(X, checkpoints)
    with braintrace.Checkpoints(tmp_path / 'once', every=3) as checkpoints:
        found, again, count = learn(X, checkpoints)
        np.testing.assert_allclose(found, true, rtol=1e-12)
        assert found.shape == (T, 2) and np.isfinite(found).all() and steps == count == 5
        for name in values:
            np.testing.assert_allclose(again[name], values[name], rtol=1e-10, err_msg=name)
        with pytest.raises(ValueError, match='it has no more/so_far.sequences with checksum'):
            learn(X + 1, checkpoints)
