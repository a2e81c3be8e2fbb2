"""What each primitive of JAX is as a term: one table, by family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..._jax import bind
from .algebra import LETTERS, Algebra
from .terms import FEW, Spec
from .views import View, constant_of, move_axes, number_of, spread, with_axes

Rule = Callable[..., Any]  # (terms, eqn, *views) -> a view, or a list of them
RULES: dict[str, Rule] = {}

# One operand and one result of its type, by the primitive: these keep their names.
UNARY = (
    'tanh logistic exp exp2 log log1p expm1 sin cos tan sinh cosh asin acos atan asinh acosh atanh '
    'sqrt rsqrt cbrt abs sign floor ceil erf erfc erf_inv lgamma digamma real imag conj '
    'is_finite not population_count clz bessel_i0e bessel_i1e'
).split()
BINARY = (
    'max min pow rem atan2 nextafter and or xor eq ne lt le gt ge complex igamma igammac '
    'shift_left shift_right_logical shift_right_arithmetic'
).split()
FOLDED: dict[str, Callable] = {
    'eq': np.equal,
    'ne': np.not_equal,
    'lt': np.less,
    'le': np.less_equal,
    'gt': np.greater,
    'ge': np.greater_equal,
    'and': np.bitwise_and,
    'or': np.bitwise_or,
    'max': np.maximum,
    'min': np.minimum,
    'pow': np.power,
}
UNCHANGED = (
    'stop_gradient copy copy_p optimization_barrier sharding_constraint name pvary '
    'layout_constraint trace_mark'
).split()
CUMULATIVE = ('cumsum', 'cumprod', 'cummax', 'cummin', 'cumlogsumexp')


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enter a rule under these names."""

    def enter(f: Rule) -> Rule:
        for name in names:
            assert name not in RULES, name
            RULES[name] = f
        return f

    return enter


# ---- at each place ----


@rule('add', 'add_any', 'sub', 'mul', 'div')
def _arithmetic(t: Algebra, eqn: Any, a: View, b: View) -> View:
    return getattr(t, eqn.primitive.name.removesuffix('_any'))(a, b)


@rule('neg')
def _neg(t: Algebra, eqn: Any, a: View) -> View:
    return t.neg(a)


@rule('integer_pow')
def _integer_pow(t: Algebra, eqn: Any, a: View) -> View:
    return t.power(a, eqn.params['y'])


@rule('square')
def _square(t: Algebra, eqn: Any, a: View) -> View:
    return t.power(a, 2)


@rule(*UNARY, 'round')
def _unary(t: Algebra, eqn: Any, a: View) -> View:
    if number_of(a) is not None:
        [value] = bind(eqn, [np.asarray(number_of(a), a.dtype)])
        return t.const(np.asarray(value), value.dtype, a.shape)
    info = eqn.params['rounding_method'].name if eqn.primitive.name == 'round' else None
    return t.pointwise(eqn.primitive.name, [a], eqn.outvars[0].aval.dtype, info)


@rule(*BINARY)
def _binary(t: Algebra, eqn: Any, a: View, b: View) -> View:
    name, dtype = eqn.primitive.name, eqn.outvars[0].aval.dtype
    a, b = t.alike(a, b)
    known = constant_of(a), constant_of(b)
    if known[0] is not None and known[1] is not None and name in FOLDED:
        return t.array(FOLDED[name](*known).astype(dtype))
    if name == 'lt' and a.node.op == 'iota' and number_of(b) == 0:
        return t.const(False, dtype, a.shape)
    if name == 'eq' and a.node.op == 'iota' and a.node is b.node and a.axes != b.axes:
        square = t.node('eye', (), None, (*a.node.shape, *b.node.shape), dtype)
        kept = [k for k in range(len(a.shape)) if (a.axes[k], b.axes[k]) != (None, None)]
        return with_axes(square, kept, a.shape)
    return t.pointwise(name, [a, b], dtype)


@rule('clamp')
def _clamp(t: Algebra, eqn: Any, low: View, a: View, high: View) -> View:
    return t.pointwise('clip', [a, low, high], a.dtype)


@rule('select_n')
def _select(t: Algebra, eqn: Any, which: View, *cases: View) -> View:
    if len(cases) == 1:
        return cases[0]
    if which.dtype == np.bool_:
        return t.where(which, cases[1], cases[0])
    chosen = cases[0]
    for k, case in enumerate(cases[1:], 1):
        here = t.pointwise('eq', [which, t.const(k, which.dtype)], np.dtype(bool))
        chosen = t.where(here, case, chosen)
    return chosen


@rule('convert_element_type')
def _cast(t: Algebra, eqn: Any, a: View) -> View:
    return t.cast(a, eqn.params['new_dtype'])


@rule(*UNCHANGED)
def _same(t: Algebra, eqn: Any, *views: View) -> list[View]:
    return list(views)


@rule('bitcast_convert_type')
def _bitcast(t: Algebra, eqn: Any, a: View) -> View:
    return single(t, 'bitcast', [a], None, eqn)


# ---- layout ----


@rule('broadcast_in_dim')
def _broadcast(t: Algebra, eqn: Any, a: View, *_: View) -> View:
    to, shape = [int(k) for k in eqn.params['broadcast_dimensions']], eqn.params['shape']
    for k in reversed(range(len(a.shape))):
        if a.shape[k] == 1 and shape[to[k]] != 1:
            a, to = t.index(a, k, 0), [*to[:k], *to[k + 1 :]]
    return move_axes(a, to.__getitem__, shape)


@rule('reshape')
def _reshape(t: Algebra, eqn: Any, a: View, *_: View) -> View:
    return t.reshape(a, eqn.params['new_sizes'])


@rule('squeeze')
def _squeeze(t: Algebra, eqn: Any, a: View) -> View:
    for k in sorted(eqn.params['dimensions'], reverse=True):
        a = t.index(a, int(k), 0)
    return a


@rule('expand_dims')
def _expand(t: Algebra, eqn: Any, a: View) -> View:
    shape = eqn.outvars[0].aval.shape
    old = [k for k in range(len(shape)) if k not in eqn.params['dimensions']]
    return move_axes(a, old.__getitem__, shape)


@rule('transpose')
def _transpose(t: Algebra, eqn: Any, a: View) -> View:
    order = eqn.params['permutation']
    axes, shape = tuple(a.axes[k] for k in order), tuple(a.shape[k] for k in order)
    return t.turned(View(a.node, axes, shape))


@rule('slice')
def _slice(t: Algebra, eqn: Any, a: View) -> View:
    p = eqn.params
    steps = p['strides'] or (1,) * len(a.shape)
    for k, spec in enumerate(zip(p['start_indices'], p['limit_indices'], steps, strict=True)):
        a = t.index(a, k, spec)
    return a


@rule('split')
def _split(t: Algebra, eqn: Any, a: View) -> list[View]:
    axis, parts, start = eqn.params['axis'], [], 0
    for n in eqn.params['sizes']:
        parts.append(t.index(a, axis, (start, start + n, 1)))
        start += n
    return parts


@rule('rev')
def _rev(t: Algebra, eqn: Any, a: View) -> View:
    for k in eqn.params['dimensions']:
        a = t.index(a, k, (a.shape[k] - 1, -1, -1))
    return a


@rule('concatenate')
def _concatenate(t: Algebra, eqn: Any, *views: View) -> View:
    return t.concat(views, eqn.params['dimension'])


@rule('stack')
def _stack(t: Algebra, eqn: Any, *views: View) -> View:
    return t.stack(views, eqn.params['axis'])


@rule('unstack')
def _unstack(t: Algebra, eqn: Any, a: View) -> list[View]:
    axis = eqn.params['axis']
    return [t.index(a, axis, i) for i in range(a.shape[axis])]


@rule('pad')
def _pad(t: Algebra, eqn: Any, a: View, value: View) -> View:
    config = [tuple(map(int, c)) for c in eqn.params['padding_config']]
    around = all(low >= 0 and high >= 0 and not inside for low, high, inside in config)
    if not around:
        return single(t, 'pad', [a, value], tuple(config), eqn)

    def filled(k: int, n: int) -> View:
        """The value n times beside `a` along axis k."""
        shape = (*a.shape[:k], n, *a.shape[k + 1 :])
        return View(value.node, (None,) * len(shape), shape)

    for k, (low, high, _) in enumerate(config):
        if low or high:
            a = t.concat([filled(k, low), a, filled(k, high)], k)
    return a


@rule('tile')
def _tile(t: Algebra, eqn: Any, a: View) -> View:
    for k, times in enumerate(map(int, eqn.params['reps'])):
        if a.shape[k] == 1:
            a = spread(t.index(a, k, 0), k, times)
        else:
            a = t.concat([a] * times, k)
    return a


@rule('iota')
def _iota(t: Algebra, eqn: Any) -> View:
    shape, k = eqn.params['shape'], eqn.params['dimension']
    dtype, n = eqn.params['dtype'], shape[k]
    if n == 1:
        return t.const(0, dtype, shape)
    line = t.array(np.arange(n, dtype=dtype)) if n <= FEW else t.op('iota', [], None, (n,), dtype)
    return with_axes(line.node, [k], shape)


@rule('dynamic_slice')
def _dynamic_slice(t: Algebra, eqn: Any, a: View, *starts: View) -> View:
    sizes, numbers = eqn.params['slice_sizes'], [number_of(s) for s in starts]
    if all(n is not None for n in numbers):
        for k, (first, n) in enumerate(zip(numbers, sizes, strict=True)):
            first = min(max(int(first), 0), a.shape[k] - n)
            a = t.index(a, k, (first, first + n, 1))
        return a
    for k, n in enumerate(sizes):  # nothing to choose there
        if n == a.shape[k]:
            starts = (*starts[:k], t.const(0, starts[k].dtype), *starts[k + 1 :])
    return t.op('dynamic_slice', [a, *starts], tuple(sizes), sizes, a.dtype)


@rule('dynamic_update_slice')
def _dynamic_update_slice(t: Algebra, eqn: Any, a: View, new: View, *starts: View) -> View:
    return t.op('dynamic_update_slice', [a, new, *starts], None, a.shape, a.dtype)


# ---- sums and products ----


@rule('reduce_sum')
def _reduce_sum(t: Algebra, eqn: Any, a: View) -> View:
    return t.sum(a, eqn.params['axes'])


@rule('reduce_max', 'reduce_min', 'reduce_prod', 'reduce_and', 'reduce_or', 'reduce_xor')
def _reduce(t: Algebra, eqn: Any, a: View) -> View:
    return t.reduce(eqn.primitive.name.removeprefix('reduce_'), a, eqn.params['axes'])


@rule('argmax', 'argmin')
def _arg(t: Algebra, eqn: Any, a: View) -> View:
    return single(t, eqn.primitive.name, [a], eqn.params['axes'][0], eqn)


@rule(*CUMULATIVE)
def _cumulative(t: Algebra, eqn: Any, a: View) -> View:
    info = eqn.params['axis'], eqn.params['reverse']
    return single(t, eqn.primitive.name, [a], info, eqn)


@rule('dot_general')
def _dot_general(t: Algebra, eqn: Any, a: View, b: View) -> View:
    (a_sum, b_sum), (a_batch, b_batch) = eqn.params['dimension_numbers']
    of_a = list(LETTERS[: len(a.shape)])
    of_b = [c.upper() for c in LETTERS[: len(b.shape)]]
    for i, j in (*zip(a_sum, b_sum, strict=True), *zip(a_batch, b_batch, strict=True)):
        of_b[j] = of_a[i]
    batch = [of_a[i] for i in a_batch]
    of_out = [
        *batch,
        *[c for k, c in enumerate(of_a) if k not in (*a_sum, *a_batch)],
        *[c for k, c in enumerate(of_b) if k not in (*b_sum, *b_batch)],
    ]
    labels = ''.join(of_a), ''.join(of_b)
    dtype = eqn.outvars[0].aval.dtype
    return t.einsum(labels, (a, b), ''.join(of_out), dtype, _precision(eqn.params['precision']))


def _precision(given: Any) -> str | None:
    """The name of a precision that is not the usual one."""
    first = given[0] if isinstance(given, tuple) else given
    name = None if first is None else str(getattr(first, 'name', first)).lower()
    return None if name == 'default' else name


# ---- helpers ----


def single(t: Algebra, op: str, views: Sequence[View], info: Any, eqn: Any) -> View:
    """The result of an operation on whole arrays that has one."""
    out = eqn.outvars[0].aval
    return t.op(op, views, info, out.shape, out.dtype)


def several(
    t: Algebra,
    op: str,
    views: Sequence[View],
    info: Any,
    eqn: Any,
    order: Sequence[int] | None = None,
) -> list[View]:
    """The results of an operation that has several; `order` is their place in what its text
    returns."""
    order = range(len(eqn.outvars)) if order is None else order
    shapes = tuple(tuple(v.aval.shape) for v in eqn.outvars)
    made = t.node(op, views, (info, shapes), (), np.dtype(object))
    call = View(made, (), ())
    return [
        t.op('item', [call], i, v.aval.shape, v.aval.dtype)
        for i, v in zip(order, eqn.outvars, strict=True)
    ]


def spec_text(spec: Spec, n: int) -> str:
    """An element or a range of an axis of length n as Python writes it."""
    if isinstance(spec, int):
        return str(spec - n if spec == n - 1 and n > 1 else spec)
    start, stop, step = spec
    if step < 0:
        first = '' if start == n - 1 else str(start)
        last = '' if stop < 0 else str(stop)
        return f'{first}:{last}:{step}'
    first, last = '' if start == 0 else str(start), '' if stop >= n else str(stop)
    return f'{first}:{last}' + (f':{step}' if step != 1 else '')
