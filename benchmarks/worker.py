"""Measures one library in its own environment: `worker.py ours | reference [CASE]`.

It prints a line of JSON for each case. With the number of a case it computes the first gradient of
that case and ends: who starts the process takes the time.
"""

import json
import sys
import time
import warnings
from functools import partial

import brainstate
import jax
import jax.numpy as jnp
from by_hand import pp_prop
from jax.extend.core import jaxpr_as_fun
from limits import large_product, measure, work_of
from lockstep import SLOW, best, in_turns, milliseconds, pauses
from memory import promised_bytes
from models import CASES, Net, data, loss, traced_by_reference

import braintrace

warnings.simplefilter('ignore')
OURS = sys.argv[1] == 'ours'
LINEAR = brainstate.nn.Linear if OURS else braintrace.nn.Linear
LENGTHS = 100, 1000, 10000  # steps of the sequences whose memory is measured
RTRL_AT_SIZE = 256, 128, 64  # units, steps, steps in a block
FIRSTS = 5  # new learners whose first calls are timed
OPTIONS = {'pp_prop': {'decay_or_rank': 0.9}}


def gradient(cell, rule, shape, options, same_work=False):
    """A new learner, its gradient of a sequence as a function of inputs and targets, and both; for
    the same work only of the weights to which 0.2.6 gives one."""
    n_in, n, batch, _ = shape
    xs, ys = data(shape)
    model, algorithm = Net(cell, LINEAR, n_in, n), getattr(braintrace, rule)
    needed = OPTIONS.get(rule, {})
    learner = braintrace.compile(model, algorithm, xs[0], batch_size=batch, seed=0, **needed)
    options = dict(options) if OURS else {}
    if same_work:
        options['weights'] = traced_by_reference(model, cell)

    def grad(xs, ys):
        return learner.etrace_grad(xs, ys, step_fn=lambda x, y: loss(learner(x), y), **options)

    return learner, grad, (xs, ys)


def driver(cell, rule, shape, options, same_work=False):
    """A new learner's compiled gradient of a sequence, as a function of nothing."""
    learner, grad, given = gradient(cell, rule, shape, options, same_work)
    compiled = brainstate.transform.jit(grad)
    return learner, lambda: jax.tree.leaves(compiled(*given))


def least_work(cell, rule, shape, options):
    """What the gradient of a sequence has to do, for `limits`: the products of its program, and its
    traces, read and written in each block; and the bytes of memory that its compiled program takes
    besides weights and data, and that the report promises. A sequence that stands alone has no
    traces."""
    learner, grad, given = gradient(cell, rule, shape, options)
    program, _ = brainstate.transform.make_jaxpr(grad, return_only_write=True)(*given)
    memory, sizes = learner.report.memory, compiled_memory(program)
    taken = sizes.temp_size_in_bytes + sizes.output_size_in_bytes
    steps = min(shape[3], memory['block_steps'])
    fresh = options.get('fresh', False)
    promised = promised_bytes(memory, steps, fresh)
    if fresh:
        return work_of(program), taken, promised
    blocks = -(-shape[3] // memory['block_steps'])
    renewed = 2 * blocks * memory['trace_bytes']
    return work_of(program, renewed), taken + memory['trace_bytes'], promised


def compiled_memory(program):
    """What XLA says of the memory of a closed jaxpr."""
    shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in program.jaxpr.invars]
    return jax.jit(jaxpr_as_fun(program)).lower(*shapes).compile().memory_analysis()


def sequence(cell, rule, shape, options, same_work=False, beside=()):
    """Milliseconds of the first calls of some new learners, and of later ones in turns, with those
    of other runs that take turns with it."""
    firsts, pause = [], pauses()
    for _ in range(FIRSTS):
        _, run = driver(cell, rule, shape, options, same_work)
        pause()
        firsts.append(milliseconds(run))
        if firsts[-1] > SLOW:
            break
    return firsts, *in_turns(run, *beside)


def hand_written(shape):
    """Milliseconds of pp_prop written out for this GRU; it must give what ours gives."""
    n_in, n, batch, _ = shape
    xs, ys = data(shape)
    learner, _ = driver('gru', 'pp_prop', shape, {})
    names = [
        ('cell', 'Wz', 'weight'),
        ('cell', 'Wr', 'weight'),
        ('cell', 'Wh', 'weight'),
        ('out', 'weight'),
    ]
    values = [learner.param_states[k].value for k in names]
    params = [(value['weight'], value['bias']) for value in values]
    state, inputs = jnp.zeros((batch, n)), jnp.zeros((batch, n_in + n))
    carry = state, (state, state), (inputs, inputs), 0
    f = jax.jit(pp_prop)

    def run():
        return f(params, carry, xs, ys)

    ours = learner.etrace_grad(xs, ys, step_fn=lambda x, y: loss(learner(x), y))
    for k, (weight, bias) in zip(names, run()[0], strict=True):
        for a, b in ((weight, ours[k]['weight']), (bias, ours[k]['bias'])):
            assert jnp.abs(a - b).max() < 1e-4 * jnp.abs(a).max(), (
                f'{k}: written out by hand it must be the same rule'
            )
    return best(run, alone=True)[0]


def bptt(cell, shape):
    """BPTT's compiled gradient of a sequence, as a function of nothing."""
    n_in, n, batch, _ = shape
    xs, ys = data(shape)
    model = brainstate.nn.init_all_states(
        Net(cell, brainstate.nn.Linear, n_in, n), batch_size=batch
    )
    grad = bptt_grad(model)
    return lambda: jax.tree.leaves(grad(xs, ys))


def bptt_grad(model, loss=loss):
    """The compiled gradient of the mean loss of a sequence, as a function of inputs and targets."""
    weights = model.states(brainstate.ParamState)

    def mean_loss(xs, ys):
        return brainstate.transform.for_loop(lambda x, y: loss(model(x), y), xs, ys).mean()

    @brainstate.transform.jit
    def grad(xs, ys):
        return brainstate.transform.grad(lambda: mean_loss(xs, ys), weights)()

    return grad


def mean_square(out):
    return jnp.mean(out**2)


def rtrl_of(units, steps, window):
    """Exact RTRL on a tanh RNN, 16 inputs, batch 8, in blocks: a compiled gradient, which may use
    the memory of the carry that it is given, its parameters and a carry."""

    def step(p, h, x):
        h = jnp.tanh(x @ p['W'] + h @ p['R'])
        return h, h @ p['o']

    k = jax.random.split(jax.random.key(0), 5)
    params = dict(
        W=jax.random.normal(k[0], (16, units)) / 4,
        R=jax.random.normal(k[1], (units, units)) / units**0.5,
        o=jax.random.normal(k[2], (units, 4)) / units**0.5,
    )
    xs, ys = jax.random.normal(k[3], (steps, 8, 16)), jax.random.normal(k[4], (steps, 8, 4))
    state = jnp.zeros((8, units))
    learner = braintrace.compile(step, 'rtrl', params, state, xs[0])

    def grad(params, carry):
        (grads, _), carry = learner.grad(loss, params, carry, xs, ys, window=window)
        return grads, carry

    return jax.jit(grad, donate_argnums=1), params, learner.init(params, state)


def run_of_rtrl(units, steps, window):
    """The same as a function of nothing."""
    grad, params, carry = rtrl_of(units, steps, window)

    def run():
        nonlocal carry
        grads, carry = grad(params, carry)
        return grads, carry

    return run


def rtrl_at_size(*sizes):
    """Its milliseconds, and those of its products at the speed of a large one that takes turns with
    it."""
    grad, *given = rtrl_of(*sizes)
    work = work_of(jax.make_jaxpr(grad)(*given))
    product, gflop = large_product()
    ms, of_product = in_turns(run_of_rtrl(*sizes), product, alone=True)
    times = work.flops / 1e9 / gflop  # that product
    return dict(ms=ms, least=[times * t for t in of_product], sizes=sizes)


def temporary_bytes(length, traces=True):
    """Temporary bytes of the compiled gradient of a sequence of this length: of D_RTRL, or without
    traces of BPTT."""

    def step(p, h, x):
        h = jnp.tanh(x @ p['W'] + p['a'] * h)
        return h, h

    def backwards(p, h, xs):
        def loss(p):
            return jax.vmap(mean_square)(jax.lax.scan(partial(step, p), h, xs)[1]).mean()

        return jax.grad(loss)(p)

    params = dict(W=jnp.ones((16, 64)), a=jnp.ones(64))
    state, xs = jnp.zeros((4, 64)), jnp.zeros((length, 4, 16))
    learner = braintrace.compile(step, 'd_rtrl', params, state, xs[0])
    start = learner.init(params, state) if traces else state
    f = jax.jit(partial(learner.grad, mean_square) if traces else backwards)
    compiled = f.lower(params, start, xs).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def compiling():
    """Seconds to compile a GRU, a stack of 100 of them, and a layer of a million units."""
    # Below the public interface, so that no learner is made; the reference has no such modules.
    from braintrace.frontends.function import trace
    from braintrace.graph.compile import compile_step

    def timed(f):
        start = time.perf_counter()
        f()
        return time.perf_counter() - start

    def stack(n):
        layers = [brainstate.nn.GRUCell(8, 8) for _ in range(n)]
        return brainstate.nn.init_all_states(brainstate.nn.Sequential(*layers), batch_size=2)

    def unit(p, h, x):
        return jnp.tanh(p * h + jnp.roll(x, 1)), h

    x, one, many = jnp.ones((2, 8)), stack(1), stack(100)
    big = jnp.ones(1_000_000)
    return dict(
        gru=timed(lambda: braintrace.compile_etrace_graph(one, x)),
        stack=timed(lambda: braintrace.compile_etrace_graph(many, x)),
        million=timed(lambda: compile_step(trace(unit, big, big, big).step)),
    )


def say(**row):
    """Print a row as a line of JSON."""
    print(json.dumps(row), flush=True)


def first_gradient(number):
    """The first gradient of a case."""
    _, *case = CASES[number]
    _, run = driver(*case)
    jax.block_until_ready(run())


def main():
    machine = measure()
    say(case='machine', **machine._asdict())
    for name, cell, rule, shape, options in CASES:
        beside = [bptt(cell, shape)] if OURS else []
        first, ms, *of_bptt = sequence(cell, rule, shape, options, beside=beside)
        [of_bptt] = of_bptt or [None]
        say(case=name, cell=cell, shape=shape, first=first, ms=ms, bptt=of_bptt)
        if OURS:
            work, *memory = least_work(cell, rule, shape, options)
            least, bound = work.least(machine)
            row = dict(of=name, cell=cell, shape=shape, ms=least, bound=bound)
            say(case='limit', **row, taken=memory[0], promised=memory[1])
        if not options:
            first, ms = sequence(cell, rule, shape, options, same_work=True)
            say(case='same work', of=name, cell=cell, first=first, ms=ms)
    if OURS:
        for cell in ('gru', 'fused gru', 'lstm', 'fused lstm'):
            _, run = driver(cell, 'D_RTRL', (64, 128, 16, 100), {})
            say(case='fused', cell=cell, ms=best(run, alone=True)[0])
        say(case='pp_prop by hand', ms=hand_written((64, 128, 16, 100)))
        small = [run_of_rtrl(64, 64, window) for window in (1, 32)]
        say(case='rtrl', ms=best(*small, alone=True))
        say(case='rtrl at size', **rtrl_at_size(*RTRL_AT_SIZE))
        say(case='compiling', seconds=compiling())
        for rule, options in ('D_RTRL', {}), ('D_RTRL', {'fresh': True}), ('pp_prop', {}):
            for cell in ('lif', 'alif'):
                _, taken, promised = least_work(cell, rule, (64, 128, 16, 100), options)
                row = dict(rule=rule, cell=cell, fresh=bool(options))
                say(case='promise', **row, taken=taken, promised=promised)
        for case, traces in (('memory', True), ('memory of BPTT', False)):
            say(case=case, bytes={n: temporary_bytes(n, traces) for n in LENGTHS})


if __name__ == '__main__':
    if len(sys.argv) > 2:
        first_gradient(int(sys.argv[2]))
    else:
        main()
