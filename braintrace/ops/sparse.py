"""Products with sparse (or event-driven) connections: `y[o(p)] += w[p] x[i(p)]`.

Formats are many, and what they compute is the same: where the indices stand among the operands they
are read (`reading`), else found by running the op (`probing`). An axis of y that a weight does not
determine counts samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from string import ascii_letters
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._jax import JaxprEqn, bind, is_float
from ..frontends.base import calls_kernel
from .axes import Axes, Block, Op
from .connections import Connections
from .probing import probe
from .reading import read_connections
from .stored_sums import Pattern, Renewal, Steps, renewed, stored_sums


def is_kernel(eqn: JaxprEqn) -> bool:
    """Whether an equation calls a product that is looked at from outside: a library's kernel, or
    the plain form of a sparse primitive of JAX."""
    if eqn.primitive.name != 'jit':
        return False
    return calls_kernel(eqn) or eqn.params['name'] == 'sparse_product'


def product(eqn: JaxprEqn, i: int, const: Callable) -> Op:
    """The op rule of a sparse product."""
    parts = _parts(eqn, i, const)
    if parts is None:
        return NotImplemented
    x, w, y = eqn.invars[parts.x].aval, eqn.invars[i].aval, eqn.outvars[0].aval
    if w.size == 1:
        return _one_weight(parts, x, w, y)
    links = read_connections(parts.f, parts.known, x, w, y) or probe(parts.f, x, w, y)
    if links is None:
        return NotImplemented
    letters = ascii_letters[: w.ndim]
    batch = [ascii_letters[w.ndim + a] if m is None else '' for a, m in enumerate(links.of_y)]
    names_x = [batch[m] if isinstance(m, int) else _axis_of(m, letters) for m in links.of_x]
    names_y = [b or _axis_of(m, letters) for b, m in zip(batch, links.of_y, strict=True)]
    if links.used is None and all(names_x) and all(names_y):

        def counted(values: Sequence[Any]) -> jax.Array:
            return links.event(values[parts.x]).astype(w.dtype)

        return Op(Axes(''.join(names_x), letters, ''.join(names_y)), w.shape, counted)
    return StoredProduct(parts.x, x, w, y, links).op(links.pattern(x.shape, y.shape))


@dataclass(frozen=True, eq=False)
class StoredProduct:
    """A product with stored weights: operand `operand` of its equation is x; shapes and dtypes of
    x, w and y."""

    operand: int
    x: Any
    w: Any
    y: Any
    links: Connections

    @property
    def _samples(self) -> list[int]:
        return [self.y.shape[a] for a in self.links.samples]

    def op(self, pattern: Pattern) -> Op:
        """The op, with these arrays for its connections."""
        letters = ascii_letters[: self.w.ndim]
        of_y = self.links.of_y
        batch = [ascii_letters[self.w.ndim + a] if m is None else '' for a, m in enumerate(of_y)]
        labels = ''.join(batch) + letters

        def counted(values: Sequence[Any]) -> jax.Array:
            return self.links.event(values[self.operand]).astype(self.w.dtype)

        def with_arrays(arrays: Sequence[Any]) -> Op:
            return self.op(Pattern(*arrays))

        return Op(
            Axes(labels, letters, labels),
            self.w.shape,
            counted,
            kept=batch,
            line_up_x=partial(self._line_up_x, pattern),
            line_up_y=partial(self._line_up_y, pattern),
            gradient=partial(self._gradient, pattern),
            outer=partial(self._outer, pattern),
            renew=partial(self._renew, pattern),
            arrays=tuple(pattern),
            with_arrays=with_arrays,
        )

    def _outer(self, pattern: Pattern, x: jax.Array, q: jax.Array) -> jax.Array:
        """`(states, *samples, *w)` from `(steps, *x)` and `(steps, states, *y)`."""
        steps, states = q.shape[:2]
        x, q = self._flat_x(x), self._flat_y(q)
        x, q = jnp.moveaxis(x, 0, 1), jnp.moveaxis(q, 0, 2)
        sums = stored_sums(Steps(x, q.reshape(-1, steps, q.shape[-1])), pattern)
        return self._used(sums.reshape(states, *self._samples, *self.w.shape))

    def _gradient(
        self, pattern: Pattern, x: jax.Array, dy: jax.Array, before: tuple[Any, Any] | None = None
    ) -> jax.Array:
        """The gradient of the weights from `(steps, *x)` and `(steps, *y)`, and from `(*x)` and
        `(*y)` of one step before."""
        of_step = None
        if before is not None:
            of_step = self._one_after_another(before[0][None], before[1][None])
        sums = stored_sums(self._one_after_another(x, dy), pattern, of_step)
        return self._used(sums.reshape(self.w.shape))

    def _one_after_another(self, x: jax.Array, dy: jax.Array) -> Steps:
        """`(steps, *x)` and `(steps, *y)`, with the samples as further steps of one sample."""
        x, dy = self._flat_x(x), self._flat_y(dy)
        return Steps(x.reshape(1, -1, x.shape[-1]), dy.reshape(1, -1, dy.shape[-1]))

    def _renew(
        self, pattern: Pattern, x: jax.Array, block: Block, e: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The gradient and the trace after a block; the trace is `(states, *samples, *w)`."""
        states, stored = len(e), pattern.stored
        dy, lam, Q, q = (self._flat_y(a) for a in block)
        x, dy, q = (
            jnp.moveaxis(self._flat_x(x), 0, 1),
            jnp.moveaxis(dy, 0, 1),
            jnp.moveaxis(q, 0, 2),
        )
        flat = Renewal(x.astype(e.dtype), dy, lam, Q, q, e.reshape(states, -1, stored))
        gradient, new = renewed(flat, pattern)
        return self._used(gradient.reshape(self.w.shape)), self._used(new.reshape(e.shape))

    def _line_up_y(self, pattern: Pattern, a: jax.Array) -> jax.Array:
        """Values at y, `(..., *y)`, at the weights: `(..., *samples, *w)`."""
        lead = a.shape[: a.ndim - self.y.ndim]
        return self._at(pattern.as_stored(pattern.out), self._flat_y(a), lead)

    def _line_up_x(self, pattern: Pattern, x: jax.Array) -> jax.Array:
        """x at the weights: `(*samples, *w)`."""
        [x] = self._flat_x(x[None])
        return self._used(self._at(pattern.as_stored(pattern.into()), x, ()))

    def _at(self, index: jax.Array, a: jax.Array, lead: tuple[int, ...]) -> jax.Array:
        """Values `(*lead, samples, units)` at these units: `(*lead, *samples, *w)`."""
        picked = a.at[..., index].get(mode='promise_in_bounds', wrap_negative_indices=False)
        return picked.reshape(*lead, *self._samples, *self.w.shape)

    def _used(self, a: jax.Array) -> jax.Array:
        """Zero for weights that nothing uses."""
        return a if self.links.used is None else a * self.links.used

    def _flat_y(self, a: jax.Array) -> jax.Array:
        """Values at y, `(..., *y)`, as `(..., samples, outputs)`."""
        lead = a.ndim - self.y.ndim
        of_y, samples = self.links.of_y, self.links.samples
        units = [k for k, m in enumerate(of_y) if m is not None]
        a = a.transpose([*range(lead), *[lead + k for k in (*samples, *units)]])
        return a.reshape(*a.shape[:lead], prod(self._samples), -1)

    def _flat_x(self, x: jax.Array) -> jax.Array:
        """`(steps, *x)` as `(steps, samples, inputs)`; samples that see the same x have it each."""
        of_x, samples = self.links.of_x, self.links.samples
        at = {m: k for k, m in enumerate(of_x) if isinstance(m, int)}
        units = [k for k, m in enumerate(of_x) if not isinstance(m, int)]
        x = x.transpose([0, *[1 + k for k in (*[at[a] for a in samples if a in at], *units)]])
        x = x.reshape(*x.shape[: x.ndim - len(units)], -1)
        x = jnp.expand_dims(x, [1 + k for k, a in enumerate(samples) if a not in at])
        x = jnp.broadcast_to(x, (len(x), *self._samples, x.shape[-1]))
        return x.reshape(len(x), prod(self._samples), -1)


def _one_weight(parts: _Parts, x: Any, w: Any, y: Any) -> Op:
    """One weight for all connections: what multiplies it is the product itself, without what is
    there for a weight of zero (connections that are drawn around a mean have the rest besides)."""
    of_w = ascii_letters[: w.ndim]
    of_y = ascii_letters[w.ndim : w.ndim + y.ndim]
    alone = _is_all(parts, x, w)

    def whole(values: Sequence[Any]) -> jax.Array:
        made = parts.f(values[parts.x], jnp.ones(w.shape, w.dtype))
        if not alone:
            made = made - parts.f(values[parts.x], jnp.zeros(w.shape, w.dtype))
        return made.reshape(*y.shape, *w.shape)

    return Op(Axes(of_y + of_w, of_w, of_y), w.shape, whole)


def _is_all(parts: _Parts, x: Any, w: Any) -> bool:
    """Whether a product is known to be nothing for a weight of zero."""
    try:
        with jax.ensure_compile_time_eval():
            made = parts.f(jnp.ones(x.shape, x.dtype), jnp.zeros(w.shape, w.dtype))
            return not np.asarray(made).any()
    except Exception:  # a kernel that cannot run here
        return False


def _axis_of(m: np.ndarray | None, letters: str) -> str:
    """The label of the weight's axis that an index runs along, if it does."""
    if m is None:
        return ''
    along = np.indices(m.shape)
    return next((c for a, c in enumerate(letters) if np.array_equal(m, along[a])), '')


class _Parts(NamedTuple):
    """An equation as `f(x, w)`, the number of the operand x, and the values of all others."""

    f: Callable[[Any, Any], Any]
    x: int
    known: list[np.ndarray]


def _parts(eqn: JaxprEqn, i: int, const: Callable) -> _Parts | None:
    """The equation as a function of the weight, its operand `i`, and of one other operand, if all
    the rest are known."""
    known = {k: const(a) for k, a in enumerate(eqn.invars) if k != i}
    data = [k for k, v in known.items() if v is None]
    outs = [v for v in eqn.outvars if v.aval.size and is_float(v)]
    if len(data) != 1 or outs != [eqn.outvars[0]] or not is_float(eqn.invars[i]):
        return None
    if eqn.primitive.name == 'jit' and not is_kernel(eqn):
        return None
    [j] = data

    def f(x: Any, w: Any) -> Any:
        values = {k: jnp.asarray(v) for k, v in known.items() if v is not None}
        values.update({i: w, j: x})
        return bind(eqn, [values[k] for k in range(len(eqn.invars))])[0]

    return _Parts(f, j, [v for v in known.values() if v is not None])


# ---- JAX's own sparse products -------------------------------------------------------------------


def plain_form(eqn: JaxprEqn, const: Callable) -> Callable | None:
    """`f(*operands)` in ordinary operations, for a primitive of JAX that cannot be mapped over time
    (and in part has wrong derivatives); None where its indices are not known."""
    indices = [const(a) for a in eqn.invars[1:-1]]
    if any(m is None for m in indices):
        return None
    y = eqn.outvars[0].aval
    parts = _parts(eqn, 0, const)
    if parts is None:
        return None
    x = parts.x
    avals = eqn.invars[x].aval, eqn.invars[0].aval, y
    links = read_connections(parts.f, parts.known, *avals) or probe(parts.f, *avals)
    if links is None or not links.samples_in_order:
        return None

    def sparse_product(*values):
        w = values[0] if links.used is None else values[0] * links.used
        return links.multiply(values[x], w, y)

    return sparse_product
