"""Gather and scatter: as indexing, `table[rows]` and `a.at[rows].add(new)`, where they take or
change whole parts of an array at some places; by JAX's own functions otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .algebra import Algebra
from .compose import Operands, composed
from .primitives import rule
from .terms import Node, View, number_of
from .words import ATOM, Text, Words, call


def mode_name(mode: Any) -> str:
    """What happens outside of an array, as JAX calls it."""
    return {'FILL_OR_DROP': 'fill', 'CLIP': 'clip'}.get(mode.name, 'promise_in_bounds')


@rule('gather')
def _gather(t: Algebra, eqn: Any, a: View, where: View) -> View:
    p, out = eqn.params, eqn.outvars[0].aval
    numbers, sizes, mode = p['dimension_numbers'], tuple(p['slice_sizes']), p['mode']
    d, n = where.shape[-1], len(where.shape) - 1
    whole_parts = (
        tuple(numbers.start_index_map) == tuple(range(d))
        and tuple(numbers.collapsed_slice_dims) == tuple(range(d))
        and tuple(numbers.offset_dims) == tuple(range(n, n + len(a.shape) - d))
        and sizes == (*(1,) * d, *a.shape[d:])
        and not getattr(numbers, 'operand_batching_dims', ())
    )
    if whole_parts:
        places = [_from_either_end(t, v, k) for v, k in _columns(t, where, a)]
        if None not in places or mode_name(mode) == 'clip' and d == 1:
            plain = None not in places
            taken = places if plain else [v for v, _ in _columns(t, where, a)]
            info = None if plain else 'clip'
            return t.op('take', [a, *taken], info, out.shape, out.dtype)
    return t.op('gather', [a, where], (numbers, sizes, mode), out.shape, out.dtype)


@rule('scatter-add', 'scatter', 'scatter-mul', 'scatter-min', 'scatter-max')
def _scatter(t: Algebra, eqn: Any, a: View, where: View, new: View) -> View:
    p = eqn.params
    numbers, kind = p['dimension_numbers'], eqn.primitive.name.removeprefix('scatter')
    d, n = where.shape[-1], len(where.shape) - 1
    whole_parts = (
        tuple(numbers.scatter_dims_to_operand_dims) == tuple(range(d))
        and tuple(numbers.inserted_window_dims) == tuple(range(d))
        and tuple(numbers.update_window_dims) == tuple(range(n, n + len(a.shape) - d))
        and new.shape[n:] == a.shape[d:]
        and not getattr(numbers, 'operand_batching_dims', ())
        and mode_name(p['mode']) != 'clip'
    )
    if whole_parts:
        places = [_from_either_end(t, v, k) for v, k in _columns(t, where, a)]
        if None not in places:
            return _change(t, kind.removeprefix('-'), a, places, new)
    info = (
        kind.removeprefix('-'),
        numbers,
        p['mode'],
        p['indices_are_sorted'],
        p['unique_indices'],
    )
    return t.op('scatter', [a, where, new], info, a.shape, a.dtype)


def _columns(t: Algebra, where: View, a: View) -> list[tuple[View, int]]:
    """The places along each axis, and the length of that axis."""
    last = len(where.shape) - 1
    return [(t.index(where, last, k), a.shape[k]) for k in range(where.shape[-1])]


def _from_either_end(t: Algebra, v: View, n: int) -> View | None:
    """Places before negative ones were counted from the end, which indexing does by itself; None
    where that was not done and cannot be left out."""
    while v.node.op == 'cast' and np.issubdtype(v.node.args[0].dtype, np.integer):
        v = _operand(v, 0)
    if v.node.op in ('iota', 'array', 'const'):
        return v
    if v.node.op != 'where':
        return None
    below, moved, plain = v.node.args
    is_below = below.node.op == 'lt' and below.node.args[0].node is plain.node
    added = moved.node.op == 'add' and any(number_of(x) == n for x in moved.node.args)
    if is_below and number_of(below.node.args[1]) == 0 and added:
        return _operand(v, 2)
    return None


def _operand(v: View, k: int) -> View:
    arg = v.node.args[k]
    return View(arg.node, tuple(None if a is None else arg.axes[a] for a in v.axes), v.shape)


def _change(t: Algebra, kind: str, a: View, places: Sequence[View | None], new: View) -> View:
    """`a.at[places].add(new)`, without axes of length one that are the same in all."""
    at = [v for v in places if v is not None]
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
    axes: list[int | None] = list(made.axes)
    shape = list(made.shape)
    for k in sorted(gone):
        axes.insert(k, None)
        shape.insert(k, 1)
    return View(made.node, tuple(axes), tuple(shape))


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
    words.only_jax('gather')
    a, where = node.args
    numbers, sizes, mode = node.info
    fields = ('offset_dims', 'collapsed_slice_dims', 'start_index_map')
    more = ('operand_batching_dims', 'start_indices_batching_dims')
    layout = f'jax.lax.GatherDimensionNumbers({_fields(numbers, fields, more)})'
    texts = o.exact(a).text, o.exact(where).text, layout, str(tuple(sizes))
    return call('jax.lax.gather', *texts, f"mode='{mode_name(mode)}'")


@composed('scatter')
def _scatter_text(words: Words, node: Node, o: Operands) -> Text:
    words.only_jax('scatter')
    kind, numbers, mode, is_sorted, unique = node.info
    fields = ('update_window_dims', 'inserted_window_dims', 'scatter_dims_to_operand_dims')
    more = ('operand_batching_dims', 'scatter_indices_batching_dims')
    layout = f'jax.lax.ScatterDimensionNumbers({_fields(numbers, fields, more)})'
    texts = [o.exact(v).text for v in node.args]
    flags = [f'indices_are_sorted={is_sorted}'] * is_sorted + [f'unique_indices={unique}'] * unique
    name = f'jax.lax.scatter_{kind}' if kind else 'jax.lax.scatter'
    return call(name, *texts, layout, *flags, f"mode='{mode_name(mode)}'")


def _fields(numbers: Any, fields: Sequence[str], more: Sequence[str]) -> str:
    """The fields of a record, of some only those that are not empty."""
    chosen = [*fields, *[name for name in more if getattr(numbers, name, ())]]
    return ', '.join(f'{name}={tuple(getattr(numbers, name))}' for name in chosen)
