"""The text of each operation, from the texts of its operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .lines import tuple_of
from .primitives import CUMULATIVE, spec_text
from .views import Node, View, is_truth, number_of
from .words import (
    ATOM,
    BOTH,
    OF_JAX,
    OPERATORS,
    POWER,
    PRODUCT,
    REDUCTIONS,
    SIGN,
    Text,
    Words,
    call,
    joined,
    operator,
    with_point,
)

Composer = Callable[[Words, Node, 'Operands'], Text]
COMPOSED: dict[str, Composer] = {}


class Operands:
    """The operands of a node as text: `met` where they meet others of their shape, `exact` where
    they stand alone."""

    def __init__(self, words: Words, text: Callable[[View], Text]):
        self.words, self._text = words, text

    def node(self, v: View) -> Text:
        """The node itself, however it is seen."""
        return self._text(v)

    def met(self, v: View) -> Text:
        """Ready to meet arrays of its shape."""
        if v.node.op == 'const':
            return self.words.number(v.node.info)
        return self.words.placed(self._text(v), v)

    def exact(self, v: View) -> Text:
        """With exactly its shape."""
        text = Text('') if v.node.op == 'const' else self._text(v)
        return self.words.exact(text, v)


def compose(words: Words, node: Node, text: Callable[[View], Text]) -> Text:
    """The expression of a node; `text` gives those of its operands."""
    return COMPOSED[node.op](words, node, Operands(words, text))


def composed(*names: str) -> Callable[[Composer], Composer]:
    """Enter a function under these operations."""

    def enter(f: Composer) -> Composer:
        for name in names:
            assert name not in COMPOSED, name
            COMPOSED[name] = f
        return f

    return enter


# ---- at each place ----


@composed(*OPERATORS)
def _arithmetic(words: Words, node: Node, o: Operands) -> Text:
    a, b = node.args
    if node.op == 'div' and not np.issubdtype(node.dtype, np.inexact):
        return words.call_jax('integer division', 'lax.div', o.exact(a).text, o.exact(b).text)
    return operator(node, [_promoted(node, a, b, o), _promoted(node, b, a, o)])


def _promoted(node: Node, v: View, other: View, o: Operands) -> Text:
    """An operand that meets another; truth values that meet numbers become numbers by
    themselves."""
    by_itself = node.op in ('add', 'sub', 'mul') and other.node.op not in ('const', 'cast')
    if not by_itself or not is_truth(v):
        return o.met(v)
    [truth] = v.node.args
    has_name = o.node(v).text.isidentifier()
    return o.met(truth if v.is_whole and truth.is_whole and not has_name else v)


@composed(*BOTH, *OF_JAX)
def _function(words: Words, node: Node, o: Operands) -> Text:
    texts = [o.met(v).text for v in node.args]
    fixed = [v for v in node.args if v.node.op == 'const' and v.dtype == node.dtype]
    moving = [v for v in node.args if v.node.op != 'const' and v.dtype == node.dtype]
    if fixed and not moving and node.op == 'where':  # nothing else says which type it is
        place = node.args.index(fixed[0])
        texts[place] = f'{words.np}.{node.dtype.name}({texts[place]})'
    if node.op in OF_JAX and len(texts) > 1:
        texts = [o.exact(v).text for v in node.args]
    return call(words.function(node.op), *texts)


@composed('rsqrt')
def _rsqrt(words: Words, node: Node, o: Operands) -> Text:
    a = o.met(node.args[0]).text
    if words.is_numpy:
        return joined(Text('1'), ' / ', call('np.sqrt', a), PRODUCT)
    return call('jax.lax.rsqrt', a)


@composed('neg')
def _neg(words: Words, node: Node, o: Operands) -> Text:
    inside = o.met(node.args[0]).within(PRODUCT)
    return Text(f'-{inside}', min(SIGN, inside.strength), inside.signs | {'-'})


@composed('not')
def _not(words: Words, node: Node, o: Operands) -> Text:
    return Text(f'~{o.met(node.args[0]).within(ATOM)}', SIGN)


@composed('integer_pow')
def _integer_pow(words: Words, node: Node, o: Operands) -> Text:
    return Text(f'{o.met(node.args[0]).within(ATOM)}**{node.info}', POWER)


@composed('cast')
def _cast(words: Words, node: Node, o: Operands) -> Text:
    [a] = node.args
    inside = o.met(a)
    if np.issubdtype(a.dtype, np.complexfloating):
        inside = call(f'{words.np}.real', inside.text)
    return Text(f'{inside.within(ATOM)}.astype({words.dtype(node.dtype)})')


@composed('round')
def _round(words: Words, node: Node, o: Operands) -> Text:
    if node.info == 'TO_NEAREST_EVEN':
        return call(f'{words.np}.round', o.met(node.args[0]).text)
    return words.call_jax('round away from zero', 'lax.round', o.exact(node.args[0]).text)


@composed('bitcast')
def _bitcast(words: Words, node: Node, o: Operands) -> Text:
    texts = o.exact(node.args[0]).text, words.dtype(node.dtype)
    return words.call_jax('bitcast', 'lax.bitcast_convert_type', *texts)


# ---- layout ----


@composed('index')
def _index(words: Words, node: Node, o: Operands) -> Text:
    [a] = node.args
    slots = [spec_text(s, n) for s, n in zip(node.info, a.shape, strict=True)]
    while slots and slots[-1] == ':':
        slots.pop()
    first = next((k for k, s in enumerate(slots) if s != ':'), 0)
    if first > 1:
        slots = ['...', *slots[first:], *[':'] * (len(a.shape) - len(slots))]
    return Text(f'{o.node(a).within(ATOM)}[{", ".join(slots)}]')


@composed('concat')
def _concat(words: Words, node: Node, o: Operands) -> Text:
    axis, parts = node.info, node.args
    padding = _padding(words, node, o)
    if padding is not None:
        return padding
    full = [
        View(v.node, v.axes, (*node.shape[:axis], v.shape[axis], *node.shape[axis + 1 :]))
        for v in parts
    ]
    if axis == len(node.shape) - 1 and all(v == full[0] for v in full) and None not in full[0].axes:
        return call(f'{words.np}.tile', o.exact(full[0]).text, str(len(full)))
    texts = ', '.join(o.exact(v).text for v in full)
    last = axis == len(node.shape) - 1
    where = f', {-1 if last and axis else axis}' if axis else ''
    return Text(f'{words.np}.concatenate([{texts}]{where})')


def _padding(words: Words, node: Node, o: Operands) -> Text | None:
    """Zeros around an array."""
    axis, real = node.info, [v for v in node.args if number_of(v) != 0]
    if len(real) != 1 or len(real) == len(node.args):
        return None
    [array] = real
    if array.node.op == 'const' or None in array.axes:
        return None
    place = node.args.index(array)
    sides = [
        sum(v.shape[axis] for v in part) for part in (node.args[:place], node.args[place + 1 :])
    ]
    widths = [(0, 0)] * len(node.shape)
    widths[axis] = (sides[0], sides[1])
    written = str(tuple(widths)) if len(widths) > 1 else str(widths[0])
    return call(f'{words.np}.pad', o.exact(array).text, written)


@composed('stack')
def _stack(words: Words, node: Node, o: Operands) -> Text:
    texts = ', '.join(o.exact(v).text for v in node.args)
    where = f', {node.info}' if node.info else ''
    return Text(f'{words.np}.stack([{texts}]{where})')


@composed('reshape')
def _reshape(words: Words, node: Node, o: Operands) -> Text:
    [a] = node.args
    if len(node.shape) == 1:
        return Text(f'{o.exact(a).within(ATOM)}.reshape(-1)')
    return Text(f'{o.exact(a).within(ATOM)}.reshape{node.shape}')


@composed('pad')
def _pad(words: Words, node: Node, o: Operands) -> Text:
    texts = [o.exact(v).text for v in node.args]
    return words.call_jax('pad between elements', 'lax.pad', *texts, str(list(node.info)))


@composed('iota')
def _iota(words: Words, node: Node, o: Operands) -> Text:
    usual = words.dtype(node.dtype) == 'int'
    more = [] if usual else [f'dtype={words.dtype(node.dtype)}']
    return call(f'{words.np}.arange', str(node.shape[0]), *more)


@composed('eye')
def _eye(words: Words, node: Node, o: Operands) -> Text:
    more = [f'dtype={name}' for name in words.unusual(node.dtype)]
    return call(f'{words.np}.eye', str(node.shape[0]), *more)


@composed('dynamic_slice')
def _dynamic_slice(words: Words, node: Node, o: Operands) -> Text:
    a, *starts = node.args
    texts = o.exact(a).text, tuple_of([o.met(s).text for s in starts]), str(node.info)
    return words.call_jax(node.op, 'lax.dynamic_slice', *texts)


@composed('dynamic_update_slice')
def _dynamic_update_slice(words: Words, node: Node, o: Operands) -> Text:
    a, new, *starts = node.args
    texts = o.exact(a).text, o.exact(new).text, tuple_of([o.met(s).text for s in starts])
    return words.call_jax(node.op, 'lax.dynamic_update_slice', *texts)


# ---- sums and products ----


@composed(*REDUCTIONS)
def _reduce(words: Words, node: Node, o: Operands) -> Text:
    [a], (axes, _) = node.args, node.info
    where = [] if len(axes) == len(a.shape) else [_axes_text(axes, len(a.shape))]
    return call(f'{words.np}.{REDUCTIONS[node.op]}', o.exact(a).text, *where)


def _axes_text(axes: tuple[int, ...], rank: int) -> str:
    """Some axes as an argument; the last one of all is counted from the end."""
    if len(axes) > 1:
        return str(axes)
    return '-1' if axes[0] == rank - 1 else str(axes[0])


@composed('reduce_xor')
def _reduce_xor(words: Words, node: Node, o: Operands) -> Text:
    axes, _ = node.info
    texts = o.exact(node.args[0]).text, str(list(axes))
    return words.call_jax(node.op, 'lax.reduce_xor', *texts)


@composed('argmax', 'argmin')
def _arg(words: Words, node: Node, o: Operands) -> Text:
    [a] = node.args
    place = call(f'{words.np}.{node.op}', o.exact(a).text, str(node.info))
    usual = words.dtype(node.dtype) == 'int'
    return place if usual else Text(f'{place.text}.astype({words.dtype(node.dtype)})')


@composed(*CUMULATIVE)
def _cumulative(words: Words, node: Node, o: Operands) -> Text:
    axis, reverse = node.info
    [a] = node.args
    if node.op in ('cumsum', 'cumprod') and not reverse:
        return call(f'{words.np}.{node.op}', o.exact(a).text, str(axis))
    more = ['reverse=True'] if reverse else []
    return words.call_jax(node.op, f'lax.{node.op}', o.exact(a).text, str(axis), *more)


@composed('einsum')
def _einsum(words: Words, node: Node, o: Operands) -> Text:
    *labels, out, precision = node.info
    texts = [o.node(v) for v in node.args]
    matrices = None if precision else _as_matrices(labels, out, texts)
    if matrices is not None:
        return matrices
    more = [f"precision='{precision}'"] if precision and not words.is_numpy else []
    pattern = f"'{','.join(labels)}->{out}'"
    return call(f'{words.np}.einsum', pattern, *[t.text for t in texts], *more)


def _as_matrices(labels: list[str], out: str, texts: list[Text]) -> Text | None:
    """A product of matrices and vectors."""
    for first, second in ((0, 1), (1, 0)):
        a, b = labels[first], labels[second]
        shared = [c for c in a if c in b and c not in out]
        if len(shared) != 1 or any(c in a and c in b and c in out for c in out):
            continue
        [c] = shared
        if out != a.replace(c, '') + b.replace(c, ''):
            continue
        left, right = (_side(s, texts[k], c, k == first) for k, s in ((first, a), (second, b)))
        if left is not None and right is not None:
            return joined(left, ' @ ', right, PRODUCT)
    return None


def _side(labels: str, text: Text, c: str, is_left: bool) -> Text | None:
    """One side of a product of matrices; None where it would take more than a transpose."""
    if labels == c:
        return text.within(PRODUCT if is_left else SIGN)
    if is_left and labels[-1] == c:
        return _factor(text)
    if not is_left and len(labels) == 2 and labels[0] == c:
        return text.within(SIGN)
    if len(labels) == 2:
        return Text(f'{text.within(ATOM)}.T')
    return None


def _factor(text: Text) -> Text:
    """The left side: a product of another kind has parentheses of its own."""
    holds = text.strength > PRODUCT or (text.strength == PRODUCT and '@' in text.signs)
    return text if holds and '*' not in text.signs else text.within(ATOM)


# ---- constants and what is called by its own name ----


@composed('array')
def _array(words: Words, node: Node, o: Operands) -> Text:
    value = node.info.value
    if value.ndim == 1 and (value == np.arange(len(value))).all() and value.dtype != np.bool_:
        return _iota(words, node, o)
    if value.ndim == 2 and value.shape[0] == value.shape[1] and (value == np.eye(len(value))).all():
        return _eye(words, node, o)
    plain = words.dtype(node.dtype) in ('int', 'bool')
    more = [] if plain else words.unusual(node.dtype)
    return call(f'{words.np}.array', _nested(words, value), *more)


def _nested(words: Words, value: Any) -> str:
    if value.ndim == 0:
        return with_point(words.number(value[()]).text, value.dtype)
    return f'[{", ".join(_nested(words, part) for part in value)}]'
