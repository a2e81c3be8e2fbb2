"""Plain functions `step(params, state, *inputs) -> (state, out)` over any pytrees; `params` may be
a model of some framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from .._jax import new_jaxpr
from .._jax import trace as trace_flat
from ..step import Leaf, Step, dotted
from .base import Traced, form_of
from .forms import TreeSkeleton, is_array, is_inexact, key_of, names_of, take_tree_apart


@dataclass(frozen=True, eq=False)
class TracedFunction(Traced):
    """One step of a plain function.

    Args:
        step, out_tree: the program, and the structure of its output.
        state_tree: the structure of its state.
        hidden, other: which leaves of the state are hidden, and which are other (counters, random
            keys), by number.
    """

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


def is_argument(model: Any) -> bool:
    """Whether this is a pytree: everything is."""
    return True


def take_apart(model: Any) -> tuple[list[Any], TreeSkeleton]:
    """The parameters of a pytree, which are its inexact arrays and the floats of Python, as for
    `jax.grad`; and the rest of it."""
    return take_tree_apart(model, lambda a: is_inexact(a) or isinstance(a, float | complex))


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
    form = form_of(params)
    flat_params, skeleton = form.take_apart(params)
    flat_state, state_tree = jax.tree.flatten(state)
    given, tree = jax.tree.flatten((flat_params, flat_state, inputs))
    structure: dict[str, Any] = {}

    def flat(*leaves):
        now, of_state, inputs = tree.unflatten(leaves)
        model, state = skeleton.with_params(now), state_tree.unflatten(of_state)
        new, out = _checked(step(model, state, *inputs), state_tree)
        after, rest = form.take_apart(model)
        if rest != skeleton or any(a is not b for a, b in zip(after, now, strict=True)):
            raise ValueError(_WRITTEN)
        out, structure['out'] = jax.tree.flatten(out)
        return [*jax.tree.leaves(new), *out]

    jaxpr, captured = trace_flat(flat, *given)
    hidden, other = moving(flat_state)
    first_state = len(captured) + len(flat_params)
    first_input = first_state + len(flat_state)
    invars = [
        *jaxpr.invars[:first_state],
        *[jaxpr.invars[first_state + i] for i in (*hidden, *other)],
        *jaxpr.invars[first_input:],
    ]
    outs = [*[jaxpr.outvars[i] for i in (*hidden, *other)], *jaxpr.outvars[len(flat_state) :]]
    names = _names_of_state(state)
    program = Step(
        new_jaxpr(invars, outs, jaxpr.eqns),
        captured,
        skeleton.names,
        tuple(names[i] for i in hidden),
        tuple(names[i] for i in other),
    )
    return TracedFunction(program, structure['out'], state_tree, hidden, other)


def _names_of_state(state: Any) -> tuple[Leaf, ...]:
    """A name for each leaf: `h` of a dict, `state.0` of a tuple, `state` of an array alone."""
    leaves = names_of(state, 'state')
    return tuple(
        leaf if isinstance(leaf.path[0], str) else Leaf(('state', *leaf.path)) for leaf in leaves
    )


_WRITTEN = (
    '`step` writes into its first argument (a random stream, batch statistics, a buffer), and what '
    'is written there would be lost. Keep what changes in `state`; of a Flax NNX module make a '
    'learner with `compile(module, rule, *inputs, hidden=...)`, which keeps it for you.'
)


def _checked(result: Any, tree: Any) -> tuple[Any, Any]:
    """`(state, out)`, if that is what a step has returned."""
    pair = isinstance(result, tuple) and len(result) == 2
    if jax.tree.structure(result) == tree and not (pair and _is(result[0], tree)):
        raise TypeError(
            '`step` must return (state, out), and it returned a state alone. If the state is also '
            'the output, return it twice: `return state, state`.'
        )
    if not pair:
        several = f' of {len(result)}' if isinstance(result, tuple) else ''
        raise TypeError(
            f'`step` must return (state, out), got {type(result).__name__}{several}. What is not '
            'state belongs into `out`: `return state, (a, b)`.'
        )
    if not _is(result[0], tree):
        raise ValueError(
            f'`step` takes a state of structure {tree} and returns one of '
            f'{jax.tree.structure(result[0])}. It must return the state it was given, updated.'
        )
    return result


def _is(value: Any, tree: Any) -> bool:
    return jax.tree.structure(value) == tree


def check_arrays(tree: Any, name: str) -> None:
    """Refuse leaves that are no arrays and no numbers."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if not is_array(leaf) and not isinstance(leaf, bool | int | float | complex):
            at = dotted([key_of(k) for k in path])
            where = f' at {at}' if at else ''
            raise TypeError(
                f'`{name}` must hold arrays, and has a {type(leaf).__name__}{where}. Functions, '
                'strings and modules belong into the first argument of the step, or into the '
                'function itself.'
            )


def check_learns(params: Any, leaves: Sequence[Any]) -> None:
    """Refuse a model of which no leaf is a parameter."""
    if not leaves and jax.tree.leaves(params):
        raise ValueError(
            '`params` holds no inexact array, so there is nothing to learn. Of a Linen module give '
            'the variables. One that holds its states is compiled by itself: `compile(module, '
            'rule, *inputs)`.'
        )


def moving(leaves: Sequence[Any]) -> tuple[list[int], list[int]]:
    """The leaves of a state that derivatives flow through, and the others (counters, random keys),
    by number."""
    floats = [i for i, a in enumerate(leaves) if _is_float(a)]
    return floats, [i for i in range(len(leaves)) if i not in floats]


def _is_float(a: Any) -> bool:
    dtype = a.dtype if hasattr(a, 'dtype') else jnp.result_type(a)
    return jnp.issubdtype(dtype, jnp.inexact)
