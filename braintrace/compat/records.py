"""The compiled graph as 0.2 published it: a view of `graph.compile.Graph`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

from .._jax import Traced
from ..graph.compile import Graph
from ..graph.diagnostics import CompilationRecord, DiagnosticKind
from ..step import Step
from .hidden_group import HiddenGroup, published_group, with_neighbours
from .perturbation import HiddenPerturbation, perturbation
from .relation import HiddenParamOpRelation, published_relations

if TYPE_CHECKING:
    from ..show.page import Page
    from ..show.picture import Picture


class ETraceGraph(NamedTuple):
    """What depends on what in a model: the result of `compile_etrace_graph`.

    `module_info` is the record of the model, `compiled` the graph that this is a view of.
    """

    module_info: Any
    hidden_groups: Sequence[HiddenGroup]
    hid_path_to_group: Mapping[tuple, HiddenGroup]
    hidden_param_op_relations: Sequence[HiddenParamOpRelation]
    hidden_perturb: HiddenPerturbation | None
    diagnostics: tuple[CompilationRecord, ...] = ()
    compiled: Graph = None  # type: ignore[assignment]

    @property
    def step(self) -> Step:
        """The flat program that the variables of the groups and relations belong to."""
        return self.compiled.step

    def call_hidden_perturb(
        self,
        args: Sequence[Any],
        perturb_data: Sequence[Any],
        old_state_vals: Sequence[Any] | None = None,
    ) -> tuple[Any, dict, dict, dict]:
        """Run one step with `perturb_data` added to the new hidden states:
        `(out, hidden values, other values, further values)`."""
        if self.hidden_perturb is None:
            raise ValueError(
                '`call_hidden_perturb`: the graph was compiled with include_hidden_perturb=False. '
                'Compile it with include_hidden_perturb=True.'
            )
        flat = self.module_info.flat_inputs(args, old_state_vals)
        return self.module_info.unflatten(self.hidden_perturb.eval_jaxpr(flat, perturb_data))

    def weights(self, params: Sequence[Any]) -> list[Any]:
        """The weight of each use in `compiled.relations`, `w = phi(theta)`, from the parameter
        leaves' values."""
        return self.compiled.weights(params)

    def explain(
        self,
        *,
        weight_path: tuple | None = None,
        hidden_path: tuple | None = None,
        kind: DiagnosticKind | None = None,
    ) -> tuple[CompilationRecord, ...]:
        """The diagnostics about one weight, one hidden state or of one kind."""
        return self.compiled.explain(weight_path=weight_path, hidden_path=hidden_path, kind=kind)

    @overload
    def draw(self, html: Literal[False] = False) -> Picture: ...

    @overload
    def draw(self, html: Literal[True]) -> Page: ...

    def draw(self, html: bool = False) -> Picture | Page:
        """A picture of the model: hidden groups, weights and ops, with `svg()`, `mermaid()` and
        `matplotlib()`. With `html` it is a page that stands alone, with `save(path)`: boxes tell
        shapes, bytes and the user's line when pointed at. `learner.report.draw` also knows the
        rule, hence the bytes of its traces and what is exact."""
        from ..show.report import CompilationReport

        report = CompilationReport(self)
        return report.draw(True) if html else report.draw()

    def dict(self) -> dict[str, Any]:
        """The fields by name."""
        return self._asdict()


def published(
    graph: Graph,
    module_info: Any = None,
    *,
    mixing: bool = False,
    sparse: int | None = None,
    limit: int | None = None,
    perturbed: bool = True,
) -> ETraceGraph:
    """The view of a compiled graph.

    Args:
        graph: the graph.
        module_info: the record of the model, whose program is that of the graph's step.
        mixing: keep the operations that mix units in the transitions of the groups.
        sparse: also find the neighbourhoods of SnAp-n, for this n.
        limit: how many elements the Jacobian of a group may have in them.
        perturbed: also build the perturbed program.
    """
    states = {} if module_info is None else module_info.states
    analysis, step = graph.analysis, graph.step
    groups = [published_group(analysis, g, states, mixing=mixing) for g in graph.groups]
    if sparse is not None:
        groups = with_neighbours(analysis, groups, sparse, limit)
    views = {g.index: g for g in groups}
    relations = published_relations(analysis, graph.relations, views, states)
    added = None
    if perturbed:
        program = Traced(step.jaxpr, step.captured)
        if module_info is not None:
            program = module_info.closed_jaxpr
        paths = [leaf.path for leaf in step.hidden]
        added = perturbation(program, step.hidden_outs, paths, [states.get(p) for p in paths])
    by_path = {p: g for g in groups for p in g.hidden_paths}
    return ETraceGraph(module_info, groups, by_path, relations, added, graph.diagnostics, graph)
