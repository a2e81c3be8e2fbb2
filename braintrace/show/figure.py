"""Matplotlib figures that belong to no window and to no global state, and how they look."""

from __future__ import annotations

from typing import Any

# Told apart by eyes of all kinds, and in print.
PALETTE = ('#0072b2', '#d55e00', '#009e73', '#cc79a7', '#56b4e9', '#e69f00', '#6b7280', '#111827')


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure of this size in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            'Pictures of this kind need matplotlib: pip install "braintrace[viz]".'
        ) from error
    return Figure(figsize=(width, height))


def plain_axes(axes: Any) -> None:
    """Two sides and a faint grid: nothing that draws the eye away from the curves."""
    axes.spines[['top', 'right']].set_visible(False)
    axes.grid(True, color='#e5e7eb', linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)
