"""The models that are measured, written once for both libraries: only the Linear layer differs."""

import brainstate
import jax
import jax.numpy as jnp

import braintrace

# name, cell, rule, (inputs, units, batch, steps), options of etrace_grad
CASES = [
    ('D_RTRL, traces carried on', 'gru', 'D_RTRL', (64, 128, 16, 100), {}),
    ('D_RTRL, fresh', 'gru', 'D_RTRL', (64, 128, 16, 100), {'fresh': True}),
    ('D_RTRL, fresh', 'gru', 'D_RTRL', (128, 512, 32, 100), {'fresh': True}),
    ('D_RTRL, fresh', 'lstm', 'D_RTRL', (64, 128, 16, 100), {'fresh': True}),
    ('pp_prop', 'gru', 'pp_prop', (64, 128, 16, 100), {}),
]
CLASSES = 10
# The layers of a cell to which 0.2.6 gives a gradient: not the read-out, nor the GRU's reset gate.
TRACED_BY_REFERENCE = {'gru': ('Wz', 'Wh'), 'lif': ('W', 'R')}


def traced_by_reference(net, cell):
    """The weights of a net to which 0.2.6 gives a gradient, by name."""
    weights = net.states(brainstate.ParamState)
    return {k: s for k, s in weights.items() if k[1] in TRACED_BY_REFERENCE[cell]}


class RNN(brainstate.nn.Module):
    def __init__(self, linear, n_in, n):
        super().__init__()
        self.n, self.W = n, linear(n_in + n, n)

    def init_state(self, batch_size=None, **kw):
        self.h = brainstate.HiddenState(jnp.zeros((batch_size, self.n)))

    def update(self, x):
        self.h.value = jnp.tanh(self.W(jnp.concatenate([x, self.h.value], -1)))
        return self.h.value


class GRU(brainstate.nn.Module):
    def __init__(self, linear, n_in, n):
        super().__init__()
        self.n = n
        self.Wz, self.Wr, self.Wh = (linear(n_in + n, n) for _ in range(3))

    def init_state(self, batch_size=None, **kw):
        self.h = brainstate.HiddenState(jnp.zeros((batch_size, self.n)))

    def update(self, x):
        h = self.h.value
        xh = jnp.concatenate([x, h], -1)
        z, r = jax.nn.sigmoid(self.Wz(xh)), jax.nn.sigmoid(self.Wr(xh))
        self.h.value = (1 - z) * h + z * jnp.tanh(self.Wh(jnp.concatenate([x, r * h], -1)))
        return self.h.value


class LSTM(brainstate.nn.Module):
    def __init__(self, linear, n_in, n):
        super().__init__()
        self.n = n
        self.Wi, self.Wf, self.Wo, self.Wg = (linear(n_in + n, n) for _ in range(4))

    def init_state(self, batch_size=None, **kw):
        self.c, self.h = (brainstate.HiddenState(jnp.zeros((batch_size, self.n))) for _ in range(2))

    def update(self, x):
        xh = jnp.concatenate([x, self.h.value], -1)
        i, o = jax.nn.sigmoid(self.Wi(xh)), jax.nn.sigmoid(self.Wo(xh))
        f = jax.nn.sigmoid(self.Wf(xh) + 1)
        self.c.value = f * self.c.value + i * jnp.tanh(self.Wg(xh))
        self.h.value = o * jnp.tanh(self.c.value)
        return self.h.value


@jax.custom_jvp
def spike(v):
    """One where v > 0, with the slope 0.3 max(0, 1 - |v|) for learning."""
    return (v > 0).astype(v.dtype)


spike.defjvp(lambda p, t: (spike(*p), t[0] * 0.3 * jnp.maximum(0, 1 - jnp.abs(p[0]))))


class ALIF(brainstate.nn.Module):
    """Recurrent leaky units with an adaptive threshold."""

    def __init__(self, linear, n_in, n):
        super().__init__()
        self.n, self.W, self.R = n, linear(n_in, n), linear(n, n)

    def init_state(self, batch_size=None, **kw):
        self.v, self.a = (brainstate.HiddenState(jnp.zeros((batch_size, self.n))) for _ in range(2))

    def update(self, x):
        v, a = self.v.value, self.a.value
        z = spike(v - a - 0.5)
        self.a.value = 0.97 * a + 0.1 * z
        self.v.value = 0.9 * v + 0.3 * (self.W(x) + self.R(z)) - 0.5 * jax.lax.stop_gradient(z)
        return spike(self.v.value - self.a.value - 0.5)


class LIF(brainstate.nn.Module):
    """Recurrent leaky units with a fixed threshold."""

    def __init__(self, linear, n_in, n):
        super().__init__()
        self.n, self.W, self.R = n, linear(n_in, n), linear(n, n)

    def init_state(self, batch_size=None, **kw):
        self.v = brainstate.HiddenState(jnp.zeros((batch_size, self.n)))

    def update(self, x):
        v = self.v.value
        z = spike(v - 0.5)
        self.v.value = 0.9 * v + 0.3 * (self.W(x) + self.R(z)) - 0.5 * jax.lax.stop_gradient(z)
        return spike(self.v.value - 0.5)


class Leaky(brainstate.nn.Module):
    """Units that keep of themselves, and do not see each other."""

    def __init__(self, linear, n_in, n):
        super().__init__()
        self.n, self.W = n, linear(n_in, n)

    def init_state(self, batch_size=None, **kw):
        self.h = brainstate.HiddenState(jnp.zeros((batch_size, self.n)))

    def update(self, x):
        self.h.value = jnp.tanh(0.8 * self.h.value + self.W(x))
        return self.h.value


CELLS = {'rnn': RNN, 'gru': GRU, 'lstm': LSTM, 'alif': ALIF, 'lif': LIF, 'leaky units': Leaky}
FUSED = {'fused gru': 'FusedGRUCell', 'fused lstm': 'FusedLSTMCell'}  # of ours only


class Net(brainstate.nn.Module):
    """A cell by name and a read-out."""

    def __init__(self, cell, linear, n_in, n, n_out=CLASSES):
        super().__init__()
        if cell in FUSED:
            self.cell = getattr(braintrace.nn, FUSED[cell])(n_in, n)
        else:
            self.cell = CELLS[cell](linear, n_in, n)
        self.out = linear(n, n_out)

    def update(self, x):
        return self.out(self.cell(x))


class LeakyNet(Net):
    """A cell by name and a read-out that leaks."""

    leak = 0.9

    def init_state(self, batch_size=None, **kw):
        self.y = brainstate.HiddenState(jnp.zeros((batch_size, self.out.out_size[-1])))

    def update(self, x):
        self.y.value = self.leak * self.y.value + super().update(x)
        return self.y.value


def data(shape, n_out=CLASSES):
    """Random inputs and targets, `(steps, batch, ...)`."""
    n_in, _, batch, steps = shape
    a, b = jax.random.split(jax.random.key(0))
    return jax.random.normal(a, (steps, batch, n_in)), jax.random.normal(b, (steps, batch, n_out))


def loss(out, y):
    return jnp.mean((out - y) ** 2)
