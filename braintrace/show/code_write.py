"""Terms as lines of Python: what gets a line and a name of its own, and what stands in its place."""

from __future__ import annotations

import keyword
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from . import code_library, code_places  # noqa: F401, they fill the tables
from .code_compose import compose
from .code_control import Block, Branches, Hint, Loop, While, WithDerivative
from .code_terms import Node, View
from .code_words import ATOM, Text, Words, call

WIDTH = 96  # of a line
LONG = 66  # of an expression that stands inside of another
BIG = 24  # elements of a constant that is written where it is used
PLAIN = ('const', 'name', 'outer', 'item')  # no line of their own
STATEMENTS = {'scan', 'while', 'cond', 'custom', 'sort', 'top_k'}
SPOKEN = (  # expressions, and what people call them
    (r'(?:jax\.nn\.)?sigmoid\((\w+)\)', 'sig_{}'),
    (r'\w+\.tanh\((\w+)\)', 'tanh_{}'),
    (r'1 - (\w+)\*\*2', 'slope_{}'),
    (r'(\w+) \* \(1 - \1\)', 'slope_{}'),
)
TAKEN = {'jax', 'jnp', 'np', *keyword.kwlist}


class Names:
    """Names that are given once. Those that are kept are given only to who asks for them."""

    def __init__(self, taken: Iterable[str] = (), kept: Iterable[str] = ()):
        self._taken, self.kept = {*TAKEN, *taken}, set(kept)

    def new(self, wanted: str, spare: bool = False) -> str:
        """This name, with a number if it is taken; a spare one keeps out of the way of others."""
        name, k = wanted, 1
        while name in self._taken or (spare and name in self.kept):
            k += 1
            name = f'{wanted}{k}' if not wanted[-1].isdigit() else f'{wanted}_{k}'
        self._taken.add(name)
        return name

    def copy(self) -> Names:
        """Names that may be given again elsewhere."""
        return Names(self._taken, self.kept)


class File:
    """What all functions of a file share: the words, the constants, the helpers."""

    def __init__(self, words: Words, names: Names):
        self.words, self.names = words, names
        self.constants: dict[Node, tuple[str, str]] = {}  # the name and the value of each

    def constant(self, node: Node) -> Text:
        """A constant array: in its place if it is small, by name if it is not."""
        written = compose(self.words, node, lambda v: Text(''))
        if node.info.value.size <= BIG:
            return written
        if node not in self.constants:
            self.constants[node] = self.names.new('CONSTANT'), written.text
        return Text(self.constants[node][0])


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
        self._spare = spare
        self.file, self._uses, self._hints, self.names = file, uses, hints, names
        self._around, self._shapes = around, shapes
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
        if node.op in STATEMENTS:
            self._statement(node)
            return Text('')
        return self._expression(node)

    def _expression(self, node: Node) -> Text:
        for v in node.args:  # what only can be read with a name
            text = self.text(v)
            if text.strength < ATOM and not self.file.words.seen_simply(v):
                if v.node.op not in ('cast', 'index'):
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
        return v.node.op not in PLAIN and v.node.op != 'array' and v.node not in self.known

    def _has_line(self, node: Node, written: Text) -> bool:
        if node in self._hints:
            return True
        if self._uses.get(node, 0) < 2:
            return False
        short = node.op in ('index', 'neg', 'iota') and len(written.text) <= 10
        return not short

    def give_name(self, node: Node) -> Text:
        """A name for a node, and a line that says what it is."""
        if node.op == 'outer' or node in self.known:
            return self.text(View(node, (), ()))
        written = self.text(View(node, (), ()))
        if node not in self.known and not written.text.isidentifier():
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

    def line(self, head: str, text: str, comment: str = '', indent: str = '') -> None:
        """Put down a line, or several where it is too long."""
        self.lines += wrap(indent + head, text, comment)

    # ---- statements ----

    def _statement(self, node: Node) -> None:
        """An operation with several results."""
        if node in self.known:
            return
        self.known[node] = Text('')
        flow = {'scan': _scan, 'while': _while, 'cond': _cond, 'custom': _custom}
        info, shapes = node.info
        if node.op in flow:
            left = [self.names.new('v') for _ in shapes]
            flow[node.op](self, node, info, left)
        else:
            left = [self.names.new('v') for _ in shapes]
            self.line(f'{_targets(left)} = ', self._composed(node).text)
        for name, item in zip(left, _items(node, self._uses), strict=True):
            if item is not None:
                self.known[item] = Text(name)

    def function(self, name: str, head: str, block: Block, unpack: Sequence[str], give: Any) -> None:
        """A function inside of this one."""
        inner = Scope(
            self.file, count_uses(block.outs), self._hints, self.names.copy(), self, self._shapes
        )
        args = []
        for v in block.args:
            hint = v.node.info.name if isinstance(v.node.info, Hint) else 'x'
            args.append(inner.names.new(hint))
            inner.known[v.node] = Text(args[-1])
        self.lines.append(f'def {name}({head or ", ".join(args)}):')
        rest = iter(args)
        for line in unpack:
            n = line.count('{}')
            self.lines.append('    ' + line.format(*[next(rest) for _ in range(n)]))
        outs = [inner.exact(v) for v in block.outs]
        self.lines += [f'    {line}' for line in inner.lines]
        self.lines += [f'    {line}' for line in wrap('return ', give(outs))]


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


def _items(node: Node, uses: Mapping[Node, int]) -> list[Node | None]:
    """The nodes of the results of an operation, by number; None for those that nobody uses."""
    count = len(node.info[1])
    items: list[Node | None] = [None] * count
    for other in uses:
        if other.op == 'item' and other.args[0].node is node:
            items[other.info] = other
    return items


def _targets(names: Sequence[str]) -> str:
    return f'{names[0]},' if len(names) == 1 else ', '.join(names)


def tuple_of(texts: Sequence[str]) -> str:
    """A tuple of these."""
    return f'({texts[0]},)' if len(texts) == 1 else f'({", ".join(texts)})'


def _scan(scope: Scope, node: Node, loop: Loop, left: list[str]) -> None:
    words, m = scope.file.words, loop.carry
    outer, given = node.args[: loop.consts], node.args[loop.consts :]
    for v in outer:
        scope.give_name(v.node)
    start, xs = [scope.exact(v) for v in given[:m]], [scope.exact(v) for v in given[m:]]
    name = scope.names.new('body')

    def pair(outs: list[str]) -> str:
        return f'{tuple_of(outs[:m])}, {tuple_of(outs[m:])}'

    unpack = [f'{_targets(["{}"] * n)} = {what}' for n, what in ((m, 'carry'), (len(xs), 'xs')) if n]
    scope.function(name, 'carry, xs', loop.body, unpack, pair)
    f = words.helper('scan') if words.is_numpy else 'jax.lax.scan'
    more = [str(loop.length)] if words.is_numpy or not xs else []
    more += ['reverse=True'] if loop.reverse else []
    called = call(f, name, tuple_of(start), tuple_of(xs), *more)
    ys = left[m:]
    target = f'{tuple_of(left[:m])}, {tuple_of(ys)}'
    scope.line(f'{target} = ', called.text)


def _while(scope: Scope, node: Node, loop: While, left: list[str]) -> None:
    for v in node.args[: loop.consts]:
        scope.give_name(v.node)
    start = [scope.exact(v) for v in node.args[loop.consts :]]
    going_on, body = scope.names.new('going_on'), scope.names.new('body')
    unpack = [f'{_targets(["{}"] * len(start))} = carry']
    scope.function(going_on, 'carry', loop.going_on, unpack, lambda outs: outs[0])
    scope.function(body, 'carry', loop.body, unpack, tuple_of)
    words = scope.file.words
    f = words.helper('while_loop') if words.is_numpy else 'jax.lax.while_loop'
    scope.line(f'{_targets(left)} = ', call(f, going_on, body, tuple_of(start)).text)


def _cond(scope: Scope, node: Node, branches: Branches, left: list[str]) -> None:
    which, *outer = node.args
    for v in outer:
        scope.give_name(v.node)
    wanted = ('yes', 'no') if branches.by_truth else ('case',) * len(branches.blocks)
    names = [scope.names.new(name) for name in wanted]
    for name, block in zip(names, branches.blocks, strict=True):
        scope.function(name, '', block, [], tuple_of)
    choice = scope.exact(which)
    if scope.file.words.is_numpy:
        text = f'{names[0]}() if {choice} else {names[1]}()'
        if not branches.by_truth:
            last = len(names) - 1
            text = f'[{", ".join(names)}][min(max({choice}, 0), {last})]()'
    elif branches.by_truth:
        text = call('jax.lax.cond', choice, *names).text
    else:
        text = call('jax.lax.switch', choice, f'[{", ".join(names)}]').text
    scope.line(f'{_targets(left)} = ', text)


def _custom(scope: Scope, node: Node, info: WithDerivative, left: list[str]) -> None:
    scope.file.words.only_jax('a derivative of its own')
    f = scope.names.new('f')
    given = [scope.exact(v) for v in node.args]
    n, m = len(info.f.args), len(info.f.outs)

    def pair(outs: list[str]) -> str:
        return f'{tuple_of(outs[:m])}, {tuple_of(outs[m:])}' if len(outs) > m else f'{tuple_of(outs)}, ()'

    if info.back is None:
        scope.lines.append('@jax.custom_jvp')
        scope.function(f, '', info.f, [], tuple_of)
        scope.lines.append(f'@{f}.defjvp')
        targets = _targets(['{}'] * n)
        unpack = [f'{targets} = primals', f'{targets} = tangents']
        scope.function(f'{f}_jvp', 'primals, tangents', info.forward, unpack, pair)
    else:
        scope.lines.append('@jax.custom_vjp')
        scope.function(f, '', info.f, [], tuple_of)
        scope.function(f'{f}_forward', '', info.forward, [], pair)
        kept = len(info.back.args) - m
        unpack = [f'{_targets(["{}"] * k)} = {what}' for k, what in ((kept, 'kept'), (m, 'credit')) if k]
        scope.function(f'{f}_back', 'kept, credit', info.back, unpack, tuple_of)
        scope.lines.append(f'{f}.defvjp({f}_forward, {f}_back)')
    scope.line(f'{_targets(left)} = ', call(f, *given).text)


def count_uses(views: Iterable[View]) -> Counter[Node]:
    """How often each node is used on the way to these values."""
    uses: Counter[Node] = Counter()
    todo = [v.node for v in views]
    for node in todo:
        uses[node] += 1
    todo = list(dict.fromkeys(todo))
    seen = set(todo)
    while todo:
        for v in todo.pop().args:
            uses[v.node] += 1
            if v.node not in seen:
                seen.add(v.node)
                todo.append(v.node)
    return uses


# ---- long lines ----


def wrap(head: str, text: str, comment: str = '') -> list[str]:
    """A statement as lines; what stands in its last brackets goes below where it is too long."""
    told = f'  # {comment}' if comment else ''
    if len(head) + len(text) + len(told) <= WIDTH:
        return [head + text + told]
    if len(head) + len(text) <= WIDTH:
        return [head + text]
    opening = _last_bracket(text)
    if opening is None:
        return [head + text]
    start, stop = opening
    indent = ' ' * (len(head) - len(head.lstrip()) + 4)
    parts = _at_commas(text[start + 1 : stop])
    inside = ', '.join(parts)
    lines = [f'{head}{text[: start + 1]}']
    if len(indent) + len(inside) <= WIDTH and text[start] != '{':
        lines.append(indent + inside)
    elif all(part.isidentifier() for part in parts):
        lines += textwrap.wrap(f'{inside},', WIDTH, initial_indent=indent, subsequent_indent=indent)
    else:
        for part in parts:
            lines += wrap(indent, part + ',')
    return [*lines, f'{indent[:-4]}{text[stop:]}{told}']


def _last_bracket(text: str) -> tuple[int, int] | None:
    """The pair of brackets that ends last, at the outermost level."""
    stack: list[int] = []
    best = None
    for k, c in enumerate(text):
        if c in '([{':
            stack.append(k)
        elif c in ')]}':
            start = stack.pop()
            if not stack and k - start > 8:
                best = start, k
    return best


def _at_commas(text: str) -> list[str]:
    """The parts between the outermost commas."""
    parts, depth, start = [], 0, 0
    for k, c in enumerate(text):
        depth += (c in '([{') - (c in ')]}')
        if c == ',' and depth == 0:
            parts.append(text[start:k].strip())
            start = k + 1
    last = text[start:].strip()
    return [*parts, last] if last else parts
