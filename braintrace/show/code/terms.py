"""A program as terms that can be written down: every value once, and apart from how it is seen.

A `Node` is a value that somebody computes: an operation and its operands. A `View` is how such a
value is seen: with its axes in another order, with axes of length one put in, spread along new
axes. So what only moves axes about costs nothing, is seen through by every simplification, and
becomes text, `x[:, None]` or `W.T`, only where Python needs it. Equal nodes are one object.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

COMMUTATIVE = frozenset({'add', 'mul', 'max', 'min', 'eq', 'ne', 'and', 'or', 'xor'})
FEW = 8  # so many entries of an axis are kept apart, if they were put together one by one


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


Spec = int | tuple[int, int, int]  # an element of an axis, or (start, stop, step)


def whole(node: Node) -> View:
    """A node as it is."""
    return View(node, tuple(range(len(node.shape))), node.shape)


class Terms:
    """The nodes of a program, each once."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Node] = {}

    def node(
        self, op: str, args: Sequence[View], info: Any, shape: Sequence[int], dtype: Any
    ) -> Node:
        """The node of an operation on these operands."""
        order: Sequence[Hashable] = [(id(a.node), a.axes, a.shape) for a in args]
        if op in COMMUTATIVE:
            order = sorted(order, key=str)
        key = op, tuple(order), _as_key(info), tuple(shape), dtype
        if key not in self._known:
            self._known[key] = Node(op, tuple(args), info, tuple(map(int, shape)), dtype)
        return self._known[key]

    def name(self, name: str, shape: Sequence[int], dtype: Any) -> View:
        """A value that has a name."""
        return whole(self.node('name', (), name, shape, dtype))

    def const(self, value: Any, dtype: Any, shape: Sequence[int] = ()) -> View:
        """One number, at every place of an array."""
        number = np.asarray(value, dtype)[()]
        return View(self.node('const', (), number, (), dtype), (None,) * len(shape), tuple(shape))

    def array(self, value: Any) -> View:
        """A constant array; where it is the same along an axis, that is seen."""
        value = np.asarray(value)
        if not value.size:
            return whole(self.node('array', (), _Array(value), value.shape, value.dtype))
        kept = [k for k in range(value.ndim) if not _same_along(value, k)]
        first = tuple(slice(None) if k in kept else 0 for k in range(value.ndim))
        inner = value[first]
        if not kept:
            return self.const(inner, value.dtype, value.shape)
        node = self.node('array', (), _Array(inner), inner.shape, value.dtype)
        return _seen(node, kept, value.shape)

    def op(
        self, op: str, views: Sequence[View], info: Any, shape: Sequence[int], dtype: Any
    ) -> View:
        """The result of an operation that takes its operands as whole arrays."""
        return whole(self.node(op, views, info, shape, dtype))

    def at_each_place(self, op: str, views: Sequence[View], dtype: Any, info: Any = None) -> View:
        """An operation at each place of arrays of one shape."""
        shape = views[0].shape
        kept = [k for k in range(len(shape)) if any(v.axes[k] is not None for v in views)]
        inner = tuple(shape[k] for k in kept)
        args = [View(v.node, tuple(v.axes[k] for k in kept), inner) for v in views]
        return _seen(self.node(op, args, info, inner, dtype), kept, shape)

    def alike(self, *views: View) -> list[View]:
        """Arrays as arrays of one shape: single numbers, and axes of length one, are spread."""
        rank = max(len(v.shape) for v in views)
        full = [v for v in views if len(v.shape) == rank]
        shape = tuple(max(sizes, key=lambda n: n != 1) for sizes in zip(*[v.shape for v in full]))  # noqa: B905
        return [self._spread(v, shape) for v in views]

    def _spread(self, v: View, shape: tuple[int, ...]) -> View:
        if v.shape == shape:
            return v
        if not v.shape:
            return View(v.node, (None,) * len(shape), shape)
        for k, n in enumerate(shape):
            if v.shape[k] != n:
                one = self.index(v, k, 0)
                axes = (*one.axes[:k], None, *one.axes[k:])
                v = View(one.node, axes, (*one.shape[:k], n, *one.shape[k:]))
        return v

    # ---- axes ----

    def stack(self, views: Sequence[View], at: int) -> View:
        """Arrays of one shape along a new axis."""
        inner = views[0].shape
        shape = (*inner[:at], len(views), *inner[at:])
        if all(v == views[0] for v in views):
            axes = views[0].axes
            return View(views[0].node, (*axes[:at], None, *axes[at:]), shape)
        kept = [k for k in range(len(inner)) if any(v.axes[k] is not None for v in views)]
        part = tuple(inner[k] for k in kept)
        args = [View(v.node, tuple(v.axes[k] for k in kept), part) for v in views]
        before = sum(k < at for k in kept)
        outer = [*[k for k in kept if k < at], at, *[k + 1 for k in kept if k >= at]]
        known = [constant_of(v) for v in args]
        if all(value is not None for value in known):
            together = self.array(np.stack(known, before))  # type: ignore[arg-type]
            seen = dict(zip(outer, together.axes, strict=True))
            return View(together.node, tuple(seen.get(k) for k in range(len(shape))), shape)
        node_shape = (*part[:before], len(views), *part[before:])
        node = self.node('stack', args, before, node_shape, views[0].dtype)
        return _seen(node, outer, shape)

    def index(self, v: View, k: int, spec: Spec) -> View:
        """One element of an axis, which goes, or a range of it."""
        axis = v.axes[k]
        one = isinstance(spec, int)
        here: tuple[int, ...] = ()
        if not isinstance(spec, int):
            here = (len(range(*spec)),)
        shape = (*v.shape[:k], *here, *v.shape[k + 1 :])
        if axis is None:
            kept: tuple[None, ...] = () if one else (None,)
            return View(v.node, (*v.axes[:k], *kept, *v.axes[k + 1 :]), shape)
        if not one and spec == (0, v.shape[k], 1):
            return v
        part = self._index_node(v.node, axis, spec)
        axes: list[int | None] = []
        for j, a in enumerate(v.axes):
            if j != k:
                axes.append(None if a is None else part.axes[a - (one and a > axis)])
            elif not one:
                axes.append(part.axes[axis])
        return View(part.node, tuple(axes), shape)

    def _index_node(self, node: Node, axis: int, spec: Spec) -> View:
        """A part of a node along one of its axes."""
        if node.op == 'stack':
            return self._index_stack(node, axis, spec)
        if node.op == 'array':
            chosen = [slice(None)] * len(node.shape)
            chosen[axis] = spec if isinstance(spec, int) else slice(*_stop(spec))  # type: ignore
            return self.array(node.info.value[tuple(chosen)])
        if node.op == 'concat' and axis == node.info:
            piece = self._index_concat(node, axis, spec)
            if piece is not None:
                return piece
        source = whole(node)
        specs: list[Any] = [(0, n, 1) for n in node.shape]
        position = axis
        if node.op == 'index':
            [source], specs = node.args, list(node.info)
            ranges = [j for j, s in enumerate(specs) if not isinstance(s, int)]
            position = ranges[axis]
            start, _, step = specs[position]
            if isinstance(spec, int):
                spec = start + step * spec
            else:
                first, last, by = spec
                spec = (start + step * first, start + step * last, step * by)
        specs[position] = spec
        shape = [len(range(*s)) for s in specs if not isinstance(s, int)]
        return whole(self.node('index', [source], tuple(specs), shape, node.dtype))

    def _index_stack(self, node: Node, axis: int, spec: Spec) -> View:
        at = node.info
        if axis != at:
            inner = axis - (axis > at)
            parts = [self.index(part, inner, spec) for part in node.args]
            return self.stack(parts, at - (isinstance(spec, int) and axis < at))
        if isinstance(spec, int):
            return node.args[spec]
        return self.stack([node.args[i] for i in range(*spec)], at)

    def _index_concat(self, node: Node, axis: int, spec: Spec) -> View | None:
        """A part of arrays beside each other that lies in one of them."""
        first, last = (spec, spec + 1) if isinstance(spec, int) else spec[:2]
        start = 0
        for piece in node.args:
            n = piece.shape[axis]
            if start <= first and last <= start + n:
                if isinstance(spec, int):
                    return self.index(piece, axis, spec - start)
                return self.index(piece, axis, (first - start, last - start, spec[2]))
            start += n
        return None

    def concat(self, views: Sequence[View], at: int) -> View:
        """Arrays beside each other along an axis they have."""
        views = [v for v in views if v.shape[at]] or list(views[:1])
        if len(views) == 1:
            return views[0]
        total = sum(v.shape[at] for v in views)
        shape = (*views[0].shape[:at], total, *views[0].shape[at + 1 :])
        if all(v.node.op == 'const' and v.node is views[0].node for v in views):
            return View(views[0].node, (None,) * len(shape), shape)
        rank = range(len(shape))
        kept = [k for k in rank if k == at or any(v.axes[k] is not None for v in views)]
        args = [
            View(v.node, tuple(v.axes[k] for k in kept), tuple(v.shape[k] for k in kept))
            for v in views
        ]
        inner = [shape[k] for k in kept]
        node = self.node('concat', args, kept.index(at), inner, views[0].dtype)
        return _seen(node, kept, shape)

    def reshape(self, v: View, shape: Sequence[int]) -> View:
        """The same elements in another shape; axes of length one come and go by themselves."""
        shape = tuple(shape)
        if math.prod(shape) == 1 and math.prod(v.shape) == 1:
            for k in reversed(range(len(v.shape))):
                v = self.index(v, k, 0)
            return View(v.node, (None,) * len(shape), shape)
        for k in reversed(range(len(v.shape))):
            if v.shape[k] == 1:
                v = self.index(v, k, 0)
        long = [k for k, n in enumerate(shape) if n != 1]
        inner = tuple(shape[k] for k in long)
        if v.shape != inner:
            if all(a is None for a in v.axes):
                v = View(v.node, (None,) * len(inner), inner)
            else:
                v = whole(self.node('reshape', [v], None, inner, v.dtype))
        axes: list[int | None] = [None] * len(shape)
        for k, a in zip(long, v.axes, strict=True):
            axes[k] = a
        return View(v.node, tuple(axes), shape)


class _Array:
    """A constant array as the parameter of a node."""

    def __init__(self, value: np.ndarray):
        self.value = value


def _same_along(value: np.ndarray, k: int) -> bool:
    return bool((value == value.take([0], k)).all())


def _as_key(info: Any) -> Hashable:
    if isinstance(info, _Array):
        return info.value.tobytes(), info.value.dtype.str
    if isinstance(info, np.generic):
        return info.tobytes(), info.dtype.str
    return info


def _stop(spec: tuple[int, int, int]) -> tuple[int, int | None, int]:
    start, stop, step = spec
    return start, stop if stop >= 0 else None, step


def _seen(node: Node, kept: Sequence[int], shape: Sequence[int]) -> View:
    """A node whose axes are these of a shape, and that is the same along all others."""
    place = {k: i for i, k in enumerate(kept)}
    return View(node, tuple(place.get(k) for k in range(len(shape))), tuple(shape))


def move_axes(v: View, to: Callable[[int], int], shape: Sequence[int]) -> View:
    """An array among new axes: axis k becomes axis `to(k)`."""
    axes: list[int | None] = [None] * len(shape)
    for k, a in enumerate(v.axes):
        axes[to(k)] = a
    return View(v.node, tuple(axes), tuple(shape))


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


def number_of(v: View) -> Any:
    """The number that is at every place of a constant; None for anything else."""
    return v.node.info if v.node.op == 'const' else None
