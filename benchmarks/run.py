"""Ours, braintrace 0.2.6 and BPTT side by side on this machine: `run.py OUR_PYTHON REFERENCE_PYTHON [OUTPUT.md]`."""

import json
import os
import pathlib
import platform
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent


def measure(python, library, script='worker.py', *case):
    """The rows a worker prints."""
    print(f'measuring {library}, {script} ...', file=sys.stderr, flush=True)
    clean = {
        k: v for k, v in os.environ.items() if k != 'PYTHONPATH'
    }  # each library from its own environment, whatever is around
    done = subprocess.run(
        [python, script, library, *case], cwd=HERE, capture_output=True, text=True, env=clean
    )
    if done.returncode:
        raise SystemExit(f'The worker for {library} failed:\n{done.stderr[-2000:]}')
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{')]


def cpu():
    try:
        return next(
            line.split(':')[1].strip()
            for line in open('/proc/cpuinfo')
            if line.startswith('model name')
        )
    except (OSError, StopIteration):
        return platform.processor() or 'unknown CPU'


def seconds(python, library, case):
    """The life of a process that imports a library, compiles a model and computes its first gradient."""
    start = time.perf_counter()
    measure(python, library, 'worker.py', str(case))
    return time.perf_counter() - start


def least(*values):
    """The smallest of each number in records of the same form: what a noisy machine adds is left out."""
    if isinstance(values[0], dict):
        return {k: least(*(v[k] for v in values)) for k in values[0]}
    return (
        [least(*v) for v in zip(*values, strict=True)]
        if isinstance(values[0], list)
        else min(values)
    )


def report(ours, theirs, starts):
    """The tables, in markdown."""
    find = lambda rows, case, cell, shape: next(
        r for r in rows if (r['case'], r.get('cell'), r.get('shape')) == (case, cell, shape)
    )
    yield f'# Benchmarks\n\nMeasured by `make bench` on {cpu()}, {platform.system()}, float32, best of several calls, each library in its own environment.\n'
    yield '## One gradient of a sequence\n'
    yield (
        '| rule | model, inputs-units-batch-steps | ours, ms | 0.2.6, ms | faster by | BPTT, ms | ours / BPTT | first call, ours / 0.2.6, ms '
        '| a process to the first gradient, s |'
    )
    yield '|---|---|---|---|---|---|---|---|---|'
    starts = iter(starts)
    for row in ours:
        if 'shape' in row and row['case'] != 'BPTT':
            start = next(starts)
            other = find(theirs, row['case'], row['cell'], row['shape'])
            bptt = find(ours, 'BPTT', row['cell'], row['shape'])
            model = f'{row["cell"].upper()} {"-".join(map(str, row["shape"]))}'
            yield (
                f'| {row["case"]} | {model} | {row["ms"]:.1f} | {other["ms"]:.1f} | {other["ms"] / row["ms"]:.1f} x | {bptt["ms"]:.1f} '
                f'| {row["ms"] / bptt["ms"]:.2f} | {row["first"]:.0f} / {other["first"]:.0f} | {start[0]:.1f} / {start[1]:.1f} |'
            )
    by_case = {r['case']: r for r in ours}
    yield (
        '\nUnder single-step credit 0.2.6 gives the read-out and the reset gate of the GRU a gradient of zero, and so does less work; ours get their '
        f'same-step gradients. pp_prop with all gradients written out by hand in JAX for this one GRU (`benchmarks/by_hand.py`): '
        f'{by_case["pp_prop by hand"]["ms"]:.1f} ms.\n'
    )
    reference = next(r for r in theirs if r['case'] == 'stream')['us']
    yield '## A stream: one jitted call and one update for each step, GRU 16-64-4\n'
    yield '| learner | microseconds a step | against 0.2.6 |\n|---|---|---|'
    yield f'| plain function | {by_case["pure stream"]["us"]:.0f} | {by_case["pure stream"]["us"] / reference:.2f} |'
    for what, case in (
        ('brainstate module, `etrace_stream`', 'own stream'),
        ("brainstate module, in brainstate's `jit`", 'stream'),
        ("backpropagation of the one step alone, no traces, in brainstate's `jit`", 'floor'),
    ):
        yield f'| {what} | {by_case[case]["us"]:.0f} | {by_case[case]["us"] / reference:.2f} |'
    yield f"| 0.2.6, in brainstate's `jit` | {reference:.0f} | 1 |\n"
    yield (
        '## One product a step\n\nD_RTRL with traces carried on, 64-128-16-100: '
        + ', '.join(f'{r["cell"]} {r["ms"]:.1f} ms' for r in ours if r['case'] == 'fused')
        + '.\n'
    )
    one, block = by_case['rtrl']['ms']
    yield f'## Exact RTRL\n\ntanh RNN, 64 units, batch 8, 64 steps: step by step {one:.0f} ms, in blocks of 32 {block:.1f} ms, {one / block:.0f} x faster.\n'
    seconds = by_case['compiling']['seconds']
    yield (
        f'## Compiling the graph\n\nOne GRU {seconds["gru"]:.2f} s, a stack of 100 {seconds["stack"]:.2f} s, a layer of a million units '
        f'{seconds["million"]:.2f} s.\n'
    )
    sizes = by_case['memory']['bytes']
    yield (
        '## Memory\n\nTemporary bytes of a compiled D_RTRL driver (leaky layer 16-64, batch 4) by length of the sequence: '
        + ', '.join(f'{n} steps {b / 1e6:.2f} MB' for n, b in sizes.items())
        + '.\n'
    )


def report_rules(ours, theirs):
    other = {(r['cell'], str(r['shape']), r['rule']): r for r in theirs}
    yield """## Every rule

One `etrace_grad`, traces carried on, in blocks as `window='auto'` picks them; inputs-units-batch-steps beside the model. Cosine and relative error of the
gradient beside BPTT's: in windows of one step, that is with single-step credit (as in 0.2.6), and with exact credit inside windows of 16 steps. RTRL, KFRTRL,
LowRankRTRL and UORO have exact credit inside windows by default, so that their time is that of longer blocks. SnAp of 0.2.6 leaves out the reset gate of a
GRU; ours follows it to all units it reaches, which costs more.

| model | rule | us a step, ours | 0.2.6 | BPTT | bytes of traces, ours | 0.2.6 | ours, cosine and error | 0.2.6 | ours, window 16 |
|---|---|---|---|---|---|---|---|---|---|"""
    number = lambda r, k, form='{:.0f}': (
        form.format(r[k]) if k in r else 'fails' if 'error' in r else '-'
    )
    pair = lambda r, k: '{:.3f}, {:.2g}'.format(*r[k]) if k in r else '-'
    for r in ours:
        if r['rule'] == 'BPTT':
            bptt = r
            continue
        o = other.get((r['cell'], str(r['shape']), r['rule']), {})
        yield (
            f'| {r["cell"].upper()} {"-".join(map(str, r["shape"]))} | {r["rule"]} | {number(r, "us")} | {number(o, "us")} | {bptt["us"]:.0f} | '
            f'{number(r, "bytes")} | {number(o, "bytes")} | {pair(r, "one")} | {pair(o, "one")} | {pair(r, "sixteen")} |'
        )
    slower = [
        f'{r["rule"]} on {r["cell"].upper()} {"-".join(map(str, r["shape"]))}'
        for r in ours
        for o in [other.get((r['cell'], str(r['shape']), r['rule']), {})]
        if 'us' in r and 'us' in o and r['us'] > o['us'] and r['rule'] != 'BPTT'
    ]
    yield '\nSlower than 0.2.6: ' + (', '.join(slower) or 'none') + '.\n'
    worse = [
        f'{r["rule"]} on {r["cell"].upper()} {"-".join(map(str, r["shape"]))}'
        for r in ours
        for o in [other.get((r['cell'], str(r['shape']), r['rule']), {})]
        if 'one' in r and 'one' in o and r['one'][1] > o['one'][1] + 0.01
    ]
    yield 'Further from BPTT than 0.2.6: ' + (', '.join(worse) or 'none') + '.\n'
    failed = {f'{r["cell"].upper()}: {r["error"]}' for r in theirs if 'error' in r}
    yield 'Where 0.2.6 fails: ' + ('; '.join(sorted(failed)) or 'nowhere') + '\n'
    yield """## How to repeat it

`make bench` sets up one environment with this project and one with braintrace 0.2.6, runs `benchmarks/worker.py` and `benchmarks/rules.py` in each, and
writes this page. Both libraries are used through their public interface, on the models of `benchmarks/models.py`, which are written once for both: only the
class of linear layers differs. Keep the machine idle meanwhile: it takes about half an hour.
"""


if __name__ == '__main__':
    both = list(zip(sys.argv[1:3], ('ours', 'reference'), strict=True))
    ours, theirs = least(
        *([measure(*library) for library in both] for _ in range(2))
    )  # in turns: a machine has its moods
    starts = least(
        *([[seconds(*library, case) for library in both] for case in range(5)] for _ in range(2))
    )
    rules = [measure(*library, 'rules.py') for library in both]
    text = '\n'.join([*report(ours, theirs, starts), *report_rules(*rules)]) + '\n'
    print(text)
    if len(sys.argv) > 3:
        pathlib.Path(sys.argv[3]).write_text(text)
