"""Exact credit inside windows of 1 and 4 steps, against BPTT: `credit.py ours | reference`.

Relative errors of the gradient in float64, on small dense cells. Inside a window credit is exact
(`vjp_method='multi-step'`), so what is measured is what a rule lets cross its edge.
"""

import functools
import warnings

import brainstate
import jax
import numpy as np
from models import LeakyNet, Net
from rules import flat
from worker import LINEAR, OURS, bptt_grad, say

import braintrace

warnings.simplefilter('ignore')
brainstate.environ.set(precision=64)
INPUTS, UNITS, BATCH, STEPS, OUTPUTS = SHAPE = 4, 8, 3, 24, 2
NETS = 10
RULES = {
    'D_RTRL': {},
    'pp_prop': {'decay_or_rank': 0.9},
    'EProp': {},
    'EProp, kappa 0.9': {'kappa_filter_decay': 0.9},
    'OSTLRecurrent': {},
    'OSTLFeedforward': {},
    'SnAp, n 1': {'n': 1},
    'SnAp, n 2': {'n': 2},
}
LEAKY = ', leaky read-out'
FILTER = {'EProp': {}, 'EProp, kappa 0.9': {'kappa_filter_decay': LeakyNet.leak}}
BEYOND = {'HybridDimVjpAlgorithm': {'decay_or_rank': 0.9}, 'RTRL': {}}


def draw(rng, shape, scale=1.0):
    return jax.numpy.asarray(rng.normal(size=shape) * scale)


def set_weights(net, seed):
    """Weights that are the same for both libraries."""
    rng, scale = np.random.RandomState(seed), {'weight': UNITS**-0.5, 'bias': 0.1}
    for _, state in sorted(net.states(brainstate.ParamState).items()):
        names = sorted(state.value)
        state.value = {k: draw(rng, state.value[k].shape, scale[k]) for k in names}


def data_of(seed):
    rng = np.random.RandomState(100 + seed)
    return draw(rng, (STEPS, BATCH, INPUTS)), draw(rng, (STEPS, BATCH, OUTPUTS))


def loss(out, y):
    """Of one step, or of each step of a window."""
    return ((out - y) ** 2).mean((-2, -1))


def new_net(cell):
    kind = LeakyNet if cell.endswith(LEAKY) else Net
    return kind(cell.removesuffix(LEAKY), LINEAR, INPUTS, UNITS, OUTPUTS)


@functools.cache
def by_bptt(cell):
    """BPTT's gradient of each net."""
    net = brainstate.nn.init_all_states(new_net(cell), batch_size=BATCH)
    return gradients(net, net, bptt_grad(net, loss))


def by_rule(cell, rule, options, window):
    """The gradient of each net by a rule, with exact credit inside windows."""
    net = new_net(cell)
    learner = braintrace.compile(
        net,
        getattr(braintrace, rule.split(',')[0]),
        data_of(0)[0][0],
        batch_size=BATCH,
        vjp_method='multi-step',
        **options,
    )
    drive = {'window': window} if OURS else {'chunk_size': window}

    def step(x, y):
        whole = not OURS and window > 1
        return loss(learner(braintrace.MultiStepData(x) if whole else x), y)

    @brainstate.transform.jit
    def grad(xs, ys):
        return learner.etrace_grad(xs, ys, step_fn=step, **drive)

    return gradients(net, learner, grad)


def gradients(net, learner, grad):
    """The gradient of each net as one vector, each from the states as they are now."""
    states = brainstate.graph.states(learner)
    start = {path: state.value for path, state in states.items()}
    vectors = []
    for seed in range(NETS):
        for path, state in states.items():
            state.value = start[path]
        set_weights(net, seed)
        vectors.append(flat(grad(*data_of(seed))))
    return vectors


def measure(cell, rule, options, window):
    """The relative error of each net."""
    pairs = zip(by_rule(cell, rule, options, window), by_bptt(cell), strict=True)
    return [float(np.linalg.norm(g - true) / np.linalg.norm(true)) for g, true in pairs]


if __name__ == '__main__':
    dense, rules = ('rnn', 'gru', 'lstm'), {**RULES, **BEYOND} if OURS else RULES
    cases = dict.fromkeys(dense, rules)
    cases |= {cell + LEAKY: FILTER for cell in ('leaky units', *dense)}
    for cell, rules in cases.items():
        for rule, options in rules.items():
            for window in (1, 4):
                row = dict(cell=cell, shape=SHAPE[:4], rule=rule, window=window)
                say(**row, errors=measure(cell, rule, options, window))
