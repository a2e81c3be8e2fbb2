"""What `record` saw, as curves and as an animation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .figure import PALETTE, new_figure, plain_axes

MOST_CURVES = 6  # in one panel; the largest are shown
MOST_IMAGES = 4
MOST_PIXELS = 48  # of an image, in each direction


@partial(
    jax.tree_util.register_dataclass,
    data_fields=[
        'losses',
        'traces',
        'credit',
        'gradients',
        'weights',
        'moved',
        'elements',
        'images',
    ],
    meta_fields=[],
)
@dataclass(frozen=True)
class Recording:
    """What a learner did at each of T steps; by name where there are several.

    Args:
        losses: `(T,)`.
        traces: Euclidean norms of the traces after each step, `(T,)` each.
        credit: norms of the learning signal of the hidden states, `dl[t]/dh[t]` where it is the
            gradient, `(T,)` each.
        gradients: norms of the gradients of the parameters, `(T,)` each.
        weights: norms of the parameters after each step, `(T,)` each.
        moved: how far they are from where they began, `(T,)` each.
        elements: single elements that were asked for, `(T,)` each.
        images: sizes of the traces for `animate`, `(T, rows, columns)` each: means over samples
            and, where a trace is large, over neighbours.
    """

    losses: Any
    traces: dict[str, Any]
    credit: dict[str, Any]
    gradients: dict[str, Any]
    weights: dict[str, Any]
    moved: dict[str, Any]
    elements: dict[str, Any]
    images: dict[str, Any]

    def __repr__(self) -> str:
        names = 'traces', 'credit', 'gradients', 'weights', 'moved', 'elements'
        held = [f'{name}={list(getattr(self, name))}' for name in names if getattr(self, name)]
        return f'Recording(steps={len(self.losses)}, {", ".join(held)})'

    def plot(self, path: Any = None, *, title: str = 'What the learner does, step by step') -> Any:
        """The curves, a panel for each kind.

        Args:
            path: a file to write.
            title: above the panels.

        Returns:
            The matplotlib figure.
        """
        panels = self._panels()
        height = 0.9 + 1.75 * len(panels)
        figure = new_figure(9, height)
        figure.suptitle(title, x=0.02, y=1 - 0.1 / height, ha='left', fontweight='bold')
        first = None
        for k, (said, curves) in enumerate(panels.items()):
            axes = figure.add_subplot(len(panels), 1, k + 1, sharex=first)
            first = first or axes
            _draw_curves(axes, said, curves)
            if k < len(panels) - 1:
                axes.tick_params(labelbottom=False)
        axes.set_xlabel('step')
        figure.tight_layout(rect=(0, 0, 1, 1 - 0.25 / height))
        if path is not None:
            figure.savefig(path, dpi=150)
        return figure

    def _panels(self) -> dict[str, Mapping[str, Any]]:
        """What each panel is about, and its curves."""
        panels: dict[str, Mapping[str, Any]] = {
            'loss': {'': self.losses},
            'credit of the hidden states (norm)': self.credit,
            'traces (norm)': self.traces,
            'gradients of the parameters (norm)': self.gradients,
        }
        if any(np.any(np.asarray(m) > 0) for m in self.moved.values()):
            panels['distance of the weights from their start'] = self.moved
        panels['single elements'] = self.elements
        return {said: curves for said, curves in panels.items() if curves}

    def animate(self, *, fps: int = 20) -> Animation:
        """The traces as images that change from step to step, over the curve of the loss. Notebooks
        show it with buttons; `save(path)` writes a GIF.

        Args:
            fps: steps shown in a second.
        """
        if not self.images:
            raise ValueError('`animate`: the rule keeps no traces, so there is nothing to show.')
        return Animation(self, fps)


@dataclass(frozen=True)
class Animation:
    """The traces of a recording as they change, so many steps a second."""

    recording: Recording
    fps: int

    def save(self, path: Any) -> None:
        """Write it as a GIF (needs pillow)."""
        self._made().save(path, writer='pillow', fps=self.fps)

    def _repr_html_(self) -> str:
        return self._made().to_jshtml(fps=self.fps)

    def _made(self) -> Any:
        """The animation as matplotlib has it."""
        seen = self.recording
        size = {name: float(np.max(image)) for name, image in seen.images.items()}
        shown = sorted(size, key=lambda name: -size[name])[:MOST_IMAGES]
        figure = new_figure(2.6 * max(len(shown), 2), 3.8)
        from matplotlib.animation import FuncAnimation
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        FigureCanvasAgg(figure)
        figure.set_dpi(72)
        grid = figure.add_gridspec(2, len(shown), height_ratios=(2, 1))
        pictures = []
        for k, name in enumerate(shown):
            axes = figure.add_subplot(grid[0, k])
            axes.set_title(f'|{name}|', fontsize=8)
            axes.set(xticks=[], yticks=[])
            look = dict(vmin=0, vmax=size[name] or 1, cmap='magma', aspect='auto')
            pictures.append(axes.imshow(seen.images[name][0], interpolation='nearest', **look))
        below = figure.add_subplot(grid[1, :])
        plain_axes(below)
        below.plot(seen.losses, color=PALETTE[0], linewidth=1)
        below.set(xlabel='step', ylabel='loss')
        mark = below.axvline(0, color=PALETTE[1])
        figure.tight_layout()

        def show(step: int) -> list[Any]:
            for name, picture in zip(shown, pictures, strict=True):
                picture.set_data(seen.images[name][step])
            mark.set_xdata([step, step])
            return [*pictures, mark]

        return FuncAnimation(figure, show, frames=len(seen.losses), interval=1000 / self.fps)


def _draw_curves(axes: Any, said: str, curves: Mapping[str, Any]) -> None:
    plain_axes(axes)
    axes.set_title(said, loc='left', fontsize=9)
    largest = sorted(curves, key=lambda name: -float(np.max(np.abs(curves[name]))))
    shown = [name for name in curves if name in largest[:MOST_CURVES]]
    for k, name in enumerate(shown):
        axes.plot(curves[name], label=name, color=PALETTE[k % len(PALETTE)], linewidth=1.3)
    if shown != ['']:
        left_out = len(curves) - len(shown)
        more = f'{left_out} smaller left out' if left_out else None
        axes.legend(
            loc='upper left', bbox_to_anchor=(1.01, 1.05), fontsize=7, frameon=False, title=more
        ).get_title().set_fontsize(7)


def small_image(e: Any) -> jax.Array:
    """The size of a trace as an image `(rows, columns)`: the mean over all axes but the last two,
    and over neighbours where there are too many."""
    e = jnp.abs(e)
    e = e.reshape(-1, *e.shape[-2:]).mean(0) if e.ndim > 2 else jnp.atleast_2d(e)
    rows, columns = (_averages(n) for n in e.shape)
    return rows @ e @ columns.T


def _averages(n: int) -> np.ndarray:
    """A matrix that averages n neighbours to at most `MOST_PIXELS`."""
    few = min(n, MOST_PIXELS)
    part = np.arange(n) * few // n
    members = part == np.arange(few)[:, None]
    return members / members.sum(1, keepdims=True)
