"""What the functions of a page take and give, for a plain function and for a model that holds its
states."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...frontends.base import TracedModel
from ...frontends.function import TracedFunction
from .names import as_identifier
from .trees import Tree, flat_tree, output_tree, plain_tree, tree_of

RESERVED = ('params', 'state', 'traces', 'loss', 'modulator', 'out', 'dout', 'grads')


@dataclass(frozen=True)
class Signature:
    """What the functions of a page take and give.

    Args:
        title: what the model is called.
        rule: the name of the rule.
        params: the tree of the parameters.
        state: the tree of the state.
        order: for each hidden, then each other leaf of the step its number in the state.
        out: the tree of what a step gives.
        inputs: the arguments of a step, as trees.
        extra: further arguments, by keyword; their leaves come before those of the inputs.
        state_name: what a state is called that is one array.
    """

    title: str
    rule: str
    params: Tree
    state: Tree
    order: tuple[int, ...]
    out: Tree
    inputs: tuple[Tree, ...]
    extra: tuple[Tree, ...] = ()
    state_name: str = 'h'


def of_function(
    step: Callable, rule: str, traced: TracedFunction, example: tuple, backend: str
) -> Signature:
    """For `step(params, state, *inputs)`; `example` are the model without its parameters, and the
    types of these, of the state and of the inputs. The parameters of a model that is no plain tree
    are a dict of arrays by name."""
    skeleton, params, state, inputs = example
    leaves = [leaf.name for leaf in traced.step.params]
    form = skeleton.gradients(range(len(params)))
    names = _arguments(step, len(inputs) + 2)
    trees = [tree_of(n, x, backend) for n, x in zip(names[2:], inputs, strict=True)]
    return Signature(
        _title(step),
        rule,
        plain_tree('params', form) or flat_tree('params', leaves),
        tree_of('state', state, backend),
        (*traced.hidden, *traced.other),
        output_tree(traced.out_tree),
        tuple(trees),
        state_name=names[1] if names[1] not in ('state', 'carry', 'x1') else 'h',
    )


def of_model(
    model: Any,
    rule: str,
    traced: TracedModel,
    example: tuple,
    moving: Mapping[str, Any],
    backend: str,
) -> Signature:
    """For a model that holds its states: parameters and states are dicts of arrays by name.
    `moving` are values that it reads from its surroundings."""
    step = traced.step
    names = _arguments(getattr(model, 'update', None) or model.__call__, len(example))
    states = [leaf.name for leaf in (*step.hidden, *step.other)]
    return Signature(
        type(model).__name__,
        rule,
        flat_tree('params', [leaf.name for leaf in step.params]),
        flat_tree('state', states),
        tuple(range(len(states))),
        output_tree(traced.out_tree),
        tuple(tree_of(n, x, backend) for n, x in zip(names, example, strict=True)),
        tuple(tree_of(as_identifier(key), moving[key], backend) for key in sorted(moving)),
    )


def _title(step: Callable) -> str:
    name = getattr(step, '__name__', type(step).__name__)
    return name if name.isidentifier() else 'a step'


def _arguments(f: Callable, count: int) -> list[str]:
    """The names of so many arguments of a function, as far as it says them."""
    try:
        said = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        said = []
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    known = [p.name for p in said if p.kind in plain]
    names = []
    for k in range(count):
        name = known[k] if k < len(known) else f'x{k}'
        names.append(name if k < 2 or name not in RESERVED else f'{name}_{k}')
    return names
