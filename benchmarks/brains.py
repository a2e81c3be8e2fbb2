"""Sparse networks by size: ours, braintrace 0.2.6 and BPTT, as a section of the page.

`brains.py OUR_PYTHON REFERENCE_PYTHON PAGE.md`, or without a page to print it.
"""

import pathlib
import sys

from lockstep import Worker, measured
from page import table_row, with_section

SIZES = (2_000, 1e5), (20_000, 2e6), (138_639, 15.1e6)
RULES = 'D_RTRL', 'D_RTRL, fresh', 'pp_prop'
FITS = 2e6  # synapses up to which BPTT, and 0.2.6, are measured
HEADING = """## Sparse networks by size

Leaky neurons with exponential synapses, lengths of rows with a heavy tail, about 5 % of the \
neurons spiking in a step; 50 steps, one block. Every line is a process of its own. "Forward" is \
the model alone in a `for_loop`, with the event-driven product of brainevent. "A gradient takes" \
is what the process grows by in a call once all is compiled, and the traces that are there before \
it; "promised" is what `learner.report` says of that, for a block of 50 steps. The rest of the \
peak is the model, the libraries, and what compiling leaves behind.

| neurons | synapses | what | ms a step | against forward | against 0.2.6 | seconds to compile the \
graph | first call, s | peak GB | a gradient takes | promised |
|---|---|---|---|---|---|---|---|---|---|---|"""


def main(ours, reference, page=None):
    lines = [HEADING]
    for neurons, synapses in SIZES:
        size = str(neurons), str(synapses)

        def row(library, case, size=size):
            python = ours if library == 'ours' else reference
            [[made]] = measured(Worker(python, library, 'brain.py', case, *size))
            return made

        forward = row('ours', 'forward')
        lines.append(told(forward, forward, None))
        for rule in RULES:
            fits = synapses <= FITS and 'fresh' not in rule
            other = row('reference', rule) if fits else None
            lines.append(told(row('ours', rule), forward, other))
            if other is not None:
                lines.append(told(other, forward, other, '0.2.6: '))
        if synapses <= FITS:
            lines.append(told(row('ours', 'BPTT'), forward, None))
    text = '\n'.join(lines) + '\n'
    print(text)
    if page is not None:
        file = pathlib.Path(page)
        file.write_text(with_section(file.read_text(), text))


def told(made, forward, other, before=''):
    """One line of the table."""
    against = '-' if other is None else f'{made["ms"] / other["ms"]:.2f}'
    cells = [
        f'{made["neurons"]:,}',
        f'{made["synapses"]:,}',
        before + made['case'],
        f'{made["ms"]:.2f}',
        f'{made["ms"] / forward["ms"]:.1f}',
        against,
        f'{made["graph"]:.1f}',
        f'{made["first"]:.1f}',
        f'{made["gb"]:.2f}',
        f'{made["taken"]:.2f}',
        '-' if made['promised'] is None else f'{made["promised"]:.2f}',
    ]
    return table_row(cells)


if __name__ == '__main__':
    main(*sys.argv[1:4])
