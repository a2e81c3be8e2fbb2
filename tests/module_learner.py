"""A brainstate model with its learner, and BPTT of it."""

import brainstate as bs
import jax
import jax.numpy as jnp
import numpy as np
import saiunit as u

import braintrace

T, B = 6, 2
rng = np.random.RandomState(0)
X, Y = rng.randn(T, B, 3), rng.randn(T, B, 2)


class Net(bs.nn.Module):
    """A GRU with a read-out, or a leaky unit with units of measurement and a state that is not
    hidden."""

    def __init__(self, kind='gru'):
        super().__init__()
        self.kind = kind
        self.rnn = bs.nn.GRUCell(3, 4) if kind == 'gru' else bs.nn.Linear(3, 4)
        self.out = bs.nn.Linear(4, 2)

    def init_state(self, batch_size=None, **kw):
        self.V = bs.HiddenState(jnp.zeros((batch_size, 4)) * u.mV)
        self.memory = bs.ShortTermState(jnp.zeros((batch_size, 4)))

    def update(self, x):
        if self.kind == 'gru':
            return self.out(self.rnn(x))
        self.V.value = 0.8 * self.V.value + self.rnn(x) * u.mV + 0.1 * self.memory.value * u.mV
        if self.kind == 'short-term':
            self.memory.value = jnp.tanh(self.V.value.to_decimal(u.mV))
        return self.out(self.V.value.to_decimal(u.mV))


def learner_of(rule='d_rtrl', kind='gru', **options):
    learner = braintrace.compile(Net(kind), rule, X[0], batch_size=B, seed=1, **options)
    return learner, lambda x, y: ((learner(x) - y) ** 2).mean()


def restart(learner):
    bs.nn.reset_all_states(
        learner.model4compile, batch_size=B
    ) if learner.model4compile.kind == 'gru' else learner.model4compile.init_state(B)
    learner.reset_state()


def bptt(learner):
    model = learner.model4compile
    restart(learner)
    return bs.transform.grad(
        lambda: bs.transform.for_loop(lambda x, y: ((model(x) - y) ** 2).mean(), X, Y).mean(),
        learner.param_states,
    )()


def assert_same(a, b, tolerance=1e-10):
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(b)) > 1e-3
    assert a.keys() == b.keys()
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=tolerance), dict(a), dict(b))
