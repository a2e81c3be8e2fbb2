"""A page of functions that hand values on to each other: which arguments each takes, and what it
returns for those below."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .lines import WIDTH, Names, comment, indented, wrap
from .terms import Terms
from .views import Node, View
from .words import Text, Words
from .write import File, Scope, count_uses

ARGUMENTS = ('params', 'state', 'traces')
FUNCTIONS = ('init', 'learn', 'step', 'slopes', 'update', 'gradient', 'loss', 'out')
LEARN = 'One step: the model, what the rule needs of it, the traces, and the gradient of loss(out).'


class Leaf(NamedTuple):
    """An array that the page is given: its name, the argument that it comes in, and how it is
    reached there; some arrays are reached several at once."""

    name: str
    root: str
    reached: str
    with_it: tuple[str, ...] = ()

    @property
    def is_root(self) -> bool:
        """Whether it is the argument itself."""
        return self.reached == self.root


@dataclass(frozen=True, eq=False)
class Section:
    """One function of the page.

    Args:
        name: of the function.
        about: what it is.
        outs: the values that it is for.
        give: from their texts to what it returns first.
        targets: what `learn` calls these.
        like: the arguments by whose class or structure it builds what it returns.
    """

    name: str
    about: str
    outs: Sequence[View]
    give: Callable[[list[str]], list[str]]
    targets: Sequence[str]
    like: frozenset[str] = frozenset()


@dataclass(eq=False)
class Written:
    """A section with its lines.

    Args:
        section: what it is for.
        scope: its lines.
        first: what it returns first.
        roots: the arguments of `learn` that it takes.
        reads: what it takes of the functions above it, by name, and what `learn` calls that.
        values: what it returns besides, for the functions below it.
    """

    section: Section
    scope: Scope
    first: list[str]
    roots: list[str] = field(default_factory=list)
    reads: dict[str, str] = field(default_factory=dict)
    values: list[str] = field(default_factory=list)


class Page:
    """The functions of one file."""

    def __init__(self, words: Words):
        self.words = words
        self.names = Names([*ARGUMENTS, *words.helper_names])
        self.file = File(words, self.names)
        self.hints: dict[Node, str] = {}
        self.spare: dict[Node, str] = {}
        self._leaves: dict[Node, Leaf] = {}
        self._roots: list[str] = []

    def leaf(
        self, terms: Terms, wanted: str, root: str, reached: str, shape: Sequence[int], dtype: Any
    ) -> View:
        """An array that the page is given."""
        name = self.names.new(wanted)
        v = terms.name(name, shape, dtype)
        self.enter(v.node, Leaf(name, root, reached))
        return v

    def enter(self, node: Node, leaf: Leaf) -> None:
        """Note where an array comes from."""
        self._leaves[node] = leaf
        if leaf.root not in self._roots:
            self._roots.append(leaf.root)

    # ---- functions ----

    def write(
        self, sections: Sequence[Section], head: str, after_step: Sequence[str]
    ) -> list[list[str]]:
        """`learn`, whose first line is `head`, and the functions it calls; after the first of
        them come some lines of its own."""
        outs = [v for s in sections for v in s.outs]
        self.names.reserve(FUNCTIONS)
        self.names.kept = {*self.hints.values()}
        uses = count_uses(outs)
        known: dict[Node, Text] = {n: Text(leaf.name) for n, leaf in self._leaves.items()}
        written = []
        for section in sections:
            scope = Scope(
                self.file, uses, self.hints, self.names, known, shapes=True, spare=self.spare
            )
            first = section.give([scope.exact(v) for v in section.outs])
            if scope.lines or section.outs:
                written.append(Written(section, scope, first))
            known = {**known, **scope.made}
        self._hand_on(written)
        learn = [*comment(LEARN), head, *indented(self._calls(written, after_step))]
        return [learn, *[self._function(w) for w in written]]

    def _hand_on(self, written: Sequence[Written]) -> None:
        """Find what each function reads, and returns for those below."""
        home: dict[str, Written] = {}
        for w in written:
            asked = {leaf.root for leaf in self._leaves_of(w).values()} | w.section.like
            w.roots = sorted(asked, key=self._roots.index)
            read = [w.scope.given[n].text for n in w.scope.read if n not in self._leaves]
            for name in read:
                if name in home:
                    w.reads[name] = _handed_on(name, home[name])
            home |= {text.text: w for text in w.scope.made.values()}

    def _leaves_of(self, w: Written) -> dict[Node, Leaf]:
        """The leaves that a function reads."""
        return {n: self._leaves[n] for n in w.scope.read if n in self._leaves}

    def _calls(self, written: Sequence[Written], after_step: Sequence[str]) -> list[str]:
        """The lines of `learn`."""
        lines = []
        for k, w in enumerate(written):
            targets = [*w.section.targets, *w.values]
            if not targets:
                continue
            called = f'{w.section.name}({", ".join([*w.roots, *w.reads.values()])})'
            lines += wrap(f'{", ".join(targets)} = ', called)
            if k == 0:
                lines += after_step
        made = [t for w in written for t in w.section.targets]
        traces = 'new_traces' if 'new_traces' in made else '{}'
        return [*lines, f'return new_state, {traces}, out, grads']

    def _function(self, w: Written) -> list[str]:
        """One function with a comment above it."""
        leaves = self._leaves_of(w)
        whole_roots = {leaf.root: leaf.name for leaf in leaves.values() if leaf.is_root}
        args = ', '.join([*[whole_roots.get(a, a) for a in w.roots], *w.reads])
        results = ', '.join([*w.first, *w.values])
        body = [*self._unpacked(leaves), *w.scope.lines, *wrap('return ', results)]
        return [
            *comment(w.section.about),
            *wrap('', f'def {w.section.name}({args}):'),
            *indented(body),
        ]

    def _unpacked(self, leaves: Mapping[Node, Leaf]) -> list[str]:
        """Lines that take the leaves out of their arguments."""
        shapes = {leaf.name: node.shape for node, leaf in leaves.items()}
        lines: list[str] = []
        for root in self._roots:
            mine = [a for a in leaves.values() if a.root == root and not a.is_root]
            lines += _assignments([a for a in mine if not a.with_it], shapes)
            together = {a.with_it: a.reached for a in mine if a.with_it}
            lines += [f'{", ".join(names)} = {reached}' for names, reached in together.items()]
        return lines


def _handed_on(name: str, maker: Written) -> str:
    """What `learn` calls a value of a function above, which returns it from now on."""
    if name in maker.first:
        return maker.section.targets[maker.first.index(name)]
    if name not in maker.values:
        maker.values.append(name)
    return name


def _assignments(leaves: Sequence[Leaf], shapes: Mapping[str, tuple]) -> list[str]:
    """`Wz, Uz = params['Wz'], params['Uz']`, as many at once as fit into a line."""
    lines: list[str] = []
    row: list[Leaf] = []

    def text(row: Sequence[Leaf]) -> str:
        return f'{", ".join(a.name for a in row)} = {", ".join(a.reached for a in row)}'

    def told(row: Sequence[Leaf]) -> str:
        return f'{text(row)}  # {", ".join(str(shapes[a.name]) for a in row)}'

    for leaf in leaves:
        if row and len(told([*row, leaf])) > WIDTH:
            lines.append(told(row))
            row = []
        row.append(leaf)
    return [*lines, *([told(row)] if row else [])]
