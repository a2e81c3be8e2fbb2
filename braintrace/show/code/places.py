"""Gather and scatter: as indexing, `table[rows]` and `a.at[rows].add(new)`, where they take or
change whole parts of an array at some places; by JAX's own functions otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .algebra import Algebra
from .compose import Operands, composed
from .primitives import rule, single
from .views import Node, View, constant_of, move_axes, number_of, spread
from .words import ATOM, Text, Words, call


def mode_name(mode: Any) -> str:
    """What happens outside of an array, as JAX calls it."""
    return {'FILL_OR_DROP': 'fill', 'CLIP': 'clip'}.get(mode.name, 'promise_in_bounds')


@rule('gather')
def _gather(t: Algebra, eqn: Any, a: View, where: View) -> View:
    p = eqn.params
    numbers, sizes, mode = p['dimension_numbers'], tuple(p['slice_sizes']), p['mode']
    d = where.shape[-1]
    laid_out = _laid_out(t, a, where, numbers, sizes, eqn.outvars[0].aval.shape)
    if laid_out is not None:
        return laid_out
    lined_up = _lined_up(
        a,
        where,
        indexed=numbers.start_index_map,
        gone=numbers.collapsed_slice_dims,
        parts=numbers.offset_dims,
        batched=_batched(numbers),
    )
    if lined_up and sizes == (*(1,) * d, *a.shape[d:]):
        columns = _columns(t, where)
        places = _from_either_end(t, columns, a)
        if places is not None:
            return single(t, 'take', [a, *places], None, eqn)
        if mode_name(mode) == 'clip' and d == 1:
            return single(t, 'take', [a, *columns], 'clip', eqn)
    return single(t, 'gather', [a, where], (numbers, sizes, mode), eqn)


def _laid_out(
    t: Algebra, a: View, where: View, numbers: Any, sizes: tuple[int, ...], shape: tuple[int, ...]
) -> View | None:
    """Elements at constant places of one axis, where these are all of that axis in another layout:
    cut into parts, turned and repeated. None otherwise."""
    places = constant_of(where)
    if places is None or places.shape[-1] != 1 or _batched(numbers):
        return None
    [k] = numbers.start_index_map
    others = all(n == a.shape[j] for j, n in enumerate(sizes) if j != k)
    cut = _cut(places[..., 0], a.shape[k])
    if cut is None or not others or tuple(numbers.collapsed_slice_dims) != (k,):
        return None
    of_places = [j for j in range(len(shape)) if j not in numbers.offset_dims]
    parts = sorted((d for d in cut if cut[d].stride), key=lambda d: -cut[d].stride)
    a = t.reshape(a, (*a.shape[:k], *[cut[d].period for d in parts], *a.shape[k + 1 :]))
    for axis, d in enumerate(parts, k):
        times = places.shape[d] // cut[d].period
        a = t.concat([a] * times, axis) if times > 1 else a
    to = list(numbers.offset_dims)
    to[k:k] = [of_places[d] for d in parts]
    return t.turned(move_axes(a, to.__getitem__, shape))


class _Cut(NamedTuple):
    """How places grow along one axis: `stride` times the number there, which begins anew after
    `period`; a stride of 0 where they stay."""

    period: int
    stride: int


def _cut(places: np.ndarray, n: int) -> dict[int, _Cut] | None:
    """How places grow along each of their axes, if together they are every one of n elements."""
    cut = {}
    for d, length in enumerate(places.shape):
        along = np.moveaxis(places, d, 0)
        again = [p for p in range(1, length + 1) if length % p == 0]
        period = next(p for p in again if (along == along[np.arange(length) % p]).all())
        cut[d] = _Cut(period, int((along[1] - along[0]).flat[0]) if period > 1 else 0)
    made = sum(
        c.stride * (np.arange(m) % c.period).reshape([-1 if j == d else 1 for j in cut])
        for (d, c), m in zip(cut.items(), places.shape, strict=True)
    )
    left = n
    for c in sorted(cut.values(), key=lambda c: -c.stride):
        if c.stride and c.stride * c.period != left:
            return None
        left = c.stride or left
    right = left == 1 and np.array_equal(np.broadcast_to(made, places.shape), places)
    return cut if right else None


@rule('scatter-add', 'scatter', 'scatter-mul', 'scatter-min', 'scatter-max')
def _scatter(t: Algebra, eqn: Any, a: View, where: View, new: View) -> View:
    p = eqn.params
    numbers, mode = p['dimension_numbers'], p['mode']
    kind = eqn.primitive.name.removeprefix('scatter').removeprefix('-')
    d, n = where.shape[-1], len(where.shape) - 1
    lined_up = _lined_up(
        a,
        where,
        indexed=numbers.scatter_dims_to_operand_dims,
        gone=numbers.inserted_window_dims,
        parts=numbers.update_window_dims,
        batched=_batched(numbers),
    )
    if lined_up and new.shape[n:] == a.shape[d:] and mode_name(mode) != 'clip':
        places = _from_either_end(t, _columns(t, where), a)
        if places is not None:
            return _change(t, kind, a, places, new)
    info = kind, numbers, mode, p['indices_are_sorted'], p['unique_indices']
    return single(t, 'scatter', [a, where, new], info, eqn)


def _batched(numbers: Any) -> Sequence[int]:
    """The axes along which each entry has its own places; older versions of JAX have none."""
    return getattr(numbers, 'operand_batching_dims', ())


def _lined_up(
    a: View,
    where: View,
    *,
    indexed: Sequence[int],
    gone: Sequence[int],
    parts: Sequence[int],
    batched: Sequence[int],
) -> bool:
    """Whether places are those along the first axes of an array, in order: `indexed` are the axes
    that have places, `gone` those that the parts do not have, `parts` the axes of the parts behind
    those of the places."""
    d, n = where.shape[-1], len(where.shape) - 1
    return (
        tuple(indexed) == tuple(range(d))
        and tuple(gone) == tuple(range(d))
        and tuple(parts) == tuple(range(n, n + len(a.shape) - d))
        and not batched
    )


def _columns(t: Algebra, where: View) -> list[View]:
    """The places along each axis."""
    last = len(where.shape) - 1
    return [t.index(where, last, k) for k in range(where.shape[-1])]


def _from_either_end(t: Algebra, columns: Sequence[View], a: View) -> list[View] | None:
    """Places along the first axes of an array as indexing takes them, negative ones too; None where
    indexing would do something else."""
    places = [_before_wrapping(t, v, n) for v, n in zip(columns, a.shape, strict=False)]
    known = [v for v in places if v is not None]
    return known if len(known) == len(places) else None


def _before_wrapping(t: Algebra, v: View, n: int) -> View | None:
    """Places before negative ones were counted from the end, which indexing does by itself; None
    where that was not done and cannot be left out."""
    while v.node.op == 'cast' and np.issubdtype(v.node.args[0].dtype, np.integer):
        v = t.operand(v, 0)
    if v.node.op in ('iota', 'array', 'const'):
        return v
    if v.node.op != 'where':
        return None
    below, moved, plain = v.node.args
    is_below = below.node.op == 'lt' and below.node.args[0].node is plain.node
    added = moved.node.op == 'add' and any(number_of(x) == n for x in moved.node.args)
    if is_below and number_of(below.node.args[1]) == 0 and added:
        return t.operand(v, 2)
    return None


def _change(t: Algebra, kind: str, a: View, places: Sequence[View], new: View) -> View:
    """`a.at[places].add(new)`, without axes of length one that are the same in all."""
    at = list(places)
    d, n = len(at), len(at[0].shape)
    for k in reversed(range(n)):
        if all(v.shape[k] == 1 and v.axes[k] is None for v in (*at, new)):
            at, new = [t.index(v, k, 0) for v in at], t.index(new, k, 0)
            n -= 1
    gone = []
    for k in reversed(range(d, len(a.shape))):
        at_new = n + k - d
        if a.shape[k] == 1 and a.axes[k] is None and new.axes[at_new] is None:
            a, new = t.index(a, k, 0), t.index(new, at_new, 0)
            gone.append(k)
    made = t.op('change', [a, *at, new], kind, a.shape, a.dtype)
    for k in sorted(gone):
        made = spread(made, k, 1)
    return made


# ---- as text ----


@composed('take')
def _take_text(words: Words, node: Node, o: Operands) -> Text:
    a, *places = node.args
    texts = [o.exact(v).text for v in places]
    if node.info is not None:
        return call(f'{words.np}.take', o.exact(a).text, texts[0], '0', "mode='clip'")
    return Text(f'{o.exact(a).within(ATOM)}[{", ".join(texts)}]')


@composed('change')
def _change_text(words: Words, node: Node, o: Operands) -> Text:
    words.only_jax('scatter')
    a, *places, new = node.args
    texts = ', '.join(o.exact(v).text for v in places)
    value = o.met(new).text
    how = {'': 'set', 'add': 'add', 'mul': 'multiply', 'min': 'min', 'max': 'max'}[node.info]
    return Text(f'{o.exact(a).within(ATOM)}.at[{texts}].{how}({value})')


@composed('gather')
def _gather_text(words: Words, node: Node, o: Operands) -> Text:
    a, where = node.args
    numbers, sizes, mode = node.info
    fields = ('offset_dims', 'collapsed_slice_dims', 'start_index_map')
    more = ('operand_batching_dims', 'start_indices_batching_dims')
    layout = f'jax.lax.GatherDimensionNumbers({_fields(numbers, fields, more)})'
    texts = o.exact(a).text, o.exact(where).text, layout, str(tuple(sizes))
    return words.call_jax('gather', 'lax.gather', *texts, f"mode='{mode_name(mode)}'")


@composed('scatter')
def _scatter_text(words: Words, node: Node, o: Operands) -> Text:
    kind, numbers, mode, is_sorted, unique = node.info
    fields = ('update_window_dims', 'inserted_window_dims', 'scatter_dims_to_operand_dims')
    more = ('operand_batching_dims', 'scatter_indices_batching_dims')
    layout = f'jax.lax.ScatterDimensionNumbers({_fields(numbers, fields, more)})'
    texts = [o.exact(v).text for v in node.args]
    flags = ['indices_are_sorted=True'] if is_sorted else []
    flags += ['unique_indices=True'] if unique else []
    name = f'lax.scatter_{kind}' if kind else 'lax.scatter'
    return words.call_jax('scatter', name, *texts, layout, *flags, f"mode='{mode_name(mode)}'")


def _fields(numbers: Any, fields: Sequence[str], more: Sequence[str]) -> str:
    """The fields of a record, of some only those that are not empty."""
    chosen = [*fields, *[name for name in more if getattr(numbers, name, ())]]
    return ', '.join(f'{name}={tuple(getattr(numbers, name))}' for name in chosen)
