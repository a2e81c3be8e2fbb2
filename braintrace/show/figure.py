"""Matplotlib figures that belong to no window and to no global state."""

from __future__ import annotations

from typing import Any


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure of this size in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            'Pictures of this kind need matplotlib: pip install "braintrace[viz]".'
        ) from error
    return Figure(figsize=(width, height))
