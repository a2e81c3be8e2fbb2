"""The learner of brainstate models: the same sums however it is driven, units, batches, errors that
lose nothing."""

import brainstate as bs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from module_learner import B, Net, T, X, Y, assert_same, bptt, learner_of, restart, rng
from told import GATE

import braintrace

pytestmark = GATE


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

    def chunk(x, y):
        return ((learner(braintrace.MultiStepData(x)) - y) ** 2).mean((1, 2))

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

    def by_sample(x, y):
        return (((learner(x) - y) ** 2).mean(-1), x[:, 0])

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
        learner.etrace_grad(X, Y, step_fn=step)
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


class Batched(bs.nn.Module):
    def init_state(self, batch_size=None):
        self.h = bs.HiddenState(jnp.zeros((batch_size, 3)))


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
            'given no `batch_size=`',
            lambda n, f: braintrace.compile(Batched(), 'd_rtrl', X[0]),
        ),
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
