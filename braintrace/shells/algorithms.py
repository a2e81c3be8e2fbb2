"""The learning rules as learners of brainstate models: by name, and compiled."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp

from ..graph.compile import Graph
from ..learn.choice import choose_for_learner, is_auto
from ..rules.config import ETraceConfig
from ..rules.registry import LEARNERS, find_rule
from ..rules.rule import Rule
from .brainstate import ETraceAlgorithm, brainstate
from .dni import DNI
from .mapped import ETraceVmap
from .state_rules import BPTT, KFRTRL, RTRL, UORO, LowRankRTRL, RandomProjectionVjpAlgorithm, SnAp
from .unit_rules import (
    D_RTRL,
    OTTT,
    RFLO,
    EProp,
    HybridDimVjpAlgorithm,
    IODimVjpAlgorithm,
    OSTLFeedforward,
    OSTLRecurrent,
    ParamDimVjpAlgorithm,
    ThreeFactor,
    pp_prop,
)
from .vjp_algorithm import ETraceVjpAlgorithm

CLASSES: tuple[type[ETraceVjpAlgorithm], ...] = (
    BPTT,
    RTRL,
    D_RTRL,
    pp_prop,
    HybridDimVjpAlgorithm,
    EProp,
    OSTLRecurrent,
    OSTLFeedforward,
    RFLO,
    OTTT,
    SnAp,
    UORO,
    KFRTRL,
    LowRankRTRL,
    ThreeFactor,
    DNI,
)
LEARNERS.update({c.rule.name: c for c in CLASSES})
_ENGINES: dict[str, type[ETraceVjpAlgorithm]] = {
    'per_param': ParamDimVjpAlgorithm,
    'io_factorized': IODimVjpAlgorithm,
    'random_projection': RandomProjectionVjpAlgorithm,
}


def find_algorithm(algorithm: Any) -> type[ETraceAlgorithm]:
    """The learner class behind a name, a class, a configuration or a rule."""
    if isinstance(algorithm, str):
        algorithm = find_rule(algorithm)
    if isinstance(algorithm, Rule):
        known = LEARNERS.get(algorithm.name)
        if known is not None and known.rule is algorithm:
            return known
        return type(algorithm.name, (ETraceVjpAlgorithm,), {'rule': algorithm})
    if isinstance(algorithm, ETraceConfig):
        return _ENGINES[algorithm.trace_factorization]
    if isinstance(algorithm, type) and issubclass(algorithm, ETraceAlgorithm):
        return algorithm
    raise TypeError(
        '`algorithm` must be a name, a subclass of ETraceAlgorithm, an ETraceConfig or a Rule, '
        f'got {algorithm!r}.'
    )


def _init_states(model: brainstate.nn.Module, batch_size: int | None) -> None:
    try:
        sizes = {} if batch_size is None else {'batch_size': batch_size}
        brainstate.nn.init_all_states(model, **sizes)
    except TypeError as error:
        if batch_size is not None:
            raise
        raise TypeError(
            f'The states cannot be made: {error} `compile` was given no `batch_size=`: does one of '
            'them need it?'
        ) from error


def compile_module(
    model: Any,
    algorithm: Any,
    *example_inputs: Any,
    batch_size: int | None = None,
    seed: int | None = None,
    verbose: int = 0,
    vmap: bool = False,
    **options: Any,
) -> ETraceAlgorithm | ETraceVmap:
    """A compiled learner of a brainstate model, its states initialised."""
    learner_class = BPTT if is_auto(algorithm) else find_algorithm(algorithm)
    if isinstance(algorithm, ETraceConfig):
        if 'config' in options:
            raise TypeError('`config` is given twice: as the algorithm and as an option.')
        options['config'] = algorithm
    if not example_inputs:
        raise ValueError('`compile` needs example inputs of one step.')
    if verbose not in (0, 1, 2):
        raise ValueError(f'`verbose` must be 0, 1 or 2, got {verbose!r}.')
    if vmap:
        _check_batch(example_inputs, batch_size)
    with brainstate.random.seed_context(seed) if seed is not None else nullcontext():
        if vmap:
            brainstate.nn.vmap_init_all_states(model, axis_size=batch_size, state_tag='new')
        else:
            _init_states(model, batch_size)

    def compiled(learner_class: type[ETraceAlgorithm], **options: Any) -> Any:
        learner: Any = learner_class(model, **options)
        if vmap:
            learner = ETraceVmap(learner)
        learner.compile_graph(*example_inputs)
        return learner

    def graph_of(**options: Any) -> Graph:
        return compiled(BPTT, **options).compiled_step().core.graph

    if is_auto(algorithm):
        name, options = choose_for_learner(graph_of, options)
        learner_class = find_algorithm(name)
    learner = compiled(learner_class, **options)
    if verbose:
        learner.report.show(verbose)
    return learner


def _check_batch(inputs: tuple, batch_size: int | None) -> None:
    if batch_size is None:
        raise ValueError('`vmap=True` needs `batch_size`.')
    for leaf in jax.tree.leaves(inputs):
        if jnp.ndim(leaf) == 0 or jnp.shape(leaf)[0] != batch_size:
            raise ValueError(
                f'With vmap=True every example input has the batch of {batch_size} as its first '
                f'axis, got shape {jnp.shape(leaf)}.'
            )
