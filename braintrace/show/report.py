"""What the compiler decided, for people."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, TextIO

from .._jax import Var, source_line
from ..graph.diagnostics import CompilationRecord, DiagnosticKind, DiagnosticLevel
from ..graph.etrace_graph import ETraceGraph
from ..graph.relations import HiddenParamOpRelation
from ..step import Leaf


class CompilationReport:
    """A reading of a compiled graph: the hidden groups, and for each parameter leaf what traces it or why nothing does.

    Example:
        >>> import brainstate, jax.numpy as jnp, braintrace
        >>> cell = brainstate.nn.init_all_states(brainstate.nn.ValinaRNNCell(3, 4))
        >>> report = braintrace.CompilationReport(braintrace.compile_etrace_graph(cell, jnp.ones(3)))
        >>> report
        CompilationReport(hidden_groups=1, etrace_weights=2, excluded_weights=0, warnings=0, errors=0)
        >>> report.etrace_weights
        [(('W', 'weight'), [0]), (('W', 'weight'), [0])]
    """

    def __init__(self, graph: ETraceGraph, memory: dict[str, int] | None = None):
        self.graph, self.memory = graph, memory

    @property
    def hidden_groups(self) -> list[tuple[int, list[tuple]]]:
        """The number and the hidden paths of each group."""
        return [(g.index, list(g.hidden_paths)) for g in self.graph.hidden_groups]

    @property
    def etrace_weights(self) -> list[tuple[tuple, list[int]]]:
        """The path and the groups of each trainable leaf that has a trace."""
        found: dict[Var, tuple[tuple, list[int]]] = {}
        for r in self.graph.hidden_param_op_relations:
            for key, v in r.trainable_vars.items():
                groups = found.setdefault(v, (r.trainable_paths[key], []))[1]
                groups += [g.index for g in r.hidden_groups if g.index not in groups]
        return list(found.values())

    @property
    def excluded_weights(self) -> list[tuple[tuple, str | None]]:
        """The path of each leaf without a trace, and why."""
        return [
            (leaf.path, self._reason(leaf)) for leaf, v in self._leaves() if not self._relations(v)
        ]

    @property
    def dynamic_states(self) -> list[tuple]:
        """The states that change from step to step and belong to no group."""
        step = self.graph.step
        return [
            leaf.path
            for leaf, old, new in zip(step.other, step.other_vars, step.other_outs, strict=True)
            if old is not new
        ]

    @property
    def diagnostics(self) -> tuple[CompilationRecord, ...]:
        """All that the compiler had to say."""
        return self.graph.diagnostics

    @property
    def counts(self) -> dict[str, int]:
        """How many there are of each."""
        level = lambda which: sum(r.level is which for r in self.diagnostics)
        return dict(
            hidden_groups=len(self.hidden_groups),
            etrace_weights=len(self.etrace_weights),
            excluded_weights=len(self.excluded_weights),
            warnings=level(DiagnosticLevel.WARNING),
            errors=level(DiagnosticLevel.ERROR),
        )

    def to_str(self, level: int = 1) -> str:
        """The report as text: groups and parameters; with `level=2` also all warnings and errors."""
        return '\n'.join(self._lines(level))

    def show(self, level: int = 1, *, file: TextIO | None = None) -> None:
        """Print the report."""
        print(self.to_str(level), file=file or sys.stdout)

    def __repr__(self) -> str:
        return f'CompilationReport({", ".join(f"{k}={v}" for k, v in self.counts.items())})'

    def _leaves(self) -> Iterator[tuple[Leaf, Var]]:
        step = self.graph.step
        return zip(step.params, step.param_vars, strict=True)

    def _relations(self, v: Var) -> list[HiddenParamOpRelation]:
        return [r for r in self.graph.hidden_param_op_relations if v in r.trainable_vars.values()]

    def _reason(self, leaf: Leaf) -> str | None:
        told = [
            r
            for r in self.diagnostics
            if r.context
            and leaf.name in r.context
            and r.kind is not DiagnosticKind.RELATION_INCLUDED
        ]
        told.sort(key=lambda r: r.level is DiagnosticLevel.INFO)
        return told[0].message if told else None

    def _lines(self, level: int) -> Iterator[str]:
        yield 'Hidden groups'
        for g in self.graph.hidden_groups:
            names = ', '.join(_dotted(p) for p in g.hidden_paths)
            yield f'  {g.index}  {names}: {g.num_state} state{"s" * (g.num_state > 1)} x {g.varshape} units, {len(g.carried)} carried by the trace'
        yield 'Parameters'
        rows = [(leaf.name, v.aval.str_short(), self._fate(leaf, v)) for leaf, v in self._leaves()]
        wide = [max((len(r[i]) for r in rows), default=0) for i in (0, 1)]
        for name, shape, fate in rows:
            yield f'  {name:{wide[0]}}  {shape:{wide[1]}}  {fate}'
        if self.memory is not None:
            m = self.memory
            yield 'Memory'
            yield f'  all traces {_bytes(m["trace_bytes"])}; a block of {m["block_steps"]} steps about {_bytes(m["block_bytes"])}'
        if level > 1:
            told = [r for r in self.diagnostics if r.level is not DiagnosticLevel.INFO]
            yield from (
                ['Diagnostics', *[f'  {r.level.value}: {r.message}' for r in told]]
                if told
                else ['No diagnostics']
            )

    def _fate(self, leaf: Leaf, v: Var) -> str:
        relations = self._relations(v)
        if not relations:
            return 'not traced. ' + (self._reason(leaf) or self._unused(v))
        parts = []
        for r in relations:
            for g in r.hidden_groups:
                parts.append(
                    f'group {g.index} through `{r.primitive.name}` at {source_line(r.use.meets)}, {trace_bytes(r, g)}'
                )
        partial = [
            r
            for r in self.diagnostics
            if r.kind is DiagnosticKind.RELATION_PARTIAL_PATH and leaf.name in r.context
        ]
        return (
            'traced into '
            + '; '.join(parts)
            + (', in part: the rest gets its in-window gradient' if partial else '')
        )

    def _unused(self, v: Var) -> str:
        used = any(a is v for e in self.graph.step.jaxpr.jaxpr.eqns for a in e.invars)
        return (
            'It meets no run-time data: its in-window gradient is whole.'
            if used
            else 'The step does not use it: its gradient is zero.'
        )


def trace_bytes(r: HiddenParamOpRelation, g: Any) -> str:
    """The memory of one weight's trace into one group."""
    count = len(g.carried) * len(r.maps[g.index])
    for n in r.trace_shape():
        count *= n
    return _bytes(count * r.w_var.aval.dtype.itemsize) if count else 'nothing to carry'


def _bytes(size: float) -> str:
    for unit in ('B', 'kB', 'MB'):
        if size < 1000:
            return f'{size:.3g} {unit}'
        size /= 1000
    return f'{size:.3g} GB'


def _dotted(path: tuple) -> str:
    return '.'.join(map(str, path)) or 'state'
