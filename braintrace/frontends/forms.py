"""Models that are arguments of a step: taken apart into parameters and the rest, and put together
again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np

from ..step import Leaf


class Skeleton(Hashable, Protocol):
    """A model without its parameters. Two are equal if one program serves both: the same structure,
    and the same values of all that is not a parameter."""

    @property
    def names(self) -> tuple[Leaf, ...]:
        """The names of the parameters."""

    @property
    def lasting(self) -> bool:
        """Whether it may be kept: nothing in it is being traced."""

    def with_params(self, params: Sequence[Any]) -> Any:
        """The model with these parameters."""

    def gradients(self, grads: Sequence[Any]) -> Any:
        """Gradients of the parameters as the framework's own `grad` gives them."""


class Form(Protocol):
    """What a learner asks of a framework whose models are arguments of a step."""

    def is_argument(self, model: Any) -> bool:
        """Whether this is a model of the framework, or holds one."""

    def take_apart(self, model: Any) -> tuple[list[Any], Skeleton]:
        """The parameters of a model, and the rest of it."""


class Constant:
    """Any value as a key: an array is equal to one of the same type and values, and what is being
    traced only to itself."""

    def __init__(self, value: Any):
        # an array of numpy may be written later
        self.value = value.copy() if isinstance(value, np.ndarray) else value

    @property
    def lasting(self) -> bool:
        return not isinstance(self.value, jax.core.Tracer)

    def __hash__(self) -> int:
        return hash((type(self.value), getattr(self.value, 'shape', None)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Constant):
            return NotImplemented
        a, b = self.value, other.value
        if a is b:
            return True
        if type(a) is not type(b) or not (self.lasting and other.lasting):
            return False
        if not is_array(a):
            return bool(a == b)
        return (a.shape, a.dtype) == (b.shape, b.dtype) and np.array_equal(_plain(a), _plain(b))


def _plain(a: Any) -> np.ndarray:
    if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
        a = jax.random.key_data(a)
    return np.asarray(a)


@dataclass(frozen=True)
class TreeSkeleton:
    """A pytree without the leaves that are parameters.

    Args:
        tree: its structure.
        constants: the other leaves, by number.
    """

    tree: Any
    constants: tuple[tuple[int, Constant], ...]

    @property
    def names(self) -> tuple[Leaf, ...]:
        others = {i for i, _ in self.constants}
        numbered = self.tree.unflatten(range(self.tree.num_leaves))
        return tuple(n for i, n in enumerate(names_of(numbered, 'params')) if i not in others)

    @property
    def lasting(self) -> bool:
        return all(c.lasting for _, c in self.constants)

    def with_params(self, params: Sequence[Any]) -> Any:
        return self._filled(params, {i: c.value for i, c in self.constants})

    def gradients(self, grads: Sequence[Any]) -> Any:
        """A tree like the model, with None for what is not a parameter."""
        return self._filled(grads, {i: None for i, _ in self.constants})

    def _filled(self, params: Sequence[Any], others: Mapping[int, Any]) -> Any:
        rest = iter(params)
        places = range(self.tree.num_leaves)
        return self.tree.unflatten([others[i] if i in others else next(rest) for i in places])


def take_tree_apart(model: Any, is_param: Callable[[Any], bool]) -> tuple[list[Any], TreeSkeleton]:
    """The parameters of a pytree, and the rest of it."""
    leaves, tree = jax.tree.flatten(model)
    is_one = [is_param(a) for a in leaves]
    constants = [(i, Constant(a)) for i, a in enumerate(leaves) if not is_one[i]]
    params = [a for a, learns in zip(leaves, is_one, strict=True) if learns]
    return params, TreeSkeleton(tree, tuple(constants))


def names_of(tree: Any, root: str) -> tuple[Leaf, ...]:
    """A name for each leaf of a pytree; `root` for one that is its own tree."""
    keyed = jax.tree_util.tree_leaves_with_path(tree)
    return tuple(Leaf(tuple(key_of(k) for k in path) or (root,)) for path, _ in keyed)


def is_array(a: Any) -> bool:
    """Whether this is an array, or stands for one."""
    return hasattr(a, 'dtype') and hasattr(a, 'shape') and not isinstance(a, type)


def is_inexact(a: Any) -> bool:
    """Whether this is an array that derivatives flow through."""
    return is_array(a) and jax.dtypes.issubdtype(a.dtype, np.inexact)


def key_of(k: Any) -> Any:
    """What a user calls an entry of a pytree."""
    for attribute in ('key', 'idx', 'name'):
        if hasattr(k, attribute):
            return getattr(k, attribute)
    return str(k)
