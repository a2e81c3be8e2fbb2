"""`get_etrace_of(weight)`: the traces of one weight, for every rule."""

import functools

import brainstate as bs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from told import GATE

import braintrace

pytestmark = GATE

T, B, D, H = 4, 2, 3, 5
X = np.random.RandomState(0).randn(T, B, D)
BY_WEIGHT = {
    'd_rtrl': {},
    'eprop': {},
    'rflo': {'decay': 0.5},
    'ostl_recurrent': {},
    'three_factor': {'modulator': 0.5},
    'rtrl': {},
    'snap': {'n': 2},
    'uoro': {},
    'kf_rtrl': {},
    'low_rank': {'rank': 2},
}


class Net(bs.nn.Module):
    def __init__(self, kind='gru'):
        super().__init__()
        self.rnn = (
            bs.nn.GRUCell(D, H) if kind == 'gru' else bs.nn.ValinaRNNCell(D, H, activation='tanh')
        )
        self.out = bs.nn.Linear(H, 2)

    def update(self, x):
        return self.out(self.rnn(x))


@functools.cache
def learner_of(rule, kind='gru', **options):
    learner = braintrace.compile(Net(kind), rule, X[0], batch_size=B, seed=0, **options)
    for x in X:
        learner(x)
    return learner


def alive(traces):
    arrays = jax.tree.leaves(traces)
    return bool(arrays) and all(isinstance(a, jax.Array) and np.abs(a).max() > 0 for a in arrays)


@pytest.mark.parametrize('rule', BY_WEIGHT)
def test_a_dict_of_arrays_by_name(rule):
    learner = learner_of(rule, **BY_WEIGHT[rule])
    weight = learner.model4compile.rnn.Wh.weight
    traces = learner.get_etrace_of(weight)
    assert isinstance(traces, dict) and all(isinstance(name, str) for name in traces)
    assert alive(traces)
    by_path = learner.get_etrace_of(('rnn', 'Wh', 'weight'))
    assert by_path.keys() == traces.keys()
    others = learner.get_etrace_of(learner.model4compile.rnn.Wrz.weight)
    assert alive(others) and {id(a) for a in others.values()} != {id(a) for a in traces.values()}


def test_the_trace_has_the_shape_of_the_weight():
    traces = learner_of('d_rtrl').get_etrace_of(('rnn', 'Wh', 'weight'))
    assert sorted(a.shape for a in traces.values()) == [(1, B, H), (1, B, D + H, H)]


class Leaky(bs.nn.Module):
    """Two products of x, and one of h that is added to one of them."""

    def __init__(self):
        super().__init__()
        self.new, self.keep, self.back = (braintrace.nn.Linear(n, H) for n in (D, D, H))

    def init_state(self, batch_size=None):
        self.h = bs.HiddenState(jnp.zeros((batch_size, H)))

    def update(self, x):
        h, keep = self.h.value, jax.nn.sigmoid(self.keep(x))
        self.h.value = keep * h + jnp.tanh(self.new(x) + self.back(h))
        return self.h.value


def test_weights_that_share_a_trace_all_show_it():
    learner = braintrace.compile(Leaky(), 'pp_prop', X[0], batch_size=B, decay_or_rank=0.9)
    for x in X:
        learner(x)
    assert len(learner.etrace_xs) == 2 and len(learner.etrace_dfs) == 2
    (new, df), (keep, other), (back, same) = (
        learner.get_etrace_of((name, 'weight')) for name in ('new', 'keep', 'back')
    )
    assert alive([new, df, other, back]) and new.keys() == keep.keys() != back.keys()
    assert df.keys() == same.keys() != other.keys()


def test_input_and_output_traces_of_pp_prop():
    learner = learner_of('pp_prop', decay_or_rank=0.9)
    xs, dfs = learner.get_etrace_of(learner.model4compile.rnn.Wh.weight)
    assert alive(xs) and alive(dfs)
    assert {a.shape[-1] for a in xs.values()} == {D + H}
    assert {a.shape[-1] for a in dfs.values()} == {H}


def test_low_passed_traces_of_eprop():
    path = ('rnn', 'Wh', 'weight')
    plain = learner_of('eprop').get_etrace_of(path)
    low = learner_of('eprop', kappa_filter_decay=0.8).get_etrace_of(path)
    assert alive(low) and len(low) > len(plain)
    assert {a.shape for a in low.values()} == {a.shape for a in plain.values()}


def test_nothing_to_carry_is_an_empty_dict():
    learner = learner_of('d_rtrl', 'tanh')
    assert learner.get_etrace_of(learner.model4compile.rnn.W.weight) == {}


@pytest.mark.parametrize('rule', ['d_rtrl', 'rtrl', 'pp_prop'])
def test_an_unknown_weight_is_refused(rule):
    learner = learner_of(rule, **({'decay_or_rank': 0.9} if rule == 'pp_prop' else {}))
    for unknown in (('rnn', 'no_such'), bs.ParamState(jnp.ones(2)), 3):
        with pytest.raises(ValueError, match='no_such|ParamState|3'):
            learner.get_etrace_of(unknown)
