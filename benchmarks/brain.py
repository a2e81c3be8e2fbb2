"""Measures one rule on a sparse spiking network of some size: `brain.py ours | reference CASE
NEURONS SYNAPSES`.

It prints one line of JSON: milliseconds a step, seconds to compile the graph and until the first
gradient is there, the peak memory of this process, and what of it a gradient takes. The network is
a recurrent layer of leaky neurons with exponential synapses; the degrees have heavy tails.
"""

import json
import sys
import time
import warnings

import brainevent
import brainstate
import jax
import jax.numpy as jnp
import numpy as np
from memory import growth, of_arrays, peak, promised_bytes
from models import spike

import braintrace

warnings.simplefilter('ignore')
STEPS, REGIONS = 50, 78
MEMBRANE, SYNAPSE = 0.95, 0.8  # what is left after a step
CASES = {  # rule, options of the rule, options of the gradient
    'D_RTRL': ('D_RTRL', {}, {'window': STEPS}),
    'D_RTRL, fresh': ('D_RTRL', {}, {'window': STEPS, 'fresh': True}),
    'pp_prop': ('pp_prop', {'decay_or_rank': 0.9}, {'window': STEPS}),
}


def connectome(neurons, synapses):
    """A random CSR matrix whose rows have lengths with a heavy tail."""
    rng = np.random.default_rng(0)
    sends = rng.lognormal(size=neurons)
    lengths = np.maximum(1, sends / sends.sum() * synapses).astype(int)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    targets = rng.integers(0, neurons, starts[-1], np.int32)
    scale = 0.3 * np.sqrt(neurons / synapses)
    weights = scale * rng.standard_normal(starts[-1], np.float32)
    arrays = (jnp.asarray(a) for a in (weights, targets, starts))
    return brainevent.CSR(tuple(arrays), shape=(neurons, neurons))


class Brain(brainstate.nn.Module):
    """Leaky neurons, exponential synapses, and the mean of some regions.

    Args:
        matrix: the connections.
        multiply: `(spikes, weights, matrix) -> current`.
    """

    def __init__(self, matrix, multiply):
        super().__init__()
        self.n, self.matrix, self.multiply = matrix.shape[0], matrix, multiply
        self.weight = brainstate.ParamState(matrix.data)
        self.region = jnp.arange(self.n) * REGIONS // self.n

    def init_state(self, *_, **__):
        rng = np.random.default_rng(1)
        self.current = brainstate.HiddenState(jnp.zeros(self.n))
        self.voltage = brainstate.HiddenState(jnp.asarray(rng.random(self.n), jnp.float32))

    def update(self, x):
        z = spike(self.voltage.value - 1)
        arrived = self.multiply(z, self.weight.value, self.matrix)
        self.current.value = SYNAPSE * self.current.value + arrived
        kept = MEMBRANE * self.voltage.value * (1 - jax.lax.stop_gradient(z))
        self.voltage.value = kept + 0.05 * self.current.value + x
        out = spike(self.voltage.value - 1)
        return jnp.zeros(REGIONS).at[self.region].add(out)


def events(spikes, weights, matrix):
    """The product as a user of brainevent writes it."""
    return brainevent.BinaryArray(spikes) @ matrix.with_data(weights)


def of_the_interface(spikes, weights, matrix):
    """The product that 0.2.6 has traces for."""
    return braintrace.sparse_matmul(spikes, weights, sparse_mat=matrix)


def error(out, wanted):
    return jnp.mean((out - wanted) ** 2)


def forward(model, xs):
    """The model alone."""
    brainstate.nn.init_all_states(model)

    @brainstate.transform.jit
    def run(xs):
        return brainstate.transform.for_loop(model.update, xs)

    return lambda: run(xs)


def backwards(model, xs, wanted):
    """Backpropagation through all steps."""
    brainstate.nn.init_all_states(model)

    def total(xs, wanted):
        outs = brainstate.transform.for_loop(model.update, xs)
        return jax.vmap(error)(outs, wanted).mean()

    run = brainstate.transform.jit(
        brainstate.transform.grad(total, model.states(brainstate.ParamState))
    )
    return lambda: run(xs, wanted)


def online(model, case, xs, wanted, ours):
    """The gradient of a rule, the seconds that compiling the graph took, and the GB that the report
    promises."""
    rule, options, of_gradient = CASES[case]
    brainstate.nn.init_all_states(model)
    start = time.perf_counter()
    learner = braintrace.compile(model, getattr(braintrace, rule), xs[0], **options)
    seconds = time.perf_counter() - start

    @brainstate.transform.jit
    def run(xs, wanted):
        return learner.etrace_grad(
            xs,
            wanted,
            step_fn=lambda x, y: error(learner(x), y),
            **(of_gradient if ours else {}),
        )

    if not ours:
        return seconds, None, lambda: run(xs, wanted)
    memory, fresh = learner.report.memory, of_gradient.get('fresh', False)
    promised = promised_bytes(memory, STEPS, fresh) + fresh * memory['trace_bytes']
    return seconds, promised / 1e9, lambda: run(xs, wanted)


def main(library, case, neurons, synapses):
    ours = library == 'ours'
    matrix = connectome(neurons, synapses)
    model = Brain(matrix, events if ours or case == 'forward' else of_the_interface)
    rng = np.random.default_rng(2)
    xs = jnp.asarray(0.25 * rng.standard_normal((STEPS, neurons), np.float32) + 0.06)
    wanted = jnp.zeros((STEPS, REGIONS))
    before, seconds, promised = of_arrays(), 0.0, None
    if case == 'forward':
        run = forward(model, xs)
    elif case == 'BPTT':
        run = backwards(model, xs, wanted)
    else:
        seconds, promised, run = online(model, case, xs, wanted, ours)
    start = time.perf_counter()
    made = jax.block_until_ready(run())
    first = time.perf_counter() - start
    times, end = [], time.perf_counter() + 10
    while len(times) < 2 or (len(times) < 20 and time.perf_counter() < end):
        start = time.perf_counter()
        jax.block_until_ready(run())
        times.append((time.perf_counter() - start) * 1e3 / STEPS)
    row = dict(library=library, case=case, neurons=neurons, synapses=len(matrix.data))
    sums = float(sum(jnp.abs(a).sum() for a in jax.tree.leaves(made)))
    del made
    highest = peak()
    taken = growth(run) + of_arrays() - before
    row |= dict(ms=min(times), graph=seconds, first=first, gb=max(highest, peak()))
    row |= dict(promised=promised, taken=taken)
    print(json.dumps({**row, 'sum': sums}), flush=True)


if __name__ == '__main__':
    main(*sys.argv[1:3], *[int(float(a)) for a in sys.argv[3:]])
