"""Arithmetic at each place of arrays, with what a person would leave out left out: terms of zero,
factors of one, signs that meet, sums of arrays that lie beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .terms import FEW, Terms
from .views import Node, View, constant_of, number_of, seen_as


class Arithmetic(Terms):
    """Sums and products at each place."""

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
        if self._positive(b) is not None:
            return self.sub(a, self._positive(b))
        beside = self._beside(a, b)
        if beside is not None:
            return beside
        for u, more in ((a, b), (b, a)):
            grown = self._grown(u, more)
            if grown is not None:
                return grown
        return self._factored('add', a, b) or self._both('add', a, b)

    def _positive(self, v: View) -> Any:
        """`2 a` of `-2 a`; None for anything else."""
        if v.node.op != 'mul' or not _is_float(v.dtype):
            return None
        factor, rest = (self.operand(v, k) for k in (0, 1))
        number = number_of(factor)
        return self.mul(self.neg(factor), rest) if number is not None and number < 0 else None

    def _factored(self, op: str, a: View, b: View) -> View | None:
        """`g a + g b` as `g (a + b)`."""
        if a.node.op != 'mul' or b.node.op != 'mul':
            return None
        ours, theirs = ([self.operand(v, k) for k in (0, 1)] for v in (a, b))
        for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
            if ours[i] == theirs[j]:
                rest = getattr(self, op)(ours[1 - i], theirs[1 - j])
                return self.mul(ours[i], rest)
        return None

    def _grown(self, u: View, more: View) -> View | None:
        """`u + u t`, where u is `g (1 - t)`, as `g (1 - t^2)`, the slope of tanh; None for other
        sums."""
        if more.node.op != 'mul':
            return None
        first, second = (self.operand(more, k) for k in (0, 1))
        if first == u:
            return self._slope_of_tanh(u, second)
        return self._slope_of_tanh(u, first) if second == u else None

    def _slope_of_tanh(self, u: View, t: View) -> View | None:
        """`u + u t` where u is `g (1 - t)`, or just `1 - t`."""
        one = self.const(1, u.dtype, u.shape)
        parts = [self.operand(u, k) for k in (0, 1)] if u.node.op == 'mul' else [u]
        if self.sub(one, t) not in parts:
            return None
        parts.remove(self.sub(one, t))
        slope = self.sub(one, self.power(t, 2))
        return self.mul(parts[0], slope) if parts else slope

    def sub(self, a: View, b: View) -> View:
        a, b = self.alike(a, b)
        if number_of(b) == 0:
            return a
        if number_of(a) == 0:
            return self.neg(b)
        if b.node.op == 'neg':
            return self.add(a, self._inside(b))
        if self._positive(b) is not None:
            return self.add(a, self._positive(b))
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
            inner = self.operand(b, 0)
            if number_of(inner) is not None:
                return self.mul(self._both('mul', a, inner), self.operand(b, 1))
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
            return self.sub(self.operand(a, 1), self.operand(a, 0))
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
            return seen_as(a, self.array(a.node.info.value.astype(dtype)))
        if a.node.op == 'eye':
            return View(self.node('eye', (), None, a.node.shape, dtype), a.axes, a.shape)
        return self.pointwise('cast', [a], dtype)

    # ---- helpers ----

    def _both(self, op: str, a: View, b: View) -> View:
        one, other = constant_of(a), constant_of(b)
        whole_numbers = op == 'div' and not _is_float(a.dtype)
        if one is not None and other is not None and not whole_numbers:
            return self.array(_FOLD[op](one, other).astype(a.dtype))
        return self.pointwise(op, [a, b], a.dtype)

    def operand(self, v: View, k: int) -> View:
        """An operand of the pointwise node that is seen, seen the same way."""
        return seen_as(v, v.node.args[k])

    def _inside(self, v: View) -> View:
        return self.operand(v, 0)

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


def _is_float(dtype: Any) -> bool:
    return np.issubdtype(dtype, np.inexact) or dtype.name in ('bfloat16', 'float16')


_FOLD = {'add': np.add, 'sub': np.subtract, 'mul': np.multiply, 'div': np.divide}
