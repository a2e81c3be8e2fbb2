"""From a step to its graph: a flat program, the hidden groups in it, the relations between weights
and groups, and what was decided on the way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp

from .._jax import is_float
from ..errors import CompilationError
from ..step import Step
from .analysis import Analysis
from .diagnostics import CompilationRecord, DiagnosticKind, Diagnostics
from .expand_broadcasts import expand_broadcasts
from .flags import Trace, may_trace
from .flatten import ControlFlowPolicy, flatten
from .groups import Group, find_groups
from .relations import Relation, crowded, find_relations
from .sources import weight_program
from .uses import expose


@dataclass(frozen=True, eq=False)
class Graph:
    """What depends on what in a step: the result of `compile_step`.

    `analysis` has the influence of everything on everything.
    """

    analysis: Analysis
    groups: tuple[Group, ...]
    relations: tuple[Relation, ...]
    diagnostics: tuple[CompilationRecord, ...] = ()

    @property
    def step(self) -> Step:
        """The flat program that the variables of the groups and relations belong to."""
        return self.analysis.step

    def weights(self, params: Sequence[Any]) -> list[Any]:
        """The weight of each relation, `w = phi(theta)`, from the parameter leaves' values."""
        program = weight_program(self.step, [r.w_var for r in self.relations])
        return program(self.step.captured, *params)

    def explain(
        self,
        *,
        weight_path: tuple | None = None,
        hidden_path: tuple | None = None,
        kind: DiagnosticKind | None = None,
    ) -> tuple[CompilationRecord, ...]:
        """The diagnostics about one weight, one hidden state or of one kind."""
        return tuple(
            r
            for r in self.diagnostics
            if (weight_path is None or r.weight_path == weight_path)
            and (hidden_path is None or hidden_path in r.hidden_paths)
            and (kind is None or r.kind is kind)
        )


def compile_step(
    step: Step, *, policy: ControlFlowPolicy | None = None, trace: Trace = 'all'
) -> Graph:
    """Compile a step.

    Args:
        step: as a front-end gives it.
        policy: what to do with control flow.
        trace: which weights may have a trace: 'all', 'marked', or a function of the parameter's
            path.
    """
    diagnostics = Diagnostics()
    analysis = prepare(step, policy or ControlFlowPolicy(), diagnostics, trace)
    return assemble(analysis, diagnostics, trace)


def prepare(
    step: Step, policy: ControlFlowPolicy, diagnostics: Diagnostics, trace: Trace = 'all'
) -> Analysis:
    """The front half of the compiler: flat program, uses of weights, influence."""
    states = [*zip(step.hidden, step.hidden_vars, strict=True)]
    if not states:  # of a plain function, whose states are hidden if they are floats
        states = [*zip(step.other, step.other_vars, strict=True)]
    if not states:
        raise CompilationError(
            'The model has no hidden state, so there is nothing to trace. Pass a recurrent model, '
            'and initialise its states first.'
        )
    if not any(is_float(v) for _, v in states):
        names = ', '.join(f'{leaf.name} ({v.aval.dtype})' for leaf, v in states)
        raise CompilationError(
            f'No hidden state is of a float type: {names}. Nothing can be differentiated through '
            'them: initialise them as floats.'
        )
    _refuse_integers(step)
    for leaf, old, new in zip(step.hidden, step.hidden_vars, step.hidden_outs, strict=True):
        if (old.aval.shape, old.aval.dtype) != (new.aval.shape, new.aval.dtype):
            raise ValueError(
                f'Hidden state {leaf.name} enters the step as {old.aval.str_short()} and leaves it '
                f'as {new.aval.str_short()}. A hidden state must keep its shape and dtype: cast or '
                'reshape the new value in the step, or initialise the state accordingly (inputs '
                'with a batch: `batch_size=` for a module, that axis in `state` for a function).'
            )
    flat = flatten(step, policy, diagnostics, trace)
    analysis = Analysis(*expose(flat, trace))
    many = crowded(analysis)
    if not many:
        return analysis
    apart, uses = expose(flat, trace, shared=False)
    if len(uses) > len(analysis.uses):  # several uses as one may feed too many units together
        analysis = Analysis(apart, uses)
        many = crowded(analysis)
    return Analysis(*expand_broadcasts(analysis.step, analysis.uses, many)) if many else analysis


def _refuse_integers(step: Step) -> None:
    """Refuse parameters that have no gradient."""
    for leaf, v in zip(step.params, step.param_vars, strict=True):
        if not jnp.issubdtype(v.aval.dtype, jnp.inexact):
            raise CompilationError(
                f'The parameter {leaf.name} is {v.aval.str_short()}, which has no gradient: make '
                'it a float, or keep it in a state that is not a parameter.'
            )


def assemble(analysis: Analysis, diagnostics: Diagnostics, trace: Trace = 'all') -> Graph:
    """The back half of the compiler: groups and relations."""
    groups = find_groups(analysis, diagnostics)
    relations = find_relations(analysis, groups, diagnostics)
    _tell_other_states(analysis, diagnostics)
    _tell_left_out(analysis, relations, trace, diagnostics)
    return Graph(analysis, tuple(groups), tuple(relations), tuple(diagnostics))


def without_large_traces(graph: Graph, limit: int, rows: int | None = None) -> Graph:
    """The graph without the relations whose position-wise trace takes more bytes than `limit`; of a
    table it holds no more than `rows`."""
    diagnostics, kept = Diagnostics(), []
    for r in graph.relations:
        size = _trace_bytes(r, rows)
        if size <= limit:
            kept.append(r)
            continue
        names = tuple(source.leaf.name for source in r.sources)
        diagnostics.warning(
            DiagnosticKind.RELATION_EXCLUDED_TOO_LARGE,
            f'{" and ".join(names)}: a trace through {r.use.place} would take {size / 1e9:.3g} GB, '
            f'more than trace_limit={limit / 1e9:.3g} GB. It has none and gets its in-window '
            'gradient. Use pp_prop, or raise `trace_limit`.',
            weight_path=r.path,
            context=names,
        )
    if not diagnostics:
        return graph
    told = (*graph.diagnostics, *diagnostics)
    return replace(graph, relations=tuple(kept), diagnostics=told)


def _trace_bytes(r: Relation, rows: int | None) -> int:
    """What a position-wise trace of a relation takes; of a table only `rows` rows."""
    states = sum(len(g.carried) * len(r.maps[g.index]) for g in r.groups)
    size = states * math.prod(r.trace_shape()) * r.w_var.aval.dtype.itemsize
    table = r.op.table
    if rows is not None and table is not None:
        size = size * min(rows, table.size) // table.size
    return size


def _tell_left_out(
    analysis: Analysis, relations: Sequence[Relation], trace: Trace, diagnostics: Diagnostics
) -> None:
    with_trace = {source.var for r in relations for source in r.sources}
    learned = [leaf for leaf in analysis.step.params if leaf.traced]
    if callable(trace) and learned and not any(may_trace(leaf, trace) for leaf in learned):
        paths = ', '.join(str(leaf.path) for leaf in learned[:3])
        diagnostics.warning(
            DiagnosticKind.RELATION_EXCLUDED_BY_USER,
            f'`trace` is false for every parameter, so nothing is traced. It is asked with paths '
            f'such as {paths}.',
        )
    for leaf, v in zip(analysis.step.params, analysis.step.param_vars, strict=True):
        if not may_trace(leaf, trace) and v not in with_trace:
            by = '`trace`' if leaf.traced else 'its own type'
            diagnostics.info(
                DiagnosticKind.RELATION_EXCLUDED_BY_USER,
                f'{leaf.name} is kept out of the traces by {by}: it gets its in-window gradient.',
                weight_path=leaf.path,
                context=(leaf.name,),
            )


def _tell_other_states(analysis: Analysis, diagnostics: Diagnostics) -> None:
    """A state that is not hidden, takes in what weights do and gives it back later, is a memory
    without a trace."""
    first, weights = len(analysis.rows), analysis.seed(0)
    for k, row in enumerate(analysis.others):
        seeds = analysis.of_row(row).seeds
        learns = seeds >> weights or seeds & (1 << first) - 1
        returns = any(analysis.of_row(r).seeds >> first + k & 1 for r in analysis.rows)
        if learns and returns:
            diagnostics.warning(
                DiagnosticKind.OTHER_STATE_RECURRENT,
                f'State {row.leaf.name} carries the influence of weights or hidden states from '
                'step to step, but is not a hidden state: that part is exact inside a window and '
                'not traced beyond. Make it a hidden state to trace it.',
                hidden_paths=(row.leaf.path,),
            )
