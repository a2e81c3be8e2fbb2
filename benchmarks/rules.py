"""Every rule on recurrent and spiking nets of three sizes: time, bytes of traces, and the gradient beside BPTT's: `rules.py ours | reference`."""

import json
import warnings

import brainstate
import jax
import numpy as np
from models import Net, data, loss
from worker import LINEAR, OURS, best

import braintrace

warnings.simplefilter('ignore')
SIZES = [(8, 16, 4, 32), (16, 32, 8, 64), (64, 128, 16, 100)]  # inputs, units, batch, steps
CELLS = {'gru': SIZES, 'lstm': SIZES, 'lif': SIZES, 'alif': SIZES[1:2]}
RULES = {
    'D_RTRL': {},
    'pp_prop': {'decay_or_rank': 0.9},
    'EProp': {'kappa_filter_decay': 0.9},
    'OSTLRecurrent': {},
    'SnAp': {'n': 1},
    'UORO': {},
    'ThreeFactor': {'modulator': 1.0},
}
BEYOND = {
    'RTRL': {},
    'KFRTRL': {},
    'LowRankRTRL': {'rank': 16},
    'RFLO': {'decay': 0.9},
    'OTTT': {'decay': 0.9},
    'HybridDimVjpAlgorithm': {'decay_or_rank': 0.9},
}
HEAVY = {
    'RTRL',
    'KFRTRL',
    'LowRankRTRL',
    'SnAp',
}  # these grow with the fourth power of the units: not measured at the largest size


def flat(grads):
    return np.concatenate(
        [np.ravel(g) for _, tree in sorted(grads.items()) for g in jax.tree.leaves(tree)]
    )


def learner_of(cell, rule, options, shape):
    n_in, n, batch, _ = shape
    xs, ys = data(shape)
    with brainstate.random.seed_context(0):
        model = Net(cell, LINEAR, n_in, n)
    return (
        braintrace.compile(model, getattr(braintrace, rule), xs[0], batch_size=batch, **options),
        xs,
        ys,
    )


def grad_of(learner, xs, ys, **options):
    step = brainstate.transform.jit(
        lambda xs, ys: learner.etrace_grad(
            xs, ys, step_fn=lambda x, y: loss(learner(x), y), **options
        )
    )
    return lambda: step(xs, ys)


def bptt(cell, shape):
    n_in, n, batch, _ = shape
    xs, ys = data(shape)
    with brainstate.random.seed_context(0):
        model = Net(cell, LINEAR, n_in, n)
    brainstate.nn.init_all_states(model, batch_size=batch)
    weights = model.states(brainstate.ParamState)
    run = lambda xs, ys: brainstate.transform.for_loop(
        lambda x, y: loss(model(x), y), xs, ys
    ).mean()
    grad = brainstate.transform.jit(
        lambda xs, ys: brainstate.transform.grad(lambda: run(xs, ys), weights)()
    )
    return lambda: grad(xs, ys)


def trace_bytes(learner):
    states = brainstate.graph.states(learner).values()
    return sum(
        a.size * a.dtype.itemsize
        for s in states
        if isinstance(s, braintrace.EligibilityTrace)
        for a in jax.tree.leaves(s.value)
        if hasattr(a, 'dtype')
    )


def beside(g, true):
    """Cosine and relative error."""
    return [
        float(g @ true / np.linalg.norm(g) / np.linalg.norm(true)),
        float(np.linalg.norm(g - true) / np.linalg.norm(true)),
    ]


def measure(cell, rule, options, shape, true):
    learner, xs, ys = learner_of(cell, rule, options, shape)
    run = grad_of(learner, xs, ys)
    row = dict(
        us=best(lambda: jax.tree.leaves(run()), 15, 5)[1] / shape[3] * 1e3,
        bytes=trace_bytes(learner),
    )
    if rule == 'ThreeFactor':  # its gradient is not one of the loss
        return row
    row |= dict(
        one=beside(
            flat(
                grad_of(
                    *learner_of(cell, rule, options, shape), **({'window': 1} if OURS else {})
                )()
            ),
            true,
        )
    )
    if OURS:
        learner, xs, ys = learner_of(cell, rule, {**options, 'vjp_method': 'multi-step'}, shape)
        row |= dict(sixteen=beside(flat(grad_of(learner, xs, ys, window=16)()), true))
    return row


if __name__ == '__main__':
    for cell, sizes in CELLS.items():
        for shape in sizes:
            run = bptt(cell, shape)
            true = flat(run())
            print(
                json.dumps(
                    dict(
                        cell=cell,
                        shape=shape,
                        rule='BPTT',
                        us=best(lambda run=run: jax.tree.leaves(run()), 15, 5)[1] / shape[3] * 1e3,
                    )
                ),
                flush=True,
            )
            for rule, options in {**RULES, **(BEYOND if OURS else {})}.items():
                row = dict(cell=cell, shape=shape, rule=rule)
                if shape == SIZES[-1] and rule in HEAVY:
                    continue
                try:
                    row |= measure(cell, rule, options, shape, true)
                except Exception as error:
                    row |= dict(error=f'{type(error).__name__}: {str(error).splitlines()[0][:100]}')
                print(json.dumps(row), flush=True)
