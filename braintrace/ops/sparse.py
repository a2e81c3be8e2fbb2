"""Products with sparse (or event-driven) connections: `y[o(p)] += w[p] x[i(p)]`.

Formats are many, and what they compute is the same. So the indices are not read from a format but
found by running the op, see `probing`. An axis of y that a weight does not determine counts
samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from string import ascii_letters
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._jax import JaxprEqn, bind, calls_library_kernel, is_float
from .axes import Axes, Op
from .probing import Connections, probe


def is_kernel(eqn: JaxprEqn) -> bool:
    """Whether an equation calls a product that is looked at from outside: a library's kernel, or
    the plain form of a sparse primitive of JAX."""
    if eqn.primitive.name != 'jit':
        return False
    return calls_library_kernel(eqn) or eqn.params['name'] == 'sparse_product'


def product(eqn: JaxprEqn, i: int, const: Callable) -> Op:
    """The op rule of a sparse product."""
    parts = _parts(eqn, i, const)
    if parts is None:
        return NotImplemented
    w, y = eqn.invars[i].aval, eqn.outvars[0].aval
    if w.size == 1:
        return _one_weight(parts, w, y)
    links = probe(parts.f, eqn.invars[parts.x].aval, w, y)
    if links is None:
        return NotImplemented

    def counted(values: Sequence[Any]) -> jax.Array:
        return links.event(values[parts.x]).astype(w.dtype)

    letters = ascii_letters[: w.ndim]
    batch = [ascii_letters[w.ndim + a] if m is None else '' for a, m in enumerate(links.of_y)]
    names_x = [batch[m] if isinstance(m, int) else _axis_of(m, letters) for m in links.of_x]
    names_y = [b or _axis_of(m, letters) for b, m in zip(batch, links.of_y, strict=True)]
    if links.used is None and all(names_x) and all(names_y):
        return Op(Axes(''.join(names_x), letters, ''.join(names_y)), w.shape, counted)
    labels = ''.join(batch) + letters
    samples = links.samples

    def line_up_y(a: jax.Array) -> jax.Array:
        return _pick(a, links.of_y, samples)

    return Op(
        Axes(labels, letters, labels),
        w.shape,
        counted,
        kept=batch,
        line_up_x=_line_up_x(links, tuple(y.shape[a] for a in samples) + w.shape),
        line_up_y=line_up_y,
    )


def _one_weight(parts: _Parts, w: Any, y: Any) -> Op:
    """One weight for all connections: what multiplies it is the product itself."""
    of_w = ascii_letters[: w.ndim]
    of_y = ascii_letters[w.ndim : w.ndim + y.ndim]

    def whole(values: Sequence[Any]) -> jax.Array:
        return parts.f(values[parts.x], jnp.ones(w.shape, w.dtype)).reshape(*y.shape, *w.shape)

    return Op(Axes(of_y + of_w, of_w, of_y), w.shape, whole)


def _axis_of(m: np.ndarray | None, letters: str) -> str:
    """The label of the weight's axis that an index runs along, if it does."""
    if m is None:
        return ''
    along = np.indices(m.shape)
    return next((c for a, c in enumerate(letters) if np.array_equal(m, along[a])), '')


def _line_up_x(links: Connections, shape: tuple[int, ...]) -> Callable[[jax.Array], jax.Array]:
    """A function that takes x to where the weights multiply it, `(*samples, *w)`."""
    at = {m: k for k, m in enumerate(links.of_x) if isinstance(m, int)}  # sample axis of y -> of x
    with_x = [at[a] for a in links.samples if a in at]
    without = [k for k, a in enumerate(links.samples) if a not in at]  # these see the same x

    def line_up_x(x: jax.Array) -> jax.Array:
        aligned = jnp.expand_dims(_pick(x, links.of_x, with_x), without)
        return jnp.broadcast_to(aligned if links.used is None else aligned * links.used, shape)

    return line_up_x


def _pick(a: jax.Array, maps: Sequence, samples: Sequence[int]) -> jax.Array:
    """The axes that weights determine, replaced by the weights' axes at the end; samples stay
    before them, in the order of y."""
    lead = a.ndim - len(maps)
    fixed = [(lead + k, m) for k, m in enumerate(maps) if isinstance(m, np.ndarray)]
    a = a.transpose([*range(lead), *[lead + k for k in samples], *[k for k, _ in fixed]])
    return a[(..., *[m for _, m in fixed])]


class _Parts(NamedTuple):
    """An equation as `f(x, w)`, and the number of the operand x."""

    f: Callable[[Any, Any], Any]
    x: int


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

    return _Parts(f, j)


# ---- JAX's own sparse products -------------------------------------------------------------------


def plain_form(eqn: JaxprEqn, const: Callable) -> Callable | None:
    """`f(*operands)` in ordinary operations, for a primitive of JAX that cannot be mapped over time
    (and in part has wrong derivatives); None where its indices are not known."""
    indices = [const(a) for a in eqn.invars[1:-1]]
    if any(m is None for m in indices):
        return None
    y = eqn.outvars[0].aval
    links: Connections | None
    if eqn.primitive.name.startswith(('csr', 'coo')):
        x, links = len(eqn.invars) - 1, _of_matrix(eqn, indices)
    else:
        parts = _parts(eqn, 0, const)
        if parts is None:
            return None
        x = parts.x
        links = probe(parts.f, eqn.invars[x].aval, eqn.invars[0].aval, y)
    if links is None or not links.samples_in_order:
        return None

    def sparse_product(*values):
        w = values[0] if links.used is None else values[0] * links.used
        return links.multiply(values[x], w, y)

    return sparse_product


def _of_matrix(eqn: JaxprEqn, indices: Sequence[np.ndarray]) -> Connections:
    """The connections of a CSR or COO matrix, or of its transpose."""
    if eqn.primitive.name.startswith('csr'):
        cols, starts = indices
        rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    else:
        rows, cols = indices
    out, into = (cols, rows) if eqn.params['transpose'] else (rows, cols)
    ndim = eqn.outvars[0].aval.ndim
    return Connections([into, *range(1, ndim)], [out, *[None] * (ndim - 1)])
