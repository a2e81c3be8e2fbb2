"""Ours, braintrace 0.2.6 and BPTT side by side on this machine.

`run.py OUR_PYTHON REFERENCE_PYTHON [OUTPUT.md]`, and `worker`, `loops`, `starts`, `rules` or
`credit` at the end for that part alone, or several of them with commas between. What was measured
is kept in `figures.json`, and the page and its charts are made from that.
"""

import json
import os
import pathlib
import subprocess
import sys
import time

from charts import FIGURES, draw
from page import (
    HOW_TO_REPEAT,
    beginning,
    in_short,
    report,
    report_credit,
    report_loops,
    report_rules,
    with_section,
)

HERE = pathlib.Path(__file__).parent
CASES = 5  # of the worker, whose processes are timed as a whole


def measure(python, library, script='worker.py', *case):
    """The rows a worker prints."""
    print(f'measuring {library}, {script} ...', file=sys.stderr, flush=True)
    # Each library from its own environment, whatever is around.
    clean = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
    done = subprocess.run(
        [python, script, library, *case], cwd=HERE, capture_output=True, text=True, env=clean
    )
    if done.returncode:
        raise SystemExit(f'The worker for {library} failed:\n{done.stderr[-2000:]}')
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{')]


def seconds(python, library, case):
    """The life of a process that imports a library, compiles a model and has its first gradient."""
    start = time.perf_counter()
    measure(python, library, 'worker.py', str(case))
    return time.perf_counter() - start


def least(*values):
    """The smallest of each number in records of the same form: what noise adds is left out."""
    if isinstance(values[0], dict):
        return {k: least(*(v[k] for v in values)) for k in values[0]}
    if isinstance(values[0], list):
        return [least(*v) for v in zip(*values, strict=True)]
    return min(values)


def with_least_times(rows, again):
    """Rows with the smaller of their time and that of another run."""
    pairs = zip(rows, again, strict=True)
    return [{**row, 'us': least(row['us'], b['us'])} if 'us' in row else row for row, b in pairs]


def main(ours, reference, output=None, only=None):
    libraries = (ours, 'ours'), (reference, 'reference')

    def measure_both(script='worker.py', *case):
        return [measure(*library, script, *case) for library in libraries]

    def every_rule():
        rows, again = measure_both('rules.py'), measure_both('rules.py', 'times')
        return [with_least_times(*pair) for pair in zip(rows, again, strict=True)]

    def start_both(case):
        return [seconds(*library, case) for library in libraries]

    parts = {  # twice, in turns, where the least time counts: a machine has its moods
        'worker': lambda: least(*[measure_both() for _ in range(2)]),
        'loops': lambda: least(*[measure_both('own_loops.py') for _ in range(2)]),
        'starts': lambda: least(*[[start_both(case) for case in range(CASES)] for _ in range(2)]),
        'rules': every_rule,
        'credit': lambda: measure_both('credit.py'),
    }
    figures, chosen = json.loads(FIGURES.read_text()), only.split(',') if only else list(parts)
    figures |= {part: parts[part]() for part in chosen}
    figures['earlier'] = [part for part in parts if part not in chosen]
    store(figures)
    draw(figures)
    text = page_of(figures)
    print(text)
    if output is not None:
        page = pathlib.Path(output)
        page.write_text(with_sections_of_others(text, page.read_text()))


def with_sections_of_others(text, page):
    """The text with those sections of the page that other programs have measured."""
    own = {part.split('\n')[0] for part in text.split('\n## ')}
    for part in page.split('\n## ')[1:]:
        if part.split('\n')[0] not in own:
            text = with_section(text, f'## {part}')
    return text


def store(figures):
    """Keep what was measured, a row on a line."""
    FIGURES.write_text(
        json.dumps(figures).replace(' {"c', '\n{"c').replace('[{"c', '[\n{"c') + '\n'
    )


def page_of(figures):
    """The whole page, from what was measured."""
    parts = [
        beginning(figures['earlier']),
        in_short(figures),
        *report(*figures['worker'], figures['starts']),
        *report_loops(*figures['loops']),
        *report_rules(*figures['rules']),
        *report_credit(*figures['credit']),
        HOW_TO_REPEAT,
    ]
    return '\n'.join(parts) + '\n'


if __name__ == '__main__':
    main(*sys.argv[1:5])
