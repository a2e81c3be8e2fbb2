"""What a step moves between devices and what each of them holds, from compiled programs:
`python benchmarks/devices.py docs/many_devices.md` writes the tables of that page.

A program is partitioned for as many devices as `--xla_force_host_platform_device_count` says, in a
process of its own; nothing of its size is allocated.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np

UNITS, INPUTS = 1024, 256
SAMPLES = 16  # where they are not divided; otherwise one for each device along their axis
RULES = {'d_rtrl': {'trace_limit': 2**62}, 'pp_prop': {'decay_or_rank': 0.9}, 'rtrl': {}}
SMALLER = {'rtrl': (64, 16)}  # units and inputs, where traces are larger than any device
MEMORY = (16e9, 80e9)  # bytes of a device
COMPILED, COMPUTED = (4, 64), 1024  # devices


def axes_of(devices):
    """The sizes of the mesh by name of its division."""
    root = round(devices**0.5)
    return {
        'samples': {'data': devices},
        'units': {'model': devices},
        'both': {'data': root, 'model': devices // root},
    }


def gru(p, h, x):
    import jax
    import jax.numpy as jnp

    z = jax.nn.sigmoid(x @ p['Wz'] + h @ p['Rz'] + p['bz'])
    r = jax.nn.sigmoid(x @ p['Wr'] + h @ p['Rr'] + p['br'])
    new = jnp.tanh(x @ p['Wn'] + (r * h) @ p['Rn'] + p['bn'])
    h = z * h + (1 - z) * new
    return h, h


def squares(out):
    return (out**2).sum(-1)


def learner_of(rule, samples, units, inputs):
    """A learner of a GRU, and the shapes of its parameters, state and input."""
    import jax

    import braintrace

    def of(*shape):
        return jax.ShapeDtypeStruct(shape, 'float32')

    params = {}
    for gate in 'zrn':
        params |= {f'W{gate}': of(inputs, units), f'R{gate}': of(units, units)}
        params |= {f'b{gate}': of(units)}
    state, x = of(samples, units), of(samples, inputs)
    learner = braintrace.compile(gru, rule, params, state, x, **RULES[rule])
    return learner, params, state, x


# ---- one program ----


def moved(rule, axes):
    """The bytes that one step of a stream moves, of its traces, and of those on a device."""
    import jax
    from collectives import collectives

    units, inputs = SMALLER.get(rule, (UNITS, INPUTS))
    learner, params, state, x = learner_of(rule, axes.get('data', SAMPLES), units, inputs)
    mesh = jax.make_mesh(
        tuple(axes.values()), tuple(axes), axis_types=(jax.sharding.AxisType.Auto,) * len(axes)
    )
    of_params, of_carry, [of_x] = learner.shardings(mesh)

    def placed(a, sharding, *time):
        return jax.ShapeDtypeStruct((*time, *a.shape), a.dtype, sharding=sharding)

    carry = jax.tree.map(placed, jax.eval_shape(learner.init, params, state), of_carry)

    def step(params, carry, xs):
        (grads, _), carry = learner.grad(squares, params, carry, xs)
        return grads, carry

    wanted = of_params, of_carry  # gradients lie where their parameters do
    compiled = (
        jax.jit(step, out_shardings=wanted)
        .lower(jax.tree.map(placed, params, of_params), carry, placed(x, of_x, 1))
        .compile()
    )
    found = collectives(compiled)
    traces = carry.traces.values()
    return {
        'reduced': sum(c.bytes for c in found if c.kind == 'all-reduce'),
        'gathered': sum(c.bytes for c in found if c.kind != 'all-reduce'),
        'largest': max([c.bytes for c in found if c.kind != 'all-reduce'], default=0),
        'traces': sum(bytes_of(a) for a in traces),
        'on a device': sum(bytes_of(a, a.sharding.shard_shape(a.shape)) for a in traces),
    }


def bytes_of(a, shape=None):
    size = a.dtype.itemsize
    for n in a.shape if shape is None else shape:
        size *= n
    return size


def told_by(devices, rule, axes):
    """`moved` in a process with so many devices."""
    flags = f'--xla_force_host_platform_device_count={devices}'
    command = [sys.executable, __file__, '--program', rule, json.dumps(axes)]
    env = {**os.environ, 'XLA_FLAGS': flags, 'JAX_PLATFORMS': 'cpu'}
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


# ---- the largest network ----


def bytes_by_units(rule):
    """The bytes of the traces of one sample, and of the parameters, as polynomials in the units of
    a GRU with a quarter as many inputs: exact, from the reports of four small ones."""
    sizes, traces, weights = (8, 16, 24, 32), [], []
    for units in sizes:
        learner, params, _, _ = learner_of(rule, 1, units, units // 4)
        traces.append(learner.report.memory['trace_bytes'])
        weights.append(sum(bytes_of(a) for a in params.values()))
    return [np.polyfit(sizes, held, 3) for held in (traces, weights)]


def largest(rule, axes, memory):
    """The most units of a GRU with a quarter as many inputs, one sample on each device along the
    axis of samples, whose traces, parameters and gradients fit: traces lie along both axes,
    parameters along that of the units, and where these are divided an array of `units x units` is
    gathered whole. To within one per cent."""
    (traces, weights), split = bytes_by_units(rule), axes.get('model', 1)

    def fits(units):
        kept = (np.polyval(traces, units) + 2 * np.polyval(weights, units)) / split
        return kept + (4 * units**2 if split > 1 else 0) <= memory

    units = 8.0
    while fits(1.01 * units):
        units *= 1.01
    return int(units) // split * split or int(units)


# ---- the page ----


def text_of(size):
    for unit, factor in (('GB', 1e9), ('MB', 1e6), ('kB', 1e3)):
        if size >= factor:
            return f'{size / factor:.3g} {unit}'
    return f'{size:.0f} B'


def round_number(n):
    """With two digits that count."""
    return int(float(f'{n:.2g}'))


def table(head, rows):
    lines = [head, ['---'] * len(head), *rows]
    return '\n'.join(f'| {" | ".join(map(str, line))} |' for line in lines)


def rows_of_moves():
    for rule in RULES:
        for name in axes_of(4):
            every = {n: told_by(n, rule, axes_of(n)[name]) for n in COMPILED}
            for n, told in every.items():
                yield row_of_moves(rule, name, f'{n}', told)
            yield row_of_moves(rule, name, f'{COMPUTED:,} (computed)', computed(name, every))


def computed(name, every):
    """For more devices than were compiled for. What a device holds or moves is a constant and a
    part that is divided along the axis of units; all traces together grow with the samples. Both
    numbers of each follow from 4 and 64 devices."""
    axes = [axes_of(n)[name] for n in (*COMPILED, COMPUTED)]
    share = [1 / a.get('model', 1) for a in axes]
    samples = [a.get('data', SAMPLES) for a in axes]
    few, many = (every[n] for n in COMPILED)
    return {
        part: line(samples if part == 'traces' else share, few[part], many[part]) for part in few
    }


def line(at, first, second):
    """The third value of what is a straight line through the first two."""
    if at[0] == at[1]:
        return second
    return first + (second - first) * (at[2] - at[0]) / (at[1] - at[0])


def row_of_moves(rule, name, devices, told):
    parts = ('traces', 'on a device', 'reduced', 'gathered', 'largest')
    return [f'`{rule}`', name, devices, *[text_of(told[part]) for part in parts]]


def rows_of_sizes():
    for rule in RULES:
        for name in axes_of(4):
            every = [1, *COMPILED, COMPUTED]
            for memory in MEMORY:
                sizes = [
                    f'{round_number(largest(rule, axes_of(n)[name], memory)):,}' for n in every
                ]
                yield [f'`{rule}`', name, text_of(memory), *sizes]


def write(page):
    """Put the tables between their marks."""
    told = page.read_text()
    moves = ['rule', 'split', 'devices', 'traces', 'on a device']
    moves += ['reduced', 'gathered', 'largest gathered']
    sizes = ['rule', 'split', 'memory', '1 device', '4', '64', '1,024']
    made = {
        'moves': table(moves, list(rows_of_moves())),
        'sizes': table(sizes, list(rows_of_sizes())),
    }
    for mark, text in made.items():
        begin, end = f'<!-- {mark} -->\n', f'\n<!-- end of {mark} -->'
        told = re.sub(f'{begin}.*?{end}', f'{begin}{text}{end}', told, flags=re.DOTALL)
    page.write_text(told)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('page', nargs='?', type=pathlib.Path)
    parser.add_argument('--program', nargs=2, help='a rule, and the axes of a mesh as JSON')
    asked = parser.parse_args()
    if asked.program:
        rule, axes = asked.program
        print(json.dumps(moved(rule, json.loads(axes))))
    else:
        write(asked.page)


if __name__ == '__main__':
    main()
