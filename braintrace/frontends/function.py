"""Plain functions `step(params, state, *inputs) -> (state, out)` over any pytrees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from .._jax import new_jaxpr
from .._jax import trace as trace_flat
from ..step import Leaf, Step


@dataclass(frozen=True, eq=False)
class TracedFunction:
    """The step of a plain function, the structure of its output, and which leaves of its state are
    hidden and which are other (counters, random keys), by number."""

    step: Step
    out_tree: Any
    state_tree: Any
    hidden: list[int]
    other: list[int]

    def leaves(self, state: Any) -> tuple[list[Any], list[Any]]:
        """The hidden and the other leaves of a state."""
        flat = jax.tree.leaves(state)
        return [flat[i] for i in self.hidden], [flat[i] for i in self.other]

    def state(self, hidden: Sequence[Any], other: Sequence[Any]) -> Any:
        """The state of these leaves."""
        places = [*self.hidden, *self.other]
        leaf = dict(zip(places, [*hidden, *other], strict=True))
        return self.state_tree.unflatten([leaf[i] for i in range(len(places))])


def trace(step: Callable, params: Any, state: Any, *inputs: Any) -> TracedFunction:
    """One step of a plain function.

    Example:
        >>> import jax.numpy as jnp
        >>> from braintrace.frontends.function import trace
        >>> leaky = lambda p, h, x: (0.9 * h + x @ p['W'], h)
        >>> traced = trace(leaky, {'W': jnp.ones((3, 2))}, jnp.zeros(2), jnp.ones(3))
        >>> traced.step.params[0].name, traced.step.hidden[0].name
        ('W', 'state')
    """
    if not callable(step):
        raise TypeError(
            '`step` must be a function step(params, state, *inputs) -> (state, out), '
            f'got {type(step).__name__}.'
        )
    flat_params, flat_state = jax.tree.leaves(params), jax.tree.leaves(state)
    flat_inputs, tree = jax.tree.flatten((params, state, inputs))
    structure: dict[str, Any] = {}

    def flat(*leaves):
        params, state, inputs = tree.unflatten(leaves)
        result = step(params, state, *inputs)
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeError(f'`step` must return (state, out), got {type(result).__name__}.')
        new, structure['state'] = jax.tree.flatten(result[0])
        out, structure['out'] = jax.tree.flatten(result[1])
        return [*new, *out]

    jaxpr, captured = trace_flat(flat, *flat_inputs)
    state_tree = jax.tree.structure(state)
    if structure['state'] != state_tree:
        raise ValueError(
            f'`step` takes a state of structure {state_tree} and returns one of '
            f'{structure["state"]}. It must '
            'return the state it was given, updated.'
        )
    hidden, other = moving(flat_state)
    first_state = len(captured) + len(flat_params)
    first_input = first_state + len(flat_state)
    invars = [
        *jaxpr.invars[:first_state],
        *[jaxpr.invars[first_state + i] for i in (*hidden, *other)],
        *jaxpr.invars[first_input:],
    ]
    outs = [*[jaxpr.outvars[i] for i in (*hidden, *other)], *jaxpr.outvars[len(flat_state) :]]
    names = paths(state, 'state')
    program = Step(
        new_jaxpr(invars, outs, jaxpr.eqns),
        captured,
        paths(params, 'params'),
        tuple(names[i] for i in hidden),
        tuple(names[i] for i in other),
    )
    return TracedFunction(program, structure['out'], state_tree, hidden, other)


def moving(leaves: Sequence[Any]) -> tuple[list[int], list[int]]:
    """The leaves of a state that derivatives flow through, and the others (counters, random keys),
    by number."""
    floats = [i for i, a in enumerate(leaves) if _is_inexact(a)]
    return floats, [i for i in range(len(leaves)) if i not in floats]


def _is_inexact(a: Any) -> bool:
    dtype = a.dtype if hasattr(a, 'dtype') else jnp.result_type(a)
    return jnp.issubdtype(dtype, jnp.inexact)


def paths(tree: Any, root: str) -> tuple[Leaf, ...]:
    """A name for each leaf of a pytree; `root` for one that is its own tree."""
    keyed = jax.tree_util.tree_leaves_with_path(tree)
    return tuple(Leaf(tuple(_key(k) for k in path) or (root,)) for path, _ in keyed)


def _key(k: Any) -> Any:
    """What a user calls an entry of a pytree."""
    for attribute in ('key', 'idx', 'name'):
        if hasattr(k, attribute):
            return getattr(k, attribute)
    return str(k)
