"""How the axes of `y = op(x, w)` line up."""

from .axes import Axes, Op, Table

__all__ = ['Axes', 'Op', 'Table']
