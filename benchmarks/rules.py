"""Every rule on a GRU, an LSTM and an adaptive spiking net: time, bytes of traces, and the gradient beside BPTT's: `rules.py ours | reference`."""

import json
import warnings

import brainstate
import jax
import numpy as np
from models import Net, data, loss
from worker import LINEAR, OURS, best

import braintrace

warnings.simplefilter('ignore')
SHAPE = 16, 32, 8, 64
BIG = 64, 128, 16, 100
RULES = {'D_RTRL': {}, 'pp_prop': {'decay_or_rank': .9}, 'EProp': {'kappa_filter_decay': .9}, 'OSTLRecurrent': {}, 'SnAp': {'n': 1}, 'UORO': {},
         'ThreeFactor': {'modulator': 1.}}
BEYOND = {'RTRL': {}, 'KFRTRL': {}, 'LowRankRTRL': {'rank': 16}, 'RFLO': {'decay': .9}, 'OTTT': {'decay': .9}, 'HybridDimVjpAlgorithm': {'decay_or_rank': .9}}


def flat(grads):
    return np.concatenate([np.ravel(g) for _, tree in sorted(grads.items()) for g in jax.tree.leaves(tree)])


def learner_of(cell, rule, options, shape):
    n_in, n, batch, _ = shape
    xs, ys = data(shape)
    with brainstate.random.seed_context(0):
        model = Net(cell, LINEAR, n_in, n)
    return braintrace.compile(model, getattr(braintrace, rule), xs[0], batch_size=batch, **options), xs, ys


def grad_of(learner, xs, ys, **options):
    step = brainstate.transform.jit(lambda xs, ys: learner.etrace_grad(xs, ys, step_fn=lambda x, y: loss(learner(x), y), **options))
    return lambda: step(xs, ys)


def true_gradient(cell, shape):
    n_in, n, batch, _ = shape
    xs, ys = data(shape)
    with brainstate.random.seed_context(0):
        model = Net(cell, LINEAR, n_in, n)
    brainstate.nn.init_all_states(model, batch_size=batch)
    run = lambda: brainstate.transform.for_loop(lambda x, y: loss(model(x), y), xs, ys).mean()
    return flat(brainstate.transform.grad(run, model.states(brainstate.ParamState))())


def trace_bytes(learner):
    states = brainstate.graph.states(learner).values()
    return sum(a.size * a.dtype.itemsize for s in states if isinstance(s, braintrace.EligibilityTrace) for a in jax.tree.leaves(s.value) if hasattr(a, 'dtype'))


def fidelity(cell, rule, options, true, window):
    multi = {} if rule in ('ThreeFactor', 'DNI') else {'vjp_method': 'multi-step'}
    learner, xs, ys = learner_of(cell, rule, {**options, **(multi if window > 1 else {})}, SHAPE)
    g = flat(grad_of(learner, xs, ys, window=window)())
    return [float(g @ true / np.linalg.norm(g) / np.linalg.norm(true)), float(np.linalg.norm(g - true) / np.linalg.norm(true))]


if __name__ == '__main__':
    for cell in ('gru', 'lstm', 'alif'):
        true = true_gradient(cell, SHAPE) if OURS else None
        for rule, options in {**RULES, **(BEYOND if OURS else {})}.items():
            row = dict(cell=cell, rule=rule)
            try:
                learner, xs, ys = learner_of(cell, rule, options, SHAPE)
                run = grad_of(learner, xs, ys)
                row |= dict(us=best(lambda run=run: jax.tree.leaves(run()), 3)[1] / SHAPE[3] * 1e3, bytes=trace_bytes(learner))
                if OURS:
                    row |= dict(one=fidelity(cell, rule, options, true, 1), sixteen=fidelity(cell, rule, options, true, 16))
            except Exception as error:
                row |= dict(error=f'{type(error).__name__}: {str(error)[:100]}')
            print(json.dumps(row), flush=True)
    learner, xs, ys = learner_of('gru', 'OSTLRecurrent', {}, BIG)
    print(json.dumps(dict(cell='gru', rule='OSTL big', ms=best(lambda: jax.tree.leaves(grad_of(learner, xs, ys)()), 1)[1])), flush=True)
