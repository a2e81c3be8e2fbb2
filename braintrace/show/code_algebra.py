"""Arithmetic on terms, with what a person would leave out left out: terms of zero, factors of one,
signs that meet, sums of arrays that lie beside each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .code_terms import FEW, Node, Terms, View, constant_of, number_of, whole

LETTERS = 'ijklmnopqrstuvwxyzabcdefgh'


class Algebra(Terms):
    """Terms that simplify themselves."""

    def pointwise(self, op: str, views: Sequence[View], dtype: Any, info: Any = None) -> View:
        """An operation at each place of arrays of one shape (or of single numbers); part by part
        where they were put together from a few parts."""
        views = self.alike(*views)
        k = _split_axis(views)
        if k is None:
            return self.at_each_place(op, views, dtype, info)
        parts = []
        for i in range(views[0].shape[k]):
            at_i = [self.index(v, k, i) for v in views]
            if op in ('add', 'sub', 'mul', 'div', 'neg', 'where'):
                parts.append(getattr(self, op)(*at_i))
            elif op == 'cast':
                parts.append(self.cast(at_i[0], dtype))
            else:
                parts.append(self.pointwise(op, at_i, dtype, info))
        return self.stack(parts, k)

    def add(self, a: View, b: View) -> View:
        a, b = self.alike(a, b)
        if number_of(a) == 0:
            return b
        if number_of(b) == 0:
            return a
        if b.node.op == 'neg':
            return self.sub(a, self._inside(b))
        if a.node.op == 'neg':
            return self.sub(b, self._inside(a))
        beside = self._beside(a, b)
        if beside is not None:
            return beside
        for u, more in ((a, b), (b, a)):
            grown = self._grown(u, more)
            if grown is not None:
                return grown
        return self._factored('add', a, b) or self._both('add', a, b)

    def _factored(self, op: str, a: View, b: View) -> View | None:
        """`g a + g b` as `g (a + b)`."""
        if a.node.op != 'mul' or b.node.op != 'mul':
            return None
        ours, theirs = ([self._operand(v, k) for k in (0, 1)] for v in (a, b))
        for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
            if ours[i] == theirs[j]:
                rest = getattr(self, op)(ours[1 - i], theirs[1 - j])
                return self.mul(ours[i], rest)
        return None

    def _grown(self, u: View, more: View) -> View | None:
        """`u + u t` as `u (1 + t)`, and `g (1 - t)(1 + t)`, the slope of tanh, as `g (1 - t^2)`."""
        if more.node.op != 'mul':
            return None
        factors = [self._operand(more, k) for k in (0, 1)]
        for mine, t in (factors, factors[::-1]):
            if mine == u:
                one = self.const(1, u.dtype, u.shape)
                parts = [self._operand(u, k) for k in (0, 1)] if u.node.op == 'mul' else [u]
                for place, part in enumerate(parts):
                    if part == self.sub(one, t):
                        slope = self.sub(one, self.power(t, 2))
                        rest = [p for k, p in enumerate(parts) if k != place]
                        return self.mul(rest[0], slope) if rest else slope
        return None

    def sub(self, a: View, b: View) -> View:
        a, b = self.alike(a, b)
        if number_of(b) == 0:
            return a
        if number_of(a) == 0:
            return self.neg(b)
        if b.node.op == 'neg':
            return self.add(a, self._inside(b))
        if a.node.op == 'neg':
            return self.neg(self.add(self._inside(a), b))
        return self._factored('sub', a, b) or self._both('sub', a, b)

    def mul(self, a: View, b: View) -> View:
        a, b = self.alike(a, b)
        if number_of(b) is not None and number_of(a) is None:
            a, b = b, a
        number = number_of(a)
        if number is not None and a.dtype != np.bool_:
            if number == 0:
                return self.const(0, a.dtype, a.shape)
            if number == 1:
                return b
            if number == -1 and number_of(b) is None:
                return self.neg(b)
        if a.node.op == 'neg':
            return self.neg(self.mul(self._inside(a), b))
        if b.node.op == 'neg':
            return self.neg(self.mul(a, self._inside(b)))
        if number is not None and b.node.op == 'mul' and _is_float(a.dtype):
            inner = self._operand(b, 0)
            if number_of(inner) is not None:
                return self.mul(self._both('mul', a, inner), self._operand(b, 1))
        return self._both('mul', a, b)

    def div(self, a: View, b: View) -> View:
        a, b = self.alike(a, b)
        if number_of(b) == 1 or (number_of(a) == 0 and _is_float(a.dtype)):
            return a
        if a.node.op == 'neg' and _is_float(a.dtype):
            return self.neg(self.div(self._inside(a), b))
        return self._both('div', a, b)

    def neg(self, a: View) -> View:
        if a.node.op == 'neg':
            return self._inside(a)
        if number_of(a) is not None:
            return self.const(-number_of(a), a.dtype, a.shape)
        if a.node.op == 'sub' and _is_float(a.dtype):
            return self.sub(self._operand(a, 1), self._operand(a, 0))
        return self.pointwise('neg', [a], a.dtype)

    def power(self, a: View, n: int) -> View:
        """An integer power."""
        if n == 1:
            return a
        if n == -1:
            return self.div(self.const(1, a.dtype, a.shape), a)
        return self.pointwise('integer_pow', [a], a.dtype, n)

    def where(self, chosen: View, yes: View, no: View) -> View:
        """`yes` where chosen, `no` elsewhere."""
        chosen, yes, no = self.alike(chosen, yes, no)
        if number_of(chosen) is not None:
            return yes if number_of(chosen) else no
        if yes == no:
            return yes
        if (number_of(yes), number_of(no)) == (1, 0):
            return self.cast(chosen, yes.dtype)
        return self.pointwise('where', [chosen, yes, no], yes.dtype)

    def cast(self, a: View, dtype: Any) -> View:
        """The values in another type."""
        if a.dtype == dtype:
            return a
        if number_of(a) is not None:
            return self.const(number_of(a), dtype, a.shape)
        if a.node.op == 'array':
            changed = self.array(a.node.info.value.astype(dtype))
            axes = tuple(None if k is None else changed.axes[k] for k in a.axes)
            return View(changed.node, axes, a.shape)
        if a.node.op == 'eye':
            return View(self.node('eye', (), None, a.node.shape, dtype), a.axes, a.shape)
        return self.pointwise('cast', [a], dtype)

    def sum(self, v: View, axes: Sequence[int]) -> View:
        """The sum over some axes."""
        scale, left = 1, []
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
        arg = View(v.node, tuple(v.axes[k] for k in kept), tuple(v.shape[k] for k in kept))
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
        return [f for k in (0, 1) for f in self._factors(self._operand(v, k))]

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
        if all(set(s) == set(out) or not s for s in real):  # nothing to sum over
            placed = [
                View(v.node, tuple(s.index(c) if c in s else None for c in out), shape)
                for s, v in zip(real, nodes, strict=True)
            ]
            return self.mul(*placed)
        names: dict[str, str] = {}
        if len({s[:1] for s in real}) == 1:
            names[real[0][0]] = 'b'  # samples, most often
        for c in ''.join(real):
            names.setdefault(c, LETTERS[len(names) - ('b' in names.values())])
        info = *[''.join(names[c] for c in s) for s in (*real, out)], precision
        return whole(self.node('einsum', nodes, info, shape, dtype))

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
            parts = [self.turned(self._operand(v, k)) for k in (0, 1)]
            return getattr(self, v.node.op)(*parts)
        *labels, out, precision = v.node.info
        info = *labels, ''.join(out[a] for a in order), precision
        shape = [v.node.shape[a] for a in order]
        node = self.node('einsum', v.node.args, info, shape, v.dtype)
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

    # ---- helpers ----

    def _both(self, op: str, a: View, b: View) -> View:
        known = constant_of(a), constant_of(b)
        whole_numbers = op == 'div' and not _is_float(a.dtype)
        if known[0] is not None and known[1] is not None and not whole_numbers:
            return self.array(_FOLD[op](*known).astype(a.dtype))
        return self.pointwise(op, [a, b], a.dtype)

    def _operand(self, v: View, k: int) -> View:
        """An operand of the pointwise node that is seen, seen the same way."""
        arg = v.node.args[k]
        axes = tuple(None if a is None else arg.axes[a] for a in v.axes)
        return View(arg.node, axes, v.shape)

    def _inside(self, v: View) -> View:
        return self._operand(v, 0)

    def _beside(self, a: View, b: View) -> View | None:
        """The sum of arrays that are each zero where the other is not."""
        if a.node.op != 'concat' or b.node.op != 'concat':
            return None
        k = a.axes.index(a.node.info)
        if b.axes[k] != b.node.info:
            return None
        pieces = []
        for start, stop in _ranges(a.node, b.node):
            one, other = (self.index(v, k, (start, stop, 1)) for v in (a, b))
            if number_of(one) != 0 and number_of(other) != 0:
                return None
            pieces.append(self.add(one, other))
        return self.concat(pieces, k)


def _ranges(a: Node, b: Node) -> list[tuple[int, int]]:
    """The ranges between the edges of the pieces of either."""
    edges = {0}
    for node in (a, b):
        start = 0
        for piece in node.args:
            start += piece.shape[node.info]
            edges.add(start)
    line = sorted(edges)
    return list(zip(line[:-1], line[1:], strict=True))


def _pairs(labels: str, shape: tuple[int, ...]) -> Iterator[tuple[str, int]]:
    return zip(labels, shape, strict=True)


def _split_axis(views: Sequence[View]) -> int | None:
    """An axis along which all operands were put together from a few parts, if any were."""
    for v in views:
        if v.node.op == 'stack' and v.node.info in v.axes:
            k = v.axes.index(v.node.info)
            if all(_in_parts(other, k) for other in views):
                return k
    for v in views:
        if v.node.op == 'array' and v.node.shape[0] <= FEW and len(v.node.shape) == 1:
            k = v.axes.index(0)
            if all(_in_parts(other, k) for other in views):
                return k
    return None


def _in_parts(v: View, k: int) -> bool:
    if v.axes[k] is None or v.node.op == 'array':
        return True
    return v.node.op == 'stack' and v.node.info == v.axes[k]


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


def _is_float(dtype: Any) -> bool:
    return np.issubdtype(dtype, np.inexact) or dtype.name in ('bfloat16', 'float16')


_FOLD = {'add': np.add, 'sub': np.subtract, 'mul': np.multiply, 'div': np.divide}
