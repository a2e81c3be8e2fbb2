"""The picture of the demo: what the task is, what each floor means, which rule reached it when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..show.figure import PALETTE, new_figure, plain_axes
from .add_task import LAGS, floors

NEAR = 0.01  # of a floor, to count as reached
INK, SOFT = '#111827', '#6b7280'
FLOORS = {
    'no memory': 'no memory: knows only how often labels are 1',
    'one lag': f'remembers x[t-{LAGS[0]}]',
    'both lags': f'remembers x[t-{LAGS[0]}] and x[t-{LAGS[1]}]: nothing can do better',
}
FLIPS = 1, 0, 0, 1, 1, 0, 1, 0, 1, 1, 0, 1, 0  # some that show the task


class Curve(NamedTuple):
    """A rule: its name, and its losses, one for every `chunk` steps."""

    name: str
    losses: np.ndarray
    chunk: int

    @property
    def smooth(self) -> tuple[np.ndarray, np.ndarray]:
        """Steps, and the mean loss of the last thirtieth of the run before each."""
        n = max(len(self.losses) // 30, 1)
        mean = np.convolve(self.losses, np.ones(n) / n, 'valid')
        return (np.arange(len(mean)) + n) * self.chunk, mean

    def reached(self, floor: float) -> int | None:
        """The step at which the smooth loss first came near a floor; None for never."""
        steps, loss = self.smooth
        near = np.flatnonzero(loss < floor + NEAR)
        return int(steps[near[0]]) if len(near) else None


def picture(curves: Sequence[Curve], path: Any) -> Any:
    """The losses over the stream, the task above them and the times beside them, as a file."""
    figure = new_figure(10.5, 6.6)
    grid = figure.add_gridspec(
        2, 2, height_ratios=(1, 3.6), width_ratios=(3.4, 1), left=0.065, right=0.985, top=0.86,
        bottom=0.085, hspace=0.1, wspace=0.03,
    )  # fmt: skip
    title = 'Learning online, one step at a time, from a stream that never repeats'
    figure.text(0.02, 0.955, title, fontsize=14, fontweight='bold', color=INK)
    told = (
        'The Add task. A label is 1 with probability '
        f'1/2 + x[t-{LAGS[0]}]/2 - x[t-{LAGS[1]}]/4, where x are coin flips. '
        'Weights change at every step.'
    )
    figure.text(0.02, 0.91, told, fontsize=9.5, color=SOFT)
    _draw_task(figure.add_subplot(grid[0, :]))
    _draw_losses(figure.add_subplot(grid[1, 0]), curves)
    _draw_times(figure.add_subplot(grid[1, 1]), curves)
    figure.savefig(path, dpi=150)
    return figure


def _draw_task(axes: Any) -> None:
    """A piece of the stream, and where a label comes from."""
    from matplotlib.patches import FancyArrowPatch, Rectangle

    last = len(FLIPS) - 1
    axes.set(xlim=(-4.3, last + 5.2), ylim=(-1.1, 2.3))
    axes.axis('off')
    axes.text(-0.8, 0.5, 'input x', ha='right', va='center', fontsize=9, color=INK)
    for t, flip in enumerate(FLIPS):
        used = last - t in LAGS
        edge = PALETTE[1] if used else '#d1d5db'
        fill = '#374151' if flip else '#f9fafb'
        box = Rectangle((t, 0), 0.86, 1, facecolor=fill, edgecolor=edge, linewidth=2 + used)
        axes.add_patch(box)
        ink = 'white' if flip else INK
        axes.text(t + 0.43, 0.48, str(flip), ha='center', va='center', color=ink, fontsize=9)
    for lag, share in zip(LAGS, ('+ 1/2', '- 1/4'), strict=True):
        at = last - lag + 0.43
        axes.text(at, -0.55, f't-{lag}', ha='center', va='center', fontsize=8, color=SOFT)
        arrow = FancyArrowPatch(
            (at, 1.05), (last + 2.4, 1.05), connectionstyle='arc3,rad=-0.16', color=PALETTE[1],
            arrowstyle='-|>', mutation_scale=10, linewidth=1.4, clip_on=False,
        )  # fmt: skip
        axes.add_patch(arrow)
        high = 1.28 if lag == LAGS[0] else 1.7
        axes.text(at + 0.3, high, share, ha='right', fontsize=8, color=PALETTE[1])
    axes.text(last + 0.43, -0.55, 'now', ha='center', va='center', fontsize=8, color=SOFT)
    axes.text(
        last + 1.75, 0.45, 'label, a coin\nwith this bias', va='center', fontsize=9, color=INK
    )


def _draw_losses(axes: Any, curves: Sequence[Curve]) -> None:
    plain_axes(axes)
    axes.grid(False)
    for k, curve in enumerate(curves):
        steps, loss = curve.smooth
        line = '--' if curve.name == 'RTRL' else '-'
        axes.plot(steps, loss, color=_colour(k), linestyle=line, linewidth=2)
        for floor in list(floors().values())[1:]:
            step = curve.reached(floor)
            if step is not None:
                axes.plot(step, loss[list(steps).index(step)], 'o', color=_colour(k), markersize=6)
    right = max(steps[-1] for steps, _ in (curve.smooth for curve in curves))
    for name, value in floors().items():
        axes.axhline(value, color=SOFT, linewidth=1, linestyle=(0, (1, 2)))
        below = name != 'one lag'
        axes.annotate(
            f'{value:.3f}  {FLOORS[name]}', (right, value), (0, -9 if below else 3),
            textcoords='offset points', ha='right', va='top' if below else 'bottom', fontsize=8.5,
            color=SOFT,
        )  # fmt: skip
    axes.set(xlabel='steps of the stream', ylabel='loss (cross-entropy)', xlim=(0, right))
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, floors()['both lags'] - 0.022), max(high, 0.67))


def _draw_times(axes: Any, curves: Sequence[Curve]) -> None:
    """When each rule came near the floors."""
    axes.axis('off')
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.text(0.08, 0.97, 'step at which memory is found', fontsize=9, color=INK, va='top')
    for k, lag in enumerate(LAGS):
        axes.text(0.56 + 0.4 * k, 0.87, f't-{lag}', ha='right', fontsize=8.5, color=SOFT)
    reach = list(floors().values())[1:]
    for k, curve in enumerate(curves):
        y = 0.77 - 0.14 * k
        axes.plot([0.08, 0.16], [y + 0.055] * 2, color=_colour(k), linewidth=3)
        axes.text(0.2, y + 0.04, curve.name, fontsize=9, fontweight='bold', color=_colour(k))
        for j, floor in enumerate(reach):
            step = curve.reached(floor)
            told = 'never' if step is None else f'{step:,}'
            axes.text(0.56 + 0.4 * j, y - 0.02, told, ha='right', fontsize=9, color=INK)
    y = 0.77 - 0.14 * len(curves)
    note = f'A floor counts as reached within {NEAR:g}\nof it (dots).'
    axes.text(0.08, y, note, fontsize=8, color=SOFT, va='top')


def _colour(k: int) -> str:
    return (PALETTE[0], PALETTE[5], PALETTE[2], PALETTE[6])[k % 4]
