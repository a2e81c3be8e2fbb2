"""Graph executors: a model's graph, and the factors of one step of it, for code that works with
them directly."""

from __future__ import annotations

import copy
from typing import Any

import jax
import jax.numpy as jnp

from .._jax import Atom, Literal, Var, new_jaxpr, run_jaxpr
from ..frontends import brainstate as frontend
from ..graph.flatten import ControlFlowPolicy
from ..learn.data import first_step
from ..rules.carrier import MULTI_STEP, SINGLE_STEP, check_vjp_method
from ..show.report import CompilationReport
from .compiler import compile_etrace_graph
from .hidden_group import HiddenGroup
from .perturbation import opened
from .records import ETraceGraph
from .relation import HiddenParamOpRelation

brainstate: Any = frontend.brainstate


class ETraceGraphExecutor:
    """A model and its graph.

    Args:
        model: a `brainstate.nn.Module`.
        include_recurrent_mixing: let weights between units be a part of the transition of a group.
        control_flow: what to do with control flow inside a step.
        sparse_n, snap_max_jacobian_elements: as for `compile_etrace_graph`.
    """

    def __init__(
        self,
        model: Any,
        include_recurrent_mixing: bool = False,
        sparse_n: int | None = None,
        snap_max_jacobian_elements: int = 16777216,
        control_flow: ControlFlowPolicy | None = None,
    ):
        if not isinstance(model, brainstate.nn.Module):
            raise TypeError(f'`model` must be a brainstate.nn.Module, got {type(model).__name__}.')
        self.model = model
        self._how: dict[str, Any] = dict(
            include_recurrent_mixing=include_recurrent_mixing,
            sparse_n=sparse_n,
            snap_max_jacobian_elements=snap_max_jacobian_elements,
            control_flow=control_flow,
        )
        self._graph: ETraceGraph | None = None

    def of(self, model: Any, graph: ETraceGraph | None = None) -> ETraceGraphExecutor:
        """An executor like this one of another model, and its graph if that is known."""
        other = copy.copy(self)
        other.model, other._graph = model, graph
        return other

    @property
    def control_flow(self) -> ControlFlowPolicy | None:
        """What is done with control flow inside a step, if that was said."""
        return self._how['control_flow']

    @property
    def graph(self) -> ETraceGraph:
        """What depends on what in the model."""
        if self._graph is None:
            raise ValueError(
                'The graph is not compiled yet: call `compile_graph(*example_inputs)`.'
            )
        return self._graph

    @property
    def path_to_states(self) -> dict[tuple, Any]:
        """The states of the model by path."""
        return dict(brainstate.graph.states(self.model).items())

    @property
    def states(self) -> dict[tuple, Any]:
        """The states of the model by path."""
        return self.path_to_states

    @property
    def state_id_to_path(self) -> dict[int, tuple]:
        """The path of each state of the model, by the state's `id`."""
        return {id(s): p for p, s in self.path_to_states.items()}

    def compile_graph(self, *args: Any) -> None:
        """Compile the model for inputs like these."""
        self._graph = compile_etrace_graph(self.model, *first_step(args), **self._how)

    def show_graph(self, verbose: bool = True, return_msg: bool = False) -> str | None:
        """Print the report, or return it."""
        text = CompilationReport(self.graph.compiled).to_str(2)
        if verbose:
            print(text)
        return text if return_msg else None


class ETraceVjpGraphExecutor(ETraceGraphExecutor):
    """A model, its graph, and the factors of one step.

    Args:
        vjp_method: 'single-step' or 'multi-step', kept as it is given.
        full_jacobian: give the whole Jacobian of a group instead of its diagonal.
        model, include_recurrent_mixing, sparse_n, snap_max_jacobian_elements, control_flow: as for
            `ETraceGraphExecutor`.
    """

    def __init__(
        self,
        model: Any,
        vjp_method: str = 'single-step',
        include_recurrent_mixing: bool = False,
        sparse_n: int | None = None,
        snap_max_jacobian_elements: int = 16777216,
        control_flow: ControlFlowPolicy | None = None,
        full_jacobian: bool = False,
    ):
        super().__init__(
            model, include_recurrent_mixing, sparse_n, snap_max_jacobian_elements, control_flow
        )
        check_vjp_method(vjp_method)
        self.vjp_method, self._full = vjp_method, full_jacobian

    @property
    def is_single_step_vjp(self) -> bool:
        """Whether `vjp_method` is 'single-step'."""
        return self.vjp_method == SINGLE_STEP

    @property
    def is_multi_step_vjp(self) -> bool:
        """Whether `vjp_method` is 'multi-step'."""
        return self.vjp_method == MULTI_STEP

    def solve_h2w_h2h_jacobian(
        self, *args: Any, etrace_stepper: Any = None, init_etrace: Any = None
    ) -> tuple:
        """One step and its factors; nothing is written to the model.

        Returns:
            `(out, hidden values, other values, (xs, dfs), [D of each group], None)`. `xs` has what
            multiplies each weight by the relation's name, `dfs` the slopes `(*y, states)` by (name,
            group index), `D` the shape `(*units, S, S)`.
        """
        graph = self.graph
        results, values = self._step(first_step(args))
        out, hidden, other, _ = graph.module_info.unflatten(results)
        xs, dfs = {}, {}
        for r in graph.hidden_param_op_relations:
            xs[r.name] = r.operand([_value(values, a) for a in r.use.eqn.invars])
            for k, g in enumerate(r.hidden_groups):
                dfs[r.name, g.index] = _slopes(r, k, values)
        transitions = [self._transition(g, values) for g in graph.hidden_groups]
        return out, hidden, other, (xs, dfs), transitions, None

    def _step(self, args: tuple) -> tuple[list[Any], dict[Var, Any]]:
        """The outputs of one step, and the value of every variable in it."""
        info = self.graph.module_info
        jaxpr, captured = opened(info.closed_jaxpr)
        inputs = [*captured, *info.flat_inputs(args)]
        made = [v for e in jaxpr.eqns for v in e.outvars]
        program = new_jaxpr(jaxpr.invars, [*jaxpr.outvars, *made], jaxpr.eqns)
        results = run_jaxpr(program, *inputs)
        n = len(jaxpr.outvars)
        values = dict(zip([*jaxpr.invars, *made], [*inputs, *results[n:]], strict=True))
        return results[:n], values

    def _transition(self, g: HiddenGroup, values: dict[Var, Any]) -> jax.Array:
        hidden = [values[v] for v in g.hidden_invars]
        free = [values[v] for v in g.transition_jaxpr_constvars]
        return (g.full_jacobian if self._full else g.diagonal_jacobian)(hidden, free)

    def solve_h2w_h2h_l2h_jacobian(self, *args: Any, **kwargs: Any) -> tuple:
        """Not handed out: differentiate the call of a learner instead."""
        raise NotImplementedError(
            'The residual of a pull is not handed out: differentiate the call of a learner '
            '(`braintrace.compile`) instead.'
        )


def _value(values: dict[Var, Any], a: Atom) -> Any:
    return a.val if isinstance(a, Literal) else values[a]


def _slopes(r: HiddenParamOpRelation, k: int, values: dict[Var, Any]) -> jax.Array:
    """The derivatives of a relation's k-th group by y, `(*y, states)`."""
    g, tail = r.hidden_groups[k], r.y_to_hidden_group_jaxprs[k]
    free = [values[v] for v in tail.invars[:-1]]

    def new_states(y: jax.Array) -> jax.Array:
        return g.concat_hidden(run_jaxpr(tail, *free, y))

    value, pull = jax.vjp(new_states, values[r.y_var])
    rows = [pull(jnp.zeros_like(value).at[..., a].set(1))[0] for a in range(g.num_state)]
    return jnp.stack(rows, -1)
