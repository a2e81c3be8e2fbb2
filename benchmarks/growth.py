"""How the cost of a gradient grows, one axis at a time, and what linear units and sparse
neighbourhoods cost.

`growth.py PAGE.md`, or without a page to print it.

What was measured is kept in `figures.json`, and the chart is made from that.
"""

import json
import pathlib
import sys
import time
import warnings

import charts
import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from page import in_short, table_row, with_section
from run import store

import braintrace

warnings.simplefilter('ignore')
BASE = dict(inputs=16, units=32, batch=4, steps=64, layers=1)
SIZES = dict(
    units=(32, 64, 128, 256),
    batch=(4, 16, 64, 256),
    inputs=(16, 64, 256, 1024),
    steps=(64, 256, 1024, 4096),
    layers=(1, 2, 4, 8),
)
RULES = {'d_rtrl': {}, 'pp_prop': dict(decay_or_rank=0.9), 'bptt': {}}
COLOURS = {'d_rtrl': charts.OURS, 'pp_prop': charts.WINDOW, 'bptt': charts.BPTT}
DEEP = 1, 10, 100
LINEAR = [(units, batch) for units in (64, 128) for batch in (1, 8)]
GROWTH = """## Cost as work grows

A gradient of GRU layers with traces carried on, as plain functions; one of inputs, units, batch, \
steps and layers grows, the others stay at {base}. Milliseconds of a gradient, and the slope of \
the last step in a double logarithmic chart: 1 is in proportion, 2 with the square. By their \
equations all three grow with the square of the units and in proportion to the rest.

![Milliseconds of a gradient over units, batch, inputs, steps and layers](charts/growth.png)

| what grows | sizes | D_RTRL, ms | slope | pp_prop, ms | slope | BPTT, ms | slope |
|---|---|---|---|---|---|---|---|"""
DEPTH = """
Seconds until the first gradient of a stack of GRU layers is there, 8 units each, compiling \
included:

| layers | D_RTRL | BPTT |
|---|---|---|"""
UNITS = """
## Units that act on themselves alone

D_RTRL with traces carried on beside BPTT, both exact here: recurrent trace units (two real states \
a unit; rotation and leak are weights) and linear recurrent units (one complex state), 16 inputs, \
200 steps, each measured in turns.

| units | number | batch | D_RTRL, ms | BPTT, ms | ratio |
|---|---|---|---|---|---|"""

MASKED = """
## SnAp on masked weights

SnAp-2 on an LSTM of 128 units and 128 inputs, batch 4, 6 steps, traces carried on. Each unit \
hears some others, drawn at random. "Rows" is how many of the 256 numbers of the state a weight \
remembers.

| others that a unit hears | rows | a gradient, s |
|---|---|---|"""
HEARD = 6, 12, 30, 128


def squared(out, y):
    return ((out - y) ** 2).mean()


def drawn(*shape, seed=0):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.standard_normal(shape, np.float32) / np.sqrt(shape[0]))


def gru(inputs, units, batch, steps, layers):
    """A stack of GRU layers: step, parameters, state, inputs and targets."""

    def one(p, h, x):
        both = jnp.concatenate([x, h], -1)
        z, r = jax.nn.sigmoid(both @ p['z']), jax.nn.sigmoid(both @ p['r'])
        n = jnp.tanh(jnp.concatenate([x, r * h], -1) @ p['n'])
        return (1 - z) * h + z * n

    def step(params, states, x):
        new = []
        for p, h in zip(params['layers'], states, strict=True):
            x = one(p, h, x)
            new.append(x)
        return new, x @ params['out']

    sizes = [inputs, *[units] * (layers - 1)]
    cells = [{g: drawn(n + units, units, seed=i) for i, g in enumerate('zrn')} for n in sizes]
    params = dict(layers=cells, out=drawn(units, 4))
    states = [jnp.zeros((batch, units))] * layers
    return step, params, states, drawn(steps, batch, inputs), drawn(steps, batch, 4, seed=1)


def trace_units(units, batch):
    """Two real states a unit, which turn and fade."""

    def step(p, state, x):
        a, b = state
        size = jnp.exp(-jnp.exp(p['fade']))
        c, s = size * jnp.cos(p['turn']), size * jnp.sin(p['turn'])
        a, b = c * a - s * b + x @ p['A'], s * a + c * b + x @ p['B']
        return (a, b), jax.nn.relu(jnp.concatenate([a, b], -1)) @ p['out']

    params = dict(A=drawn(16, units), B=drawn(16, units, seed=1), out=drawn(2 * units, 4))
    state = jnp.zeros((batch, units)), jnp.zeros((batch, units))
    return step, params | _turning(units), state, *_sequences(batch)


def linear_units(units, batch):
    """One complex state a unit."""

    def step(p, h, x):
        h = jnp.exp(-jnp.exp(p['fade']) + 1j * p['turn']) * h + x @ p['B']
        return h, (h @ p['out']).real

    def complex_drawn(*shape):
        return drawn(*shape) + 1j * drawn(*shape, seed=1)

    params = dict(B=complex_drawn(16, units), out=complex_drawn(units, 4))
    state = jnp.zeros((batch, units), jnp.complex64)
    return step, params | _turning(units), state, *_sequences(batch)


def masked_lstm(heard, units=128, batch=4, steps=6):
    """An LSTM in which each unit hears some others."""
    rng = np.random.default_rng(0)
    mask = np.eye(units, dtype=np.float32)
    for unit in range(units):
        mask[rng.choice(units, heard, replace=False), unit] = 1
    mask = jnp.concatenate([jnp.ones((units, units)), mask])

    def step(p, state, x):
        c, h = state
        both = jnp.concatenate([x, h], -1)
        i, f, o = (jax.nn.sigmoid(both @ (p[gate] * mask)) for gate in 'ifo')
        c = f * c + i * jnp.tanh(both @ (p['g'] * mask))
        h = o * jnp.tanh(c)
        return (c, h), h @ p['out']

    params = {gate: drawn(2 * units, units, seed=k) for k, gate in enumerate('ifog')}
    params['out'] = drawn(units, 4)
    state = jnp.zeros((batch, units)), jnp.zeros((batch, units))
    return step, params, state, drawn(steps, batch, units), drawn(steps, batch, 4, seed=1)


def seconds_of_snap(heard):
    """Rows that a trace keeps, and seconds of a gradient."""
    step, params, state, xs, ys = masked_lstm(heard)
    learner = braintrace.compile(step, 'snap', params, state, xs[0], n=2)
    carry = learner.init(params, state)
    trace = next(a for a in carry.traces.values() if a.ndim > 3)
    rows = trace.size // (4 * 128 * 256)
    [ms] = milliseconds([lambda: learner.grad(squared, params, carry, xs, ys)[0][0]], 7)
    return rows, ms / 1e3


def _turning(units):
    return dict(fade=jnp.linspace(-3.0, -1.0, units), turn=jnp.linspace(0.0, 3.0, units))


def _sequences(batch):
    return drawn(200, batch, 16), drawn(200, batch, 4, seed=1)


def online(rule, options, step, params, state, xs, ys):
    """A gradient as a function of nothing."""
    learner = braintrace.compile(step, rule, params, state, xs[0], **options)
    carry = learner.init(params, state)
    return lambda: learner.grad(squared, params, carry, xs, ys)[0][0]


def backwards(step, params, state, xs, ys):
    """The same by BPTT in plain JAX."""

    @jax.jit
    def gradient(params):
        def loss(params):
            _, outs = jax.lax.scan(lambda h, x: step(params, h, x), state, xs)
            return jax.vmap(squared)(outs, ys).mean()

        return jax.grad(loss)(params)

    return lambda: gradient(params)


def of_rule(rule, model):
    return backwards(*model) if rule == 'bptt' else online(rule, RULES[rule], *model)


def milliseconds(runs, rounds=12):
    """The least of each, measured in turns after a first call."""
    for run in runs:
        jax.block_until_ready(run())
    taken = [[] for _ in runs]
    end = time.perf_counter() + 20
    for turn in range(rounds):
        if turn > 2 and time.perf_counter() > end:
            break
        for run, times in zip(runs, taken, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(run())
            times.append((time.perf_counter() - start) * 1e3)
    return [min(times) for times in taken]


def measure():
    """Milliseconds by axis, rule and size; seconds by depth; milliseconds of linear units."""
    grown: dict = {}
    for axis, sizes in SIZES.items():
        for size in sizes:
            model = gru(**{**BASE, axis: size})
            times = milliseconds([of_rule(rule, model) for rule in RULES])
            for rule, ms in zip(RULES, times, strict=True):
                grown.setdefault(axis, {}).setdefault(rule, []).append(ms)
    deep = {}
    for layers in DEEP:
        model = gru(inputs=8, units=8, batch=2, steps=20, layers=layers)
        deep[layers] = [seconds_to_first(rule, model) for rule in ('d_rtrl', 'bptt')]
    linear = []
    for kind in (trace_units, linear_units):
        for units, batch in LINEAR:
            model = kind(units, batch)
            times = milliseconds([of_rule(rule, model) for rule in ('d_rtrl', 'bptt')], 300)
            linear.append([kind.__name__.replace('_', ' '), units, batch, *times])
    masked = [[heard, *seconds_of_snap(heard)] for heard in HEARD]
    return dict(grown=grown, deep=deep, linear=linear, masked=masked)


def seconds_to_first(rule, model):
    start = time.perf_counter()
    jax.block_until_ready(of_rule(rule, model)())
    return time.perf_counter() - start


def slope(sizes, times):
    """How the last step grows."""
    return float(np.log(times[-1] / times[-2]) / np.log(sizes[-1] / sizes[-2]))


def report(figures):
    """The section of the page."""
    base = ', '.join(f'{n} {axis}' for axis, n in BASE.items())
    lines = [GROWTH.format(base=base)]
    for axis, by_rule in figures['grown'].items():
        cells = [axis, ', '.join(map(str, SIZES[axis]))]
        for times in by_rule.values():
            cells += [', '.join(f'{ms:.3g}' for ms in times), f'{slope(SIZES[axis], times):.1f}']
        lines.append(table_row(cells))
    lines.append(DEPTH)
    for layers, seconds in figures['deep'].items():
        lines.append(table_row([str(layers), *[f'{s:.1f}' for s in seconds]]))
    lines.append(UNITS)
    for kind, units, batch, ours, bptt in figures['linear']:
        lines.append(
            table_row(
                [kind, str(units), str(batch), f'{ours:.2f}', f'{bptt:.2f}', f'{ours / bptt:.2f}']
            )
        )
    lines.append(MASKED)
    for heard, rows, seconds in figures['masked']:
        lines.append(table_row([str(heard), str(rows), f'{seconds:.2f}']))
    return '\n'.join(lines) + '\n'


def chart(grown):
    """Milliseconds over each axis."""
    figure = Figure(figsize=(12, 3.4))
    for axes, (axis, by_rule) in zip(figure.subplots(1, 5), grown.items(), strict=True):
        for rule, times in by_rule.items():
            axes.loglog(SIZES[axis], times, 'o-', color=COLOURS[rule], markersize=4)
        axes.set_title(axis, fontsize=9, loc='left')
        charts.plain(axes)
    figure.axes[0].set_ylabel('ms of a gradient', fontsize=8)
    figure.tight_layout(rect=(0, 0, 1, 0.8))
    return charts.finish(figure, 'How the cost of a gradient grows', COLOURS)


def main(page=None):
    figures = json.loads(charts.FIGURES.read_text())
    figures['growth'] = measure()
    store(figures)
    chart(figures['growth']['grown']).savefig(charts.CHARTS / 'growth.png', dpi=110)
    text = report(figures['growth'])
    print(text)
    if page is not None:
        file = pathlib.Path(page)
        for section in [in_short(figures), *text.split('\n\n## ')]:
            file.write_text(with_section(file.read_text(), section))


if __name__ == '__main__':
    main(*sys.argv[1:2])
