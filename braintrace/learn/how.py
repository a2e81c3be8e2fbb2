"""What a user says about a learner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..graph.compile import Graph
from ..graph.flatten import ControlFlowPolicy
from ..rules.changed import OnTraces
from ..rules.registry import rule_of
from ..rules.rule import Rule
from .choice import Choice, choose
from .core import BUDGET, KEEP
from .nonfinite import check_policy
from .sizes import number_of_bytes


@dataclass(frozen=True, eq=False)
class How:
    """What a user has said about a learner: the rule and its settled options, the kind of credit,
    what to do with control flow, which weights may have a trace, the bytes that a block may
    keep, what to do about numbers that are not finite, what the traces go through after each step,
    and how the rule was found if that was left to the compiler."""

    rule: Rule
    options: dict[str, Any]
    single_step: bool
    policy: ControlFlowPolicy = ControlFlowPolicy()
    traced: Any = 'all'
    budget: int = BUDGET
    nonfinite: str = KEEP
    on_traces: OnTraces | None = None
    choice: Choice | None = None


def how_to_learn(
    rule: Any,
    options: dict[str, Any],
    *,
    vjp_method: str | None = None,
    policy: ControlFlowPolicy | None = None,
    traced: Any = 'all',
    budget: float | str | None = None,
    nonfinite: str = KEEP,
    on_traces: OnTraces | None = None,
    choice: Choice | None = None,
) -> How:
    """What a user has said, checked."""
    rule = rule_of(rule)
    settled = rule.settle(options)
    single_step = rule.is_single_step(vjp_method)
    policy, nonfinite = policy or ControlFlowPolicy(), check_policy(nonfinite)
    if traced not in ('all', 'marked') and not callable(traced):
        raise ValueError(
            "`trace` must be 'all', 'marked', or a function of a parameter's path that says "
            f'whether it may have a trace, got {traced!r}.'
        )
    budget = BUDGET if budget is None else number_of_bytes('memory_budget', budget, 1)
    if on_traces is not None and not callable(on_traces):
        raise TypeError(
            f'`on_traces` must be a function of the traces, got {type(on_traces).__name__}.'
        )
    return How(rule, settled, single_step, policy, traced, budget, nonfinite, on_traces, choice)


def how_to_learn_best(
    graph_of: Callable[[ControlFlowPolicy], Graph],
    options: dict[str, Any],
    *,
    vjp_method: str | None = None,
    policy: ControlFlowPolicy | None = None,
    budget: float | str | None = None,
    **more: Any,
) -> How:
    """How to learn a model whose rule is left to the compiler; `graph_of` gives its graph. The rest
    is as for `how_to_learn`."""
    choice = choose(graph_of(policy or ControlFlowPolicy()), budget, options, vjp_method)
    return how_to_learn(
        choice.taken.rule,
        choice.taken.options,
        vjp_method=vjp_method,
        policy=policy,
        budget=choice.block_budget,
        choice=choice,
        **more,
    )
