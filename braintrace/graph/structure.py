"""Which element of the new state can depend on which element of the old state, or of an op's
output, in one step.

The program runs on sets instead of numbers: each value carries, for every source element, ones
where it may depend on it. A product takes the pattern of its weight (zero where a mask makes it
zero for every parameter), a convolution its receptive field, element-wise ops their union.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._jax import Atom, JaxprEqn, Literal, Var, bind, is_float
from ..ops.families import Family, family, is_linear
from ..ops.sparse import is_kernel
from .analysis import Analysis
from .constants import constants
from .influence import is_elementwise
from .zeros import patterns_of_weights


class SnapPattern(NamedTuple):
    """The units of a group that each of its units can reach within `n - 1` steps, itself first:
    flat numbers `neighbours`, shape `(units, K)`. Where `valid`, of the same shape, is false there
    are fewer than `K`. `axes` says the same of the positions along each axis of `varshape`:
    `[i, j]` is true where something at i can reach something at j. The pattern is that of the
    model's own program, never a guess: `conservative` is False and `reason` empty."""

    n: int
    varshape: tuple[int, ...]
    axes: tuple[np.ndarray, ...]
    neighbours: np.ndarray
    valid: np.ndarray
    conservative: bool = False
    reason: str = ''


Sets = dict[Var, jax.Array]  # (sources, *shape) for each variable: ones where it may depend


class Structure:
    """The patterns of a step."""

    def __init__(self, analysis: Analysis):
        self.analysis = analysis
        self._const = constants(analysis.step)
        self._weights = patterns_of_weights(analysis.step, self._const)

    def pattern(self, a: Atom) -> np.ndarray | None:
        """Ones where a value can be other than zero; the value itself if it is an index, None if
        that is not known."""
        if isinstance(a, Var) and a in self._weights:
            return self._weights[a].astype(np.float32)
        value = self._const(a)
        if not is_float(a):
            return value
        if value is None:
            return np.ones(a.aval.shape, np.float32)
        return (value != 0).astype(np.float32)

    def reach(self, start: dict[Var, np.ndarray], outs: Sequence[Atom]) -> list[np.ndarray]:
        """For each of `outs` an array `(sources, *shape)` of what depends on which source; `start`
        has the same for where the sources are."""
        n = next(iter(start.values())).shape[0]
        with jax.ensure_compile_time_eval():
            sets: Sets = {v: jnp.asarray(a, jnp.float32) for v, a in start.items()}
            for eqn in self.analysis.eqns:
                inside = [i for i, a in enumerate(eqn.invars) if isinstance(a, Var) and a in sets]
                if inside and family(eqn) is not Family.NO_DERIVATIVE:
                    carried = self._carry(eqn, inside, sets, n)
                    for v, reached in zip(eqn.outvars, carried, strict=True):
                        if is_float(v):
                            sets[v] = jnp.maximum(reached, sets[v]) if v in sets else reached

            def of(a: Atom) -> np.ndarray:
                if isinstance(a, Var) and a in sets:
                    return np.asarray(sets[a] > 0)
                return np.zeros((n, *a.aval.shape), bool)

            return [of(a) for a in outs]

    def neighbours(
        self, old: Sequence[Var], new: Sequence[Atom], varshape: tuple[int, ...], n: int
    ) -> SnapPattern:
        """The neighbourhoods of units that have these states, each of shape `varshape` or with one
        more axis, within `n - 1` steps."""
        units = int(np.prod(varshape))
        itself = np.eye(units, dtype=np.float32).reshape(units, *varshape)

        def at(v: Var) -> np.ndarray:
            alone = itself if v.aval.ndim == len(varshape) else itself[..., None]
            return np.broadcast_to(alone, (units, *v.aval.shape))

        ahead = np.zeros((units, units), bool)
        for reached in self.reach({v: at(v) for v in old}, new):
            ahead |= reached.reshape(units, units, -1).any(-1)
        near = np.eye(units, dtype=bool)
        for _ in range(n - 1):
            near = near | (near.astype(np.float32) @ ahead.astype(np.float32) > 0)
        most = max(1, int(near.sum(1).max(initial=0)))
        itself_first = ~near - 2 * np.eye(units, dtype=int)
        order = np.argsort(itself_first, axis=1, kind='stable')[:, :most]
        valid = np.take_along_axis(near, order, 1)
        return SnapPattern(n, varshape, _along_axes(near, varshape), order.astype('int32'), valid)

    def _carry(self, eqn: JaxprEqn, inside: Sequence[int], sets: Sets, n: int) -> list[jax.Array]:
        """The sets of an equation's outputs; its operands `inside` have some."""
        shapes = [v.aval.shape for v in eqn.outvars]
        mine = [sets[eqn.invars[i]] for i in inside]
        if _acts_on_each_element(eqn, inside):
            return [_union([_wide(s, (n, *shapes[0])) for s in mine])] * len(shapes)
        if is_linear(eqn) or is_kernel(eqn):
            moved = self._through(eqn, inside, sets)
            if moved is not None:
                return moved
        anywhere = _union([s.reshape(n, -1).max(1) for s in mine])
        return [jnp.broadcast_to(anywhere.reshape(n, *[1] * len(s)), (n, *s)) for s in shapes]

    def _through(self, eqn: JaxprEqn, inside: Sequence[int], sets: Sets) -> list[jax.Array] | None:
        """A linear equation on the sets themselves; None where it depends on indices that are not
        known."""
        patterns = [self.pattern(a) for a in eqn.invars]
        if any(p is None for p in patterns):
            return None
        alone = family(eqn) in (Family.LAYOUT, Family.SCATTER_ADD)  # the operands only stand beside
        others: list[Any] = []
        for p, a in zip(patterns, eqn.invars, strict=True):
            value: Any = np.zeros_like(p) if alone and is_float(a) else p
            if is_float(a) or not isinstance(a, Literal):
                value = jnp.asarray(value, a.aval.dtype)
            others.append(value)
        total: list[jax.Array] | None = None
        for i in inside:

            def one(s, i=i):
                return bind(eqn, [*others[:i], s.astype(others[i].dtype), *others[i + 1 :]])

            results = jax.vmap(one)(sets[eqn.invars[i]])
            moved = [(jnp.abs(m) > 0).astype(jnp.float32) for m in results]
            if total is None:
                total = moved
            else:
                total = [jnp.maximum(a, b) for a, b in zip(total, moved, strict=True)]
        return total


def _along_axes(near: np.ndarray, varshape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Pairs of units `near[units, units]` as pairs of positions, for each axis of `varshape`."""
    pairs, d = near.reshape(*varshape, *varshape), len(varshape)
    others = [tuple(k for k in range(2 * d) if k % d != axis) for axis in range(d)]
    return tuple(np.asarray(pairs.any(axis=rest)) for rest in others)


def _acts_on_each_element(eqn: JaxprEqn, inside: Sequence[int]) -> bool:
    """Whether these operands act element by element, also through a derivative of its own."""
    kind = family(eqn)
    if kind is Family.CUSTOM:
        return is_elementwise(eqn, inside)
    return kind is Family.ELEMENTWISE


def _union(sets: Sequence[jax.Array]) -> jax.Array:
    total = sets[0]
    for s in sets[1:]:
        total = jnp.maximum(total, s)
    return total


def _wide(s: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """A set `(sources, *smaller)` broadcast to `(sources, *shape)`."""
    missing = [1] * (len(shape) - s.ndim)
    return jnp.broadcast_to(s.reshape(s.shape[0], *missing, *s.shape[1:]), shape)
