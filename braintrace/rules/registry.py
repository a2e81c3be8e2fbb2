"""The rules by name: which carrier, which kind of credit, which options."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import jax.numpy as jnp

from .carrier import Carrier, Several
from .factorised import Factorised
from .full import full
from .nothing import Nothing
from .positionwise import PositionWise
from .slots import Layout


@dataclass(frozen=True)
class Rule:
    """A learning rule: `carrier(layout, **options)`, the default kind of credit, and whether it follows the traces that the compiler tells about."""
    name: str
    carrier: Callable[..., Carrier]
    vjp_method: str
    options: Mapping[str, Any]
    traces: bool = True

    def make(self, layout: Layout, options: Mapping[str, Any]) -> Carrier:
        missing = [k for k, v in self.options.items() if v is REQUIRED and k not in options]
        if missing:
            raise TypeError(f'Rule {self.name!r} needs the option `{missing[0]}`.')
        return self.carrier(layout, **{**{k: v for k, v in self.options.items()}, **options})


REQUIRED = object()
TRACE_LIMIT = 2 ** 32  # bytes that the trace of one weight may take


def decays(decay_or_rank: Any) -> tuple[float, float]:
    """Decay of the input and of the output trace: a float in [0, 1), a rank r >= 1 for (r-1)/(r+1), or a pair of these."""
    if isinstance(decay_or_rank, tuple | list):
        if len(decay_or_rank) != 2:
            raise ValueError(f'`decay_or_rank`: a pair (input side, output side) has two entries, got {len(decay_or_rank)}.')
        x, f = (decays(d)[0] for d in decay_or_rank)
        return x, f
    if isinstance(decay_or_rank, bool) or not isinstance(decay_or_rank, Real):
        raise ValueError(f'`decay_or_rank` must be a float (decay), an int (rank) or a pair, got {decay_or_rank!r}.')
    if isinstance(decay_or_rank, Integral):
        if decay_or_rank < 1:
            raise AssertionError(f'`decay_or_rank`: a rank must be at least 1, got {decay_or_rank}.')
        decay = (int(decay_or_rank) - 1) / (int(decay_or_rank) + 1)
    else:
        decay = float(decay_or_rank)
        if not 0 <= decay < 1:
            raise AssertionError(f'`decay_or_rank`: a decay must be in [0, 1), got {decay}.')
    return decay, decay


def _everyone(layout: Layout) -> frozenset[int]:
    return frozenset(range(len(layout.relations)))


def _position_wise(layout: Layout, trace_dtype: Any, **_: Any) -> Carrier:
    return PositionWise(layout, _everyone(layout), None if trace_dtype is None else jnp.dtype(trace_dtype))


def _factorised(layout: Layout, decay_or_rank: Any) -> Carrier:
    return Factorised(layout, _everyone(layout), *decays(decay_or_rank))


def _hybrid(layout: Layout, decay_or_rank: Any, prefer: Any, trace_dtype: Any) -> Carrier:
    """Per relation the cheaper of the two by memory, or as `prefer(path)` says: 'full', 'approx' or None."""
    full = set()
    for i, r in enumerate(layout.relations):
        wish = prefer(r.path) if callable(prefer) else prefer
        if wish not in (None, 'full', 'approx', 'adaptive'):
            raise ValueError(f"`prefer` must say 'full', 'approx' or 'adaptive', got {wish!r} for {r.path}.")
        product = math.prod(r.trace_shape()) if r.axes.x is not None else 0
        factors = (r.x_var.aval.size if r.x_var is not None else 0) + r.y_var.aval.size
        if wish == 'full' or (wish != 'approx' and product <= factors):
            full.add(i)
    rest = _everyone(layout) - full
    return Several((PositionWise(layout, frozenset(full), trace_dtype), Factorised(layout, rest, *decays(decay_or_rank))))


BY_NAME = {r.name: r for r in (
    Rule('bptt', Nothing, 'multi-step', {}, traces=False),
    Rule('rtrl', full, 'multi-step', {}, traces=False),
    Rule('d_rtrl', _position_wise, 'single-step', {'trace_dtype': None, 'scope': 'diagonal', 'trace_limit': TRACE_LIMIT}),
    Rule('pp_prop', _factorised, 'single-step', {'decay_or_rank': REQUIRED}),
    Rule('hybrid', _hybrid, 'single-step', {'decay_or_rank': REQUIRED, 'prefer': None, 'trace_dtype': None}),
)}
ALIASES = {'es_d_rtrl': 'pp_prop', 'esd_rtrl': 'pp_prop'}


def find_rule(name: str) -> Rule:
    """The rule of this name, whatever its case."""
    key = name.strip().lower()
    key = ALIASES.get(key, key)
    if key not in BY_NAME:
        near = difflib.get_close_matches(key, [*BY_NAME, *ALIASES], 1, 0)
        raise ValueError(f'There is no rule {name!r}. Did you mean {near[0]!r}? Known are {", ".join(BY_NAME)}.')
    return BY_NAME[key]
