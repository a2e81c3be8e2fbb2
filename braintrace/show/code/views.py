"""Values apart from how they are seen.

A `Node` is a value that somebody computes: an operation and its operands. A `View` is how such a
value is seen: with its axes in another order, with axes of length one put in, spread along new
axes. So what only moves axes about costs nothing, is seen through by every simplification, and
becomes text, `x[:, None]` or `W.T`, only where Python needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


@dataclass(frozen=True, eq=False)
class Node:
    """One value.

    Args:
        op: what makes it.
        args: its operands, each as it is seen.
        info: all else that the operation depends on.
        shape: of the value.
        dtype: of the value.
    """

    op: str
    args: tuple[View, ...]
    info: Any
    shape: tuple[int, ...]
    dtype: Any


class View(NamedTuple):
    """A value as it is seen: for each axis the axis of the node that it is, None where the value
    is the same all along. Every axis of the node is there once."""

    node: Node
    axes: tuple[int | None, ...]
    shape: tuple[int, ...]

    @property
    def dtype(self) -> Any:
        return self.node.dtype

    @property
    def is_whole(self) -> bool:
        """Whether the node is seen as it is."""
        return self.axes == tuple(range(len(self.node.shape)))


@dataclass(frozen=True)
class Hint:
    """What an argument may be called, and a number that tells it from others."""

    name: str
    number: int


def whole(node: Node) -> View:
    """A node as it is."""
    return View(node, tuple(range(len(node.shape))), node.shape)


def is_given(node: Node) -> bool:
    """Whether nothing has to be computed for a value: a constant, or one that has a name."""
    return node.op in ('const', 'array', 'name', 'outer')


def number_of(v: View) -> Any:
    """The number that is at every place of a constant; None for anything else."""
    return v.node.info if v.node.op == 'const' else None


def is_truth(v: View) -> bool:
    """Whether a value is true or false, written as a number."""
    return v.node.op == 'cast' and v.node.args[0].dtype == np.bool_


def constant_of(v: View) -> np.ndarray | None:
    """The value of a constant; None for anything else."""
    if v.node.op == 'const':
        return np.broadcast_to(v.node.info, v.shape)
    if v.node.op != 'array':
        return None
    order = [a for a in v.axes if a is not None]
    placed = v.node.info.value.transpose(order)
    lone = [1 if a is None else n for a, n in zip(v.axes, v.shape, strict=True)]
    return np.broadcast_to(placed.reshape(lone), v.shape)


def spread(v: View, k: int, n: int) -> View:
    """An array with a new axis k of length n, along which it is the same."""
    axes, shape = (*v.axes[:k], None, *v.axes[k:]), (*v.shape[:k], n, *v.shape[k:])
    return View(v.node, axes, shape)


def seen_as(v: View, inner: View) -> View:
    """`inner`, of the shape of the node that `v` sees, seen in the same way."""
    axes = tuple(None if a is None else inner.axes[a] for a in v.axes)
    return View(inner.node, axes, v.shape)


def along_axes(v: View, kept: Sequence[int]) -> View:
    """An array with these of its axes; along all others it is the same."""
    return View(v.node, tuple(v.axes[k] for k in kept), tuple(v.shape[k] for k in kept))


def with_axes(node: Node, kept: Sequence[int], shape: Sequence[int]) -> View:
    """A node whose axes are these of a shape, and that is the same along all others."""
    place = {k: i for i, k in enumerate(kept)}
    return View(node, tuple(place.get(k) for k in range(len(shape))), tuple(shape))


def move_axes(v: View, to: Callable[[int], int], shape: Sequence[int]) -> View:
    """An array among new axes: axis k becomes axis `to(k)`."""
    axes: list[int | None] = [None] * len(shape)
    for k, a in enumerate(v.axes):
        axes[to(k)] = a
    return View(v.node, tuple(axes), tuple(shape))
