"""What a user says about a run: the rule, its options, how sequences are cut and weighed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..engine.evaluate import Program
from ..graph.etrace_graph import ETraceGraph, within
from ..plan.layout import lay_out
from ..rules.config import ETraceConfig
from ..rules.registry import Rule, find_rule, of_config
from .core import Executor, bytes_per_step, pick_window

BUDGET = 256 * 2**20  # bytes that one block of steps may keep


def resolve(rule: Any, vjp_method: str | None, options: dict[str, Any]) -> tuple[Rule, bool]:
    """The rule behind a name, class or configuration, and whether its credit is single-step."""
    found = (
        find_rule(rule)
        if isinstance(rule, str)
        else of_config(rule)
        if isinstance(rule, ETraceConfig)
        else getattr(rule, 'rule', rule)
    )
    if not isinstance(found, Rule):
        raise TypeError(f'`algorithm` must be a name, a class of rules or a Rule, got {rule!r}.')
    unknown = [k for k in options if k not in found.options]
    if unknown:
        raise TypeError(
            f'Rule {found.name!r} has no option `{unknown[0]}`. It takes {", ".join(found.options) or "none"}.'
        )
    method = vjp_method or found.vjp_method
    if method not in ('single-step', 'multi-step'):
        raise AssertionError(f"`vjp_method` must be 'single-step' or 'multi-step', got {method!r}.")
    if found.multi_only and method == 'single-step':
        raise ValueError(
            f"Rule {found.name!r} takes its credit inside windows: `vjp_method` must be 'multi-step'."
        )
    if method == 'multi-step' and found.single_only(**found.settle(options)):
        raise ValueError(
            f"Rule {found.name!r} has a signal that replaces the gradient in each step, and `vjp_method='multi-step'` would take the exact "
            "gradient instead. Use 'single-step'."
        )
    return found, method == 'single-step'


def executor_of(
    graph: ETraceGraph,
    rule: Rule,
    single_step: bool,
    options: dict[str, Any],
    graded: Sequence[int] | None,
    hidden: bool = False,
) -> Executor:
    settled = rule.settle(options)
    if 'trace_limit' in settled:
        graph = within(graph, settled['trace_limit'], settled.get('embedding_rows'))
    layout = lay_out(graph, rule.scope(**settled))
    return Executor(
        Program(layout, graded, hidden),
        rule.carrier(layout, **settled),
        single_step,
        rule.signal(layout, **settled),
    )


def window_length(
    window: Any, length: int, executor: Executor, whole: bool, budget: int = BUDGET
) -> int:
    """The number of steps in a block: as said, or as memory allows; `whole` makes 'auto' the whole sequence."""
    if window == 'auto':
        return length if whole else pick_window(length, bytes_per_step(executor), budget)
    if isinstance(window, bool) or not isinstance(window, int):
        raise TypeError(f"`window` must be a number of steps or 'auto', got {window!r}.")
    if window < 1:
        raise ValueError(f'`window` must be at least 1, got {window}.')
    return min(window, length)


def sequence_length(sequences: Sequence[Any]) -> int:
    """The common first axis of all leaves."""
    lengths = set()
    for i, tree in enumerate(sequences):
        leaves = jax.tree.leaves(tree)
        if not leaves:
            raise ValueError(f'Sequence {i} is empty: it has no array.')
        for leaf in leaves:
            if jnp.ndim(leaf) == 0:
                raise ValueError(
                    f'Sequence {i} has a scalar: every array needs time as its first axis.'
                )
            lengths.add(jnp.shape(leaf)[0])
    if len(lengths) != 1:
        raise ValueError(
            f'The sequences have different lengths {sorted(lengths)}: time is the first axis of every array.'
            if lengths
            else 'Give at least one sequence.'
        )
    [length] = lengths
    if not length:
        raise ValueError('The sequences have length 0.')
    return length


def per_step(modulator: Any, length: int) -> Any:
    """A modulator with the steps as first axis: a number stands for all of them."""

    def one(m):
        m = jnp.asarray(m)
        if m.ndim and m.shape[0] != length:
            raise ValueError(
                f'`modulator` has shape {m.shape}: it must be a number, or have the {length} steps as its first axis.'
            )
        return m if m.ndim else jnp.broadcast_to(m, (length,))

    if modulator is None:
        return None
    if isinstance(modulator, list | tuple):
        raise TypeError('`modulator` must be an array, or a dict of arrays by group number.')
    return (
        {g: one(m) for g, m in modulator.items()} if isinstance(modulator, dict) else one(modulator)
    )


def weigh(mask: Any, loss_shape: tuple[int, ...], dtype: Any, reduction: str) -> tuple[Any, Any]:
    """The weight of each loss in the objective, and the mask as it applies to the losses, for losses of shape (T,) or (T, batch)."""
    if reduction not in ('mean', 'sum'):
        raise ValueError(f"`reduction` must be 'mean' or 'sum', got {reduction!r}.")
    if mask is None:
        full = jnp.ones(loss_shape, dtype)
    else:
        mask = jnp.asarray(mask, dtype)
        if mask.shape not in (loss_shape[:1], loss_shape):
            also = (
                f' or {loss_shape}'
                if len(loss_shape) > 1
                else '; a mask by sample needs a step that returns one loss for each sample'
            )
            raise ValueError(
                f'`mask` has shape {mask.shape}, but the losses need {loss_shape[:1]}{also}.'
            )
        full = jnp.broadcast_to(
            mask.reshape(mask.shape + (1,) * (len(loss_shape) - mask.ndim)), loss_shape
        )
    return (full / jnp.maximum(full.sum(), 1) if reduction == 'mean' else full), full
