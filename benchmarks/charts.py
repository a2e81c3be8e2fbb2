"""Charts of the stored figures: time and error by rule and size, memory over length.

`python benchmarks/charts.py [PAGE.md]` draws them again from `figures.json`, which `run.py` writes,
and says anew at the top of the page what counts.
"""

import json
import pathlib
import sys

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from page import in_short, with_section

HERE = pathlib.Path(__file__).parent
FIGURES = HERE / 'figures.json'
CHARTS = HERE.parent / 'docs' / 'charts'
OURS, THEIRS, BPTT, WINDOW = '#0072b2', '#d55e00', '#6b7280', '#009e73'
INK, FAINT = '#111827', '#e5e7eb'
ROUNDING = 0.003  # errors of float32 are far below


def draw(figures, folder=CHARTS):
    """All charts, as files in a folder."""
    folder.mkdir(exist_ok=True)
    rows = pairs(*figures['rules'])
    time_by_rule(rows).savefig(folder / 'time.png', dpi=110)
    error_by_rule(rows).savefig(folder / 'error.png', dpi=110)
    memory(figures['worker'][0], rows).savefig(folder / 'memory.png', dpi=110)


def pairs(ours, theirs):
    """By model and size, rows of ours with those of the reference (empty where it has none)."""
    other = {key(row): row for row in theirs}
    found = {}
    for row in ours:
        found.setdefault((row['cell'], tuple(row['shape'])), []).append(
            (row, other.get(key(row), {}))
        )
    return found


def key(row):
    return row['cell'], tuple(row['shape']), row['rule']


def time_by_rule(rows):
    """A point for each rule: microseconds a step."""

    def points(mine, other):
        return [(least(mine), OURS, 'o'), (least(other), THEIRS, 'D')]

    figure = panels(rows, points, 'microseconds a step')
    for axes, of_model in zip(figure.axes, rows.values(), strict=True):
        bptt = min(us for mine, _ in of_model for us in mine.get('bptt', ()))
        axes.axvline(bptt, color=BPTT, linestyle=(0, (4, 2)), linewidth=1.3, zorder=0)
    marks = {'this library': OURS, 'braintrace 0.2.6': THEIRS, 'BPTT': BPTT}
    return finish(
        figure, 'Time of a gradient, by rule, model and size: further left is faster', marks
    )


def least(row):
    """The least of its times, None if it was not measured."""
    return min(row['us']) if 'us' in row else None


def error_by_rule(rows):
    """A point for each rule: the relative error of its gradient beside BPTT's."""

    def points(mine, other):
        return [
            (error(mine, 'one'), OURS, 'o'),
            (error(other, 'one'), THEIRS, 'D'),
            (error(mine, 'sixteen'), WINDOW, 's'),
        ]

    figure = panels(rows, points, "error beside BPTT's gradient")
    marks = {
        'this library, credit inside each step': OURS,
        'braintrace 0.2.6': THEIRS,
        'this library, exact credit in windows of 16': WINDOW,
    }
    return finish(
        figure,
        f'Error of the gradient: further left is nearer to BPTT (at {ROUNDING:g}: exact)',
        marks,
    )


def error(row, what):
    """A relative error; what is just rounding is drawn at the left edge."""
    return max(row[what][1], ROUNDING) if what in row else None


def panels(rows, points, label):
    """A panel for each model and size, with a line for each rule."""
    cells = list(dict.fromkeys(cell for cell, _ in rows))
    sizes = {cell: [shape for c, shape in rows if c == cell] for cell in cells}
    across = max(map(len, sizes.values()))
    figure = Figure(figsize=(12, 2.9 * len(cells) + 0.9))
    grid = figure.add_gridspec(
        len(cells), across, left=0.09, right=0.99, bottom=0.05, top=0.925, wspace=0.42, hspace=0.34
    )
    for (cell, shape), of_model in rows.items():
        axes = figure.add_subplot(grid[cells.index(cell), sizes[cell].index(shape)])
        axes.set_title(f'{cell.upper()} {"-".join(map(str, shape))}', fontsize=9, loc='left')
        marks = {mine['rule']: points(mine, other) for mine, other in of_model}
        draw_rules(axes, marks)
        plain(axes)
        axes.set_xlabel(label, fontsize=7.5)
    return figure


def draw_rules(axes, marks):
    """A line for each rule; `marks` has places, colours and shapes by rule."""
    there = {rule: [m for m in of_rule if m[0] is not None] for rule, of_rule in marks.items()}
    there = {rule: of_rule for rule, of_rule in there.items() if of_rule}
    for y, of_rule in enumerate(there.values()):
        places = [x for x, _, _ in of_rule]
        axes.plot([min(places), max(places)], [y, y], color='#d1d5db', zorder=1)
        for x, colour, shape in of_rule:
            axes.plot(x, y, shape, color=colour, markersize=5, zorder=2)
    axes.set_yticks(range(len(there)), [SHORT.get(rule, rule) for rule in there])
    axes.set(xscale='log', ylim=(len(there) - 0.5, -0.5))


SHORT = {
    'HybridDimVjpAlgorithm': 'Hybrid',
    'OSTLRecurrent': 'OSTL',
    'SnAp, far_reach=False': 'SnAp, near',
}


def plain(axes):
    """Two sides, a faint grid, and numbers as people write them."""
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == 'log':
            low, high = axis.get_view_interval()
            axis.set_major_locator(LogLocator(subs=(1, 3) if high < 1000 * low else (1,)))
            axis.set_major_formatter(FuncFormatter(lambda x, _: f'{x:g}'))
            axis.set_minor_formatter(NullFormatter())
    axes.spines[['top', 'right']].set_visible(False)
    axes.grid(True, color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=7.5)


def finish(figure, title, marks):
    """The title, and what the colours mean."""
    height = figure.get_figheight()
    figure.text(0.012, 1 - 0.3 / height, title, fontsize=13, fontweight='bold', color=INK)
    x = 0.012
    for name, colour in marks.items():
        figure.text(x, 1 - 0.58 / height, '\u25cf', color=colour, fontsize=10)
        figure.text(x + 0.014, 1 - 0.58 / height, name, fontsize=9, color=INK)
        x += 0.03 + 0.0062 * len(name)
    return figure


def memory(worker, rows):
    """Temporary bytes over the length of a sequence, and the traces of each rule."""
    figure = Figure(figsize=(12, 4.4))
    left, right = figure.subplots(1, 2)
    for case, name, colour in (('memory', 'D_RTRL', OURS), ('memory of BPTT', 'BPTT', BPTT)):
        found = [row['bytes'] for row in worker if row['case'] == case]
        if found:
            steps, sizes = [int(n) for n in found[0]], [b / 1e6 for b in found[0].values()]
            left.loglog(steps, sizes, 'o-', color=colour, linewidth=2)
            left.annotate(name, (steps[-1], sizes[-1]), (-8, 6), textcoords='offset points',
                          ha='right', color=colour, fontweight='bold')  # fmt: skip
    left.set_title(
        'A gradient: temporary MB over the length of the sequence', fontsize=9, loc='left'
    )
    left.set_xlabel('steps', fontsize=8)
    cell, shape = max((c for c in rows if c[0] == 'gru'), key=lambda c: c[1][1])
    of_model = [
        (m['rule'], m['bytes'], o.get('bytes')) for m, o in rows[cell, shape] if 'bytes' in m
    ]
    of_model = sorted((r for r in of_model if r[1]), key=lambda r: r[1])
    for y, (_, mine, other) in enumerate(of_model):
        right.plot(mine / 1e6, y, 'o', color=OURS)
        if other:
            right.plot(other / 1e6, y, 'D', color=THEIRS, markersize=9, zorder=1)
    right.set_yticks(range(len(of_model)), [SHORT.get(r, r) for r, _, _ in of_model])
    right.set_xscale('log')
    name = f'{cell.upper()} {"-".join(map(str, shape))}'
    right.set_title(f'What each rule keeps: MB of traces, {name}', fontsize=9, loc='left')
    for axes in (left, right):
        plain(axes)
    figure.tight_layout(rect=(0, 0, 1, 0.84))
    marks = {'this library': OURS, 'braintrace 0.2.6': THEIRS, 'BPTT': BPTT}
    return finish(
        figure,
        'Memory: a gradient over the length of the sequence, and the traces of each rule',
        marks,
    )


def main(page=None):
    figures = json.loads(FIGURES.read_text())
    draw(figures)
    if page is not None:
        file = pathlib.Path(page)
        file.write_text(with_section(file.read_text(), in_short(figures)))


if __name__ == '__main__':
    main(*sys.argv[1:2])
