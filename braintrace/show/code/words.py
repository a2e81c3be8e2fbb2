"""Terms in the words of JAX or of numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ...errors import NotSupportedError
from .views import Node, View, number_of

# How strongly an expression holds together.
COMPARE, OR, XOR, AND, SUM, PRODUCT, SIGN, POWER, ATOM = range(9)


class Text(NamedTuple):
    """An expression, how strongly it holds together, and the operators outside of its brackets."""

    text: str
    strength: int = ATOM
    signs: frozenset[str] = frozenset()

    def within(self, strength: int) -> Text:
        """The expression as an operand of something that holds together this strongly."""
        return self if self.strength >= strength else Text(f'({self.text})')

    def __str__(self) -> str:
        return self.text


OPERATORS = {
    'add': ('+', SUM),
    'sub': ('-', SUM),
    'mul': ('*', PRODUCT),
    'div': ('/', PRODUCT),
    'eq': ('==', COMPARE),
    'ne': ('!=', COMPARE),
    'lt': ('<', COMPARE),
    'le': ('<=', COMPARE),
    'gt': ('>', COMPARE),
    'ge': ('>=', COMPARE),
    'and': ('&', AND),
    'or': ('|', OR),
    'xor': ('^', XOR),
    'pow': ('**', POWER),
}
BOTH = {  # functions of jax.numpy and of numpy, by operation
    'where': 'where',
    'clip': 'clip',
    'max': 'maximum',
    'min': 'minimum',
    'rem': 'fmod',
    'atan2': 'arctan2',
    'asin': 'arcsin',
    'acos': 'arccos',
    'atan': 'arctan',
    'asinh': 'arcsinh',
    'acosh': 'arccosh',
    'atanh': 'arctanh',
    'is_finite': 'isfinite',
    'conj': 'conj',
    'shift_left': 'left_shift',
    'shift_right_arithmetic': 'right_shift',
    **{
        name: name
        for name in (
            'tanh exp exp2 log log1p expm1 sin cos tan sinh cosh sqrt cbrt abs sign floor ceil '
            'real imag nextafter'
        ).split()
    },
}
OF_JAX = {  # functions of JAX alone
    'logistic': 'jax.nn.sigmoid',
    **{
        name: f'jax.lax.{name}'
        for name in (
            'erf erfc erf_inv lgamma digamma population_count clz bessel_i0e bessel_i1e '
            'shift_right_logical complex igamma igammac'
        ).split()
    },
}
HELPERS = {  # written into a file of numpy where they are needed
    'logistic': ('sigmoid', 'def sigmoid(x):\n    return 0.5 + 0.5 * np.tanh(0.5 * x)\n'),
    'scan': (
        'scan',
        'def scan(f, carry, xs, length, reverse=False):\n'
        '    ys = []\n'
        '    for k in reversed(range(length)) if reverse else range(length):\n'
        '        carry, y = f(carry, tuple(x[k] for x in xs))\n'
        '        ys.append(y)\n'
        '    return carry, tuple(np.stack(y) for y in zip(*(ys[::-1] if reverse else ys)))\n',
    ),
    'while_loop': (
        'while_loop',
        'def while_loop(going_on, body, carry):\n'
        '    while going_on(carry):\n'
        '        carry = body(carry)\n'
        '    return carry\n',
    ),
}
REDUCTIONS = {
    'reduce_sum': 'sum',
    'reduce_max': 'max',
    'reduce_min': 'min',
    'reduce_prod': 'prod',
    'reduce_and': 'all',
    'reduce_or': 'any',
}


class Words:
    """How things are called: in `jax`, or in `numpy`."""

    def __init__(self, backend: str):
        self.backend = backend
        self.np = 'jnp' if backend == 'jax' else 'np'
        self.helpers: dict[str, str] = {}

    @property
    def is_numpy(self) -> bool:
        return self.backend == 'numpy'

    @property
    def helper_names(self) -> list[str]:
        """Names of functions that the file may bring along."""
        return [name for name, _ in HELPERS.values()] if self.is_numpy else []

    def function(self, op: str) -> str:
        """The function that does an operation."""
        if op in BOTH:
            return f'{self.np}.{BOTH[op]}'
        return self.helper(op) if self.is_numpy else OF_JAX[op]

    def helper(self, op: str) -> str:
        """A function that the file itself brings along."""
        if op not in HELPERS:
            self.refuse(op)
        name, text = HELPERS[op]
        self.helpers[name] = text
        return name

    def refuse(self, op: str) -> None:
        """Numpy has no such thing."""
        raise NotSupportedError(
            f"`code(backend='numpy')`: numpy has no `{op}`, which this model and rule need. "
            "Use backend='jax'."
        )

    def only_jax(self, op: str) -> None:
        """Refuse an operation in a file of numpy."""
        if self.is_numpy:
            self.refuse(op)

    def call_jax(self, op: str, function: str, *args: str) -> Text:
        """A call of a function of JAX that numpy has no match for; `op` is what it does."""
        self.only_jax(op)
        return call(f'jax.{function}', *args)

    # ---- numbers, types, shapes ----

    def dtype(self, dtype: Any) -> str:
        """A type by its shortest name."""
        for short in (float, int, bool):
            usual = np.dtype(short) if self.is_numpy else jnp.result_type(short)
            if dtype == usual:
                return short.__name__
        return f'{self.np}.{dtype.name}'

    def unusual(self, dtype: Any) -> list[str]:
        """A type as a further argument of a function that makes floats, where it is another."""
        usual = np.dtype(float) if self.is_numpy else jnp.result_type(float)
        return [] if dtype == usual else [self.dtype(dtype)]

    def number(self, value: Any) -> Text:
        """A number as Python writes it; a whole one without its point."""
        if isinstance(value, np.bool_ | bool):
            return Text(str(bool(value)))
        if np.iscomplexobj(value):
            return Text(repr(complex(value)))
        if not np.isfinite(float(value)):
            name = 'nan' if np.isnan(float(value)) else 'inf'
            return self._signed(f'{self.np}.{name}', float(value) < 0)
        number = float(value)
        if number == int(number) and abs(number) < 1e6:
            text = str(abs(int(number)))
        elif np.issubdtype(np.asarray(value).dtype, np.integer):
            text = str(abs(int(value)))
        else:
            text = _shortest(abs(value))
            rest = _shortest(np.asarray(value).dtype.type(1) - value)
            if len(text) > 8 and len(rest) <= 6 and number < 1:
                return Text(f'1 - {rest}', SUM, frozenset('-'))
        return self._signed(text, number < 0)

    def _signed(self, text: str, negative: bool) -> Text:
        return Text(f'-{text}', SIGN, frozenset('-')) if negative else Text(text)

    def filled(self, value: Any, shape: Sequence[int], dtype: Any) -> Text:
        """An array of one number."""
        number, size = with_point(self.number(value).text, dtype), str(tuple(shape))
        if not shape:
            name, args = 'array', [number]
        elif value in (0, 1):
            name, args = 'ones' if value else 'zeros', [size]
        else:
            name, args = 'full', [size, number]
        return call(f'{self.np}.{name}', *args, *self.unusual(dtype))

    # ---- views ----

    def placed(self, text: Text, v: View, leading: bool = False) -> Text:
        """A node as it is seen, ready to meet others of its shape; `leading` axes of length one are
        there only if they are asked for."""
        order = [a for a in v.axes if a is not None]
        written = text.within(ATOM)
        if order != sorted(order):
            plain = order == [1, 0]
            turned = f'{written}.T' if plain else f'{self.np}.transpose({text}, {order})'
            written = Text(turned)
        axes = list(v.axes)
        while axes and axes[0] is None and not leading:
            axes.pop(0)
        if None not in axes:
            return written if order != sorted(order) else text
        slots = ['None' if a is None else ':' for a in axes]
        while slots and slots[-1] == ':':
            slots.pop()
        return Text(f'{written}[{", ".join(slots)}]')

    def exact(self, text: Text, v: View) -> Text:
        """A node as it is seen, with exactly its shape."""
        if v.node.op == 'const':
            return self.filled(number_of(v), v.shape, v.dtype)
        alone = all(n == 1 for a, n in zip(v.axes, v.shape, strict=True) if a is None)
        if alone:
            return self.placed(text, v, leading=True)
        return Text(f'{self.np}.broadcast_to({self.placed(text, v).text}, {v.shape})')

    def seen_simply(self, v: View) -> bool:
        """Whether a view needs no word."""
        return v.is_whole or v.node.op == 'const'


def with_point(text: str, dtype: Any) -> str:
    """A number of this type where nothing but its text says what type it has."""
    whole = text.lstrip('-').isdigit() and np.issubdtype(dtype, np.floating)
    return f'{text}.0' if whole else text


def _shortest(value: Any) -> str:
    """The shortest text that is the same number in its own type."""
    text = str(value) if isinstance(value, np.generic) else repr(value)
    return text.removesuffix('.0').replace('e-0', 'e-').replace('e+0', 'e')


def call(name: str, *args: str) -> Text:
    """A call."""
    return Text(f'{name}({", ".join(args)})')


OTHERS = {'+': '-', '*': '/@', '&': '', '|': '', '^': ''}  # as strong, and not to be moved past


def operator(node: Node, operands: Sequence[Text]) -> Text:
    """An expression with an operator between its operands."""
    sign, strength = OPERATORS[node.op]
    a, b = operands
    if node.op == 'pow':
        plain = a.text.isidentifier() or b.text.isidentifier()
        return joined(a.within(ATOM), '**' if plain else ' ** ', b.within(ATOM), strength)
    left, right = strength, strength + 1
    if sign in OTHERS and not b.signs.intersection(OTHERS[sign]):
        right = strength
    compares_twice = strength == COMPARE == a.strength
    is_matrix = strength == PRODUCT == a.strength and '@' in a.signs
    if compares_twice or is_matrix:
        left = ATOM
    return joined(a.within(left), f' {sign} ', b.within(right), strength)


def joined(a: Text, between: str, b: Text, strength: int) -> Text:
    """Two expressions with an operator between them."""
    signs = a.signs | b.signs | {between.strip()}
    return Text(f'{a}{between}{b}', strength, signs)
