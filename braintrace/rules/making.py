"""From the options of a rule to its carrier, its signal and its scope."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ..errors import NotSupportedError
from ..plan.layout import Layout, Scope
from .carrier import BlockCarrier, Several
from .d_rtrl import PositionWise
from .eprop import Filtered
from .kf_rtrl import Kronecker
from .leak import leak_of
from .options import decays, preference, share
from .pp_prop import Factorised
from .random_bits import as_key
from .signals import (
    GRADIENT,
    Signal,
    guessed_future,
    modulator,
    random_feedback,
    square_feedback,
)
from .stored import Stored, is_half
from .uoro import RankOne


def everyone(layout: Layout) -> frozenset[int]:
    return frozenset(range(len(layout.relations)))


def position_wise(
    layout: Layout,
    trace_dtype: Any = None,
    embedding_rows: int | None = None,
    decay: Any = None,
    **_: Any,
) -> BlockCarrier:
    kept = None if is_half(trace_dtype) else trace_dtype
    leak = None if decay is None else leak_of(layout, decay)
    return stored(PositionWise(layout, everyone(layout), kept, leak, embedding_rows), trace_dtype)


def filtered(
    layout: Layout, kappa: float, trace_dtype: Any, leak: float | None = None
) -> BlockCarrier:
    """Position-wise traces, and their low-pass if there is a kappa."""
    kept = None if is_half(trace_dtype) else trace_dtype
    own = None if leak is None else leak_of(layout, leak)
    inner = PositionWise(layout, everyone(layout), kept, own)
    return stored(Filtered(inner, kappa) if kappa else inner, trace_dtype)


def stored(carrier: BlockCarrier, dtype: Any) -> BlockCarrier:
    """The carrier, with its traces in half precision if that is asked for."""
    if not is_half(dtype):
        return carrier
    for key, trace in jax.eval_shape(carrier.init).items():
        if jnp.issubdtype(trace.dtype, jnp.complexfloating):
            raise NotSupportedError(
                f'`trace_dtype`: the weight of trace {key} is complex, and there are no complex '
                f'numbers in {dtype.name}. Use float32, or leave it out.'
            )
    return Stored(carrier, dtype)


def factorised(layout: Layout, decay_or_rank: Any) -> Factorised:
    return Factorised(layout, everyone(layout), *decays(decay_or_rank))


def ottt(layout: Layout, decay: float) -> Factorised:
    return Factorised(layout, everyone(layout), share('decay', decay), 0.0, leaky=True)


def hybrid(layout: Layout, decay_or_rank: Any, prefer: Any, trace_dtype: Any) -> Several:
    """Per relation the cheaper of the two by memory, or as `prefer(path)` says."""
    full = set()
    for i, r in enumerate(layout.relations):
        wish = preference(prefer(r.path) if callable(prefer) else prefer, r.path)
        product = _size(r.trace_shape()) if r.axes.x is not None else 0
        factors = (r.x_var.aval.size if r.x_var is not None else 0) + r.y_var.aval.size
        if wish == 'full' or (wish != 'approx' and product <= factors):
            full.add(i)
    chosen = frozenset(full), everyone(layout) - full
    kept = None if is_half(trace_dtype) else trace_dtype
    by_product = stored(PositionWise(layout, chosen[0], kept), trace_dtype)
    by_factors = Factorised(layout, chosen[1], *decays(decay_or_rank))
    return Several(layout, (by_product, by_factors), chosen)


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size


def eprop(layout: Layout, kappa_filter_decay: float, trace_dtype: Any, **_: Any) -> BlockCarrier:
    return filtered(layout, kappa_filter_decay, trace_dtype)


def uoro(layout: Layout, projection_key: Any, projection_eps: float) -> RankOne:
    return RankOne(layout, projection_key, projection_eps)


def kf_rtrl(layout: Layout, projection_key: Any, projection_eps: float) -> Kronecker:
    return Kronecker(layout, projection_key, projection_eps)


def fed_back(
    layout: Layout, feedback: str, random_feedback_key: Any, feedback_scale: float, **_: Any
) -> Signal:
    if feedback == 'symmetric':
        return GRADIENT
    key = as_key(random_feedback_key)
    if feedback == 'square' or not layout.feedback_uses:  # no weights that others could replace
        return square_feedback(layout, key, feedback_scale)
    return random_feedback(layout, key, feedback_scale, feedback == 'adaptive')


def modulated(layout: Layout, **options: Any) -> Signal:
    return modulator(layout)


def bootstrapped(layout: Layout, guess: Any, **options: Any) -> Signal:
    return guessed_future(layout, guess)


def coupled(**options: Any) -> Scope:
    return Scope.COUPLED


def leaky(**options: Any) -> Scope:
    return Scope.LEAK


def filtered_if_kappa(kappa_filter_decay: float, **_: Any) -> Scope:
    return Scope.FILTERED if kappa_filter_decay else Scope.DIAGONAL
