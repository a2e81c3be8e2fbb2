"""What the compiler knows about an op: how the axes of `y = op(x, w)` line up.

A rule labels the axes of x, w and y, so that `y = einsum('x,w->y')`. A label that y has and w has
not is a batch axis; one that w and x share and y has not is summed over. With `x=None` the weight
enters element by element and y is the weight itself, broadcast to where it is used. Where an op
does not have that form by itself (a convolution, a sparse product), `line_up_x` and `line_up_y`
bring x and y into it. The kernels at the end serve all ops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import ascii_letters
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._jax import Atom
from .terms import FEW_TERMS, einsum_flat, einsum_in_terms, placed, total

FEW_STATES = 8  # of more, a product of matrices is faster than a sum of states


class Axes(NamedTuple):
    """The labels of the axes of x, w and y, one letter for each axis."""

    x: str | None
    w: str
    y: str

    @property
    def trace(self) -> str:
        """Labels of a trace that remembers for each weight the one unit it feeds: y's batch axes,
        then w's axes."""
        return ''.join(c for c in self.y if c not in self.w) + self.w


class Table(NamedTuple):
    """A weight of `size` rows of which each sample reads one: `row(x)` is its number (`size` for
    none), `batch` and `width` are the axes of y that count samples and the elements of a row."""

    size: int
    row: Callable[[Any], Any]
    batch: tuple[int, ...]
    width: tuple[int, ...]


class Block(NamedTuple):
    """What a block of steps does at the output of an op: the credit `dy` of each step,
    `(steps, *y)`, and of the trace at the entry, `lam` of `(states, *y)`; what the trace keeps of
    itself, `Q` of `(states, states, *y)`, and what each step adds, `q` of `(steps, states, *y)`."""

    dy: jax.Array
    lam: jax.Array
    Q: jax.Array
    q: jax.Array


def _nothing(values: Sequence[Any]) -> None:
    """What multiplies a weight that enters element by element."""


@dataclass(frozen=True, eq=False)
class Op:
    """One use of a weight.

    Args:
        axes: the labels.
        w_shape: the weight's shape.
        x: what multiplies the weight, from the values of the equation's operands.
        kept: the label of each axis of y as it is, '' for an axis that lining up replaces.
        line_up_x: x to the form that is labelled.
        line_up_y: values at y, with any leading axes, to the form that is labelled.
        labelled: the shape of the weight in that form.
        whole: a gradient in that form to the weight's own; a reshape unless given.
        apply: `(x, w) -> y`, where a gradient is better taken through the op itself.
        gradient: `(x, dy, before) -> gradient` where the op has a cheaper way than its labels;
            `before` has x and dy of one more step, or is None.
        spread: x as an array that can be averaged over time, where it is not one (indices).
        outer: `(x, q) -> trace` where the op has a cheaper way than its labels, see `outer`.
        renew: as `renewed`, where the op has a way that touches the trace only once.
        table: where the weight is a table of which each sample reads one row.
        arrays: large arrays that the functions above use (indices of connections).
        with_arrays: the op with the values of a running program in the place of those arrays.
    """

    axes: Axes
    w_shape: tuple[int, ...]
    x: Callable[[Sequence[Any]], Any] = _nothing
    kept: Sequence[str] | None = None
    line_up_x: Callable[[Any], Any] | None = None
    line_up_y: Callable[[Any], Any] | None = None
    labelled: tuple[int, ...] | None = None
    whole: Callable[[Any], Any] | None = None
    apply: Callable[[Any, Any], Any] | None = None
    spread: Callable[[Any], Any] | None = None
    gradient: Callable[[Any, Any, Any], Any] | None = None
    outer: Callable[[Any, Any], Any] | None = None
    renew: Callable[[Any, Block, Any], tuple[Any, Any]] | None = None
    table: Table | None = None
    arrays: tuple[Any, ...] = ()
    with_arrays: Callable[[Sequence[Any]], Op] | None = None

    @property
    def plain(self) -> bool:
        """Whether labels say all: two such uses of one weight can share a trace."""
        return self.line_up_y is None and self.spread is None and self.apply is None

    @property
    def takes_array(self) -> bool:
        """Whether x is an array that multiplies the weight as it is: not events, nor the numbers of
        rows."""
        return self.gradient is None and self.spread is None

    def trace_shape(self, y: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a trace for one state of the units, for an output of this shape."""
        at_y = y
        if self.line_up_y is not None:
            at_y = jax.eval_shape(lambda: self.at_y(jnp.zeros(y))).shape
        size = dict(zip(self.axes.w, self.labelled or self.w_shape, strict=True))
        size.update(zip(self.axes.y, at_y, strict=True))
        return tuple(size[c] for c in self.axes.trace)

    def at_x(self, x: jax.Array) -> jax.Array:
        """`(steps, *x)` in the form that is labelled."""
        return x if self.line_up_x is None else jax.vmap(self.line_up_x)(x)

    def at_y(self, values: jax.Array) -> jax.Array:
        """Values at y, with any leading axes, in the form that is labelled."""
        return values if self.line_up_y is None else self.line_up_y(values)

    def to_weight(self, a: jax.Array) -> jax.Array:
        """A gradient in the form that is labelled as one of the weight."""
        return a.reshape(self.w_shape) if self.whole is None else self.whole(a)


def elementwise(shape: tuple[int, ...]) -> Op:
    """The use of a weight element by element, at this shape."""
    labels = ascii_letters[: len(shape)]
    return Op(Axes(None, labels, labels), shape)


# ---- kernels: x is (steps, *x); Z labels the steps, S the states of a unit -----------------------


def gradient(op: Op, x: Any, dy: jax.Array) -> jax.Array:
    """`sum_k x_k (x) dy_k`, the gradient of the weight over a block of steps; `dy` is
    `(steps, *y)`."""
    if op.axes.x is None:
        return total(dy)
    if op.gradient is not None:
        return op.gradient(x, dy, None)
    op_apply = op.apply
    if op_apply is None:
        return _sum_of_products(
            op, f'Z{op.axes.x}', op.at_x(x), f'Z{op.axes.y}', op.at_y(dy), op.axes.w
        )

    def all_steps(w: jax.Array) -> jax.Array:
        return jax.vmap(lambda a: op_apply(a, w))(x)

    if all(jnp.issubdtype(a.dtype, jnp.floating) for a in (x, dy)):
        x = x.astype(dy.dtype)
    _, pull = jax.vjp(all_steps, jnp.zeros(op.w_shape, dy.dtype))
    return pull(dy)[0]


def spread(op: Op, x: Any) -> Any:
    """What multiplies the weight in one step, as an array that can be averaged over time."""
    return x if op.spread is None else op.spread(x)


def spread_shape(op: Op, operands: Sequence[Atom]) -> jax.ShapeDtypeStruct:
    """The shape of what `spread` makes, for an equation with these operands."""
    avals = [jax.ShapeDtypeStruct(a.aval.shape, a.aval.dtype) for a in operands]
    return jax.eval_shape(lambda *values: spread(op, op.x(values)), *avals)


def spread_gradient(op: Op, x: jax.Array | None, dy: jax.Array) -> jax.Array:
    """`gradient` for an x that `spread` has made and that may have been averaged over time."""
    if op.spread is None:
        return gradient(op, x, dy)
    assert x is not None
    return _over_steps(f'Z{op.axes.x}', x, f'Z{op.axes.y}', dy, op.axes.w)


def gradients_of_one_credit(
    ops: Sequence[Op], xs: Sequence[jax.Array], dy: jax.Array
) -> list[jax.Array]:
    """`spread_gradient` of several ops whose outputs get the same credit: one product with their
    operands side by side, where that is less work than one for each."""
    if len(ops) == 1 or not _are_better_together(ops, xs, dy):
        return [spread_gradient(op, x, dy) for op, x in zip(ops, xs, strict=True)]
    of_x, of_w, of_y = f'Z{ops[0].axes.x}', ops[0].axes.w, f'Z{ops[0].axes.y}'
    [along] = set(of_x) - set(of_y)
    axis = of_x.index(along)
    whole = _over_steps(of_x, jnp.concatenate(xs, axis), of_y, dy, of_w)
    return list(jax.lax.split(whole, [x.shape[axis] for x in xs], of_w.index(along)))


def _are_better_together(ops: Sequence[Op], xs: Sequence[jax.Array], dy: jax.Array) -> bool:
    """Whether operands fit side by side, along the one axis that outputs do not have, and there is
    one step, whose products take longer than their arithmetic, if they are not written out."""
    axes = ops[0].axes
    if axes.x is None or not all(op.plain and op.axes == axes for op in ops):
        return False
    summed = math.prod(n for n, c in zip(dy.shape, f'Z{axes.y}', strict=True) if c not in axes.w)
    fit = len(set(axes.x) - set(axes.y)) == len({x.dtype for x in xs}) == 1
    return fit and len(dy) == 1 and summed > FEW_TERMS


def gradient_from(op: Op, before: tuple[Any, jax.Array], x: Any, dy: jax.Array) -> jax.Array:
    """`gradient` over a block, and over one step before it whose x `spread` has made and whose
    credit is `(*y)`."""
    if op.gradient is not None and op.spread is None:
        return op.gradient(x, dy, before)
    return gradient(op, x, dy) + spread_gradient(op, before[0][None], before[1][None])


def outer_by_state(op: Op, x: Any, q: Sequence[jax.Array]) -> list[jax.Array]:
    """`sum_k x_k (x) q_k` for each state of a unit, from `q`, `(steps, *y)` each."""
    if op.axes.x is None:
        return [total(a) for a in q]
    if op.outer is None:
        of_x, of_y, at_x = f'Z{op.axes.x}', f'Z{op.axes.y}', op.at_x(x)
        return [_sum_of_products(op, of_y, op.at_y(a), of_x, at_x, op.axes.trace) for a in q]
    made: dict[int, jax.Array] = {}
    for shape in dict.fromkeys(a.shape for a in q):
        states = [n for n, a in enumerate(q) if a.shape == shape]
        made |= dict(zip(states, op.outer(x, jnp.stack([q[n] for n in states], 1)), strict=True))
    return [made[n] for n in range(len(q))]


def outer(op: Op, x: Any, q: jax.Array, order: str | None = None) -> jax.Array:
    """`sum_k x_k (x) q_k`, what a block adds to a trace: `(states, *trace)` from `q`,
    `(steps, states, *y)`; its axes in another `order` where labels say all."""
    as_labelled = f'S{op.axes.trace}'
    order = order or as_labelled
    if op.axes.x is None or op.outer is not None:
        made = total(q) if op.outer is None else op.outer(x, q)
        return made.transpose([as_labelled.index(c) for c in order])
    of_q, q = f'ZS{op.axes.y}', op.at_y(q)
    of_x, x = f'Z{op.axes.x}', op.at_x(x)
    if order == as_labelled:
        return _sum_of_products(op, of_q, q, of_x, x, order)
    if order[-1] in of_q:  # its rows stay as they are, and then it need not be turned round
        first = [c for c in order if c in of_x]
        out = ''.join([*first, *[c for c in order if c not in first]])
        made = _sum_of_products(op, of_x, x, of_q, q, out)
        return made.transpose([out.index(c) for c in order])
    # In that order already, so that the product comes out in it.
    in_order = 'Z' + ''.join(c for c in order if c in of_q)
    q = q.transpose([of_q.index(c) for c in in_order])
    return _sum_of_products(op, in_order, q, of_x, x, order)


def decay(op: Op, Q: jax.Array, e: jax.Array) -> jax.Array:
    """`Q e`: every unit takes what it had, `e` of `(states, *trace)`, through its own transition
    `Q` of `(states, states, *y)`."""
    if len(e) > FEW_STATES:
        return jnp.einsum(f'RS{op.axes.y},S{op.axes.trace}->R{op.axes.trace}', op.at_y(Q), e)
    Q = beside(op, Q)
    # XLA makes one loop of a sum, but none of a reduction.
    new: Any = sum(Q[:, a] * e[a] for a in range(len(e)))
    return new


def renewed(op: Op, x: Any, block: Block, e: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The gradient of the weight over a block, `lam . e + sum_k x_k (x) dy_k`, and the trace after
    it, `Q e + sum_k x_k (x) q_k`."""
    if op.renew is not None:
        return op.renew(x, block, e)
    met = gradient(op, x, block.dy) + read(op, block.lam, e)
    return met, decay(op, block.Q, e) + outer(op, x, block.q)


def read(op: Op, lam: jax.Array, e: jax.Array) -> jax.Array:
    """`lam . e`: credit at the units, `(states, *y)`, meets the trace."""
    labels = f'S{op.axes.y},S{op.axes.trace}->{op.axes.w}'
    return op.to_weight(einsum_in_terms(op.at_y(lam), e, labels=labels))


def beside(op: Op, values: jax.Array) -> jax.Array:
    """Values at the units, with any leading axes, so that they can be multiplied with a trace."""
    values = op.at_y(values)
    y, lead = op.axes.y, values.ndim - len(op.axes.y)
    values = values.transpose(*range(lead), *[lead + y.index(c) for c in op.axes.trace if c in y])
    return jnp.expand_dims(values, [lead + k for k, c in enumerate(op.axes.trace) if c not in y])


def _over_steps(xs: str, x: jax.Array, ys: str, y: jax.Array, out: str) -> jax.Array:
    """`einsum('xs,ys->out')` of two arrays with the steps first, without that axis where there is
    one step: XLA would turn an operand round for it."""
    assert xs[0] == ys[0] == 'Z'
    if len(x) > 1 or len(y) > 1:
        return einsum_flat(x, y, labels=f'{xs},{ys}->{out}')
    x, y, labels = jnp.squeeze(x, 0), jnp.squeeze(y, 0), f'{xs[1:]},{ys[1:]}->{out}'
    return einsum_in_terms(x, y, labels=labels)


def _sum_of_products(op: Op, xs: str, x: jax.Array, ys: str, y: jax.Array, out: str) -> jax.Array:
    """`einsum('xs,ys->out')`, as a plain sum where that is faster."""
    if op.line_up_y is None or set(op.axes.x or ()) != set(op.axes.y):
        return _over_steps(xs, x, ys, y, out)
    # Nothing to contract but steps and samples: a loop that XLA fuses with the gathers before it.
    order = [*out, *[c for c in ys if c not in out]]
    both = placed(xs, x, order) * placed(ys, y, order)
    return both.sum(tuple(range(len(out), len(order))))
