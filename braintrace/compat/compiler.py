"""From a brainstate model to its graph: the public entry points of the compiler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import NotSupportedError
from ..frontends import brainstate as frontend
from ..frontends.base import TracedModel
from ..graph.analysis import Analysis
from ..graph.compile import assemble, prepare
from ..graph.diagnostics import DiagnosticKind, Diagnostics, emit
from ..graph.flags import Trace
from ..graph.flatten import ControlFlowPolicy
from ..graph.groups import find_groups
from ..graph.relations import find_relations
from .hidden_group import HiddenGroup, published_group, with_neighbours
from .module_info import ModuleInfo, module_info
from .perturbation import HiddenPerturbation, perturbation
from .records import ETraceGraph, published
from .relation import HiddenParamOpRelation, published_relations

_LEARNING = ('ParamState', 'HiddenState', 'HiddenGroupState', 'HiddenTreeState')


def extract_module_info(
    model: Any, *args: Any, control_flow: ControlFlowPolicy | None = None, **kwargs: Any
) -> ModuleInfo:
    """One step of a brainstate model as a flat program, with the variables of its states.

    Args:
        model: a `brainstate.nn.Module` whose states are initialised.
        args, kwargs: example inputs of one step.
        control_flow: what to do with control flow inside the step.

    Example:
        >>> import brainstate, jax.numpy as jnp, braintrace
        >>> gru = brainstate.nn.init_all_states(brainstate.nn.GRUCell(3, 4))
        >>> info = braintrace.extract_module_info(gru, jnp.ones(3))
        >>> sorted(info.hidden_path_to_invar), sorted(info.weight_path_to_invars)
        ([('h',)], [('Wh', 'weight'), ('Wrz', 'weight')])
    """
    info, _, _ = _extract(model, args, kwargs, control_flow, 'all')
    return info


def _extract(
    model: Any, args: tuple, kwargs: Mapping, control_flow: ControlFlowPolicy | None, trace: Trace
) -> tuple[ModuleInfo, Analysis, Diagnostics]:
    policy = control_flow or ControlFlowPolicy()
    if not isinstance(policy, ControlFlowPolicy):
        raise TypeError(f'`control_flow` must be a ControlFlowPolicy, got {type(policy).__name__}.')
    if not callable(trace) and trace not in ('all', 'marked'):
        raise ValueError(
            f"`trace` must be 'all', 'marked' or a function of a parameter's path, got {trace!r}."
        )
    frontend.check_module(model)
    traced, strangers = frontend.trace(model, frontend.states_of(model), *args, **kwargs)
    holders = {h.path: h.holder for h in traced.held}
    diagnostics = Diagnostics()
    for path in strangers:
        _tell_stranger(path, holders[path], diagnostics)
    analysis = prepare(traced.step, policy, diagnostics, trace)
    flat = TracedModel(analysis.step, traced.out_tree, traced.held, traced.origin)
    return module_info(flat, policy, analysis.uses), analysis, diagnostics


def _tell_stranger(path: tuple, state: Any, diagnostics: Diagnostics) -> None:
    """Tell of a state that the step uses and the model does not hold; one that learns deserves a
    warning."""
    kind = type(state).__name__
    tell = diagnostics.warning if kind in _LEARNING else diagnostics.info
    tell(
        DiagnosticKind.STATE_MISMATCH,
        f'The step uses a {kind} that the model does not hold; it is known as {path[0]}.',
    )


def compile_etrace_graph(
    model: Any,
    *model_args: Any,
    include_hidden_perturb: bool = True,
    include_recurrent_mixing: bool = False,
    sparse_n: int | None = None,
    snap_max_jacobian_elements: int = 16777216,
    control_flow: ControlFlowPolicy | None = None,
    trace: Trace = 'all',
    **model_kwargs: Any,
) -> ETraceGraph:
    """Find out what depends on what in a brainstate model.

    Args:
        model: a `brainstate.nn.Module` whose states are initialised.
        model_args, model_kwargs: example inputs of one step.
        include_hidden_perturb: also build the perturbed program.
        include_recurrent_mixing: keep the operations that mix units in the groups' transitions.
        sparse_n: also find the neighbourhoods of SnAp-n, as `snap` of each group; needs
            include_recurrent_mixing.
        snap_max_jacobian_elements: how many elements the Jacobian of a group may have in them.
        control_flow: what to do with control flow inside the step.
        trace: which weights may have a trace: 'all', 'marked', or a function of the parameter's
            path.

    Returns:
        The graph. Its warnings also go through `warnings.warn`.

    Example:
        >>> import brainstate, jax.numpy as jnp, braintrace
        >>> rnn = brainstate.nn.init_all_states(brainstate.nn.ValinaRNNCell(3, 4))
        >>> graph = braintrace.compile_etrace_graph(rnn, jnp.ones(3))
        >>> [(r.path, r.primitive.name) for r in graph.hidden_param_op_relations]
        [(('W', 'weight'), 'dot_general')]
    """
    _check_sparse(sparse_n, include_recurrent_mixing)
    info, analysis, diagnostics = _extract(model, model_args, model_kwargs, control_flow, trace)
    graph = published(
        assemble(analysis, diagnostics, trace),
        info,
        mixing=include_recurrent_mixing,
        sparse=sparse_n,
        limit=snap_max_jacobian_elements,
        perturbed=include_hidden_perturb,
    )
    emit(graph.diagnostics)
    return graph


def _check_sparse(sparse_n: int | None, mixing: bool) -> None:
    if sparse_n is None:
        return
    if isinstance(sparse_n, bool) or not isinstance(sparse_n, int):
        raise TypeError(f'`sparse_n` must be an int, got {sparse_n!r}.')
    if sparse_n < 1:
        raise ValueError(f'`sparse_n` must be at least 1, got {sparse_n}.')
    if not mixing:
        raise NotSupportedError(
            '`sparse_n` needs include_recurrent_mixing=True: without the mixing operations units '
            'have no neighbours.'
        )


def _analysis(minfo: ModuleInfo) -> Analysis:
    return Analysis(minfo.step, minfo.uses)


def find_hidden_groups_from_minfo(
    minfo: ModuleInfo,
    include_recurrent_mixing: bool = False,
    sparse_n: int | None = None,
    snap_max_jacobian_elements: int = 16777216,
    descended_scan_eqn_ids: frozenset = frozenset(),
    descended_hidden_paths: frozenset = frozenset(),
) -> tuple[list[HiddenGroup], dict[tuple, HiddenGroup]]:
    """The hidden groups of an extracted model, and the group of each hidden path."""
    _check_sparse(sparse_n, include_recurrent_mixing)
    analysis = _analysis(minfo)
    groups = [
        published_group(analysis, g, minfo.states, mixing=include_recurrent_mixing)
        for g in find_groups(analysis, Diagnostics())
    ]
    if sparse_n is not None:
        groups = with_neighbours(analysis, groups, sparse_n, snap_max_jacobian_elements)
    return groups, {p: g for g in groups for p in g.hidden_paths}


def find_hidden_groups_from_module(
    model: Any,
    *args: Any,
    include_recurrent_mixing: bool = False,
    sparse_n: int | None = None,
    snap_max_jacobian_elements: int = 16777216,
    **kwargs: Any,
) -> tuple[list[HiddenGroup], dict[tuple, HiddenGroup]]:
    """The hidden groups of a model, and the group of each hidden path."""
    return find_hidden_groups_from_minfo(
        extract_module_info(model, *args, **kwargs),
        include_recurrent_mixing,
        sparse_n,
        snap_max_jacobian_elements,
    )


def find_hidden_param_op_relations_from_minfo(
    minfo: ModuleInfo,
    hid_path_to_group: Mapping[tuple, HiddenGroup],
    descended_scan_eqn_ids: frozenset = frozenset(),
) -> list[HiddenParamOpRelation]:
    """The relations between the weights of an extracted model and its hidden groups."""
    analysis = _analysis(minfo)
    views = {g.index: g for g in hid_path_to_group.values()}
    groups = [g for g in find_groups(analysis, Diagnostics()) if g.index in views]
    relations = find_relations(analysis, groups, Diagnostics())
    return published_relations(analysis, relations, views, minfo.states)


def find_hidden_param_op_relations_from_module(
    model: Any, *args: Any, **kwargs: Any
) -> list[HiddenParamOpRelation]:
    """The relations between the weights of a model and its hidden groups."""
    minfo = extract_module_info(model, *args, **kwargs)
    return find_hidden_param_op_relations_from_minfo(minfo, find_hidden_groups_from_minfo(minfo)[1])


def add_hidden_perturbation_from_minfo(
    minfo: ModuleInfo, descended_scan_eqn_ids: frozenset = frozenset()
) -> HiddenPerturbation:
    """The program of an extracted model with a variable added to each new hidden state."""
    paths = list(minfo.hidden_path_to_outvar)
    return perturbation(
        minfo.closed_jaxpr,
        [minfo.hidden_path_to_outvar[p] for p in paths],
        paths,
        [minfo.states[p] for p in paths],
    )


def add_hidden_perturbation_in_module(model: Any, *args: Any, **kwargs: Any) -> HiddenPerturbation:
    """The program of a model with a variable added to each new hidden state."""
    return add_hidden_perturbation_from_minfo(extract_module_info(model, *args, **kwargs))
