"""Products with sparse (or event-driven) connections: `y[o(p)] += w[p] x[i(p)]`.

Formats are many, and what they compute is the same. So the indices are not read from a format but found by running the op on index bits: the pull of ones at
y gives each weight its factor, which is a bit of i(p) when x holds that bit of its own index, and likewise for o(p) with cotangents. An axis of y that a weight
does not determine counts samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from string import ascii_letters
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._jax import JaxprEqn, bind, calls_library_kernel, is_float
from .axes import Axes, Op


def is_kernel(eqn: JaxprEqn) -> bool:
    """Whether an equation calls a product that is looked at from outside: a library's kernel, or
    the plain form of a sparse primitive of JAX."""
    return calls_library_kernel(eqn) or (
        eqn.primitive.name == 'jit' and eqn.params['name'] == 'sparse_product'
    )


def product(eqn: JaxprEqn, i: int, const: Callable) -> Op:
    """The op rule of a sparse product."""
    parts = _parts(eqn, i, const)
    if parts is None:
        return NotImplemented
    f, j = parts
    x, w, y = eqn.invars[j].aval, eqn.invars[i].aval, eqn.outvars[0].aval
    letters = ascii_letters[: w.ndim]
    if w.size == 1:  # one weight for all connections: what multiplies it is the product itself
        all_y = ascii_letters[w.ndim : w.ndim + y.ndim]
        return Op(
            Axes(all_y + letters, letters, all_y),
            w.shape,
            lambda values: f(values[j], jnp.ones(w.shape, w.dtype)).reshape(*y.shape, *w.shape),
        )
    found = _probe(f, x, w, y)
    if found is None:
        return NotImplemented
    of_x, of_y, event, used = found
    as_float = lambda values: event(values[j]).astype(w.dtype)
    batch = [ascii_letters[w.ndim + a] if of_y[a] is None else '' for a in range(y.ndim)]
    name = lambda m: (
        batch[m]
        if isinstance(m, int)
        else next(
            (c for a, c in enumerate(letters) if np.array_equal(m, np.indices(w.shape)[a])), ''
        )
    )
    names_x, names_y = (
        [name(m) for m in of_x],
        [b or name(m) for b, m in zip(batch, of_y, strict=True)],
    )
    if used is None and all(names_x) and all(names_y):
        return Op(Axes(''.join(names_x), letters, ''.join(names_y)), w.shape, as_float)
    labels = ''.join(batch) + letters
    fixed = lambda maps: [(a, m) for a, m in enumerate(maps) if isinstance(m, np.ndarray)]

    def pick(a: Any, maps: Sequence, batch_axes: Sequence[int]) -> Any:
        """The axes that weights determine, replaced by the weights' axes at the end; samples stay before them, in the order of y."""
        lead = a.ndim - len(maps)
        a = a.transpose(
            [*range(lead), *[lead + k for k in batch_axes], *[lead + k for k, _ in fixed(maps)]]
        )
        return a[(..., *[m for _, m in fixed(maps)])]

    samples = [a for a in range(y.ndim) if batch[a]]
    with_x = {m: k for k, m in enumerate(of_x) if isinstance(m, int)}
    full = tuple(y.shape[a] for a in samples) + w.shape

    def line_up_x(x: Any) -> Any:
        aligned = pick(x, of_x, [with_x[a] for a in samples if a in with_x])
        aligned = jnp.expand_dims(
            aligned, [k for k, a in enumerate(samples) if a not in with_x]
        )  # samples that see the same x
        return jnp.broadcast_to(aligned if used is None else aligned * used, full)

    return Op(
        Axes(labels, letters, labels),
        w.shape,
        as_float,
        kept=batch,
        line_up_x=line_up_x,
        line_up_y=lambda a: pick(a, of_y, samples),
    )


def plain_form(eqn: JaxprEqn, const: Callable) -> Callable | None:
    """`f(*operands)` in ordinary operations, for a primitive of JAX that cannot be mapped over time (and in part has wrong derivatives)."""
    name, y = eqn.primitive.name, eqn.outvars[0].aval
    index = [const(a) for a in eqn.invars[1:-1]]
    if any(m is None for m in index):
        return None
    if name.startswith(('csr', 'coo')):
        rows, cols = (
            (np.repeat(np.arange(len(index[1]) - 1), np.diff(index[1])), index[0])
            if name.startswith('csr')
            else index
        )
        out, into = (cols, rows) if eqn.params['transpose'] else (rows, cols)
        of_x, of_y, j, used = (
            [into, *range(1, y.ndim)],
            [out, *[None] * (y.ndim - 1)],
            len(index) + 1,
            None,
        )
    else:
        f, j = _parts(eqn, 0, const) or (None, 0)
        found = _probe(f, eqn.invars[j].aval, eqn.invars[0].aval, y) if f else None
        if found is None:
            return None
        of_x, of_y, _, used = found
    samples = [a for a, m in enumerate(of_y) if m is None]
    if [m for m in of_x if isinstance(m, int)] != samples:
        return None

    def sparse_product(*values):
        return _multiply(values[j], values[0] if used is None else values[0] * used, of_x, of_y, y)

    return sparse_product


def _multiply(x: Any, w: Any, of_x: Sequence, of_y: Sequence, y: Any) -> Any:
    """`y[.., o(p)] += x[.., i(p)] w[p]`."""
    front = sorted(
        range(len(of_x)),
        key=lambda a: (not isinstance(of_x[a], int), of_x[a] if isinstance(of_x[a], int) else 0),
    )
    order = [a for a, m in enumerate(of_y) if m is None] + [
        a for a, m in enumerate(of_y) if m is not None
    ]
    x = x.transpose(front)[(..., *[m for m in of_x if not isinstance(m, int)])]
    out = (
        jnp.zeros([y.shape[a] for a in order], y.dtype)
        .at[(..., *[m for m in of_y if m is not None])]
        .add((x * w).astype(y.dtype))
    )
    return out.transpose(np.argsort(order))


def _parts(eqn: JaxprEqn, i: int, const: Callable) -> tuple[Callable, int] | None:
    """The op as `f(x, w)` and the number of the operand x, if all others are known."""
    known = {k: const(a) for k, a in enumerate(eqn.invars) if k != i}
    data = [k for k, v in known.items() if v is None]
    outs = [v for v in eqn.outvars if v.aval.size and is_float(v)]
    if (
        len(data) != 1
        or outs != [eqn.outvars[0]]
        or not is_float(eqn.invars[i])
        or eqn.primitive.name == 'jit'
        and not is_kernel(eqn)
    ):
        return None
    [j] = data
    return lambda x, w: bind(
        eqn,
        [w if k == i else x if k == j else jnp.asarray(known[k]) for k in range(len(eqn.invars))],
    )[0], j


def _probe(
    f: Callable, x: Any, w: Any, y: Any
) -> tuple[list, list, Callable, np.ndarray | None] | None:
    """For each axis of x the weights' index there (or the axis of y it goes with), for each axis of y the weights' index (None: samples), how x counts,
    and which weights are used at all (None: all of them)."""
    ones = np.ones(x.shape, x.dtype)

    @jax.jit
    def pull(x, ct):
        return jax.vjp(lambda w: f(x, w), jnp.ones(w.shape, w.dtype))[1](ct)[0]

    def at(x, ct):
        with jax.ensure_compile_time_eval():
            return np.asarray(pull(jnp.asarray(x), jnp.asarray(ct, y.dtype)), float)

    try:
        count = at(ones, np.ones(y.shape))
    except Exception:  # a kernel that cannot run here has no structure to find
        return None
    used = count > 0.5

    def index(bits: Callable, size: int, total: np.ndarray) -> np.ndarray | None:
        """The index that every weight has on an axis, from the share of each bit; None if there is no single one."""
        found = np.zeros(w.shape, np.int64)
        for bit in range(max(size - 1, 1).bit_length()):
            share = np.where(used, bits(bit) / np.where(used, total, 1), 0)
            if (np.abs(share - share.round()) > 1e-2).any() or not (
                (share > -0.1) & (share < 1.1)
            ).all():
                return None
            found += share.round().astype(np.int64) << bit
        return found

    of_y: list[np.ndarray | None] = [
        index(lambda b, a=a: at(ones, _bit(y.shape, a, b)), n, count) if n > 1 else None
        for a, n in enumerate(y.shape)
    ]
    samples = [a for a, m in enumerate(of_y) if m is None]

    def sample(last: int | None) -> np.ndarray:
        """Ones at one sample: the first, or the last along one of its axes."""
        ct = np.ones(y.shape)
        for a in samples:
            ct = ct * (np.indices(y.shape)[a] == (y.shape[a] - 1 if a == last else 0))
        return ct

    first = at(ones, sample(None))
    if ((first < 0.5) & used).any() or not np.allclose(first[used].round(), first[used], atol=1e-2):
        return None
    of_x: list[np.ndarray | int] = []
    for a, n in enumerate(x.shape):
        m = index(lambda b, a=a: at(_bit(x.shape, a, b).astype(x.dtype), sample(None)), n, first)
        moves = [
            s
            for s in samples
            if m is not None
            and y.shape[s] == n > 1
            and not m.any()
            and (at(_bit(x.shape, a, 0, last=True).astype(x.dtype), sample(s))[used] > 0.5).all()
        ]
        if m is None or len(moves) > 1:
            return None
        of_x.append(moves[0] if moves else m)
    if (np.abs(first[used] - 1) > 1e-2).any():
        return None
    values = (
        np.where(np.arange(ones.size) % 3, 0.5, -1).reshape(x.shape).astype(x.dtype)
    )  # how x counts: as it is, or as an event
    weights = (np.arange(w.size) % 7 - 2.5).reshape(w.shape).astype(w.dtype)
    for event in (lambda v: v, lambda v: v > 0, lambda v: v != 0):
        if _agrees(f, values, weights * used, event, of_x, of_y, y):
            return of_x, of_y, event, None if used.all() else used
    return None


def _agrees(
    f: Callable, x: Any, w: Any, event: Callable, of_x: Sequence, of_y: Sequence, y: Any
) -> bool:
    """Whether the indices, which were found through derivatives, also make the value."""
    with jax.ensure_compile_time_eval():
        true, samples = (
            f(jnp.asarray(x), jnp.asarray(w)),
            [a for a, m in enumerate(of_y) if m is None],
        )
        if [m for m in of_x if isinstance(m, int)] != samples:
            return not samples or all(y.shape[a] == 1 for a in samples)
        return np.allclose(
            true,
            _multiply(event(jnp.asarray(x)).astype(w.dtype), jnp.asarray(w), of_x, of_y, y),
            atol=1e-3,
        )


def _bit(shape: tuple[int, ...], axis: int, bit: int, last: bool = False) -> np.ndarray:
    """That bit of each element's index on an axis; with `last` a one at the last index."""
    index = np.indices(shape)[axis]
    return (index == shape[axis] - 1 if last else index >> bit & 1).astype(float)
