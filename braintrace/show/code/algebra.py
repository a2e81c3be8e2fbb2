"""Sums over axes and products of matrices."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .arithmetic import Arithmetic
from .terms import FEW
from .views import Node, View, along_axes, number_of, whole

LETTERS = 'ijklmnopqrstuvwxyzabcdefgh'


class Algebra(Arithmetic):
    """Terms that simplify themselves."""

    def sum(self, v: View, axes: Sequence[int]) -> View:
        """The sum over some axes."""
        scale = 1
        left: list[int] = []
        for k in sorted(axes, reverse=True):
            if v.axes[k] is None:
                scale *= v.shape[k]
                v = self.index(v, k, 0)
                left = [j - 1 for j in left]
            elif v.node.op == 'stack' and v.node.info == v.axes[k]:
                v = self._total([self.index(v, k, i) for i in range(v.shape[k])])
                left = [j - 1 for j in left]
            else:
                left.append(k)
        if left and v.node.op == 'einsum':
            v = self._sum_product(v, left)
        elif left:
            v = self.reduce('sum', v, left)
        return self.mul(self.const(scale, v.dtype, v.shape), v) if scale != 1 else v

    def _sum_product(self, v: View, axes: Sequence[int]) -> View:
        """The sum of a product of matrices over some axes, as one product."""
        *labels, out, precision = v.node.info
        gone = {v.axes[k] for k in axes}
        left = ''.join(c for a, c in enumerate(out) if a not in gone)
        made = self.einsum(labels, v.node.args, left, v.dtype, precision)
        kept = [k for k in range(len(v.shape)) if k not in axes]
        seen = [None if v.axes[k] is None else out[v.axes[k]] for k in kept]  # type: ignore[index]
        places = tuple(None if c is None else made.axes[left.index(c)] for c in seen)
        return View(made.node, places, tuple(v.shape[k] for k in kept))

    def reduce(self, op: str, v: View, axes: Sequence[int], info: Any = None) -> View:
        """What is left of an array without some axes, along which it may well be the same; those
        are left out where that makes no difference."""
        if op in ('max', 'min', 'and', 'or'):
            for k in sorted(axes, reverse=True):
                if v.axes[k] is None:
                    v = self.index(v, k, 0)
                    axes = [j - (j > k) for j in axes if j != k]
        if not axes:
            return v
        gone = set(axes)
        kept = [k for k in range(len(v.shape)) if v.axes[k] is not None or k in gone]
        arg = along_axes(v, kept)
        places = tuple(kept.index(k) for k in sorted(gone))
        left = [k for k in kept if k not in gone]
        node = self.node(f'reduce_{op}', [arg], (places, info), [v.shape[k] for k in left], v.dtype)
        outer = [k for k in range(len(v.shape)) if k not in gone]
        axes_of = {k: i for i, k in enumerate(left)}
        return View(node, tuple(axes_of.get(k) for k in outer), tuple(v.shape[k] for k in outer))

    # ---- products ----

    def einsum(
        self,
        labels: Sequence[str],
        views: Sequence[View],
        out: str,
        dtype: Any,
        precision: Any = None,
    ) -> View:
        """`einsum('ij,jk->ik')`. An operand that is the same along an axis does not have its
        label; what is put together from a few parts is summed part by part."""
        size = {c: n for s, v in zip(labels, views, strict=True) for c, n in _pairs(s, v.shape)}
        shape = tuple(size[c] for c in out)
        if any(number_of(v) == 0 for v in views):
            return self.const(0, dtype, shape)
        for k in range(len(views)):
            renamed = self._without_identity(labels, views, out, k)
            if renamed is not None:
                return self.einsum(*renamed, out, dtype, precision)
        split = self._label_in_parts(labels, views)
        if split is not None:
            parts = self._einsum_of_parts(split, size[split], labels, views, out, dtype, precision)
            return self.stack(parts, out.index(split)) if split in out else self._total(parts)
        views = [self.cast(v, dtype) for v in views]
        real = [
            ''.join(s[v.axes.index(a)] for a in range(len(v.node.shape)))
            for s, v in zip(labels, views, strict=True)
        ]
        everywhere = set(''.join(labels)) - set(''.join(real)) - set(out)
        scale = math.prod(size[c] for c in everywhere)
        if '' in real:
            product = self._scaled(real, views, out, shape)
            return self.mul(self.const(scale, dtype, shape), product)
        kept = ''.join(c for c in out if any(c in s for s in real))
        made = self._product(real, views, kept, dtype, precision)
        axes = tuple(made.axes[kept.index(c)] if c in kept else None for c in out)
        result = View(made.node, axes, shape)
        return self.mul(self.const(scale, dtype, shape), result) if scale != 1 else result

    def _factors(self, v: View) -> list[View]:
        """The factors of a product at each place."""
        if v.node.op != 'mul':
            return [v]
        return [f for k in (0, 1) for f in self._factors(self.operand(v, k))]

    def _without_identity(
        self, labels: Sequence[str], views: Sequence[View], out: str, k: int
    ) -> tuple[list[str], list[View]] | None:
        """A product in which one operand has an identity matrix as a factor, without it: its two
        labels are one, if it is summed over one of them."""
        factors = self._factors(views[k])
        square = next((f for f in factors if _is_identity(f.node)), None)
        if square is None or len(factors) == 1:
            return None
        places = [j for j, a in enumerate(square.axes) if a is not None]
        rest = [f for f in factors if f is not square]
        for keep, gone in (places, places[::-1]):
            free = all(f.axes[keep] is None for f in rest)
            p, q = labels[k][keep], labels[k][gone]
            clear = all(p not in s for j, s in enumerate(labels) if j != k)
            if not free or q in out or not clear:
                continue
            product = rest[0]
            for f in rest[1:]:
                product = self.mul(product, f)
            mine = self.index(product, keep, 0)
            names = [s.replace(q, p) for s in labels]
            names[k] = ''.join(p if j == gone else c for j, c in enumerate(labels[k]) if j != keep)
            others = list(views)
            others[k] = mine
            return names, others
        return None

    def _scaled(
        self, real: Sequence[str], views: Sequence[View], out: str, shape: tuple[int, ...]
    ) -> View:
        """The product of a single number and what is left of an array when it is summed."""
        one = real.index('')
        labels, array = real[1 - one], whole(views[1 - one].node)
        left = self.sum(array, [k for k, c in enumerate(labels) if c not in out])
        kept = [c for c in labels if c in out]
        axes = tuple(left.axes[kept.index(c)] if c in kept else None for c in out)
        number = View(views[one].node, (None,) * len(out), shape)
        return self.mul(number, View(left.node, axes, shape))

    def _product(
        self,
        real: Sequence[str],
        views: Sequence[View],
        out: str,
        dtype: Any,
        precision: Any,
    ) -> View:
        """The product of two nodes whose axes have these labels."""
        nodes = [whole(v.node) for v in views]
        size = {c: n for s, v in zip(real, nodes, strict=True) for c, n in _pairs(s, v.shape)}
        shape = tuple(size[c] for c in out)
        kept = set(''.join(real)) == set(out) and any(set(s) == set(out) for s in real)
        if kept:  # nothing to sum over, and no outer product
            placed = [
                View(v.node, tuple(s.index(c) if c in s else None for c in out), shape)
                for s, v in zip(real, nodes, strict=True)
            ]
            return self.mul(*placed)
        return whole(self._product_node(list(real), nodes, out, dtype, precision))

    def _product_node(
        self, labels: list[str], views: Sequence[View], out: str, dtype: Any, precision: Any
    ) -> Node:
        """The node of a product, its operands and labels in the order of the result."""
        reaches = any(c in out for c in labels[0])
        if len(views) == 2 and reaches and out[0] not in labels[0]:
            labels, views = labels[::-1], views[::-1]
        size = {c: n for s, v in zip(labels, views, strict=True) for c, n in _pairs(s, v.shape)}
        names: dict[str, str] = {}
        if len({s[:1] for s in labels}) == 1:
            names[labels[0][0]] = 'b'  # samples, most often
        for c in ''.join(labels):
            names.setdefault(c, LETTERS[len(names) - ('b' in names.values())])
        info = *[''.join(names[c] for c in s) for s in (*labels, out)], precision
        return self.node('einsum', views, info, [size[c] for c in out], dtype)

    def turned(self, v: View) -> View:
        """A view; of a product, one whose axes come in that order by themselves."""
        order = [a for a in v.axes if a is not None]
        if order == sorted(order):
            return v
        if v.node.op == 'stack':
            k = v.axes.index(v.node.info)
            return self.stack([self.index(v, k, i) for i in range(v.shape[k])], k)
        if not _turns(v.node):
            return v
        if v.node.op != 'einsum':
            parts = [self.turned(self.operand(v, k)) for k in (0, 1)]
            return getattr(self, v.node.op)(*parts)
        *labels, out, precision = v.node.info
        turned = ''.join(out[a] for a in order)
        node = self._product_node(labels, v.node.args, turned, v.dtype, precision)
        return View(node, tuple(None if a is None else order.index(a) for a in v.axes), v.shape)

    def _label_in_parts(self, labels: Sequence[str], views: Sequence[View]) -> str | None:
        for s, v in zip(labels, views, strict=True):
            if v.node.op == 'stack' and v.node.info in v.axes:
                return s[v.axes.index(v.node.info)]
            for c, axis, n in zip(s, v.axes, v.shape, strict=True):
                alone = sum(c in other for other in labels) == 1
                if v.node.op == 'array' and axis is not None and n <= FEW and alone:
                    return c
        return None

    def _einsum_of_parts(
        self,
        c: str,
        n: int,
        labels: Sequence[str],
        views: Sequence[View],
        out: str,
        dtype: Any,
        precision: Any,
    ) -> list[View]:
        """The product for each of the entries of an axis."""
        left = [s.replace(c, '') for s in labels]
        parts = []
        for i in range(n):
            at_i = [
                self.index(v, s.index(c), i) if c in s else v
                for s, v in zip(labels, views, strict=True)
            ]
            parts.append(self.einsum(left, at_i, out.replace(c, ''), dtype, precision))
        return parts

    def _total(self, parts: Sequence[View]) -> View:
        total = parts[0]
        for part in parts[1:]:
            total = self.add(total, part)
        return total


def _pairs(labels: str, shape: tuple[int, ...]) -> Iterator[tuple[str, int]]:
    return zip(labels, shape, strict=True)


def _is_identity(node: Node) -> bool:
    if node.op == 'eye':
        return True
    square = node.op == 'array' and len(node.shape) == 2 and node.shape[0] == node.shape[1]
    return square and bool((node.info.value == np.eye(node.shape[0])).all())


def _turns(node: Node) -> bool:
    """Whether a node is a product of matrices, or a sum of such."""
    if node.op in ('add', 'sub'):
        return all(_turns(v.node) and None not in v.axes for v in node.args)
    return node.op == 'einsum'
