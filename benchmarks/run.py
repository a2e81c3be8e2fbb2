"""Ours, braintrace 0.2.6 and BPTT side by side on this machine.

`run.py OUR_PYTHON REFERENCE_PYTHON [OUTPUT.md]`, and `worker`, `streams`, `loops`, `starts`,
`rules` or `credit` at the end for that part alone, or several of them with commas between. What was
measured is kept in `figures.json`, and the page and its charts are made from that.
"""

import json
import pathlib
import sys
import time

from charts import FIGURES, draw
from lockstep import Worker, measured
from page import (
    HOW_TO_REPEAT,
    beginning,
    in_short,
    report,
    report_credit,
    report_loops,
    report_rules,
    streams,
    with_section,
)

HERE = pathlib.Path(__file__).parent
CASES = 5  # of the worker, whose processes are timed as a whole


def seconds(python, library, case):
    """The life of a process that imports a library, compiles a model and has its first gradient."""
    start = time.perf_counter()
    measured(Worker(python, library, 'worker.py', str(case)))
    return time.perf_counter() - start


def least(*values):
    """The smallest of each number in records of the same form: what noise adds is left out."""
    if isinstance(values[0], dict):
        return {k: least(*(v[k] for v in values)) for k in values[0]}
    if isinstance(values[0], list):
        return [least(*v) for v in zip(*values, strict=True)]
    return min(values)


def main(ours, reference, output=None, only=None):
    libraries = (ours, 'ours'), (reference, 'reference')

    def measure_both(*script):
        print(f'measuring {" ".join(script)} ...', file=sys.stderr, flush=True)
        return measured(*[Worker(*library, *script) for library in libraries])

    def start_both(case):
        return [seconds(*library, case) for library in libraries]

    parts = {
        'worker': lambda: measure_both('worker.py'),
        'streams': lambda: [measure_both('streams.py', *how) for how in ([], ['inline'])],
        'loops': lambda: measure_both('own_loops.py'),
        'starts': lambda: least(*[[start_both(case) for case in range(CASES)] for _ in range(2)]),
        'rules': lambda: measure_both('rules.py'),
        'credit': lambda: measure_both('credit.py'),
    }
    figures, chosen = json.loads(FIGURES.read_text()), only.split(',') if only else list(parts)
    figures['earlier'] = list(parts)
    for part in chosen:  # what is measured is kept, whatever becomes of the rest
        figures[part] = parts[part]()
        figures['earlier'].remove(part)
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
        *report(*figures['worker'], figures['starts'], streams(*figures['streams'])),
        *report_loops(*figures['loops']),
        *report_rules(*figures['rules']),
        *report_credit(*figures['credit']),
        HOW_TO_REPEAT,
    ]
    return '\n'.join(parts) + '\n'


if __name__ == '__main__':
    main(*sys.argv[1:5])
