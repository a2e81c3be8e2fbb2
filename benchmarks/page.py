"""The page of the benchmarks, in markdown, from the rows that the workers print."""

import platform
import statistics

ONE_GRADIENT = (
    '| rule | model, inputs-units-batch-steps | ours, ms | 0.2.6, ms | faster by | BPTT, ms '
    '| ours / BPTT | at least, ms | first call, ours / 0.2.6, ms '
    '| a process to the first gradient, s | memory of a gradient, taken / promised, MB |\n'
    '|---|---|---|---|---|---|---|---|---|---|---|'
)
SAME_WORK = (
    '| rule | ours / 0.2.6, ms | faster by | first call, ours / 0.2.6, ms | ratio |\n'
    '|---|---|---|---|---|'
)
STREAMS = """## A stream: one jitted call and one update for each step, GRU 16-64-4

On a CPU JAX has another thread run a program, and the calls of a stream, of which each waits for \
the last, wait for threads to wake up: how long depends on the machine, and varies. \
`jax.config.update('jax_cpu_enable_async_dispatch', False)`, before anything is computed, has the \
thread that calls run it, see [long runs](long_runs.md#steps-of-microseconds).

| learner | microseconds a step, by default | against 0.2.6 | run by the caller | against 0.2.6 |
|---|---|---|---|---|"""
LEARNERS = {
    'plain function': 'pure stream',
    'an empty call with the arguments and results of that': 'empty stream',
    'brainstate module, `etrace_stream`': 'own stream',
    "brainstate module, in brainstate's `jit`": 'stream',
    "backpropagation of the one step alone, no traces, in brainstate's `jit`": 'floor',
}
EVERY_RULE = """## Every rule

One `etrace_grad`, traces carried on, in blocks as `window='auto'` picks them; inputs-units-batch-\
steps beside the model. Cosine and relative error of the
gradient beside BPTT's: in windows of one step, that is with single-step credit (as in 0.2.6), and \
with exact credit inside windows of 16 steps. RTRL, KFRTRL,
LowRankRTRL and UORO have exact credit inside windows by default, so that their time is that of \
longer blocks. SnAp of 0.2.6 leaves out the reset gate of a
GRU; ours follows it to all units it reaches, which costs more. With `far_reach=False` it does the \
same work.

<details><summary>The table</summary>

| model | rule | us a step, ours | 0.2.6 | ratio | BPTT | bytes of traces, ours | 0.2.6 \
| ours, cosine and error | 0.2.6 | ours, window 16 |
|---|---|---|---|---|---|---|---|---|---|---|"""
OWN_LOOPS = """## In a loop of one's own

A learner that is called step by step in brainstate's `scan`, with `grad` of each step inside and \
the gradients added up: the whole sequence, milliseconds, ours / 0.2.6. With "all gradients" ours \
gives one to the read-out and to the reset gate of the GRU too, to which 0.2.6 gives none; \
"the same work" leaves those out on both sides.

| rule | model, inputs-units-batch-steps | all gradients | ratio | the same work | ratio |
|---|---|---|---|---|---|"""
EXACT_CREDIT = """## Exact credit inside windows

With `vjp_method='multi-step'` credit is exact inside a window, and a rule differs from BPTT by \
what it lets cross the window's edge. Relative error of the gradient in
float64, the mean of ten nets with random weights; inputs-units-batch-steps beside the model. \
Both libraries have the same weights and data.

<details><summary>The table</summary>

| model | rule | window 1, ours | 0.2.6 | window 4, ours | 0.2.6 |
|---|---|---|---|---|---|"""
FOLDED = '\n</details>\n'  # after a long table
CHARTS = """\
![Microseconds a step of every rule, by model and size, beside 0.2.6 and BPTT](charts/time.png)

![Relative error of the gradient of every rule beside BPTT's, by model and size](charts/error.png)

![Memory of a gradient over the length of the sequence, of D_RTRL and of BPTT; bytes of the traces \
of each rule](charts/memory.png)
"""
REMARKS = {
    'kappa': (
        'The filter of e-prop is the memory of a leaky read-out, seen from the weights below. The '
        'nets of the last rows have such a read-out, `y <- 0.9 y + W h`, the others have not.\n'
    ),
    'SnAp': (
        'SnAp of 0.2.6 drops in each step what leaves a neighbourhood. Here influence takes all '
        'ways through a window and is dropped at its end: nearer on most nets, not on all.\n'
    ),
}
HOW_TO_REPEAT = """## How to repeat it

`make bench` sets up one environment with this project and one with braintrace 0.2.6, runs \
`benchmarks/worker.py`, `benchmarks/streams.py`, `benchmarks/own_loops.py`, \
`benchmarks/rules.py` and `benchmarks/credit.py` in each, keeps what was \
measured in `benchmarks/figures.json`, and
writes this page and its charts from that; `make charts` draws the charts again. \
`python benchmarks/run.py OURS REFERENCE docs/benchmarks.md credit`, with two interpreters, \
measures exact credit alone, and so do `worker`, `streams`, `loops`, `starts` and `rules` for \
the other parts. Both libraries are used through their public \
interface, on the models of `benchmarks/models.py`, which are written once for both: only the
class of linear layers differs. Keep the machine idle meanwhile: it takes about half an hour.
"""


PARTS = {
    'worker': 'gradients',
    'streams': 'streams',
    'loops': "loops of one's own",
    'starts': 'the times of whole processes',
    'rules': 'the table of every rule and its charts',
    'credit': 'exact credit inside windows',
}


def beginning(earlier):
    """The head of the page; `earlier` names the parts that were not measured in the last run."""
    text = (
        f'# Benchmarks\n\nMeasured by `make bench` on {cpu()}, {platform.system()}, float32, the '
        'fastest of many calls, in turns with the other library and with BPTT. A ratio is the '
        'median over the turns.'
    )
    if earlier:
        parts = ', '.join(PARTS[part] for part in earlier)
        text += f' Of an earlier run than the rest, maybe on another machine: {parts}.'
    return text + '\n'


def in_short(figures):
    """What counts, in a few lines and the charts: the first section of the page."""
    (ours, theirs), rules = figures['worker'], figures['rules']
    by_case = {row['case']: row for row in ours}
    to_bptt, faster, firsts = [], [], []
    for row in sequences(ours):
        to_bptt.append(ratio(row['ms'], row['bptt']))
        reference = find(theirs, row['case'], row['cell'], row['shape'])
        faster.append(ratio(reference['ms'], row['ms']))
        firsts.append(ratio(row['first'], reference['first']))
    stream, reference = microseconds(figures['streams'][1], 'pure stream')
    short, *_, long = by_case['memory']['bytes'].items()
    other = {key(row): row for row in rules[1]}
    shared = [(row, other[key(row)]) for row in rules[0] if 'us' in other.get(key(row), {})]
    slower = sum(is_slower(*both) for both in shared)
    return (
        '## In short\n\n'
        f'- **A gradient of a sequence**, online, takes {span(to_bptt, 2)} of the time of BPTT, '
        f'and is {span(faster, 1)} times as fast as in 0.2.6: five cases, '
        '[the first table](#one-gradient-of-a-sequence).\n'
        '- **A stream**, one step with its update, run by the thread that calls: '
        f'{min(stream):.0f} microseconds, {ratio(stream, reference):.2f} of what 0.2.6 takes.\n'
        f'- **Memory** hardly grows with the sequence: {long[0]} steps take {long[1] / 1e6:.1f} MB '
        f'where {short[0]} take {short[1] / 1e6:.1f}.\n'
        f'- **Where ours is behind**: slower than 0.2.6 in {slower} of {len(shared)} cases of '
        f'[every rule](#every-rule); first calls take {span(firsts, 2)} of the time of 0.2.6; '
        f'{linear_units(figures)}all of it is told below.\n\n{CHARTS}'
    )


def linear_units(figures):
    """What units that act on themselves cost beside BPTT, if it was measured."""
    if 'growth' not in figures:
        return ''
    ratios = [ours / bptt for *_, ours, bptt in figures['growth']['linear']]
    return (
        '[units that act on themselves alone](#units-that-act-on-themselves-alone) take '
        f'{span(ratios, 2)} of the time of BPTT; '
    )


def ratio(times, others):
    """Of times that were measured in turns: the median over the turns, since what the machine did
    in one of them happened to both."""
    return statistics.median(a / b for a, b in zip(times, others, strict=False))


def span(numbers, digits):
    return f'{min(numbers):.{digits}f} to {max(numbers):.{digits}f}'


def report(ours, theirs, starts, of_streams):
    """The cases of `worker.py`: rows of ours, of the reference, and seconds of whole processes; the
    lines about streams come after the first table."""
    by_case = {row['case']: row for row in ours}
    yield from one_gradient(ours, theirs, starts, by_case['pp_prop by hand']['ms'])
    yield from of_streams
    fused = [f'{row["cell"]} {row["ms"]:.1f} ms' for row in ours if row['case'] == 'fused']
    yield (
        '## One product a step\n\nD_RTRL with traces carried on, 64-128-16-100: '
        f'{", ".join(fused)}.\n'
    )
    one, block = by_case['rtrl']['ms']
    yield (
        f'## Exact RTRL\n\ntanh RNN, 64 units, batch 8, 64 steps: step by step {one:.0f} ms, '
        f'in blocks of 32 {block:.1f} ms, {one / block:.0f} x faster.\n'
    )
    row = by_case['rtrl at size']
    units, steps, window = row['sizes']
    yield (
        f'{units} units, {steps} steps in blocks of {window}: {min(row["ms"]):.0f} ms. Its '
        f'products alone take {min(row["least"]):.0f} ms at the speed of one large product in the '
        f'same turns, {ratio(row["least"], row["ms"]):.0%} of that.\n'
    )
    seconds = by_case['compiling']['seconds']
    yield (
        f'## Compiling the graph\n\nOne GRU {seconds["gru"]:.2f} s, a stack of 100 '
        f'{seconds["stack"]:.2f} s, a layer of a million units {seconds["million"]:.2f} s.\n'
    )
    sizes = by_case['memory']['bytes'].items()
    yield (
        '## Memory\n\nTemporary bytes of a compiled D_RTRL driver (leaky layer 16-64, batch 4) by '
        'length of the sequence: '
        + ', '.join(f'{steps} steps {size / 1e6:.2f} MB' for steps, size in sizes)
        + '.\n'
    )
    spiking = [
        f'{row["rule"]}{", fresh" * row["fresh"]} on {row["cell"].upper()} '
        f'{row["taken"] / 1e6:.1f} / {row["promised"] / 1e6:.1f}'
        for row in ours
        if row['case'] == 'promise'
    ]
    yield (
        'Memory of a gradient, taken / promised, as in the first table, of spiking networks '
        f'64-128-16-100, in MB: {", ".join(spiking)}.\n'
    )


def cpu():
    """What the machine calls its processor."""
    try:
        with open('/proc/cpuinfo') as file:
            return next(
                line.split(':')[1].strip() for line in file if line.startswith('model name')
            )
    except (OSError, StopIteration):
        return platform.processor() or 'unknown CPU'


def model_of(row):
    cell, *rest = row['cell'].split(', ')
    name = cell.upper() if len(cell) < 5 else cell
    return ', '.join([f'{name} {"-".join(map(str, row["shape"]))}', *rest])


def one_gradient(ours, theirs, starts, by_hand):
    """The table of the cases of a whole sequence."""
    yield '## One gradient of a sequence\n'
    yield ONE_GRADIENT
    for row, (our_start, their_start) in zip(sequences(ours), starts, strict=True):
        other = find(theirs, row['case'], row['cell'], row['shape'])
        limit = next(
            r
            for r in ours
            if (r.get('of'), r.get('cell'), r.get('shape'))
            == (row['case'], row['cell'], row['shape'])
        )
        cells = [
            row['case'],
            model_of(row),
            f'{min(row["ms"]):.1f}',
            f'{min(other["ms"]):.1f}',
            f'{ratio(other["ms"], row["ms"]):.1f} x',
            f'{min(row["bptt"]):.1f}',
            f'{ratio(row["ms"], row["bptt"]):.2f}',
            f'{limit["ms"]:.1f}, {limit["bound"]}',
            f'{min(row["first"]):.0f} / {min(other["first"]):.0f}',
            f'{our_start:.1f} / {their_start:.1f}',
            f'{limit["taken"] / 1e6:.1f} / {limit["promised"] / 1e6:.1f}',
        ]
        yield table_row(cells)
    yield (
        '\nUnder single-step credit 0.2.6 gives the read-out and the reset gate of the GRU a '
        'gradient of zero, and so does less work; ours get their same-step gradients. pp_prop with '
        'all gradients written out by hand in JAX for this one GRU (`benchmarks/by_hand.py`): '
        f'{by_hand:.1f} ms. The same work, gradients of the other weights alone:\n'
    )
    yield SAME_WORK
    for row, other in zip(same_work(ours), same_work(theirs), strict=True):
        cells = [
            row['of'],
            f'{min(row["ms"]):.1f} / {min(other["ms"]):.1f}',
            f'{ratio(other["ms"], row["ms"]):.2f} x',
            f'{min(row["first"]):.0f} / {min(other["first"]):.0f}',
            f'{ratio(row["first"], other["first"]):.2f}',
        ]
        yield table_row(cells)
    yield ''
    machine = next(row for row in ours if row['case'] == 'machine')
    yield (
        '"At least" is what the products of the program take at the speed of one large product '
        f'({1 / machine["gflop"]:.0f} Gflop/s here), or what it must read and write, its traces '
        f'once a block, at the speed of a copy ({1 / machine["gigabyte"]:.0f} GB/s), or an empty '
        f'compiled call ({machine["call"] * 1e6:.0f} us), whichever is most. The memory of a '
        'gradient is what its compiled program takes besides weights and data, beside what '
        '`learner.report` says.\n'
    )


def sequences(rows):
    """The cases of a whole sequence."""
    return [row for row in rows if 'shape' in row and row['case'] != 'limit']


def same_work(rows):
    """The cases with gradients of those weights alone to which 0.2.6 gives one."""
    return [row for row in rows if row['case'] == 'same work']


def find(rows, case, cell, shape):
    """The row of this case."""
    wanted = case, cell, shape
    return next(r for r in rows if (r['case'], r.get('cell'), r.get('shape')) == wanted)


def table_row(cells):
    return f'| {" | ".join(cells)} |'


def streams(by_default, inline):
    """The table of streams: rows of ours and of the reference, run as JAX does by default and by
    the thread that calls."""
    yield STREAMS
    for learner, case in LEARNERS.items():
        cells = [learner]
        for rows in (by_default, inline):
            us, reference = microseconds(rows, case)
            cells += [f'{min(us):.0f}', f'{ratio(us, reference):.2f}']
        yield table_row(cells)
    references = [microseconds(rows, 'stream')[1] for rows in (by_default, inline)]
    cells = [cell for us in references for cell in (f'{min(us):.0f}', '1')]
    yield table_row(["0.2.6, in brainstate's `jit`", *cells])
    yield ''


def microseconds(rows, case):
    """What a step takes in a case of ours, and in the stream of the reference, by turns."""
    ours, theirs = ({row['case']: row['us'] for row in of} for of in rows)
    return ours[case], theirs['stream']


def report_loops(ours, theirs):
    """The rows of `own_loops.py`, of ours and of the reference."""
    yield OWN_LOOPS
    for row, other in zip(ours, theirs, strict=True):
        cells = [row['rule'], model_of(row)]
        for a, b in zip(row['ms'], other['ms'], strict=True):
            cells += [f'{min(a):.2f} / {min(b):.2f}', f'{ratio(a, b):.2f}']
        yield table_row(cells)
    yield ''


def report_rules(ours, theirs):
    """The rows of `rules.py`, of ours and of the reference, and where ours is behind."""
    other = {key(row): row for row in theirs}
    yield EVERY_RULE
    pairs = [(row, other.get(key(row), {})) for row in ours]
    yield from [rule_row(*pair) for pair in pairs]
    yield FOLDED
    slower = [named(r) for r, o in pairs if is_slower(r, o)]
    yield f'Slower than 0.2.6: {", ".join(slower) or "none"}.\n'
    further = [named(r) for r, o in pairs if is_further(r, o)]
    yield f'Further from BPTT than 0.2.6: {", ".join(further) or "none"}.\n'
    failed = {f'{row["cell"].upper()}: {row["error"]}' for row in theirs if 'error' in row}
    yield f'Where 0.2.6 fails: {"; ".join(sorted(failed)) or "nowhere"}\n'


def report_credit(ours, theirs):
    """The rows of `credit.py`, of ours and of the reference, and where ours is behind."""
    other = {(*key(row), row['window']): row['errors'] for row in theirs}
    pairs = {
        (*key(row), row['window']): (row, other.get((*key(row), row['window']))) for row in ours
    }
    yield EXACT_CREDIT
    for row in ours:
        if row['window'] == 1:
            both = [pairs[(*key(row), window)] for window in (1, 4)]
            errors = [mean(e) for mine, reference in both for e in (mine['errors'], reference)]
            yield table_row([model_of(row), row['rule'], *errors])
    yield FOLDED
    compared = [both for both in pairs.values() if both[1]]
    in_mean = [in_windows(row) for row, other in compared if sum(row['errors']) > sum(other) + 1e-6]
    on_some = [
        f'{in_windows(row)} ({behind(row, other)} of {len(other)} nets)'
        for row, other in compared
        if behind(row, other)
    ]
    yield f'Further from BPTT than 0.2.6 in the mean: {", ".join(in_mean) or "nothing"}.'
    yield f'Net by net, on some of them: {", ".join(on_some) or "nothing"}.\n'
    yield from REMARKS.values()


def in_windows(row):
    return f'{named(row)} in windows of {row["window"]}'


def behind(row, other):
    """On how many of the nets ours is further from BPTT, by more than rounding."""
    return sum(a > b + 1e-6 for a, b in zip(row['errors'], other, strict=True))


def mean(errors):
    return f'{sum(errors) / len(errors):.2g}' if errors else '-'


def with_section(page, section):
    """The page with another text in the place of the section of the same heading, or before the
    last one if it has none."""
    parts = page.split('\n## ')
    text = section.removeprefix('## ').rstrip('\n') + '\n'
    heading = text.split('\n')[0]
    places = [i for i, part in enumerate(parts) if part.split('\n')[0] == heading]
    at, end = (places[0], places[0] + 1) if places else (len(parts) - 1, len(parts) - 1)
    return '\n## '.join([*parts[:at], text, *parts[end:]])


def key(row):
    return row['cell'], str(row['shape']), row['rule']


def named(row):
    return f'{row["rule"]} on {model_of(row)}'


def is_slower(row, other):
    return 'us' in row and 'us' in other and ratio(row['us'], other['us']) > 1


def is_further(row, other):
    """Whether the gradient of ours is clearly further from BPTT's, in windows of one step."""
    return 'one' in row and 'one' in other and row['one'][1] > other['one'][1] + 0.01


def rule_row(row, other):
    """One line of the table: ours with BPTT, and the reference (empty if it lacks the rule)."""
    cells = [
        model_of(row),
        row['rule'],
        number(row, 'us'),
        number(other, 'us'),
        f'{ratio(row["us"], other["us"]):.2f}' if 'us' in other else '-',
        number(row, 'bptt'),
        number(row, 'bytes'),
        number(other, 'bytes'),
        cosine_and_error(row, 'one'),
        cosine_and_error(other, 'one'),
        cosine_and_error(row, 'sixteen'),
    ]
    return table_row(cells)


def number(row, what):
    if what in row:
        found = row[what]
        return f'{min(found) if isinstance(found, list) else found:.0f}'
    return 'fails' if 'error' in row else '-'


def cosine_and_error(row, what):
    return '{:.3f}, {:.2g}'.format(*row[what]) if what in row else '-'
