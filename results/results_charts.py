"""The pictures of the page of results."""

import numpy as np
from matplotlib.figure import Figure

from braintrace.tools.add_task import floors

NAMES = {
    'd_rtrl': 'D-RTRL',
    'pp_prop': 'pp-prop',
    'bptt': 'BPTT',
    'rtrl': 'RTRL',
    'eprop': 'e-prop',
    'ostl_recurrent': 'OSTL',
    'ottt': 'OTTT',
}
COLOURS = {
    'd_rtrl': 'tab:blue',
    'pp_prop': 'tab:orange',
    'bptt': 'tab:green',
    'rtrl': 'tab:red',
    'eprop': 'tab:purple',
    'ostl_recurrent': 'tab:cyan',
    'ottt': 'tab:olive',
}


def draw(figures, directory):
    """One picture for each part that was run, in `directory`."""
    directory.mkdir(exist_ok=True)
    for chart in (matching, nest, cosines, adding):
        name = chart.__name__
        if name in figures:
            figure = chart(figures[name])
            figure.tight_layout()
            figure.savefig(directory / f'{name}.png', dpi=110)


def matching(found):
    """Accuracy over updates, each seed thinly and their mean; memory over the delay."""
    figure = Figure(figsize=(9, 3.6))
    left, right = figure.subplots(1, 2)
    for rule, run in found['runs'].items():
        for accuracy in run['validation']:
            left.plot(run['at'], accuracy, color=COLOURS[rule], linewidth=0.6, alpha=0.5)
        left.plot(run['at'], np.mean(run['validation'], 0), color=COLOURS[rule], label=NAMES[rule])
    left.axhline(0.95, color='grey', linestyle=':')
    last = found['runs']['bptt']['at'][-1]
    left.text(last, 0.94, 'published criterion', fontsize=8, color='grey', ha='right', va='top')
    left.set(xlabel='updates', ylabel='validation accuracy', title='Delayed match to sample, GIF')
    left.legend()
    for rule, sizes in found['memory'].items():
        megabytes = np.array(sizes) / 1e6
        right.plot(found['delays'], megabytes, 'o-', color=COLOURS[rule], label=NAMES[rule])
    right.set(xlabel='delay, steps', ylabel='MB of one gradient', title='Memory over the delay')
    right.set(xscale='log', yscale='log', xticks=found['delays'], yticks=[5, 10, 20, 50])
    right.minorticks_off()
    for axis in (right.xaxis, right.yaxis):
        axis.set_major_formatter('{x:g}')
    right.legend()
    return figure


def nest(found):
    """Losses of five iterations: published ones as rings, ours as crosses."""
    figure = Figure(figsize=(9, 3.2))
    titles = 'pattern generation', 'evidence accumulation'
    for axes, title, losses in zip(
        figure.subplots(1, 2), titles, (found['pattern'], found['evidence']), strict=True
    ):
        published, ours = losses
        at = np.arange(1, len(ours) + 1)
        axes.plot(at, published, 'o', markersize=12, fillstyle='none', label='NEST')
        axes.plot(at, ours, 'x-', label='ours')
        axes.set(xlabel='iteration', ylabel='loss', title=title, xticks=at)
        axes.legend()
    return figure


def cosines(found):
    """Bars by network and rule, with the spread over seeds."""
    figure = Figure(figsize=(9, 3.6))
    axes = figure.subplots()
    networks = list(found['cosines'])
    rules = list(found['cosines'][networks[0]])
    width = 0.8 / len(rules)
    for k, rule in enumerate(rules):
        values = np.array([found['cosines'][network][rule] for network in networks])
        at = np.arange(len(networks)) + (k - len(rules) / 2 + 0.5) * width
        mean = values.mean(1)
        spread = np.abs([mean - values.min(1), values.max(1) - mean])
        label = 'no trace' if rule == 'bptt' else NAMES[rule]
        colour = 'lightgrey' if rule == 'bptt' else COLOURS[rule]
        axes.bar(at, mean, width, yerr=spread, color=colour, label=label, error_kw={'lw': 0.8})
    axes.set_xticks(np.arange(len(networks)), networks)
    axes.set(ylabel='cosine with BPTT', title='Gradient of the recurrent layer')
    axes.legend(ncols=len(rules), fontsize=7, loc='upper center', bbox_to_anchor=(0.5, -0.1))
    return figure


def adding(found):
    """The loss over the stream, mean of the seeds, and the floors."""
    figure = Figure(figsize=(9, 3.8))
    axes = figure.subplots()
    for rule, run in found['runs'].items():
        losses = np.mean(run['losses'], 0)
        smooth = np.convolve(losses, np.ones(3) / 3, 'valid')
        at = (np.arange(len(smooth)) + 3) * found['chunk']
        style = '--' if rule == 'rtrl' else '-'
        label = 'truncated BPTT, 1 step' if rule == 'bptt' else NAMES[rule]
        axes.plot(at, smooth, style, color=COLOURS[rule], label=label)
    for name, value in floors().items():
        axes.axhline(value, color='grey', linewidth=0.8, linestyle=':')
        axes.text(0, value, f' {name} {value:.4f}', va='bottom', fontsize=8, color='grey')
    axes.set(xlabel='steps, an update at each', ylabel='cross-entropy', title='The Add task')
    axes.legend()
    return figure
