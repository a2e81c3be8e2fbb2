"""Plain functions `step(params, state, *inputs) -> (state, out)` over any pytrees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .._jax import new_jaxpr
from .._jax import trace as trace_flat
from ..step import Leaf, Step


def trace(step: Callable, params: Any, state: Any, *inputs: Any) -> tuple[Step, Any]:
    """The Step of a plain function, and the structure of its output.

    Example:
        >>> import jax.numpy as jnp
        >>> from braintrace.frontends.function import trace
        >>> leaky = lambda p, h, x: (0.9 * h + x @ p['W'], h)
        >>> step, _ = trace(leaky, {'W': jnp.ones((3, 2))}, jnp.zeros(2), jnp.ones(3))
        >>> step.params[0].name, step.hidden[0].name
        ('W', 'state')
    """
    if not callable(step):
        raise TypeError(
            '`step` must be a function step(params, state, *inputs) -> (state, out), '
            f'got {type(step).__name__}.'
        )
    (p_leaves, p_tree), (s_leaves, s_tree), (x_leaves, x_tree) = (
        jax.tree.flatten(t) for t in (params, state, inputs)
    )
    shape = {}

    def flat(*leaves):
        n, m = len(p_leaves), len(p_leaves) + len(s_leaves)
        result = step(
            p_tree.unflatten(leaves[:n]),
            s_tree.unflatten(leaves[n:m]),
            *x_tree.unflatten(leaves[m:]),
        )
        if not isinstance(result, tuple) or len(result) != 2:
            raise TypeError(f'`step` must return (state, out), got {type(result).__name__}.')
        out, shape['out'] = jax.tree.flatten(result[1])
        shape['state'] = jax.tree.structure(result[0])
        return [*jax.tree.leaves(result[0]), *out]

    jaxpr, captured = trace_flat(flat, *p_leaves, *s_leaves, *x_leaves)
    if shape['state'] != s_tree:
        raise ValueError(
            f'`step` takes a state of structure {s_tree} and returns one of {shape["state"]}. It '
            'must return the state it was given, updated.'
        )
    names = paths(state, 'state')
    hidden, other = moving(s_leaves)
    order, first = [*hidden, *other], len(captured) + len(p_leaves)
    before, after = jaxpr.invars[:first], jaxpr.invars[first + len(s_leaves) :]
    states = [jaxpr.invars[first + i] for i in order]
    outs = [*[jaxpr.outvars[i] for i in order], *jaxpr.outvars[len(s_leaves) :]]
    found = Step(
        new_jaxpr([*before, *states, *after], outs, jaxpr.eqns),
        captured,
        paths(params, 'params'),
        tuple(names[i] for i in hidden),
        tuple(names[i] for i in other),
    )
    return found, shape['out']


def moving(leaves: Sequence[Any]) -> tuple[list[int], list[int]]:
    """The leaves of a state that derivatives flow through, and the others (counters, random keys),
    by number."""
    floats = [
        i
        for i, a in enumerate(leaves)
        if jnp.issubdtype(jnp.result_type(a) if not hasattr(a, 'dtype') else a.dtype, jnp.inexact)
    ]
    return floats, [i for i in range(len(leaves)) if i not in floats]


def paths(tree: Any, root: str) -> tuple[Leaf, ...]:
    """A name for each leaf of a pytree; `root` for one that is its own tree."""
    return tuple(
        Leaf(tuple(_key(k) for k in path) or (root,))
        for path, _ in jax.tree_util.tree_leaves_with_path(tree)
    )


def _key(k: Any) -> Any:
    return next((getattr(k, a) for a in ('key', 'idx', 'name') if hasattr(k, a)), str(k))
