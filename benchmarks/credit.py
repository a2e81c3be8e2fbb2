"""Exact credit inside windows of 1 and 4 steps, against BPTT: `credit.py ours | reference`.

Relative errors of the gradient, in float64, on small dense cells. What is measured is what a rule
lets cross the edge of a window; inside it credit is exact (`vjp_method='multi-step'`).
"""

import warnings

import brainstate
import jax
import numpy as np
from models import Net
from worker import LINEAR, OURS, bptt_grad, say

import braintrace

warnings.simplefilter('ignore')
jax.config.update('jax_enable_x64', True)
UNITS, INPUTS, BATCH, STEPS, OUTPUTS, NETS = 8, 4, 3, 24, 2, 3
CELLS = 'rnn', 'gru', 'lstm'
WINDOWS = 1, 4
RULES = {
    'D_RTRL': {},
    'pp_prop': {'decay_or_rank': 0.9},
    'EProp': {},
    'EProp, kappa 0.9': {'kappa_filter_decay': 0.9},
    'OSTLRecurrent': {},
    'OSTLFeedforward': {},
    'SnAp, n=1': {'n': 1},
    'SnAp, n=2': {'n': 2},
    'UORO': {},
}
BEYOND = {
    'HybridDimVjpAlgorithm': {'decay_or_rank': 0.9},
    'RFLO': {'decay': 0.9},
    'OTTT': {'decay': 0.9},
    'KFRTRL': {},
    'LowRankRTRL': {'rank': 16},
    'RTRL': {},
    'BPTT': {},
}


def draw(rng, shape, scale):
    return jax.numpy.asarray(rng.normal(size=shape) * scale)


def net_of(cell, seed):
    """A net whose weights do not depend on the library."""
    net, rng = Net(cell, LINEAR, INPUTS, UNITS, OUTPUTS), np.random.RandomState(seed)
    for _, state in sorted(net.states(brainstate.ParamState).items()):
        names = sorted(state.value)
        scale = {'weight': 1 / np.sqrt(UNITS), 'bias': 0.1}
        state.value = {k: draw(rng, state.value[k].shape, scale[k]) for k in names}
    return net


def data_of(seed):
    rng = np.random.RandomState(100 + seed)
    return draw(rng, (STEPS, BATCH, INPUTS), 1), draw(rng, (STEPS, BATCH, OUTPUTS), 1)


def loss_of(out, y):
    """Of each step in a window, or of one."""
    return ((out - y) ** 2).mean((-2, -1))


def flat(grads):
    trees = [tree for _, tree in sorted(grads.items())]
    return np.concatenate([np.ravel(g) for g in jax.tree.leaves(trees)])


def online(cell, rule, options, window, seed):
    """The gradient of a rule as one vector."""
    xs, ys = data_of(seed)
    algorithm = getattr(braintrace, rule.split(',')[0])
    if rule not in ('BPTT',):
        options = {**options, 'vjp_method': 'multi-step'}
    net = net_of(cell, seed)
    values = {k: s.value for k, s in net.states(brainstate.ParamState).items()}
    learner = braintrace.compile(net, algorithm, xs[0], batch_size=BATCH, **options)
    for k, s in net.states(brainstate.ParamState).items():
        s.value = values[k]

    def step(x, y):
        return loss_of(learner(x if OURS or window == 1 else braintrace.MultiStepData(x)), y)

    drive = dict(window=window) if OURS else dict(chunk_size=window)

    @brainstate.transform.jit
    def grad(xs, ys):
        return learner.etrace_grad(xs, ys, step_fn=step, **drive)

    return flat(grad(xs, ys))


def true_gradient(cell, seed):
    xs, ys = data_of(seed)
    net = net_of(cell, seed)
    brainstate.nn.init_all_states(net, batch_size=BATCH)
    return flat(bptt_grad(net, loss_of)(xs, ys))


def measure(cell, rule, options, window):
    """The relative error of each net."""
    errors = []
    for seed in range(NETS):
        true = true_gradient(cell, seed)
        found = online(cell, rule, options, window, seed)
        errors.append(float(np.linalg.norm(found - true) / np.linalg.norm(true)))
    return errors


if __name__ == '__main__':
    for cell in CELLS:
        for rule, options in ({**RULES, **BEYOND} if OURS else RULES).items():
            for window in WINDOWS:
                row = dict(cell=cell, rule=rule, window=window)
                try:
                    row |= dict(errors=measure(cell, rule, options, window))
                except Exception as error:
                    row |= dict(error=f'{type(error).__name__}: {str(error).splitlines()[0][:100]}')
                say(**row)
