"""Every rule on recurrent and spiking nets of three sizes: `rules.py ours | reference`.

Time, bytes of traces, and the gradient beside BPTT's.
"""

import warnings

import brainstate
import jax
import numpy as np
from lockstep import in_turns
from models import Net, data, loss
from worker import LINEAR, OURS, bptt_grad, say

import braintrace

warnings.simplefilter('ignore')
SIZES = [(8, 16, 4, 32), (16, 32, 8, 64), (64, 128, 16, 100)]  # inputs, units, batch, steps
CELLS = {'gru': SIZES, 'lstm': SIZES, 'lif': SIZES, 'alif': SIZES[1:]}
NEAR = 'SnAp, far_reach=False'  # does what 0.2.6 does
ALGORITHMS = {NEAR: 'SnAp'}  # where the name of a row is another
RULES = {
    'D_RTRL': {},
    'pp_prop': {'decay_or_rank': 0.9},
    'EProp': {'kappa_filter_decay': 0.9},
    'OSTLRecurrent': {},
    'SnAp': {'n': 1},
    NEAR: {'n': 1, 'far_reach': False} if OURS else {'n': 1},
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
# These grow with the fourth power of the units: not measured at the largest size.
HEAVY = {'RTRL', 'KFRTRL', 'LowRankRTRL', 'SnAp', NEAR}


def flat(grads):
    """The gradients as one vector."""
    trees = [tree for _, tree in sorted(grads.items())]
    return np.concatenate([np.ravel(g) for g in jax.tree.leaves(trees)])


def model_of(cell, shape):
    """The net, with the same weights each time."""
    n_in, n, _, _ = shape
    with brainstate.random.seed_context(0):
        return Net(cell, LINEAR, n_in, n)


def grad_of(cell, rule, options, shape, **drive):
    """A new learner, and its compiled gradient as a function of nothing."""
    xs, ys = data(shape)
    model, algorithm = model_of(cell, shape), getattr(braintrace, ALGORITHMS.get(rule, rule))
    learner = braintrace.compile(model, algorithm, xs[0], batch_size=shape[2], **options)

    @brainstate.transform.jit
    def grad(xs, ys):
        return learner.etrace_grad(xs, ys, step_fn=lambda x, y: loss(learner(x), y), **drive)

    return learner, lambda: grad(xs, ys)


def bptt(cell, shape):
    """BPTT's compiled gradient as a function of nothing."""
    xs, ys = data(shape)
    model = model_of(cell, shape)
    brainstate.nn.init_all_states(model, batch_size=shape[2])
    grad = bptt_grad(model)
    return lambda: grad(xs, ys)


def trace_bytes(learner):
    """The bytes of all traces that a learner carries."""
    states = brainstate.graph.states(learner).values()
    traces = [s.value for s in states if isinstance(s, braintrace.EligibilityTrace)]
    arrays = [a for a in jax.tree.leaves(traces) if hasattr(a, 'dtype')]
    return sum(a.size * a.dtype.itemsize for a in arrays)


def beside(g, true):
    """Cosine and relative error."""
    return [
        float(g @ true / np.linalg.norm(g) / np.linalg.norm(true)),
        float(np.linalg.norm(g - true) / np.linalg.norm(true)),
    ]


def measure(cell, rule, options, shape, by_bptt, true):
    """Microseconds a step of a rule, for ours those of BPTT too, which takes turns with it; bytes,
    and cosine and error beside the true gradient in windows of 1 and 16 steps."""
    learner, run = grad_of(cell, rule, options, shape)
    runs = [lambda run=run: jax.tree.leaves(run()) for run in (run, by_bptt)]
    times = in_turns(*runs if OURS else runs[:1], alone=rule in BEYOND)
    of_steps = [[ms / shape[3] * 1e3 for ms in of_run] for of_run in times]
    row = dict(zip(('us', 'bptt'), of_steps, strict=False), bytes=trace_bytes(learner))
    if rule == 'ThreeFactor':  # whose gradient is not one of the loss
        return row
    single = {'window': 1} if OURS else {}
    _, run = grad_of(cell, rule, options, shape, **single)
    row |= dict(one=beside(flat(run()), true))
    if OURS:
        options = {**options, 'vjp_method': 'multi-step'}
        _, run = grad_of(cell, rule, options, shape, window=16)
        row |= dict(sixteen=beside(flat(run()), true))
    return row


def measure_all(cell, shape):
    """Print a row for each rule."""
    by_bptt = bptt(cell, shape)
    true = flat(by_bptt())  # of the first call, which begins where a new learner does
    rules = {**RULES, **BEYOND} if OURS else RULES
    for rule, options in rules.items():
        if (shape == SIZES[-1] and rule in HEAVY) or (rule == NEAR and cell != 'gru'):
            continue
        row = dict(cell=cell, shape=shape, rule=rule)
        try:
            row |= measure(cell, rule, options, shape, by_bptt, true)
        except Exception as error:
            row |= dict(error=f'{type(error).__name__}: {str(error).splitlines()[0][:100]}')
        say(**row)


if __name__ == '__main__':
    for cell, sizes in CELLS.items():
        for shape in sizes:
            measure_all(cell, shape)
