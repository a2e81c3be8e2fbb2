"""A program as terms that can be written down: every value once. Equal nodes are one object."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from .views import Hint, Node, View, along_axes, constant_of, seen_as, spread, whole, with_axes

COMMUTATIVE = frozenset({'add', 'mul', 'max', 'min', 'eq', 'ne', 'and', 'or', 'xor'})
FEW = 8  # so many entries of an axis are kept apart, if they were put together one by one
Range = tuple[int, int, int]  # of an axis: (start, stop, step)
Spec = int | Range  # an element of an axis, or a range of it


class Terms:
    """The nodes of a program, each once."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Node] = {}
        self._arguments = itertools.count(1)

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

    def argument(self, hint: str, shape: Sequence[int], dtype: Any) -> View:
        """A new value, unlike all others, that will get a name like this."""
        return whole(self.node('name', (), Hint(hint, next(self._arguments)), shape, dtype))

    def const(self, value: Any, dtype: Any, shape: Sequence[int] = ()) -> View:
        """One number, at every place of an array."""
        number = np.asarray(value, dtype)[()]
        return View(self.node('const', (), number, (), dtype), (None,) * len(shape), tuple(shape))

    def array(self, value: Any) -> View:
        """A constant array; where it is the same along an axis, that is seen."""
        value = np.asarray(value)
        if not value.size:
            return whole(self.node('array', (), ConstantArray(value), value.shape, value.dtype))
        kept = [k for k in range(value.ndim) if not _same_along(value, k)]
        first = tuple(slice(None) if k in kept else 0 for k in range(value.ndim))
        inner = value[first]
        if not kept:
            return self.const(inner, value.dtype, value.shape)
        node = self.node('array', (), ConstantArray(inner), inner.shape, value.dtype)
        return with_axes(node, kept, value.shape)

    def op(
        self, op: str, views: Sequence[View], info: Any, shape: Sequence[int], dtype: Any
    ) -> View:
        """The result of an operation that takes its operands as whole arrays."""
        return whole(self.node(op, views, info, shape, dtype))

    def at_each_place(self, op: str, views: Sequence[View], dtype: Any, info: Any = None) -> View:
        """An operation at each place of arrays of one shape."""
        shape = views[0].shape
        kept = [k for k in range(len(shape)) if any(v.axes[k] is not None for v in views)]
        args = [along_axes(v, kept) for v in views]
        return with_axes(self.node(op, args, info, args[0].shape, dtype), kept, shape)

    def alike(self, *views: View) -> list[View]:
        """Arrays as arrays of one shape: single numbers, and axes of length one, are spread."""
        rank = max(len(v.shape) for v in views)
        full = [v for v in views if len(v.shape) == rank]
        shape = np.broadcast_shapes(*[v.shape for v in full])
        return [self._spread(v, shape) for v in views]

    def _spread(self, v: View, shape: tuple[int, ...]) -> View:
        if v.shape == shape:
            return v
        if not v.shape:
            return View(v.node, (None,) * len(shape), shape)
        for k, n in enumerate(shape):
            if v.shape[k] != n:
                v = spread(self.index(v, k, 0), k, n)
        return v

    # ---- axes ----

    def stack(self, views: Sequence[View], at: int) -> View:
        """Arrays of one shape along a new axis."""
        alike = spread(views[0], at, len(views))
        if all(v == views[0] for v in views):
            return alike
        shape, rank = alike.shape, len(views[0].shape)
        kept = [k for k in range(rank) if any(v.axes[k] is not None for v in views)]
        args = [along_axes(v, kept) for v in views]
        part = args[0].shape
        before = sum(k < at for k in kept)
        outer = [*[k for k in kept if k < at], at, *[k + 1 for k in kept if k >= at]]
        known = [constant_of(v) for v in args]
        if all(value is not None for value in known):
            together = self.array(np.stack(known, before))  # type: ignore[arg-type]
            axes = dict(zip(outer, together.axes, strict=True))
            return View(together.node, tuple(axes.get(k) for k in range(len(shape))), shape)
        node_shape = (*part[:before], len(views), *part[before:])
        node = self.node('stack', args, before, node_shape, views[0].dtype)
        return with_axes(node, outer, shape)

    def index(self, v: View, k: int, spec: Spec) -> View:
        """One element of an axis, which goes, or a range of it."""
        return self._element(v, k, spec) if isinstance(spec, int) else self._range(v, k, spec)

    def _element(self, v: View, k: int, i: int) -> View:
        axis, rest = v.axes[k], (*v.axes[:k], *v.axes[k + 1 :])
        shape = (*v.shape[:k], *v.shape[k + 1 :])
        if axis is None:
            return View(v.node, rest, shape)
        part = self._index_node(v.node, axis, i)
        axes = tuple(None if a is None else part.axes[a - (a > axis)] for a in rest)
        return View(part.node, axes, shape)

    def _range(self, v: View, k: int, spec: Range) -> View:
        axis, shape = v.axes[k], (*v.shape[:k], len(range(*spec)), *v.shape[k + 1 :])
        if axis is None:
            return View(v.node, v.axes, shape)
        if spec == (0, v.shape[k], 1):
            return v
        return seen_as(View(v.node, v.axes, shape), self._index_node(v.node, axis, spec))

    def _index_node(self, node: Node, axis: int, spec: Spec) -> View:
        """A part of a node along one of its axes."""
        if node.op == 'stack':
            return self._index_stack(node, axis, spec)
        if node.op == 'array':
            chosen: list[int | slice] = [slice(None)] * len(node.shape)
            chosen[axis] = spec if isinstance(spec, int) else _slice(spec)
            return self.array(node.info.value[tuple(chosen)])
        if node.op == 'concat' and axis == node.info:
            piece = self._index_concat(node, axis, spec)
            if piece is not None:
                return piece
        if node.op == 'index':
            return self._index_further(node, axis, spec)
        specs: list[Spec] = [(0, n, 1) for n in node.shape]
        specs[axis] = spec
        return self._indexed(whole(node), specs)

    def _index_further(self, node: Node, axis: int, spec: Spec) -> View:
        """A part of a part, as one part of the whole."""
        [source], specs = node.args, list(node.info)
        ranges = [j for j, s in enumerate(specs) if not isinstance(s, int)]
        start, _, step = specs[ranges[axis]]
        if isinstance(spec, int):
            specs[ranges[axis]] = start + step * spec
        else:
            first, last, by = spec
            specs[ranges[axis]] = start + step * first, start + step * last, step * by
        return self._indexed(source, specs)

    def _indexed(self, source: View, specs: Sequence[Spec]) -> View:
        """An element or a range of each axis of a node that is seen as it is."""
        shape = [len(range(*s)) for s in specs if not isinstance(s, int)]
        return whole(self.node('index', [source], tuple(specs), shape, source.dtype))

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
        args = [along_axes(v, kept) for v in views]
        inner = [shape[k] for k in kept]
        node = self.node('concat', args, kept.index(at), inner, views[0].dtype)
        return with_axes(node, kept, shape)

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
            if v.node.op == 'reshape' and v.is_whole:
                return self.reshape(v.node.args[0], shape)
            if all(a is None for a in v.axes):
                v = View(v.node, (None,) * len(inner), inner)
            else:
                v = whole(self.node('reshape', [v], None, inner, v.dtype))
        axes: list[int | None] = [None] * len(shape)
        for k, a in zip(long, v.axes, strict=True):
            axes[k] = a
        return View(v.node, tuple(axes), shape)


class ConstantArray:
    """A constant array as the parameter of a node."""

    def __init__(self, value: np.ndarray):
        self.value = value


def _same_along(value: np.ndarray, k: int) -> bool:
    return bool((value == value.take([0], k)).all())


def _as_key(info: Any) -> Hashable:
    if isinstance(info, ConstantArray):
        return info.value.tobytes(), info.value.dtype.str
    if isinstance(info, np.generic):
        return info.tobytes(), info.dtype.str
    return info


def _slice(spec: Range) -> slice:
    start, stop, step = spec
    return slice(start, stop if stop >= 0 else None, step)
