"""What the compiler decided, for people."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple, TextIO, overload

from .._jax import Var
from ..graph.compile import Graph
from ..graph.diagnostics import CompilationRecord, DiagnosticKind, DiagnosticLevel
from ..graph.groups import Group
from ..graph.lines import place_of
from ..graph.relations import Relation
from ..learn.choice import Choice
from ..learn.core import Core
from ..learn.exactness import Exactness, exactness
from ..learn.trace_bytes import bytes_of_parameters
from ..step import Leaf, dotted
from .choice import choice_lines
from .exact import ByParameter, exactness_lines
from .published import Published, compiled_of
from .text import bytes_as_text

if TYPE_CHECKING:
    from .page import Page
    from .picture import Picture


class ParameterRow(NamedTuple):
    """One parameter leaf: its name, its type and shape, what traces it or why nothing does, and
    what the rule keeps for it, in bytes, if the rule is known."""

    name: str
    shape: str
    fate: str
    trace_bytes: int | None = None


class CompilationReport:
    """A reading of a compiled graph: its hidden groups, and what becomes of each parameter leaf.

    Args:
        graph: of a learner (`learner.graph`) or from `compile_etrace_graph`.
        memory: what a run costs, `trace_bytes`, `block_steps`, `block_bytes`, `peak_bytes` and,
            for a sequence that stands alone, `alone_bytes`; if known.
        core: what learns the model, if there is a rule already: then bytes and exactness are those
            of this rule.
        choice: how the rule was found, if that was left to the compiler.

    Example:
        >>> import brainstate, jax.numpy as jnp, braintrace
        >>> cell = brainstate.nn.init_all_states(brainstate.nn.ValinaRNNCell(3, 4))
        >>> graph = braintrace.compile_etrace_graph(cell, jnp.ones(3))
        >>> report = braintrace.CompilationReport(graph)
        >>> report  # doctest: +NORMALIZE_WHITESPACE
        CompilationReport(hidden_groups=1, etrace_weights=2, excluded_weights=0, warnings=0,
        errors=0)
        >>> report.etrace_weights
        [(('W', 'weight'), [0]), (('W', 'weight'), [0])]
    """

    def __init__(
        self,
        graph: Graph | Published,
        memory: dict[str, int] | None = None,
        *,
        core: Core | None = None,
        choice: Choice | None = None,
    ):
        self.graph, self.choice, self._core = graph, choice, core
        self.memory = core.sizes.memory() if memory is None and core is not None else memory
        self._compiled = compiled_of(graph)

    @property
    def core(self) -> Core | None:
        """What learns the model, if there is a rule already."""
        return self._core

    @property
    def hidden_groups(self) -> list[tuple[int, list[tuple]]]:
        """The number and the hidden paths of each group."""
        return [(g.index, list(g.paths)) for g in self._compiled.groups]

    @property
    def etrace_weights(self) -> list[tuple[tuple, list[int]]]:
        """The path and the groups of each trainable leaf that has a trace."""
        weights: dict[Var, tuple[tuple, list[int]]] = {}
        for relation in self._compiled.relations:
            for source in relation.sources:
                _, groups = weights.setdefault(source.var, (source.leaf.path, []))
                groups += [g.index for g in relation.groups if g.index not in groups]
        return list(weights.values())

    @property
    def excluded_weights(self) -> list[tuple[tuple, DiagnosticKind | None]]:
        """The path of each parameter with a leaf that has no trace, and the kind of the reason;
        None where there is nothing to say. `why_excluded` says it in words."""
        told = self._excluded().items()
        return [(path, None if record is None else record.kind) for path, record in told]

    @property
    def why_excluded(self) -> dict[tuple, str]:
        """Why parameters have no trace, in words, by path."""
        return {path: told.message for path, told in self._excluded().items() if told}

    def _excluded(self) -> dict[tuple, CompilationRecord | None]:
        """What the compiler said about each parameter with a leaf that has no trace."""
        excluded: dict[tuple, CompilationRecord | None] = {}
        for leaf, v in self._leaves():
            if not self._relations_of(v) and excluded.get(leaf.path) is None:
                excluded[leaf.path] = self._told(leaf)
        return excluded

    @property
    def dynamic_states(self) -> list[tuple]:
        """The states that change from step to step and belong to no group."""
        step = self._compiled.step
        changes = zip(step.other, step.other_vars, step.other_outs, strict=True)
        return [leaf.path for leaf, old, new in changes if old is not new]

    @property
    def diagnostics(self) -> tuple[CompilationRecord, ...]:
        """All that the compiler had to say."""
        return self._compiled.diagnostics

    @property
    def parameters(self) -> list[ParameterRow]:
        """A row for each parameter leaf, in the order of the model."""
        sizes = {} if self._core is None else bytes_of_parameters(self._core).by_name
        return [
            ParameterRow(leaf.name, v.aval.str_short(), self._fate(leaf, v), sizes.get(leaf.name))
            for leaf, v in self._leaves()
        ]

    @cached_property
    def exactness(self) -> dict[str, Exactness]:
        """For each parameter, by name, whether the rule gives it the gradient of BPTT at every
        window (`exact`), and if not, `why`: which influence is lost, `through` which op at which
        line. Empty where there is no rule yet."""
        return {} if self._core is None else exactness(self._core)

    @property
    def exact(self) -> bool | ByParameter | None:
        """Whether every parameter gets the gradient of BPTT at every window: True, False, by
        parameter where some do, None where there is no rule yet."""
        told = {name: of_leaf.exact for name, of_leaf in self.exactness.items()}
        if not told:
            return None
        if len(set(told.values())) > 1:
            return ByParameter(told)
        return all(told.values())

    @property
    def counts(self) -> dict[str, int]:
        """How many there are of each."""
        levels = [record.level for record in self.diagnostics]
        return dict(
            hidden_groups=len(self.hidden_groups),
            etrace_weights=len(self.etrace_weights),
            excluded_weights=len(self.excluded_weights),
            warnings=levels.count(DiagnosticLevel.WARNING),
            errors=levels.count(DiagnosticLevel.ERROR),
        )

    def to_str(self, level: int = 1) -> str:
        """The report as text: groups and parameters; with `level=2` also warnings and errors."""
        lines = [*self._group_lines(), *self._parameter_lines()]
        if self.exactness:
            lines += ['Exactness', *[f'  {line}' for line in exactness_lines(self.exactness)]]
        if self.memory is not None:
            lines += self._memory_lines(self.memory)
        if self.choice is not None:
            chosen = choice_lines(self.choice, len(self._compiled.step.params))
            lines += ['Choice', *[f'  {line}' for line in chosen]]
        if level > 1:
            told = [f'  {line}' for line in diagnostic_lines(self.diagnostics)]
            lines += ['Diagnostics', *told] if told else ['No diagnostics']
        return '\n'.join(lines)

    def show(self, level: int = 1, *, file: TextIO | None = None) -> None:
        """Print the report."""
        print(self.to_str(level), file=file or sys.stdout)

    @overload
    def draw(self, html: Literal[False] = False, *, title: str = ...) -> Picture: ...

    @overload
    def draw(self, html: Literal[True], *, title: str = ...) -> Page: ...

    def draw(self, html: bool = False, *, title: str = 'Compiled model') -> Picture | Page:
        """The model as a picture: hidden groups, weights and ops, and the ways that the rule
        drops. With `html` it is a page that stands alone, with `save(path)`, and the report under
        the picture."""
        from .page import page
        from .picture import draw

        return page(title, self) if html else draw(self)

    def __repr__(self) -> str:
        counts = ', '.join(f'{name}={count}' for name, count in self.counts.items())
        return f'CompilationReport({counts})'

    def _group_lines(self) -> Iterator[str]:
        yield 'Hidden groups'
        for g in self._compiled.groups:
            names = ', '.join(dotted(path) or 'state' for path in g.paths)
            states = 'state' if g.num_state <= 1 else 'states'
            yield (
                f'  {g.index}  {names}: {g.num_state} {states} x {g.varshape} units, '
                f'{len(g.carried)} carried by the trace'
            )

    def _parameter_lines(self) -> Iterator[str]:
        rows = self.parameters
        name_width = max((len(row.name) for row in rows), default=0)
        shape_width = max((len(row.shape) for row in rows), default=0)
        sizes = [bytes_as_text(row.trace_bytes or 0) for row in rows]
        size_width = max(map(len, sizes), default=0)
        yield 'Parameters'
        for row, size in zip(rows, sizes, strict=True):
            told = f'  {row.name:{name_width}}  {row.shape:{shape_width}}  '
            if row.trace_bytes is not None:
                told += f'{size:>{size_width}}  '
            yield told + row.fate

    def _memory_lines(self, memory: dict[str, int]) -> list[str]:
        keys = 'trace_bytes', 'block_bytes', 'peak_bytes'
        traces, block, peak = (bytes_as_text(memory[key]) for key in keys)
        count = memory['block_steps']
        steps = f'{count} step{"s" if count != 1 else ""}'
        shared = 0 if self._core is None else bytes_of_parameters(self._core).shared
        beside = f', {bytes_as_text(shared)} of them shared by all parameters' if shared else ''
        return [
            'Memory',
            f'  all traces {traces}{beside}; a block of {steps} about {block}',
            f'  a gradient about {peak}: traces before and after, a block, the gradients',
        ]

    def _leaves(self) -> Iterator[tuple[Leaf, Var]]:
        step = self._compiled.step
        return zip(step.params, step.param_vars, strict=True)

    def _relations_of(self, v: Var) -> list[Relation]:
        """The relations whose weight is made from this parameter."""
        return [
            relation
            for relation in self._compiled.relations
            if any(source.var is v for source in relation.sources)
        ]

    def _told(self, leaf: Leaf) -> CompilationRecord | None:
        """Why a leaf has no trace, as the compiler told it: a warning before anything else."""
        told = [
            record
            for record in self._about(leaf)
            if record.kind is not DiagnosticKind.RELATION_INCLUDED
        ]
        told.sort(key=lambda record: record.level is DiagnosticLevel.INFO)
        return told[0] if told else None

    def _about(self, leaf: Leaf) -> list[CompilationRecord]:
        """What the compiler had to say about a leaf."""
        return [r for r in self.diagnostics if r.context and leaf.name in r.context]

    def _fate(self, leaf: Leaf, v: Var) -> str:
        """What traces a leaf, or why nothing does."""
        if self._core is not None and not self._core.carrier.follows_relations:
            if not bytes_of_parameters(self._core).by_name[leaf.name]:
                return 'nothing is kept for it'
            return 'traced into all states that it reaches'
        relations = self._relations_of(v)
        if not relations:
            told = self._told(leaf)
            return 'not traced. ' + (told.message if told else self._without_use(v))
        way = _way_and_bytes if self._core is None else _way
        ways = '; '.join(way(relation, g) for relation in relations for g in relation.groups)
        kinds = [record.kind for record in self._about(leaf)]
        if DiagnosticKind.RELATION_PARTIAL_PATH in kinds:
            return f'traced into {ways}, in part: the rest gets its in-window gradient'
        return f'traced into {ways}'

    def _without_use(self, v: Var) -> str:
        """Why a leaf has no trace about which the compiler said nothing."""
        if any(v is operand for eqn in self._compiled.step.jaxpr.eqns for operand in eqn.invars):
            return 'It meets no run-time data: its in-window gradient is whole.'
        return 'The step does not use it: its gradient is zero.'


def diagnostic_lines(records: Iterable[CompilationRecord]) -> list[str]:
    """Warnings and errors of the compiler, a line for each."""
    told = [record for record in records if record.level is not DiagnosticLevel.INFO]
    return [f'{record.level.value}: {record.message}' for record in told]


def _way(relation: Relation, group: Group) -> str:
    meets = relation.use.meets
    return f'group {group.index} through {place_of(meets)}'


def _way_and_bytes(relation: Relation, group: Group) -> str:
    """The way, and the bytes of a position-wise trace, where there is no rule yet."""
    size = trace_bytes(relation, group)
    return f'{_way(relation, group)}, {bytes_as_text(size) if size else "nothing to carry"}'


def trace_bytes(relation: Relation, group: Group) -> int:
    """The memory of the position-wise trace of one weight into one group."""
    entries = len(group.carried) * len(relation.maps[group.index])
    return entries * math.prod(relation.trace_shape()) * relation.w_var.aval.dtype.itemsize
