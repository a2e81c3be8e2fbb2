"""Terms as lines of Python: what gets a line and a name, and what stands where it is used."""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from . import library, places  # noqa: F401, they fill the tables
from .compose import compose
from .control import Block
from .lines import Names, indented, targets, wrap
from .views import Node, View, is_given, whole
from .words import ATOM, Text, Words

LONG = 66  # an expression that stands inside of another is not longer
SHORT = 12  # a longer one may get a name to make room
BIG = 24  # a constant with more elements has a name
HUGE = 1000  # one with more is written as bytes
SPOKEN = (  # expressions, and what people call them
    (r'(?:jax\.nn\.)?sigmoid\((\w+)\)', 'sig_{}'),
    (r'\w+\.tanh\((\w+)\)', 'tanh_{}'),
    (r'1 - (\w+)\*\*2', 'slope_{}'),
    (r'(\w+) \* \(1 - \1\)', 'slope_{}'),
)
Statement = Callable[['Scope', Node, Any, list[str]], None]  # with the names of the results
STATEMENTS: dict[str, Statement] = {}


def statement(name: str) -> Callable[[Any], Any]:
    """Enter a function that writes an operation with several results, unless that is one call."""

    def enter(f: Statement) -> Statement:
        STATEMENTS[name] = f
        return f

    return enter


class File:
    """What all functions of a file share: the words, the names, the constants."""

    def __init__(self, words: Words, names: Names):
        self.words, self.names = words, names
        self.constants: dict[Node, tuple[str, str]] = {}  # the name and the value of each

    @property
    def has_bytes(self) -> bool:
        """Whether a constant is written as bytes."""
        return any(node.info.value.size > HUGE for node in self.constants)

    def constant(self, node: Node) -> Text:
        """A constant array: in its place if it is small, by name if it is not."""
        value = node.info.value
        if value.size <= BIG:
            return self._as_list(node)
        if node not in self.constants:
            written = self._as_bytes(value) if value.size > HUGE else self._as_list(node).text
            name = 'EYE' if '.eye(' in written else 'CONSTANT'
            self.constants[node] = self.names.new(name), written
        return Text(self.constants[node][0])

    def _as_list(self, node: Node) -> Text:
        def no_operand(v: View) -> Text:
            raise AssertionError('a constant has no operands')

        return compose(self.words, node, no_operand)

    def _as_bytes(self, value: Any) -> str:
        text = base64.b64encode(value.tobytes()).decode()
        dtype = f'{self.words.np}.{value.dtype.name}'
        lines = ' '.join(f"b'{text[k : k + 80]}'" for k in range(0, len(text), 80))
        read = f'{self.words.np}.frombuffer(base64.b64decode({lines}), {dtype})'
        return f'{read}.reshape({value.shape})'


class Scope:
    """The lines of one function.

    Args:
        file: what it shares with other functions.
        uses: how often each node is used in it.
        hints: what the user or the mathematics calls some nodes.
        names: those that are taken already.
        given: how the values read that are there before the first line.
        around: the function that it stands in.
        shapes: whether the shapes of values are said.
        spare: names for nodes that get a line for another reason.

    Its `lines` are written as values are asked for; `read` are the given values among them, `made`
    the values that its lines have made.
    """

    def __init__(
        self,
        file: File,
        uses: Mapping[Node, int],
        hints: Mapping[Node, str],
        names: Names,
        given: Mapping[Node, Text],
        *,
        around: Scope | None = None,
        shapes: bool = False,
        spare: Mapping[Node, str] = MappingProxyType({}),
    ):
        self.file, self._uses, self._hints, self.names = file, uses, hints, names
        self._around, self._shapes, self._spare = around, shapes, spare
        self.given, self.made = given, dict[Node, Text]()
        self.read: dict[Node, None] = {}  # in this order
        self.lines: list[str] = []

    # ---- expressions ----

    def text(self, v: View) -> Text:
        """The expression, or the name, of a node."""
        node = v.node
        if node in self.given:
            self.read[node] = None
            return self.given[node]
        if node in self.made:
            return self.made[node]
        if node.op == 'outer':
            assert self._around is not None
            return self._around.text(whole(node.info))
        if node.op == 'const':
            return self.file.words.number(node.info)
        if node.op == 'array':
            return self.file.constant(node)
        if node.op == 'item':
            self._statement(node.args[0].node)
            return self.made[node]
        return self._expression(node)

    def _expression(self, node: Node) -> Text:
        for v in node.args:  # what can be read only by name
            text = self.text(v)
            turned = not self.file.words.seen_simply(v)
            if turned and text.strength < ATOM and v.node.op not in ('cast', 'index'):
                self.give_name(v.node)
        written = self._composed(node)
        while len(written.text) > LONG:
            operands = [(k, v) for k, v in enumerate(node.args) if self._has_no_name(v.node)]
            lengths = [(len(self.text(v).text), k) for k, v in operands]
            length, longest = max(lengths, default=(0, 0))
            if length <= SHORT:
                break
            self.give_name(node.args[longest].node)
            written = self._composed(node)
        if self._has_line(node, written):
            return self._assign(node, written)
        return written

    def _composed(self, node: Node) -> Text:
        return compose(self.file.words, node, self.text)

    def _has_no_name(self, node: Node) -> bool:
        """Whether a value could have a line of its own and has none."""
        plain = is_given(node) or node.op == 'item'
        return not plain and node not in self.given and node not in self.made

    def _has_line(self, node: Node, written: Text) -> bool:
        if node in self._hints:
            return True
        if self._uses.get(node, 0) < 2:
            return False
        short = node.op in ('index', 'neg', 'iota') and len(written.text) <= 10
        return not short

    def give_name(self, node: Node) -> Text:
        """A name for a node, and a line that says what it is."""
        written = self.text(whole(node))
        return self._assign(node, written) if self._has_no_name(node) else written

    def _assign(self, node: Node, written: Text) -> Text:
        """Put down the line of a node; its name."""
        told = self._hints.get(node) or self._spare.get(node)
        name = self.names.new(told or _letters(written.text), told is None)
        self.line(f'{name} = ', written.text, str(node.shape) if self._shapes else '')
        self.made[node] = Text(name)
        return self.made[node]

    def exact(self, v: View) -> str:
        """A value with exactly its shape."""
        if v.node.op == 'const':
            return self.file.words.exact(Text(''), v).text
        return self.file.words.exact(self.text(v), v).text

    def line(self, head: str, text: str, comment: str = '') -> None:
        """Put down a line, or several where it is too long."""
        self.lines += wrap(head, text, comment)

    # ---- statements ----

    def _statement(self, node: Node) -> None:
        """An operation with several results."""
        info, shapes = node.info
        items = {
            other.info: other
            for other in self._uses
            if other.op == 'item' and other.args[0].node is node
        }
        results = [self.names.new('v') if k in items else '_' for k in range(len(shapes))]
        if node.op in STATEMENTS:
            STATEMENTS[node.op](self, node, info, results)
        else:
            self.line(f'{targets(results)} = ', self._composed(node).text)
        for k, item in items.items():
            self.made[item] = Text(results[k])

    def function(
        self,
        name: str,
        block: Block,
        give: Callable[[list[str]], str],
        packed: Sequence[tuple[str, int]] = (),
    ) -> None:
        """A function inside of this one, which returns `give(results)`. Its arguments are those of
        the block, or `packed`: tuples by name, each with so many of them."""
        uses, names = count_uses(block.outs), self.names.copy()
        args = [names.new(v.node.info.name) if v.node in uses else '_' for v in block.args]
        given = {v.node: Text(arg) for v, arg in zip(block.args, args, strict=True)}
        if not packed:
            args = [names.new('_') if a == '_' else a for a in args]
        inner = Scope(self.file, uses, self._hints, names, given, around=self, shapes=self._shapes)
        outs = [inner.exact(v) for v in block.outs]
        rest, taken = iter(args), []
        for tuple_name, n in packed:
            if n:
                taken.append(f'{targets([next(rest) for _ in range(n)])} = {tuple_name}')
        body = [*taken, *inner.lines, *wrap('return ', give(outs))]
        head = ', '.join([tuple_name for tuple_name, _ in packed] or args)
        self.lines += [f'def {name}({head}):', *indented(body)]


def _letters(text: str) -> str:
    """A name for a value that has none, from what it is made of."""
    parts = text.split(' * ')
    if len(parts) == 2 and all(p.isidentifier() and len(p) <= 2 for p in parts):
        return ''.join(parts)
    beside = re.fullmatch(r'\w+\.concatenate\(\[([\w, ]+)\](?:, -?\d)?\)', text)
    if beside and len(beside[1]) <= 8:
        return beside[1].replace(', ', '')
    for pattern, name in SPOKEN:
        match = re.fullmatch(pattern, text)
        if match and len(match[1]) <= 12:
            return name.format(match[1])
    return 'u'


def count_uses(views: Iterable[View]) -> Counter[Node]:
    """How often each node is used on the way to these values."""
    uses: Counter[Node] = Counter(v.node for v in views)
    todo = list(uses)
    while todo:
        for v in todo.pop().args:
            if v.node not in uses:
                todo.append(v.node)
            uses[v.node] += 1
    return uses
