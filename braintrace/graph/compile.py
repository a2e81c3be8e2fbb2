"""The compiled model: a flat step, its hidden groups, its relations, its perturbed form and what was decided on the way."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from .._jax import eval_jaxpr
from ..errors import CompilationError
from ..step import Step
from .analysis import Analysis
from .diagnostics import CompilationRecord, DiagnosticKind, Diagnostics
from .expand_broadcasts import spread_out
from .flatten import ControlFlowPolicy, canonicalise
from .groups import HiddenGroup, find_groups, with_neighbours
from .perturbation import HiddenPerturbation, perturb
from .relations import HiddenParamOpRelation, crowded, find_relations, weight_program
from .uses import expose


class ETraceGraph(NamedTuple):
    """What depends on what in a model: the result of `compile_etrace_graph`.

    `module_info` is the front-end's record of the model, `found` the influence of everything on everything.
    """

    module_info: Any
    hidden_groups: Sequence[HiddenGroup]
    hid_path_to_group: Mapping[tuple, HiddenGroup]
    hidden_param_op_relations: Sequence[HiddenParamOpRelation]
    hidden_perturb: HiddenPerturbation | None
    diagnostics: tuple[CompilationRecord, ...] = ()
    found: Analysis = None  # type: ignore[assignment]

    @property
    def step(self) -> Step:
        """The flat program that the variables of the groups and relations belong to."""
        return self.found.step

    def call_hidden_perturb(
        self,
        args: Sequence[Any],
        perturb_data: Sequence[Any],
        old_state_vals: Sequence[Any] | None = None,
    ):
        """Run one step with `perturb_data` added to the new hidden states: `(out, hidden values, other values, further values)`."""
        if self.hidden_perturb is None:
            raise ValueError(
                '`call_hidden_perturb`: the graph was compiled with include_hidden_perturb=False.'
            )
        flat = self.module_info.flat_inputs(args, old_state_vals)
        return self.module_info.unflatten(self.hidden_perturb.eval_jaxpr(flat, perturb_data))

    def weights(self, params: Sequence[Any]) -> list[Any]:
        """The weight of each relation, `w = phi(theta)`, from the values of the parameter leaves."""
        program = weight_program(self.step, [r.w_var for r in self.hidden_param_op_relations])
        return eval_jaxpr(program.jaxpr, program.consts, *params)

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

    def draw(self) -> Any:
        """A picture of the model: hidden groups, weights and ops, with `svg()`, `mermaid()` and `matplotlib()`."""
        from ..show.picture import draw

        return draw(self)

    def dict(self) -> dict[str, Any]:
        """The fields by name."""
        return self._asdict()


def prepare(
    step: Step,
    policy: ControlFlowPolicy,
    diagnostics: Diagnostics,
    traced: Callable[[tuple], bool] | str = 'all',
) -> Analysis:
    """The front half of the compiler: flat program, uses of weights, influence."""
    if not step.hidden:
        raise CompilationError(
            'The model has no hidden state, so there is nothing to trace. Pass a recurrent model, and initialise its states first '
            '(brainstate: `brainstate.nn.init_all_states(model)`).'
        )
    for leaf, old, new in zip(step.hidden, step.hidden_vars, step.hidden_outs, strict=True):
        if (old.aval.shape, old.aval.dtype) != (new.aval.shape, new.aval.dtype):
            raise ValueError(
                f'Hidden state {leaf.name} enters the step as {old.aval.str_short()} and leaves it as {new.aval.str_short()}. '
                'A hidden state must keep its shape and dtype: cast or reshape the new value in the step, or initialise the state accordingly.'
            )
    found = Analysis(*expose(canonicalise(step, policy, diagnostics, traced), traced))
    many = crowded(found)
    return Analysis(*spread_out(found.step, found.uses, many)) if many else found


def assemble(
    found: Analysis,
    diagnostics: Diagnostics,
    *,
    module_info: Any = None,
    states: Mapping[tuple, Any] | None = None,
    mixing: bool = False,
    sparse: tuple[int, int] | None = None,
    perturbed: bool = True,
    traced: Callable[[tuple], bool] | str = 'all',
) -> ETraceGraph:
    """The back half: groups, with neighbourhoods if `sparse` says how many steps and how large, relations, perturbation."""
    states = states or {}
    groups = find_groups(found, diagnostics, states=states, mixing=mixing)
    groups = groups if sparse is None else with_neighbours(found, groups, *sparse)
    relations = find_relations(found, groups, diagnostics, states)
    _tell_other_states(found, diagnostics)
    _tell_left_out(found, relations, traced, diagnostics)
    step = found.step
    perturbation = None
    if perturbed:
        program = step.jaxpr if module_info is None else module_info.closed_jaxpr
        paths = [leaf.path for leaf in step.hidden]
        perturbation = perturb(program, step.hidden_outs, paths, [states.get(p) for p in paths])
    return ETraceGraph(
        module_info,
        groups,
        {p: g for g in groups for p in g.hidden_paths},
        relations,
        perturbation,
        tuple(diagnostics),
        found,
    )


def compile_step(
    step: Step,
    *,
    policy: ControlFlowPolicy | None = None,
    trace: Callable[[tuple], bool] | str = 'all',
    perturbed: bool = True,
) -> ETraceGraph:
    """Compile a framework-free step."""
    diagnostics = Diagnostics()
    found = prepare(step, policy or ControlFlowPolicy(), diagnostics, trace)
    return assemble(found, diagnostics, perturbed=perturbed, traced=trace)


def within(graph: ETraceGraph, limit: int, rows: int | None = None) -> ETraceGraph:
    """The graph without the relations whose position-wise trace takes more bytes than `limit`; of a table it holds no more than `rows`."""
    diagnostics, kept = Diagnostics(), []
    for r in graph.hidden_param_op_relations:
        size = (
            sum(len(g.carried) * len(r.maps[g.index]) for g in r.hidden_groups)
            * math.prod(r.trace_shape())
            * r.w_var.aval.dtype.itemsize
        )
        if rows is not None and r.op.table is not None:
            size = size * min(rows, r.op.table.size) // r.op.table.size
        if size <= limit:
            kept.append(r)
            continue
        names = tuple('.'.join(map(str, p)) for p in r.trainable_paths.values())
        diagnostics.warning(
            DiagnosticKind.RELATION_EXCLUDED_TOO_LARGE,
            f'{" and ".join(names)}: a trace through {r.use.place} would take '
            f'{size / 1e9:.3g} GB, more than trace_limit={limit / 1e9:.3g} GB. It has none and gets its in-window gradient. '
            'Use pp_prop, or raise `trace_limit`.',
            weight_path=r.path,
            context=names,
        )
    return (
        graph._replace(
            hidden_param_op_relations=kept, diagnostics=(*graph.diagnostics, *diagnostics)
        )
        if diagnostics
        else graph
    )


def _tell_left_out(
    found: Analysis,
    relations: Sequence[HiddenParamOpRelation],
    traced: Callable[[tuple], bool] | str,
    diagnostics: Diagnostics,
) -> None:
    with_trace = {v for r in relations for v in r.trainable_vars.values()}
    for leaf, v in zip(found.step.params, found.step.param_vars, strict=True):
        if callable(traced) and not traced(leaf.path) and v not in with_trace:
            diagnostics.info(
                DiagnosticKind.RELATION_EXCLUDED_BY_USER,
                f'{leaf.name} is kept out of the traces by `trace`: it gets its in-window gradient.',
                weight_path=leaf.path,
                context=(leaf.name,),
            )


def _tell_other_states(found: Analysis, diagnostics: Diagnostics) -> None:
    """A state that is not hidden, takes in what weights do and gives it back later, is a memory without a trace."""
    first, weights = len(found.rows), found.seed(0)
    for k, row in enumerate(found.others):
        seeds = found.of_row(row).seeds
        learns = seeds >> weights or seeds & (1 << first) - 1
        returns = any(found.of_row(r).seeds >> first + k & 1 for r in found.rows)
        if learns and returns:
            diagnostics.warning(
                DiagnosticKind.OTHER_STATE_RECURRENT,
                f'State {row.leaf.name} carries the influence of weights or hidden states from step '
                'to step, but is not a hidden state: that part is exact inside a window and not traced beyond. Make it a HiddenState to '
                'trace it.',
                hidden_paths=(row.leaf.path,),
            )
