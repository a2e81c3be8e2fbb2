"""Ours, braintrace 0.2.6 and BPTT side by side on this machine: `run.py OUR_PYTHON REFERENCE_PYTHON [OUTPUT.md]`."""

import json
import pathlib
import platform
import subprocess
import sys

HERE = pathlib.Path(__file__).parent


def measure(python, library, script='worker.py'):
    """The rows a worker prints."""
    print(f'measuring {library}, {script} ...', file=sys.stderr, flush=True)
    done = subprocess.run([python, script, library], cwd=HERE, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f'The worker for {library} failed:\n{done.stderr[-2000:]}')
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{')]


def cpu():
    try:
        return next(line.split(':')[1].strip() for line in open('/proc/cpuinfo') if line.startswith('model name'))
    except (OSError, StopIteration):
        return platform.processor() or 'unknown CPU'


def report(ours, theirs):
    """The tables, in markdown."""
    find = lambda rows, case, cell, shape: next(r for r in rows if (r['case'], r.get('cell'), r.get('shape')) == (case, cell, shape))
    yield f'# Benchmarks\n\nMeasured by `make bench` on {cpu()}, {platform.system()}, float32, best of several calls, each library in its own environment.\n'
    yield '## One gradient of a sequence\n'
    yield '| rule | model, inputs-units-batch-steps | ours, ms | 0.2.6, ms | faster by | BPTT, ms | ours / BPTT | first call, ours / 0.2.6, ms |'
    yield '|---|---|---|---|---|---|---|---|'
    for row in ours:
        if 'shape' in row and row['case'] != 'BPTT':
            other = find(theirs, row['case'], row['cell'], row['shape'])
            bptt = find(ours, 'BPTT', row['cell'], row['shape'])
            model = f'{row["cell"].upper()} {"-".join(map(str, row["shape"]))}'
            yield (f'| {row["case"]} | {model} | {row["ms"]:.1f} | {other["ms"]:.1f} | {other["ms"] / row["ms"]:.1f} x | {bptt["ms"]:.1f} '
                   f'| {row["ms"] / bptt["ms"]:.2f} | {row["first"]:.0f} / {other["first"]:.0f} |')
    yield ('\nUnder single-step credit 0.2.6 gives the read-out and the reset gate of the GRU a gradient of zero, and so does less work; ours get their '
           'same-step gradients.\n')
    by_case = {r['case']: r for r in ours}
    reference = next(r for r in theirs if r['case'] == 'stream')['us']
    yield '## A stream: one jitted call and one update for each step, GRU 16-64-4\n'
    yield '| learner | microseconds a step | against 0.2.6 |\n|---|---|---|'
    yield f'| plain function | {by_case["pure stream"]["us"]:.0f} | {by_case["pure stream"]["us"] / reference:.2f} |'
    yield f'| brainstate module | {by_case["stream"]["us"]:.0f} | {by_case["stream"]["us"] / reference:.2f} |'
    yield f'| brainstate module, backpropagation of the one step alone, no traces | {by_case["floor"]["us"]:.0f} | {by_case["floor"]["us"] / reference:.2f} |'
    yield f'| 0.2.6 | {reference:.0f} | 1 |\n'
    yield '## One product a step\n\nD_RTRL with traces carried on, 64-128-16-100: ' + ', '.join(
        f'{r["cell"]} {r["ms"]:.1f} ms' for r in ours if r['case'] == 'fused') + '.\n'
    one, block = by_case['rtrl']['ms']
    yield f'## Exact RTRL\n\ntanh RNN, 64 units, batch 8, 64 steps: step by step {one:.0f} ms, in blocks of 32 {block:.1f} ms, {one / block:.0f} x faster.\n'
    seconds = by_case['compiling']['seconds']
    yield (f'## Compiling the graph\n\nOne GRU {seconds["gru"]:.2f} s, a stack of 100 {seconds["stack"]:.2f} s, a layer of a million units '
           f'{seconds["million"]:.2f} s.\n')
    sizes = by_case['memory']['bytes']
    yield '## Memory\n\nTemporary bytes of a compiled D_RTRL driver (leaky layer 16-64, batch 4) by length of the sequence: ' + ', '.join(
        f'{n} steps {b / 1e6:.2f} MB' for n, b in sizes.items()) + '.\n'


def report_rules(ours, theirs):
    other = {(r['cell'], r['rule']): r for r in theirs}
    yield '## Every rule\n\nInputs-units-batch-steps 16-32-8-64. Cosine and relative error of the gradient beside BPTT\'s, in windows of 1 and of 16 steps.\n'
    yield '| model | rule | us a step, ours | 0.2.6 | bytes of traces, ours | 0.2.6 | window 1 | window 16 |\n|---|---|---|---|---|---|---|---|'
    for r in ours:
        if 'ms' in r:
            continue
        if 'error' in r:
            yield f'| {r["cell"].upper()} | {r["rule"]} | {r["error"]} | | | | | |'
            continue
        o = other.get((r['cell'], r['rule']), {})
        them = f'{o["us"]:.0f} | {r["bytes"]} | {o["bytes"]}' if 'us' in o else f'{"fails" if "error" in o else "-"} | {r["bytes"]} | -'
        fidelity = ' | '.join(f'{r[k][0]:.3f}, {r[k][1]:.2g}' for k in ('one', 'sixteen'))
        yield f'| {r["cell"].upper()} | {r["rule"]} | {r["us"]:.0f} | {them} | {fidelity} |'
    [mine], [that] = ([r['ms'] for r in rows if 'ms' in r] for rows in (ours, theirs))
    yield f'\nOSTLRecurrent on GRU 64-128-16-100: {mine:.0f} ms, 0.2.6 {that:.0f} ms, {that / mine:.2g} x as fast.\n'


if __name__ == '__main__':
    ours, theirs = measure(sys.argv[1], 'ours'), measure(sys.argv[2], 'reference')
    rules = [measure(python, library, 'rules.py') for python, library in zip(sys.argv[1:3], ('ours', 'reference'), strict=True)]
    text = '\n'.join([*report(ours, theirs), *report_rules(*rules)]) + '\n'
    print(text)
    if len(sys.argv) > 3:
        pathlib.Path(sys.argv[3]).write_text(text)
