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
from .control import Block, Hint
from .lines import Names, indented, targets, wrap
from .terms import Node, View
from .words import ATOM, Text, Words

LONG = 66  # an expression that stands inside of another is not longer
BIG = 24  # a constant with more elements has a name
HUGE = 1000  # one with more is written as bytes
PLAIN = ('const', 'name', 'outer', 'item', 'array')  # no line of their own
SEVERAL = ('sort', 'top_k', 'eigh', 'svd')  # calls with several results
SPOKEN = (  # expressions, and what people call them
    (r'(?:jax\.nn\.)?sigmoid\((\w+)\)', 'sig_{}'),
    (r'\w+\.tanh\((\w+)\)', 'tanh_{}'),
    (r'1 - (\w+)\*\*2', 'slope_{}'),
    (r'(\w+) \* \(1 - \1\)', 'slope_{}'),
)
STATEMENTS: dict[str, Callable] = {}  # (scope, node, info, names of the results)


def statement(name: str) -> Callable:
    """Enter a function that writes an operation with several results."""

    def enter(f: Callable) -> Callable:
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
            return compose(self.words, node, lambda v: Text(''))
        if node not in self.constants:
            written = self._as_bytes(value) if value.size > HUGE else None
            written = written or compose(self.words, node, lambda v: Text('')).text
            self.constants[node] = self.names.new('CONSTANT'), written
        return Text(self.constants[node][0])

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
        names: those that are given already.
        around: the function that it stands in.
        shapes: whether the shapes of values are said.
        spare: names for nodes that get a line for another reason.
    """

    def __init__(
        self,
        file: File,
        uses: Mapping[Node, int],
        hints: Mapping[Node, str],
        names: Names,
        around: Scope | None = None,
        shapes: bool = False,
        spare: Mapping[Node, str] = MappingProxyType({}),
    ):
        self.file, self._uses, self._hints, self.names = file, uses, hints, names
        self._around, self._shapes, self._spare = around, shapes, spare
        self.known: dict[Node, Text] = {}
        self.lines: list[str] = []

    # ---- expressions ----

    def text(self, v: View) -> Text:
        """The expression, or the name, of a node."""
        node = v.node
        if node in self.known:
            return self.known[node]
        if node.op == 'outer':
            assert self._around is not None
            return self._around.text(View(node.info, (), ()))
        if node.op == 'const':
            return self.file.words.number(node.info)
        if node.op == 'array':
            return self.file.constant(node)
        if node.op == 'item':
            self._statement(node.args[0].node)
            return self.known[node]
        return self._expression(node)

    def _expression(self, node: Node) -> Text:
        for v in node.args:  # what can be read only by name
            text = self.text(v)
            turned = not self.file.words.seen_simply(v)
            if turned and text.strength < ATOM and v.node.op not in ('cast', 'index'):
                self.give_name(v.node)
        written = self._composed(node)
        while len(written.text) > LONG:
            long = [(len(self.text(v).text), k) for k, v in enumerate(node.args) if self._may(v)]
            if not long or max(long)[0] <= 12:
                break
            self.give_name(node.args[max(long)[1]].node)
            written = self._composed(node)
        if self._has_line(node, written):
            self._assign(node, written)
            return self.known[node]
        return written

    def _composed(self, node: Node) -> Text:
        return compose(self.file.words, node, self.text)

    def _may(self, v: View) -> bool:
        """Whether an operand could have a line of its own and has none."""
        return v.node.op not in PLAIN and v.node not in self.known

    def _has_line(self, node: Node, written: Text) -> bool:
        if node in self._hints:
            return True
        if self._uses.get(node, 0) < 2:
            return False
        short = node.op in ('index', 'neg', 'iota') and len(written.text) <= 10
        return not short

    def give_name(self, node: Node) -> Text:
        """A name for a node, and a line that says what it is."""
        written = self.text(View(node, (), ()))
        if node.op not in PLAIN and node not in self.known:
            self._assign(node, written)
        return self.known.get(node, written)

    def _assign(self, node: Node, written: Text) -> None:
        told = self._hints.get(node) or self._spare.get(node)
        name = self.names.new(told or _letters(written.text), told is None)
        self.line(f'{name} = ', written.text, str(node.shape) if self._shapes else '')
        self.known[node] = Text(name)

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
        if node in self.known:
            return
        self.known[node] = Text('')
        info, shapes = node.info
        items = {
            other.info: other
            for other in self._uses
            if other.op == 'item' and other.args[0].node is node
        }
        names = [self.names.new('v') if k in items else '_' for k in range(len(shapes))]
        if node.op in SEVERAL:
            self.line(f'{targets(names)} = ', self._composed(node).text)
        else:
            STATEMENTS[node.op](self, node, info, names)
        for k, item in items.items():
            self.known[item] = Text(names[k])

    def function(
        self,
        name: str,
        head: str,
        block: Block,
        unpack: Sequence[str],
        give: Callable[[list[str]], str],
    ) -> None:
        """A function inside of this one. `head` are its arguments, which `unpack` takes apart; an
        empty head stands for the arguments of the block themselves."""
        uses = count_uses(block.outs)
        inner = Scope(self.file, uses, self._hints, self.names.copy(), self, self._shapes)
        args = []
        for v in block.args:
            hint = v.node.info.name if isinstance(v.node.info, Hint) else 'x'
            args.append(inner.names.new(hint) if v.node in uses else '_')
            inner.known[v.node] = Text(args[-1])
        if not head:
            args = [inner.names.new('_') if a == '_' else a for a in args]
        outs = [inner.exact(v) for v in block.outs]
        rest = iter(args)
        taken = [line.format(*[next(rest) for _ in range(line.count('{}'))]) for line in unpack]
        body = [*taken, *inner.lines, *wrap('return ', give(outs))]
        self.lines += [f'def {name}({head or ", ".join(args)}):', *indented(body)]


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
