"""The text of the page of results, around what was found."""

import pathlib

import numpy as np
from results_charts import NAMES

from braintrace.tools.add_task import floors

SECTIONS = pathlib.Path(__file__).parent / 'sections'


def text(figures):
    """The page: the sections of all parts that were run, with what was found in them."""
    page = [(SECTIONS / 'intro.md').read_text()]
    for part in (matching, nest, cosines, adding):
        name = part.__name__
        if name in figures:
            page.append((SECTIONS / f'{name}.md').read_text().format(**part(figures[name])))
    return '\n'.join(page)


def rows(cells):
    return '\n'.join('| ' + ' | '.join(line) + ' |' for line in cells)


def listed(numbers, form):
    return ', '.join(format(n, form) for n in numbers)


def matching(found):
    def line(rule, run):
        reached = [first_at(run['at'], accuracy, 0.95) for accuracy in run['validation']]
        memory = found['memory'][rule]
        sizes = [f'{memory[k] / 1e6:.1f}' for k in (0, -1)]
        return [
            NAMES[rule],
            f'{run["rate"]:g}',
            ', '.join(reached),
            listed(run['test'], '.3f'),
        ] + sizes

    delays = {'first': found['delays'][0], 'last': found['delays'][-1]}
    return {
        'rows': rows(line(*item) for item in found['runs'].items()),
        'seeds': seeds(found),
    } | delays


def seeds(found):
    """The number of seeds of each run."""
    return len(next(iter(found['runs'].values()))['test'])


def first_at(at, accuracy, least):
    """The number of updates after which `accuracy` is at least so large, as text."""
    reached = np.flatnonzero(np.array(accuracy) >= least)
    return f'{at[reached[0]]:.0f}' if len(reached) else 'not reached'


def nest(found):
    columns = [*found['pattern'], *found['evidence']]
    lines = [
        [str(k + 1), *(f'{value:.12f}' for value in values)]
        for k, values in enumerate(zip(*columns, strict=True))
    ]
    pairs = np.array([found['pattern'], found['evidence']])
    worst = np.abs(pairs[:, 1] / pairs[:, 0] - 1).max()
    return {'rows': rows(lines), 'worst': worst}


def cosines(found):
    table = found['cosines']
    rules = list(next(iter(table.values())))
    names = ['no trace' if rule == 'bptt' else NAMES[rule] for rule in rules]
    lines = [
        [network, f'{found["rates"][network]:.3f}', *(f'{np.mean(by[rule]):.3f}' for rule in rules)]
        for network, by in table.items()
    ]
    return {
        'head': ' | '.join(names),
        'lines': '|'.join('---' for _ in rules),
        'rows': rows(lines),
        'seeds': len(next(iter(table.values()))[rules[0]]),
    }


def adding(found):
    levels = floors()

    def line(rule, run):
        name = 'truncated BPTT, 1 step' if rule == 'bptt' else NAMES[rule]
        reached = [k for k, value in levels.items() if np.mean(run['test']) < value + 0.01]
        lowest = reached[-1] if reached else 'none'
        return [name, f'{run["rate"]:g}', listed(run['test'], '.4f'), lowest]

    return {
        'floor': list(levels.values()),
        'rows': rows(line(*item) for item in found['runs'].items()),
        'seeds': seeds(found),
    }
