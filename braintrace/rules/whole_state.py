"""What the rules share that follow all float states of a model, hidden or not: whatever carries
influence.

An *element* of the state is a real number. A complex state has two for each of its values, the real
parts first: a loss is a real function of both, whether or not the step is holomorphic. Credit `c`
of a complex value means, as everywhere in JAX, a change `Re(c dh)` of the loss, so `Re(c)` is the
credit of its real part and `-Im(c)` that of its imaginary part. An influence on a complex parameter
is kept in the same way, as one complex number for each element of the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._jax import Var, is_complex, is_float, real_dtype
from ..engine import through
from ..engine.window import Cotangents, Window
from ..graph.compile import Graph
from ..ops.families import Family, family
from ..plan.keys import TraceKey, distinct
from ..step import Leaf
from .carrier import Contribution, Entry


class FloatParam(NamedTuple):
    """A parameter leaf that has a gradient: its number, its key, its variable."""

    number: int
    key: TraceKey
    var: Var


class WholeState:
    """The float states and parameters of a graph, and the order in which they are taken."""

    def __init__(self, graph: Graph):
        self.graph = graph

    @cached_property
    def vars(self) -> list[Var]:
        """All float states, the hidden ones first."""
        step = self.graph.step
        return [v for v in [*step.hidden_vars, *step.other_vars] if is_float(v)]

    @cached_property
    def leaves(self) -> list[Leaf]:
        """Their leaves."""
        step = self.graph.step
        pairs = zip([*step.hidden_vars, *step.other_vars], [*step.hidden, *step.other], strict=True)
        return [leaf for v, leaf in pairs if is_float(v)]

    @cached_property
    def hidden(self) -> int:
        """How many of them are hidden."""
        return sum(is_float(v) for v in self.graph.step.hidden_vars)

    @cached_property
    def size(self) -> int:
        """How many elements they have."""
        return sum(parts_of(v) * v.aval.size for v in self.vars)

    @property
    def dtype(self) -> Any:
        """The type of an element."""
        return real_dtype(self.vars[0].aval.dtype)

    def params(self, kind: str) -> list[FloatParam]:
        """The float parameters that reach a state, each with the key of a trace of this kind."""
        step, reaching = self.graph.step, self._reaching
        chosen = [i for i, v in enumerate(step.param_vars) if is_float(v) and v in reaching]
        keys = distinct(TraceKey((step.params[i],), kind=kind) for i in chosen)
        return [FloatParam(i, k, step.param_vars[i]) for i, k in zip(chosen, keys, strict=True)]

    @cached_property
    def _reaching(self) -> set[Var]:
        """What the new states depend on with a derivative."""
        analysis = self.graph.analysis
        new = [row.new for row in [*analysis.rows, *analysis.others]]
        found = {a for a in new if isinstance(a, Var)}
        for eqn in reversed(analysis.eqns):
            if family(eqn) is not Family.NO_DERIVATIVE and not found.isdisjoint(eqn.outvars):
                found.update(a for a in eqn.invars if isinstance(a, Var))
        return found

    def of_entry(self, entry: Entry) -> list[Any]:
        """The credit of the float states at a window's entry."""
        return [a for a in (*entry.hidden, *entry.other) if a is not None]

    def of_hidden(self, leaves: Sequence[Any]) -> list[Any]:
        """The float ones of all hidden leaves."""
        pairs = zip(leaves, self.graph.step.hidden_vars, strict=True)
        return [a for a, v in pairs if is_float(v)]

    def cotangents(self, parts: Sequence[Any]) -> Cotangents:
        """Credit of the float states as credit of a window's exit."""
        step, rest = self.graph.step, iter(parts)
        hidden = [next(rest) if is_float(v) else None for v in step.hidden_vars]
        other = [next(rest) if is_float(v) else None for v in step.other_vars]
        return Cotangents(hidden=hidden, other=other)

    def to_params(self, gradients: dict[int, Any]) -> Contribution:
        """A contribution of gradients by number of the parameter."""
        n = len(self.graph.step.params)
        return Contribution(params=[gradients.get(i) for i in range(n)])

    def influence(self, window: Window, params: Sequence[FloatParam]) -> tuple[Any, list[Any]]:
        """`Phi[element, element]`, and `M[element, *parameter]` for each parameter: one pull for
        each element."""
        entry, M = self.pull(window, params, [jnp.conj(a) for a in self.ones()])
        return jax.vmap(self.credit_row)(entry), M

    def ones(self) -> list[jax.Array]:
        """Changes of the state by one element at a time, `[element, *leaf]` for each leaf."""

        def one(row):
            split = zip(jnp.split(row, self._cuts), self.vars, strict=True)
            return [_change_of_leaf(p, v) for p, v in split]

        return jax.vmap(one)(jnp.eye(self.size, dtype=self.dtype))

    def pull(
        self, window: Window, params: Sequence[FloatParam], credit: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Rows of credit of the exit state through the window: `[row, *leaf]` for each leaf to the
        same of the entry state, and `[row, *parameter]` for each parameter."""
        numbers = [p.number for p in params]

        def one(credit):
            entry, pulled = through.pull(window, self._by_number(credit), numbers)
            return _leaves(entry), [pulled[i] for i in numbers]

        return jax.vmap(one)(self._as_state(credit))

    def push(
        self,
        window: Window,
        params: Sequence[FloatParam],
        state: Sequence[Any],
        changes: Sequence[Any],
    ) -> list[Any]:
        """Rows of changes of the entry state, `[row, *leaf]` for each leaf, and of the parameters,
        `[row, *parameter]`, through the window: the changes of the exit state."""

        def one(state, changes):
            by_number = {p.number: a for p, a in zip(params, changes, strict=True)}
            return _leaves(through.push(window, self._by_number(state), by_number))

        return jax.vmap(one)(self._as_state(state), list(changes))

    def _as_state(self, rows: Sequence[Any]) -> list[Any]:
        """Rows for each leaf, of its type."""
        return [a.astype(v.aval.dtype) for a, v in zip(rows, self.vars, strict=True)]

    def changed(self, window: Window, state: Sequence[Any]) -> list[Any]:
        """The change of the exit state, leaf by leaf, from that of the entry state."""
        return _leaves(through.push(window, self._by_number(state), {}))

    def _by_number(self, leaves: Sequence[Any]) -> through.State:
        """Something for each float state, by its number among the hidden and among the others."""
        step, rest = self.graph.step, iter(leaves)
        hidden = {i: next(rest) for i, v in enumerate(step.hidden_vars) if is_float(v)}
        return hidden, {i: next(rest) for i, v in enumerate(step.other_vars) if is_float(v)}

    @property
    def _cuts(self) -> np.ndarray:
        """Where the elements of one leaf end and those of the next begin."""
        return np.cumsum([parts_of(v) * v.aval.size for v in self.vars])[:-1]

    def credit_row(self, leaves: Sequence[Any]) -> jax.Array:
        """The credit of all elements, from that of the leaves."""
        return jnp.concatenate([p.ravel() for a in leaves for p in credit_of_parts(a)])


def parts_of(v: Var) -> int:
    """How many real numbers one value is."""
    return 2 if is_complex(v) else 1


def _leaves(state: through.State) -> list[Any]:
    return [a for leaves in state for a in leaves.values()]


def _change_of_leaf(elements: jax.Array, v: Var) -> jax.Array:
    """The change of a leaf, from that of its elements."""
    parts = [p.reshape(v.aval.shape) for p in jnp.split(elements, parts_of(v))]
    whole = jax.lax.complex(*parts) if is_complex(v) else parts[0]
    return whole.astype(v.aval.dtype)


def credit_of_parts(a: Any) -> list[Any]:
    """The credit of the parts of a leaf, from that of the leaf."""
    return [a.real, -a.imag] if jnp.iscomplexobj(a) else [a]
