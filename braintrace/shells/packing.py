"""The carry of a plain learner and the flat leaves of its core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax

from ..frontends.function import TracedFunction
from ..learn.compiled import Compiled
from ..learn.records import Carried
from ..learn.shapes import told
from ..rules.carrier import Traces
from .plain_runs import Carry

CompiledFunction: TypeAlias = Compiled[TracedFunction]


def unpack(compiled: CompiledFunction, carry: Carry) -> Carried:
    """A carry as flat leaves, its traces by key."""
    shapes = compiled.core.shapes
    by_text = {str(key): a for key, a in shapes.items()}
    for name in {**by_text, **carry.traces}:
        needs, has = told(by_text.get(name)), told(carry.traces.get(name))
        if needs != has:
            raise ValueError(
                f'`carry` holds traces of another model, rule or batch size: the trace {name} is '
                f'{has} there, and this call needs {needs}. Make a new one with '
                '`init(params, state)`.'
            )
    hidden, other = compiled.traced.leaves(carry.state)
    traces: Traces = {key: carry.traces[str(key)] for key in shapes}
    return Carried(hidden, other, traces, carry.steps, carry.skipped)


def pack(compiled: CompiledFunction, carried: Carried) -> Carry:
    """The carry of flat leaves, its traces by name."""
    named = {str(key): trace for key, trace in carried.traces.items()}
    state = compiled.traced.state(carried.hidden, carried.other)
    return Carry(state, named, carried.steps, carried.skipped)


def same_in_carry(shared: Callable[[], set[str]], carry: Carry) -> Carry:
    """What of a carry is the same on all devices over which samples are cut: the traces that all of
    them share, by name, and the counters."""
    names = shared()
    return Carry(
        jax.tree.map(lambda _: False, carry.state),
        {name: name in names for name in carry.traces},
        True,
        None if carry.skipped is None else True,
    )


def same_after(shared: Callable[[], set[str]], made: tuple[Any, Carry]) -> tuple[Any, Carry]:
    """The same of a result, which every device has its own of, and a carry."""
    result, carry = made
    return jax.tree.map(lambda _: False, result), same_in_carry(shared, carry)
