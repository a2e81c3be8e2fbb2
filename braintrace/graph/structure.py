"""Which element of the new state can depend on which element of the old state, or of an op's output, in one step.

The program runs on sets instead of numbers: each value carries, for every source element, ones where it may depend on it. A product takes the pattern of its
weight (zero where a mask makes it zero for every parameter), a convolution its receptive field, element-wise ops their union.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._jax import Atom, JaxprEqn, Literal, Var, bind, eval_jaxpr, is_float, new_jaxpr
from ..ops.sparse import is_kernel
from .analysis import Analysis
from .index_maps import LAYOUT
from .influence import ELEMENTWISE, ZERO, Constants


class SnapPattern(NamedTuple):
    """The units of a group that each of its units can reach within `n - 1` steps, itself first: flat numbers `neighbours`, shape `(*varshape, K)`.

    Where `valid` is false there are fewer than `K`.
    """

    n: int
    varshape: tuple[int, ...]
    neighbours: np.ndarray
    valid: np.ndarray


LINEAR = {
    'dot_general',
    'conv_general_dilated',
    'reduce_sum',
    'reduce_window_sum',
    'cumsum',
    'scatter-add',
    *LAYOUT,
}


class Structure:
    """The patterns of a step."""

    def __init__(self, found: Analysis):
        self.found = found
        self._const = Constants(found.step.jaxpr)
        self._weights = self._values_of_weights()

    def _values_of_weights(self) -> dict[Var, np.ndarray]:
        """Everything that depends on the parameters alone, at random parameters."""
        step, known, eqns = (
            self.found.step,
            set(self.found.step.param_vars) | set(self.found.step.jaxpr.jaxpr.constvars),
            [],
        )
        for eqn in self.found.eqns:
            if not eqn.effects and all(isinstance(a, Literal) or a in known for a in eqn.invars):
                eqns.append(eqn)
                known.update(eqn.outvars)
        outs = [v for v in known if v not in step.jaxpr.jaxpr.constvars]
        rng = np.random.RandomState(0)
        params = [
            np.asarray(
                rng.uniform(0.5, 1.5, v.aval.shape) * rng.choice([-1, 1], v.aval.shape),
                v.aval.dtype,
            )
            for v in step.param_vars
        ]
        with jax.ensure_compile_time_eval():
            values = eval_jaxpr(
                new_jaxpr(step.param_vars, outs, eqns, step.jaxpr.jaxpr.constvars),
                step.jaxpr.consts,
                *map(jnp.asarray, params),
            )
        return {v: np.asarray(a) for v, a in zip(outs, values, strict=True) if is_float(v)}

    def pattern(self, a: Atom) -> Any:
        """Ones where a value can be other than zero; the value itself if it is an index."""
        value = (
            self._weights.get(a) if isinstance(a, Var) and a in self._weights else self._const(a)
        )
        if not is_float(a):
            return value
        return (
            np.ones(a.aval.shape, np.float32) if value is None else (value != 0).astype(np.float32)
        )

    def reach(self, start: dict[Var, np.ndarray], outs: Sequence[Atom]) -> list[np.ndarray]:
        """For each of `outs` an array (sources, *shape) of what depends on which source; `start` has the same for where the sources are."""
        with jax.ensure_compile_time_eval():
            sets: dict[Var, Any] = {v: jnp.asarray(a, jnp.float32) for v, a in start.items()}
            n = next(iter(start.values())).shape[0]
            for eqn in self.found.eqns:
                inside = [i for i, a in enumerate(eqn.invars) if isinstance(a, Var) and a in sets]
                if inside and eqn.primitive.name not in ZERO:
                    for v, got in zip(eqn.outvars, self._carry(eqn, inside, sets, n), strict=True):
                        if is_float(v):
                            sets[v] = jnp.maximum(got, sets[v]) if v in sets else got
            nothing = lambda a: np.zeros((n, *a.aval.shape), bool)
            return [
                np.asarray(sets[a] > 0) if isinstance(a, Var) and a in sets else nothing(a)
                for a in outs
            ]

    def neighbours(
        self, old: Sequence[Var], new: Sequence[Atom], varshape: tuple[int, ...], n: int
    ) -> SnapPattern:
        """The neighbourhoods of units that have these states, each of shape `varshape` or with one more axis."""
        units = int(np.prod(varshape))
        itself = np.eye(units, dtype=np.float32).reshape(units, *varshape)
        wide = lambda shape: np.broadcast_to(
            itself if len(shape) == len(varshape) else itself[..., None], (units, *shape)
        )
        ahead = np.any(
            [
                a.reshape(units, units, -1).any(-1)
                for a in self.reach({v: wide(v.aval.shape) for v in old}, new)
            ],
            0,
        ).astype(np.float32)
        reached = np.eye(units, dtype=bool)
        for _ in range(n - 1):
            reached = reached | (reached.astype(np.float32) @ ahead > 0)
        order = np.argsort(~reached - 2 * np.eye(units, dtype=int), axis=1, kind='stable')[
            :, : max(1, int(reached.sum(1).max(initial=0)))
        ]
        return SnapPattern(
            n,
            varshape,
            order.reshape(*varshape, -1),
            np.take_along_axis(reached, order, 1).reshape(*varshape, -1),
        )

    def _carry(
        self, eqn: JaxprEqn, inside: Sequence[int], sets: dict[Var, Any], n: int
    ) -> list[Any]:
        shapes = [v.aval.shape for v in eqn.outvars]
        if eqn.primitive.name in ELEMENTWISE:
            union: Any = 0
            for i in inside:
                mine = sets[eqn.invars[i]]
                union = jnp.maximum(
                    union,
                    jnp.broadcast_to(
                        mine.reshape(n, *[1] * (len(shapes[0]) + 1 - mine.ndim), *mine.shape[1:]),
                        (n, *shapes[0]),
                    ),
                )
            return [union] * len(shapes)
        if eqn.primitive.name in LINEAR or is_kernel(eqn):
            moved = self._through(eqn, inside, sets)
            if moved is not None:
                return moved
        anywhere: Any = 0
        for i in inside:
            anywhere = jnp.maximum(anywhere, sets[eqn.invars[i]].reshape(n, -1).max(1))
        return [jnp.broadcast_to(anywhere.reshape(n, *[1] * len(s)), (n, *s)) for s in shapes]

    def _through(
        self, eqn: JaxprEqn, inside: Sequence[int], sets: dict[Var, Any]
    ) -> list[Any] | None:
        """A linear equation on the sets themselves; None where it depends on indices that are not known."""
        others = [self.pattern(a) for a in eqn.invars]
        if any(o is None for o in others):
            return None
        total: list[Any] | None = None
        joining = eqn.primitive.name in LAYOUT or eqn.primitive.name == 'scatter-add'
        for i in inside:
            rest = [
                np.zeros_like(o) if joining and is_float(a) else o
                for o, a in zip(others, eqn.invars, strict=True)
            ]
            cast = [
                jnp.asarray(o, a.aval.dtype) if not isinstance(a, Literal) or is_float(a) else o
                for o, a in zip(rest, eqn.invars, strict=True)
            ]
            f: Callable = lambda s, i=i, cast=cast: bind(
                eqn, [s.astype(cast[i].dtype) if k == i else c for k, c in enumerate(cast)]
            )
            moved = [(jnp.abs(m) > 0).astype(jnp.float32) for m in jax.vmap(f)(sets[eqn.invars[i]])]
            total = (
                moved
                if total is None
                else [jnp.maximum(a, b) for a, b in zip(total, moved, strict=True)]
            )
        return total
