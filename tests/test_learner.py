"""The learner of brainstate models: the same sums however it is driven, units, batches, errors that lose nothing."""

import brainstate as bs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import saiunit as u

import braintrace

pytestmark = pytest.mark.filterwarnings(
    'ignore::UserWarning'
)  # what the compiler tells about a GRU is tested elsewhere
T, B = 6, 2
rng = np.random.RandomState(0)
X, Y = rng.randn(T, B, 3), rng.randn(T, B, 2)


class Net(bs.nn.Module):
    """A GRU with a read-out, or a leaky unit with units of measurement and a state that is not hidden."""

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


def test_however_it_is_driven():
    learner, step = learner_of()
    whole, losses = learner.etrace_grad(X, Y, step_fn=step, return_value=True)
    assert losses.shape == (T,) and int(learner.running_index.value) == T
    traces = {k: s.value for k, s in learner.etrace.items()}
    for window in (1, 4):
        restart(learner)
        assert_same(learner.etrace_grad(X, Y, step_fn=step, window=window), whole)
        assert all(np.allclose(traces[k], s.value) for k, s in learner.etrace.items())
    restart(learner)
    halves = [
        learner.etrace_grad(X[a], Y[a], step_fn=step, reduction='sum')
        for a in (slice(0, 2), slice(2, None))
    ]
    assert_same(jax.tree.map(lambda a, b: (a + b) / T, *halves), whole)
    weights = learner.param_states
    restart(learner)
    by_hand = [bs.transform.grad(lambda t=t: step(X[t], Y[t]) / T, weights)() for t in range(T)]
    assert_same(jax.tree.map(lambda *g: sum(g), *by_hand), whole)
    assert all(np.allclose(traces[k], s.value) for k, s in learner.etrace.items())
    for loop in (
        lambda: bs.transform.for_loop(step, X, Y).mean(),
        lambda: bs.transform.scan(lambda c, xy: (c, step(*xy)), 0.0, (X, Y))[1].mean(),
    ):
        restart(learner)
        assert_same(bs.transform.grad(loop, weights)(), whole)
    restart(learner)
    assert_same(bs.transform.jit(lambda x, y: learner.etrace_grad(x, y, step_fn=step))(X, Y), whole)
    restart(learner)
    learner.etrace_evolve(X[:3])
    after = learner.etrace_grad(X[3:], Y[3:], step_fn=step, reduction='sum')
    restart(learner)
    masked = learner.etrace_grad(X, Y, step_fn=step, reduction='sum', mask=jnp.arange(T) >= 3)
    assert_same(after, masked)


def test_windows_as_calls():
    learner, step = learner_of('d_rtrl', vjp_method='multi-step')
    chunk = lambda x, y: ((learner(braintrace.MultiStepData(x)) - y) ** 2).mean((1, 2))
    by_chunk, losses, aux = learner.etrace_grad(
        X,
        Y,
        step_fn=lambda x, y: (chunk(x, y), x.sum()),
        chunk_size=3,
        has_aux=True,
        return_value=True,
    )
    assert losses.shape == (T,) and aux.shape == (2,)
    restart(learner)
    assert_same(by_chunk, learner.etrace_grad(X, Y, step_fn=step, window=3))
    restart(learner)
    assert_same(learner.etrace_grad(X, Y, step_fn=chunk, chunk_size=T), bptt(learner))


@pytest.mark.parametrize(
    'rule, kind',
    [
        ('d_rtrl', 'leaky'),
        ('rtrl', 'leaky'),
        ('rtrl', 'short-term'),
        ('rtrl', 'gru'),
        ('bptt', 'gru'),
    ],
)
def test_exact_rules(rule, kind):
    learner, step = learner_of(rule, kind)
    assert_same(
        learner.etrace_grad(X, Y, step_fn=step, window='auto' if rule == 'bptt' else 2),
        bptt(learner),
    )


def test_a_memory_that_is_no_hidden_state_is_told():
    with pytest.warns(UserWarning, match='State memory carries the influence'):
        learner_of('d_rtrl', 'short-term')


def test_options_of_the_driver():
    learner, step = learner_of()
    expected = learner.etrace_grad(X, Y, step_fn=step)
    restart(learner)
    by_sample = lambda x, y: (((learner(x) - y) ** 2).mean(-1), x[:, 0])
    grads, losses, aux = learner.etrace_grad(
        X, Y, step_fn=by_sample, has_aux=True, return_value=True
    )
    assert_same(grads, expected)
    assert losses.shape == (T, B) and np.allclose(aux, X[..., 0])
    mask = jnp.asarray(rng.rand(T, B) > 0.3, float)
    restart(learner)
    _, kept = learner.etrace_grad(
        X,
        Y,
        step_fn=lambda x, y: by_sample(x, y)[0],
        mask=mask,
        return_value=True,
        loss_output='masked',
    )
    assert np.allclose(kept, losses * mask)
    restart(learner)
    _, value = learner.etrace_grad(
        X, Y, step_fn=step, return_value=True, loss_output='scalar', fresh=True
    )
    assert np.allclose(value, losses.mean()) and int(learner.running_index.value) == 0
    some = {'mine': learner.model4compile.out.weight}
    restart(learner)
    assert_same(
        {'mine': learner.etrace_grad(X, Y, step_fn=step, weights=some)['mine']},
        {'mine': expected['out', 'weight']},
    )
    outs = learner.etrace_evolve(X, return_outputs=True)
    assert outs.shape == Y.shape


def test_a_readout_outside_the_model_learns_too():
    learner, _ = learner_of()
    outside = bs.ParamState(rng.randn(2, 2))
    step = lambda x, y: ((learner(x) @ outside.value - y) ** 2).mean()
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
    step = lambda x, y: ((learner(encoder(x)) - y) ** 2).mean()
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
    plain = lambda x, y: ((model(encoder(x)) - y) ** 2).mean()
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
    step = lambda x, y: ((learner(x)[1] - y) ** 2).mean()
    learner.etrace_evolve(X[:3])
    found = learner.etrace_grad(X[3:], Y[3:], step_fn=step, reduction='sum')
    model.h.value = jnp.zeros((B, 4))
    learner.reset_state()
    assert_same(
        found, learner.etrace_grad(X, Y, step_fn=step, reduction='sum', mask=jnp.arange(T) >= 3)
    )


def test_learning_cuts_the_mask_with_the_sequence(capsys):
    def learned(**options):
        bs.random.seed(0)
        learner, _ = learner_of()
        weights = learner.param_states
        descend = lambda grads: [
            setattr(
                weights[k],
                'value',
                jax.tree.map(lambda w, g: w - 0.1 * g, weights[k].value, grads[k]),
            )
            for k in grads
        ]
        learner.etrace_learn(
            X, Y, step_fn=lambda x, y: ((learner(x) - y) ** 2).mean(-1), update=descend, **options
        )
        return {k: s.value for k, s in weights.items()}

    bs.random.seed(0)
    by_hand, _ = learner_of()
    mask = np.array([[1, 0], [0, 1], [1, 1], [0, 0], [1, 0], [1, 1]])
    for x, y, m in zip(X, Y, mask, strict=True):
        grads = by_hand.etrace_grad(
            x[None], y[None], step_fn=lambda x, y: ((by_hand(x) - y) ** 2).mean(-1), mask=m[None]
        )
        for k, s in by_hand.param_states.items():
            s.value = jax.tree.map(lambda w, g: w - 0.1 * g, s.value, grads[k])
    assert_same(learned(mask=mask), {k: s.value for k, s in by_hand.param_states.items()})
    learned(schedule='window', window_size=4, mask=mask[:, 0], progress=True)
    jax.effects_barrier()
    assert '6/6' in capsys.readouterr().err, 'one bar for all windows'
    with pytest.raises(ValueError, match='the sequence has 6 steps'):
        learned(mask=mask[:3])


def test_a_stream_is_learning_step_by_step():
    def start(rule='d_rtrl', **options):
        bs.random.seed(0)
        learner, _ = learner_of(rule, **options)
        weights = learner.param_states
        descend = lambda grads: [
            setattr(
                weights[k],
                'value',
                jax.tree.map(lambda w, g: w - 0.1 * g, weights[k].value, grads[k]),
            )
            for k in grads
        ]
        return (
            learner,
            descend,
            lambda x, y: (((learner(x) - y) ** 2).mean() * bs.environ.get('gain', 1.0), x.sum()),
        )

    def values(learner):
        return {k: s.value for k, s in learner.path_to_states.items()}

    learner, descend, step = start()
    expected = learner.etrace_learn(X, Y, step_fn=lambda x, y: step(x, y)[0], update=descend)
    live, descend, step = start()
    once = live.etrace_stream(step_fn=step, update=descend, has_aux=True)
    found = [once(x, y) for x, y in zip(X, Y, strict=True)]
    np.testing.assert_allclose([loss for loss, _ in found], expected, atol=1e-12)
    np.testing.assert_allclose([aux for _, aux in found], X.sum((1, 2)), atol=1e-12)
    assert_same(values(live), values(learner))
    assert live.running_index.value == T

    before = values(live)  # whatever fails, nothing is lost
    with pytest.raises(TypeError):
        once(X[0], Y[0, :, :1].repeat(3, 1))
    assert_same(values(live), before, 0)

    for net in (learner, live):  # new states, another batch, another setting
        net.model4compile.init_state(1)
        bs.nn.init_all_states(net.model4compile, batch_size=1)
        net.reset_state()
    with bs.environ.context(gain=2.0):
        again = learner.etrace_grad(
            X[:1, :1], Y[:1, :1], step_fn=lambda x, y: ((learner(x) - y) ** 2).mean() * 2
        )
        weights = {k: s.value for k, s in learner.param_states.items()}
        once(X[0, :1], Y[0, :1])
    assert_same(
        {k: s.value for k, s in live.param_states.items()},
        jax.tree.map(lambda w, g: w - 0.1 * g, weights, dict(again)),
    )

    reward, descend, step = start('three_factor')
    twice, descend2, step2 = start('three_factor')
    reward.etrace_stream(step_fn=step, update=descend, has_aux=True)(X[0], Y[0], modulator=2.0)
    twice.etrace_learn(
        X[:1], Y[:1], step_fn=lambda x, y: step2(x, y)[0], update=descend2, modulator=2.0
    )
    assert_same(values(reward), values(twice))


def test_mapped_models():
    learner, step = learner_of()
    expected = learner.etrace_grad(X, Y, step_fn=step)
    lanes = braintrace.compile(
        bs.nn.Sequential(bs.nn.GRUCell(3, 4), bs.nn.Linear(4, 2)),
        'd_rtrl',
        X[0],
        batch_size=B,
        vmap=True,
    )
    by_shape = lambda tree: {jnp.shape(v['weight']): v for v in tree}
    values = by_shape(s.value for s in learner.param_states.values())
    for s in lanes.param_states.values():
        s.value = values[jnp.shape(s.value['weight'])]

    def update(grads):
        for k, s in lanes.param_states.items():
            s.value = jax.tree.map(lambda w, g: w + g, s.value, grads[k])

    lanes.etrace_learn(
        X,
        Y,
        step_fn=lambda x, y: ((lanes(x) - y) ** 2).mean(),
        update=update,
        schedule='sequence_end',
        window=4,
    )
    changed = by_shape(s.value for s in lanes.param_states.values())
    assert_same(jax.tree.map(jnp.subtract, changed, values), by_shape(expected.values()))
    assert isinstance(lanes, braintrace.SequenceDriverMixin)


MAPPED = {
    'd_rtrl': {},
    'pp_prop': {'decay_or_rank': 0.9},
    'rtrl': {},
    'eprop': {'feedback': 'random', 'random_feedback_key': 0},
    'ottt': {'decay': 0.8},
    'snap': {'n': 1},
    'bptt': {},
}


@pytest.mark.parametrize('rule', MAPPED)
def test_the_loop_with_states_mapped_by_hand(rule):
    """A learner made inside `jit`, compiled for one sample inside `vmap_new_states`, mapped by `nn.Vmap`, warmed up and driven by `scan`."""
    bs.random.seed(0)
    net = bs.nn.Sequential(bs.nn.GRUCell(3, 4), bs.nn.Linear(4, 2))
    weights = net.states(bs.ParamState)

    def mapped(size):
        learner = braintrace.shells.algorithms.find_algorithm(rule)(net, **MAPPED[rule])

        @bs.transform.vmap_new_states(state_tag='new', axis_size=size)
        def init():
            bs.nn.init_all_states(net)
            learner.compile_graph(X[0, 0])

        init()
        return learner

    @bs.transform.jit
    def gradient(xs, ys):
        lanes = bs.nn.Vmap(mapped(xs.shape[1]), vmap_states='new')
        bs.transform.for_loop(lanes, xs[:2])

        def step(total, data):
            grads = bs.transform.grad(lambda x, y: ((lanes(x) - y) ** 2).mean(), weights)(*data)
            return jax.tree.map(jnp.add, total, grads), None

        return bs.transform.scan(
            step,
            {k: jax.tree.map(jnp.zeros_like, s.value) for k, s in weights.items()},
            (xs[2:], ys[2:]),
        )[0]

    for size in (B, 1, B):  # the model's states are new ones each time
        learner = braintrace.compile(net, rule, X[0, :size], batch_size=size, **MAPPED[rule])
        learner.etrace_evolve(X[:2, :size])
        expected = learner.etrace_grad(
            X[2:, :size],
            Y[2:, :size],
            step_fn=lambda x, y: ((learner(x) - y) ** 2).mean(),
            reduction='sum',
            window=1,
        )
        assert_same(gradient(X[:, :size], Y[:, :size]), expected)
    lanes = braintrace.ETraceVmap(mapped(B), vmap_states='new')
    lanes.etrace_evolve(X[:2])
    assert_same(
        lanes.etrace_grad(
            X[2:],
            Y[2:],
            step_fn=lambda x, y: ((lanes(x) - y) ** 2).mean(),
            reduction='sum',
            window=1,
        ),
        expected,
    )
    with pytest.raises(TypeError, match='must be a learner'):
        braintrace.ETraceVmap(net)
    with pytest.raises(ValueError, match='compiled for whole batches'):
        braintrace.ETraceVmap(learner)


def test_names_and_views():
    learner, _ = learner_of('pp_prop', decay_or_rank=0.9)
    assert (
        learner.decay == 0.9
        and learner.is_compiled
        and 'rnn.h' in learner.show_graph(verbose=False, return_msg=True)
    )
    assert (
        set(learner.hidden_states) == {('V',), ('rnn', 'h')}
        and ('out', 'weight') in learner.param_states
        and ('memory',) in learner.other_states
    )
    assert set(learner.etrace_xs) == {'x:rnn.Wrz.weight.weight', 'x:rnn.Wh.weight.weight'}
    learner, step = learner_of()
    learner.etrace_grad(X, Y, step_fn=step)
    found = learner.get_etrace_of(('rnn', 'Wh', 'weight'))
    assert (
        found['rnn.Wh.weight.weight->rnn.h'].shape == (1, B, 7, 4)
        and found.keys() == learner.get_etrace_of(learner.model4compile.rnn.Wh.weight).keys()
    )
    learner.reset_state()
    assert not any(np.asarray(s.value).any() for s in learner.etrace.values())
    assert any(isinstance(s, braintrace.EligibilityTrace) for s in learner.states().values())


def test_a_new_batch_size_compiles_anew():
    learner, step = learner_of()
    learner.etrace_grad(X, Y, step_fn=step)
    bs.nn.init_all_states(learner.model4compile, batch_size=1)
    learner.etrace_grad(X[:, :1], Y[:, :1], step_fn=step)
    learner(X[0, :1])
    assert learner.etrace['rnn.Wh.weight.weight->rnn.h'].value.shape == (1, 1, 7, 4)


def test_one_compilation_and_no_tracer_left():
    learner, _ = learner_of()
    calls = []

    def step(x, y, fail=False):
        calls.append(1)
        loss = ((learner(x) - y) ** 2).mean()
        if fail:
            raise KeyError('mine')
        return loss

    for _ in range(3):
        learner.etrace_grad(
            X, Y, step_fn=lambda x, y: step(x, y)
        )  # a new function object each time
    assert len(calls) == 1
    before = {p: s.value for p, s in learner.path_to_states.items()}
    with pytest.raises(KeyError, match='mine'):
        learner.etrace_grad(X, Y, step_fn=lambda x, y: step(x, y, True))
    assert all(
        a is b
        for p, s in learner.path_to_states.items()
        for a, b in zip(jax.tree.leaves(s.value), jax.tree.leaves(before[p]), strict=True)
    )
    learner(X[0])


@pytest.mark.parametrize(
    'error, message, call',
    [
        (ValueError, 'different lengths', lambda n, f: n.etrace_grad(X, Y[:2], step_fn=f)),
        (
            ValueError,
            'must call the learner once',
            lambda n, f: n.etrace_grad(X, Y, step_fn=lambda x, y: x.sum()),
        ),
        (
            ValueError,
            'scalar loss',
            lambda n, f: n.etrace_grad(X, Y, step_fn=lambda x, y: n(x) - y),
        ),
        (
            TypeError,
            'plain sequences',
            lambda n, f: n.etrace_grad(braintrace.MultiStepData(X), Y, step_fn=f),
        ),
        (
            ValueError,
            "vjp_method='multi-step'",
            lambda n, f: n.etrace_grad(X, Y, step_fn=f, chunk_size=2),
        ),
        (ValueError, 'loss_output', lambda n, f: n.etrace_grad(X, Y, step_fn=f, loss_output='all')),
        (
            TypeError,
            '`weights` must be a dict',
            lambda n, f: n.etrace_grad(X, Y, step_fn=f, weights=[1]),
        ),
        (TypeError, 'takes no `modulator`', lambda n, f: n(X[0], modulator=0.5)),
        (
            TypeError,
            'takes no `modulator`',
            lambda n, f: n.etrace_grad(X, Y, step_fn=f, modulator=0.5),
        ),
        (
            TypeError,
            'takes no `modulator`',
            lambda n, f: n.etrace_learn(X, Y, step_fn=f, update=print, modulator=0.5),
        ),
        (
            TypeError,
            'to the driver',
            lambda n, f: n.etrace_grad(X, Y, step_fn=lambda x, y: n(x, modulator=0.5).sum()),
        ),
        (ValueError, 'no trace', lambda n, f: n.get_etrace_of(('out', 'weight'))),
        (ValueError, 'not compiled', lambda n, f: braintrace.D_RTRL(n.model4compile)(X[0])),
        (RuntimeError, 'no report', lambda n, f: braintrace.D_RTRL(n.model4compile).report),
        (TypeError, 'brainstate.nn.Module', lambda n, f: braintrace.D_RTRL(len)),
        (
            TypeError,
            'has no option `speed`',
            lambda n, f: braintrace.D_RTRL(n.model4compile, speed=1),
        ),
        (
            ValueError,
            "Did you mean 'pp_prop'",
            lambda n, f: braintrace.compile(Net(), 'ppprop', X[0], batch_size=B),
        ),
        (
            ValueError,
            'example inputs',
            lambda n, f: braintrace.compile(Net(), 'd_rtrl', batch_size=B),
        ),
        (
            ValueError,
            'verbose',
            lambda n, f: braintrace.compile(Net(), 'd_rtrl', X[0], batch_size=B, verbose=5),
        ),
        (
            ValueError,
            'needs `batch_size`',
            lambda n, f: braintrace.compile(Net(), 'd_rtrl', X[0], vmap=True),
        ),
        (
            ValueError,
            'as its first axis',
            lambda n, f: braintrace.compile(Net(), 'd_rtrl', X[0], vmap=True, batch_size=3),
        ),
        (
            TypeError,
            'subclass of ETraceAlgorithm',
            lambda n, f: braintrace.compile(Net(), 3, X[0], batch_size=B),
        ),
    ],
)
def test_bad_input(bad_input_learner, error, message, call):
    with pytest.raises(error, match=message):
        call(*bad_input_learner)


@pytest.fixture(scope='module')
def bad_input_learner():
    bs.environ.set(precision=64)
    return learner_of()
