"""The learning rules as learners of brainstate models."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp

from .learner import ETraceAlgorithm, ETraceVmap, brainstate
from .rules.registry import BY_NAME, decays, find_rule


class BPTT(ETraceAlgorithm):
    """Backpropagation through time inside each window, and nothing across its edge: BPTT when the window is the sequence, truncated otherwise."""
    rule = BY_NAME['bptt']


class RTRL(ETraceAlgorithm):
    """Real-time recurrent learning: the whole influence `J_b = Phi J_a + M`. Exact for any model and any window; memory states x parameters."""
    rule = BY_NAME['rtrl']


class ParamDimVjpAlgorithm(ETraceAlgorithm):
    """D-RTRL: each weight remembers the unit it feeds, `e <- D e + x (x) df`. Exact where the recurrence is position-wise in one layer.

    Args:
        trace_dtype: the precision the traces are stored in.
        trace_limit: bytes that the trace of one weight may take; beyond, it gets its in-window gradient and a warning says so.
        scope: 'diagonal' leaves recurrent weights out of D, 'block' keeps the weight from each unit to itself.
        fast_solve, chunked_trace, snap_max_jacobian_elements: accepted for old code; there is one way, and it is the fast one.
    """
    rule = BY_NAME['d_rtrl']

    def __init__(self, model: Any, name: str | None = None, vjp_method: str = 'single-step', fast_solve: bool = True, trace_dtype: Any = None,
                 chunked_trace: bool = True, control_flow: Any = None, snap_max_jacobian_elements: int = 16777216, scope: str = 'diagonal', **more: Any):
        super().__init__(model, name, vjp_method, control_flow, trace_dtype=trace_dtype, scope=scope, **more)

    @property
    def etrace_bwg(self) -> dict:
        return self.etrace


class IODimVjpAlgorithm(ETraceAlgorithm):
    """pp-prop (ES-D-RTRL): an input trace times an output trace, memory in + out instead of in x out.

    Args:
        decay_or_rank: a decay in [0, 1), a rank r >= 1 for the decay (r-1)/(r+1), or a pair (input side, output side).
    """
    rule = BY_NAME['pp_prop']

    def __init__(self, model: Any, decay_or_rank: Any, name: str | None = None, vjp_method: str = 'single-step', fast_solve: bool = True,
                 control_flow: Any = None, **more: Any):
        super().__init__(model, name, vjp_method, control_flow, decay_or_rank=decay_or_rank, **more)
        self.decay_x, self.decay_f = decays(decay_or_rank)

    @property
    def decay(self) -> float:
        if self.decay_x != self.decay_f:
            raise AttributeError('`decay`: the two sides differ, see `decay_x` and `decay_f`.')
        return self.decay_x

    @property
    def etrace_xs(self) -> dict:
        return {k: v for k, v in self.etrace.items() if k.startswith('x:')}

    @property
    def etrace_dfs(self) -> dict:
        return {k: v for k, v in self.etrace.items() if not k.startswith('x:')}


class HybridDimVjpAlgorithm(ETraceAlgorithm):
    """For each weight the cheaper of D-RTRL and pp-prop by memory, or as `prefer(path)` says: 'full', 'approx' or 'adaptive'."""
    rule = BY_NAME['hybrid']

    def __init__(self, model: Any, decay_or_rank: Any, name: str | None = None, vjp_method: str = 'single-step', control_flow: Any = None,
                 prefer: Any = None, **more: Any):
        super().__init__(model, name, vjp_method, control_flow, decay_or_rank=decay_or_rank, prefer=prefer, **more)


class D_RTRL(ParamDimVjpAlgorithm):
    __doc__ = ParamDimVjpAlgorithm.__doc__


class pp_prop(IODimVjpAlgorithm):
    __doc__ = IODimVjpAlgorithm.__doc__


ES_D_RTRL = pp_prop
_CLASSES = {'bptt': BPTT, 'rtrl': RTRL, 'd_rtrl': D_RTRL, 'pp_prop': pp_prop, 'hybrid': HybridDimVjpAlgorithm}


def find_algorithm(algorithm: Any) -> type[ETraceAlgorithm]:
    """The learner class behind a name or a class."""
    if isinstance(algorithm, str):
        return _CLASSES[find_rule(algorithm).name]
    if isinstance(algorithm, type) and issubclass(algorithm, ETraceAlgorithm):
        return algorithm
    raise TypeError(f'`algorithm` must be a name or a subclass of ETraceAlgorithm, got {algorithm!r}.')


def compile_module(model: Any, algorithm: Any, *example_inputs: Any, batch_size: int | None = None, seed: int | None = None, verbose: int = 0,
                   vmap: bool = False, **options: Any) -> ETraceAlgorithm | ETraceVmap:
    """A compiled learner of a brainstate model, its states initialised."""
    learner_class = find_algorithm(algorithm)
    if not example_inputs:
        raise ValueError('`compile` needs example inputs of one step.')
    if verbose not in (0, 1, 2):
        raise ValueError(f'`verbose` must be 0, 1 or 2, got {verbose!r}.')
    with brainstate.random.seed_context(seed) if seed is not None else nullcontext():
        if vmap:
            _check_batch(example_inputs, batch_size)
            brainstate.nn.vmap_init_all_states(model, axis_size=batch_size, state_tag='new')
        else:
            brainstate.nn.init_all_states(model, **({} if batch_size is None else {'batch_size': batch_size}))
    learner = learner_class(model, **options)
    if vmap:
        mapped = brainstate.nn.Vmap(model, vmap_states='new')
        learner._step_of = lambda *a: mapped(*a)
    learner.compile_graph(*example_inputs)
    if verbose:
        learner.report.show(verbose)
    return ETraceVmap(learner) if vmap else learner


def _check_batch(inputs: tuple, batch_size: int | None) -> None:
    if batch_size is None:
        raise ValueError('`vmap=True` needs `batch_size`.')
    for leaf in jax.tree.leaves(inputs):
        if jnp.ndim(leaf) == 0 or jnp.shape(leaf)[0] != batch_size:
            raise ValueError(f'With vmap=True every example input has the batch of {batch_size} as its first axis, got shape {jnp.shape(leaf)}.')
