"""Real models, with units, as a modeller writes them: alive, and their online gradients equal to
BPTT in windows shorter than the sequence."""

import functools

import brainevent
import brainpy.state as bp
import brainstate as bs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import saiunit as u
from braintools.init import Uniform

import braintrace

brainevent.config.set_backend('cpu', 'jax_raw')  # numba is not always there
D, N, T, B = 3, 5, 6, 2
rng = np.random.RandomState(0)
RATES, SPIKES, IMAGES, TOKENS = (
    rng.rand(T, B, D),
    (rng.rand(T, B, D) < 0.6) * 1.0,
    rng.rand(T, B, 4, 4, 1),
    rng.randint(0, 5, (T, B)),
)
Chain = bs.nn.Sequential


# ---- connections: the units before and after, and the size of a weight with its unit ----


def weights(low, high, *shape, seed=0):
    return jnp.asarray(np.random.RandomState(seed).uniform(low, high, shape))


def dense(n, m, w=1.0):
    return bs.nn.Linear(n, m, w_init=weights(0.2, 1.0, n, m) * w, b_init=None)


def sparse(n, m, w=1.0):
    return bs.nn.SparseLinear(
        brainevent.CSR.fromdense(weights(0.2, 1.0, n, m) * (weights(0, 1, n, m, seed=4) < 0.7)) * w,
        in_size=n,
    )


def fixed(kind, n, m, w=1.0):
    return kind(n, m, 2, conn_weight=weights(0.2, 1.0, n, 2) * w, seed=1)


CONNECTIONS = {
    'Linear': dense,
    'SparseLinear': sparse,
    'AllToAll': lambda n, m, w=1.0: bs.nn.AllToAll(
        n, m, weights(0.2, 1.0, n, m) * w, include_self=False
    ),
    'FixedNumConn': functools.partial(fixed, bs.nn.FixedNumConn),
    'EventFixedNumConn': functools.partial(fixed, bs.nn.EventFixedNumConn),
    'EventFixedProb': lambda n, m, w=1.0: bs.nn.EventFixedProb(n, m, 0.5, conn_weight=w, seed=1),
    'EventLinear': lambda n, m, w=1.0: bs.nn.EventLinear(n, m, weights(0.2, 1.0, n, m) * w),
    'EventLinear, one weight': lambda n, m, w=1.0: bs.nn.EventLinear(n, m, w),
}


# ---- models ----


def drive(neuron, current=4.0 * u.mA, n=D, connect=dense):
    """A feed-forward current into neurons."""
    return Chain(connect(n, neuron.in_size[-1]), lambda y: y * current, neuron)


def synapse(syn, scale=4.0 * u.volt):
    """A feed-forward input into a synapse and its current into neurons."""
    return Chain(
        bs.nn.Linear(
            D, N, w_init=Uniform(0.1 * u.mS, 1.0 * u.mS), b_init=Uniform(0.0 * u.mS, 0.1 * u.mS)
        ),
        syn,
        bp.CUBA(scale).update,
        bp.LIF(N),
    )


class Recurrent(bs.nn.Module):
    """Input and spikes through matrices into a synapse, its current into neurons; the spikes may
    come late."""

    def __init__(self, n_in=D, delay=None):
        super().__init__()
        self.inp, self.rec = (
            dense(n_in, N),
            bs.nn.Linear(N, N, w_init=weights(-0.5, 0.5, N, N, seed=3)),
        )
        self.syn, self.neuron = bp.Expon(N, tau=5.0 * u.ms), bp.LIF(N)
        self.delay = (
            bs.nn.Delay(jax.ShapeDtypeStruct((N,), float), entries={'rec': delay})
            if delay
            else None
        )

    def update(self, x):
        spikes = self.delay.at('rec') if self.delay else self.neuron.get_spike()
        out = self.neuron(self.syn((self.inp(x) + self.rec(spikes)) * u.mS) * 1.5 * u.volt)
        if self.delay:
            self.delay.update(out)
        return out


class EI(bs.nn.Module):
    """The balanced network of the tutorials: three excitatory and two inhibitory neurons, two
    projections."""

    def __init__(self, connect, kind='COBA', neuron=bp.LIFRef, **options):
        super().__init__()
        self.N = neuron(
            5,
            R=1.0 * u.kohm,
            tau=10.0 * u.ms,
            V_rest=-60.0 * u.mV,
            V_th=-50.0 * u.mV,
            V_reset=-60.0 * u.mV,
            V_initializer=Uniform(-58.0 * u.mV, -48.0 * u.mV),
            **({'tau_ref': 2.0 * u.ms} if neuron is bp.LIFRef else {}),
        )
        self.inp = dense(D, 5)
        if kind == 'delta':
            self.E, self.I = (
                bp.DeltaProj(comm=connect(n, 5, w * u.mV), post=self.N)
                for n, w in ((3, 2.0), (2, -2.0))
            )
        else:
            outs = (
                [bp.COBA.desc(E=E * u.mV) for E in (0.0, -80.0)]
                if kind == 'COBA'
                else [bp.CUBA.desc(scale=s * u.mV) for s in (40.0, -40.0)]
            )
            self.E, self.I = (
                bp.AlignPostProj(
                    comm=connect(n, 5, w * u.mS),
                    syn=bp.Expon.desc(5, tau=5.0 * u.ms),
                    out=out,
                    post=self.N,
                    **options,
                )
                for n, w, out in ((3, 0.2, outs[0]), (2, 0.4, outs[1]))
            )

    def update(self, x):
        spikes = self.N.get_spike()
        self.E(spikes[..., :3])
        self.I(spikes[..., 3:])
        return self.N(self.inp(x) * 20.0 * u.uA)


class AlignPre(bs.nn.Module):
    """A synapse on the side of the neurons that fire, and stored connections after it."""

    def __init__(self):
        super().__init__()
        self.before = Chain(drive(bp.LIF(N)), bp.Expon(N, g_initializer=Uniform(0.0, 0.1)))
        self.after = bp.LIF(5)
        self.projection = bp.CurrentProj(
            comm=sparse(N, 5), out=bp.CUBA(scale=2.0 * u.mA), post=self.after
        )

    def update(self, x):
        self.projection(self.before(x))
        return self.after()


def conv(*rest):
    return Chain(
        bs.nn.Conv2d(
            (4, 4, 1), 2, 3, w_init=weights(0.0, 0.5, 3, 3, 1, 2), b_init=Uniform(0.0, 0.1)
        ),
        *rest,
    )


def current(y):
    return y * 4.0 * u.mA


IN_ONE_LAYER = {  # position-wise recurrence: D-RTRL is exact, and RTRL
    'LIF': lambda: drive(bp.LIF(N)),
    'LIF, hard reset': lambda: drive(bp.LIF(N, spk_reset='hard')),
    'LIFRef': lambda: drive(bp.LIFRef(N, tau_ref=2.0 * u.ms)),
    'ALIF': lambda: drive(bp.ALIF(N, beta=0.5 * u.mV)),
    'Gif': lambda: drive(bp.Gif(N, A1=0.1 * u.mA, A2=-0.1 * u.mA, a=0.005 / u.ms), 10.0 * u.mA),
    'AdExIF': lambda: drive(bp.AdExIF(N), 80.0 * u.mA),
    'Izhikevich': (
        lambda: drive(
            bp.Izhikevich(N, V_initializer=Uniform(-40.0 * u.mV, -10.0 * u.mV)), 50.0 * u.mV / u.ms
        ),
        dict(dt=0.1 * u.ms),
    ),
    'HH': lambda: drive(bp.HH(N), 30.0 * u.uA),
    'Expon': lambda: synapse(bp.Expon(N, tau=2.0 * u.ms)),
    'DualExpon': lambda: synapse(bp.DualExpon(N)),
    'Alpha': lambda: synapse(bp.Alpha(N, tau=2.0 * u.ms), 6.0 * u.volt),
    'AMPA': (lambda: Chain(bp.AMPA(D), lambda g: g / u.mS, drive(bp.LIF(N))), dict(xs=SPIKES)),
    'STP': (lambda: Chain(bp.STP(D), drive(bp.LIF(N), 20.0 * u.mA)), dict(xs=SPIKES)),
    'STD': (lambda: Chain(bp.STD(D), drive(bp.LIF(N))), dict(xs=SPIKES)),
    'Conv2d, mean pool': (
        lambda: conv(bs.nn.AvgPool2d(2, stride=2, channel_axis=-1), current, bp.LIF((2, 2, 2))),
        dict(xs=IMAGES),
    ),
    'Embedding': (
        lambda: Chain(
            bs.nn.Embedding(5, N, embedding_init=weights(0.1, 1.0, 5, N)), current, bp.LIF(N)
        ),
        dict(xs=TOKENS),
    ),
    **{
        f'{name} to LIF': (lambda c=c: drive(bp.LIF(N), connect=c), dict(xs=SPIKES))
        for name, c in CONNECTIONS.items()
        if name != 'Linear'  # all others have it
    },
}
MIXED = {  # D-RTRL is an approximation: RTRL is exact
    'recurrent LIF': Recurrent,
    'three layers': lambda: Chain(Recurrent(), Recurrent(N), Recurrent(N)),
    'Delay': lambda: Recurrent(delay=2.0 * u.ms),
    'spikes into STP': lambda: Chain(drive(bp.LIF(N)), bp.STP(N), drive(bp.LIF(N), 10.0 * u.mA, N)),
    'Conv2d, LIF, max pool, LIF': (
        lambda: conv(
            current,
            bp.LIF((4, 4, 2)),
            bs.nn.MaxPool2d(2, stride=2, channel_axis=-1),
            bs.nn.Flatten(start_axis=-3),
            drive(bp.LIF(N), 0.8 * u.mA, 8),
        ),
        dict(xs=IMAGES),
    ),
    'Embedding, Linear, LIF': (
        lambda: Chain(
            bs.nn.Embedding(5, D, embedding_init=weights(0.1, 1.0, 5, D)),
            drive(bp.LIF(N), 3.0 * u.mA),
        ),
        dict(xs=TOKENS),
    ),
    'Embedding, LSTM': (
        lambda: Chain(bs.nn.Embedding(5, D), bs.nn.LSTMCell(D, N), bs.nn.Linear(N, 2)),
        dict(xs=TOKENS, spikes=False),
    ),
    'EI': lambda: EI(CONNECTIONS['FixedNumConn']),
    'align-pre': AlignPre,
    'EI, CUBA': lambda: EI(CONNECTIONS['EventLinear'], 'CUBA', bp.LIF),
    'EI, delta': lambda: EI(CONNECTIONS['AllToAll'], 'delta'),
    'EI, delayed': lambda: EI(sparse, delay=1.5 * u.ms),
}
ROWS = {
    name: row if isinstance(row, tuple) else (row, {})
    for name, row in {**IN_ONE_LAYER, **MIXED}.items()
}
OPTIONS = {name: options for name, (_, options) in ROWS.items()}


def start(name, rule=None):
    """A model with its states, or a learner of it, and its inputs; always the same numbers."""
    make, xs = ROWS[name][0], OPTIONS[name].get('xs', RATES)
    single = name.startswith('EI') or 'one weight' in name
    xs = jnp.asarray(xs)
    xs, batch = (xs[:, 0], {}) if single else (xs, {'batch_size': B})
    with bs.random.seed_context(1), bs.environ.context(t=0.0 * u.ms, i=0):
        return bs.nn.init_all_states(make(), **batch) if rule is None else braintrace.compile(
            make(), rule, xs[0], **batch
        ), xs


def loss_of(out):
    return ((out - jnp.linspace(0.0, 0.7, out.shape[-1])) ** 2).sum()


def in_time(f):
    """A step that knows the time, as brainpy's models want it."""

    def step(i, x):
        with bs.environ.context(i=i, t=i * bs.environ.get_dt()):
            return f(x)

    return step


def bptt(name):
    model, xs = start(name)

    @bs.transform.jit
    def run():
        def loss():
            outs = bs.transform.for_loop(in_time(model), jnp.arange(len(xs)), xs)
            return jax.vmap(loss_of)(outs).mean(), outs

        return bs.transform.grad(loss, model.states(bs.ParamState), has_aux=True)()

    return run()


def difference(a, b):
    """The largest error in a gradient, relative to the largest element of its array. Units
    count."""
    assert jax.tree.structure(dict(a)) == jax.tree.structure(dict(b))
    return max(
        float(np.abs(x - y).max() / np.abs(y).max())
        for x, y in zip(jax.tree.leaves(dict(a)), jax.tree.leaves(dict(b)), strict=True)
    )


@pytest.mark.parametrize('name', ROWS)
def test_online_gradients_are_exact(name):
    with bs.environ.context(dt=OPTIONS[name].get('dt', 1.0 * u.ms)):
        expected, outs = bptt(name)
        assert all(np.abs(g).max() > 1e-5 for g in jax.tree.leaves(dict(expected)))
        assert (
            OPTIONS[name].get('spikes') is False
            or set(np.unique(outs)) == {0.0, 1.0}
            and 0.05 < outs.mean() < 0.95
        )
        learner, xs = start(name, 'd_rtrl' if name in IN_ONE_LAYER else 'rtrl')
        before = [(s, s.value) for s in learner.model4compile.states().values()]

        @in_time
        def step(x):
            out = learner(x)
            return loss_of(out), out

        def run():
            return learner.etrace_grad(
                jnp.arange(len(xs)), xs, step_fn=step, window=3, has_aux=True
            )

        found, same = run()
        assert np.allclose(outs, same) and difference(found, expected) < 1e-9
        for state, value in before:
            state.value = value
        assert (
            difference(run()[0], expected) > 1e-3
        )  # what the traces remember of the first run matters


def test_the_time_may_be_set_around_a_call():
    name = 'LIFRef'
    with bs.environ.context(dt=1.0 * u.ms):
        expected, _ = bptt(name)

        def grad(f):
            return lambda *a: bs.transform.grad(lambda: f(*a), learner.param_states)()

        for loop in (
            lambda step, xs: jax.tree.map(
                lambda *g: sum(g), *(in_time(grad(step))(i, x) for i, x in enumerate(xs))
            ),
            lambda step, xs: jax.tree.map(
                lambda g: g.sum(0), bs.transform.for_loop(in_time(grad(step)), jnp.arange(T), xs)
            ),
            lambda step, xs: grad(
                lambda: bs.transform.for_loop(in_time(step), jnp.arange(T), xs).sum()
            )(),
        ):
            learner, xs = start(name, 'd_rtrl')
            assert difference(loop(lambda x: loss_of(learner(x)) / T, xs), expected) < 1e-9  # noqa: B023
