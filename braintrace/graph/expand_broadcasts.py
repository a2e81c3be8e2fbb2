"""One output of an op for many units: a copy of it for each.

A trace remembers for each weight and each element of y the one unit that it feeds. Where an element
of y is broadcast to more units than there are maps, the step is rewritten so that y is taken with
an axis more, which counts copies, and everything between y and the place where it is broadcast has
that axis too: `broadcast(f(op(x, w)))` becomes `f'(y')` with `y'[.., c] = op(x, w)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from string import ascii_lowercase
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._jax import Atom, JaxprEqn, Var, bind, is_float, new_jaxpr, prune, trace
from ..ops.axes import Op, elementwise
from ..ops.families import Family, family
from ..step import Step
from .constants import constants
from .index_maps import move, positions
from .influence import is_elementwise
from .uses import Use


def expand_broadcasts(
    step: Step, uses: Sequence[Use], crowded: Collection[Var]
) -> tuple[Step, tuple[Use, ...]]:
    """An equal step in which the outputs `crowded` of some uses are copied where they are
    broadcast, and its uses."""
    copies = _Copies(step, uses, crowded)
    for eqn in step.jaxpr.eqns:
        copies.add(eqn)
    outs = step.jaxpr.outvars
    eqns = prune(copies.eqns, outs)
    order = {v: k for k, e in enumerate(eqns) for v in e.outvars}
    kept = sorted((u for u in copies.uses if u.y[0] in order), key=lambda u: order[u.y[0]])
    inputs = step.jaxpr.invars[len(step.captured) :]
    program = new_jaxpr([*copies.captured, *inputs], outs, eqns)
    return step.with_program(program, tuple(copies.captured.values())), tuple(kept)


class _Copies:
    """The new program as it grows."""

    def __init__(self, step: Step, uses: Sequence[Use], crowded: Collection[Var]):
        self.eqns: list[JaxprEqn] = []
        self.uses = list(uses)
        # What others take from a new state they take from that variable, not from a copy.
        self.ends = set(step.hidden_outs)
        self.use_of = {y: u for u in uses for y in u.y if y in crowded and y not in self.ends}
        self.made_by: dict[Var, JaxprEqn] = {}
        self.const = constants(step)
        self.captured: dict[Var, Any] = dict(zip(step.captured_vars, step.captured, strict=True))
        self.copied: dict[tuple[Var, int], Var] = {}

    def touches(self, a: Atom) -> bool:
        """Whether copies of this value are copies of an output of an op."""
        return isinstance(a, Var) and (a in self.use_of or a in self.made_by)

    def append(self, eqn: JaxprEqn) -> None:
        """Append an equation as it is."""
        self.eqns.append(eqn)
        moving = [i for i, a in enumerate(eqn.invars) if self.touches(a)]
        if not moving or len(eqn.outvars) > 1:
            return
        [v] = eqn.outvars
        if is_float(v) and v not in self.ends and _can_be_copied(eqn, moving):
            self.made_by[v] = eqn

    def call(self, f: Callable, ins: Sequence[Atom], out: Var | None = None) -> Var:
        """Append the equations of a function of one result, which is `out` if that is given."""
        jaxpr, consts = trace(f, *ins)
        held = [Var(v.aval) for v in jaxpr.invars[: len(consts)]]
        self.captured.update(zip(held, consts, strict=True))
        env: dict[Var, Any] = dict(zip(jaxpr.invars, [*held, *ins], strict=True))
        [last] = jaxpr.outvars
        for eqn in jaxpr.eqns:
            for v in eqn.outvars:
                env[v] = out if out is not None and v is last else Var(v.aval)
            self.append(
                eqn.replace(
                    invars=[env[a] if isinstance(a, Var) else a for a in eqn.invars],
                    outvars=[env[v] for v in eqn.outvars],
                )
            )
        return env[last]

    def add(self, eqn: JaxprEqn) -> None:
        """Append an equation of the old program; where it broadcasts a value, take copies of it."""
        moving = [i for i, a in enumerate(eqn.invars) if self.touches(a)]
        if not moving or len(eqn.outvars) > 1:
            return self.append(eqn)
        [v] = eqn.outvars
        if family(eqn) is Family.ELEMENTWISE:
            eqn = self._with_wide_operands(eqn, moving)
        if eqn.primitive.name == 'broadcast_in_dim' and v.aval.size > eqn.invars[0].aval.size:
            self._widen(eqn.invars[0], v.aval.shape, eqn.params['broadcast_dimensions'], v)
        elif family(eqn) is not Family.LAYOUT or len(moving) > 1:
            self.append(eqn)
        elif not self._repeat(eqn, moving[0], v):
            self.append(eqn)

    def _with_wide_operands(self, eqn: JaxprEqn, moving: Sequence[int]) -> JaxprEqn:
        """The equation with copies for the operands that it would broadcast itself."""
        shape = eqn.outvars[0].aval.shape
        for i in moving:
            a = eqn.invars[i]
            if a.aval.shape != shape and a.aval.size:
                wide = self._widen(a, shape, range(a.aval.ndim))
                eqn = eqn.replace(invars=[wide if j == i else b for j, b in enumerate(eqn.invars)])
        return eqn

    def _widen(
        self, a: Var, shape: tuple[int, ...], axes: Sequence[int], out: Var | None = None
    ) -> Var:
        """What broadcasts a value to this shape, of copies."""
        old = [k for j, k in enumerate(axes) if a.aval.shape[j] == shape[k]]
        order = [*old, *[k for k in range(len(shape)) if k not in old]]

        def place(copies: jax.Array) -> jax.Array:
            wide = copies.reshape([shape[k] for k in order])
            return jnp.copy(wide.transpose(np.argsort(order)))

        return self.call(place, [self.of(a, math.prod(shape) // a.aval.size)], out)

    def _repeat(self, eqn: JaxprEqn, i: int, v: Var) -> bool:
        """What puts elements of a value in several places, of copies; False where it does not."""
        moved = move(eqn, i, positions(eqn.invars[i].aval.shape), self.const)
        if moved is None:
            return False
        m = moved[0].ravel()
        if not m.size or (m < 0).any():
            return False
        most = int(np.bincount(m).max())
        if most == 1:
            return False
        order = np.argsort(m, kind='stable')
        rank = np.empty_like(m)
        rank[order] = np.arange(len(m)) - np.searchsorted(m[order], m[order])
        at = (m * most + rank).reshape(v.aval.shape)
        self.call(lambda c: jnp.copy(c.reshape(-1)[at]), [self.of(eqn.invars[i], most)], v)
        return True

    def of(self, a: Var, n: int) -> Var:
        """n copies of a value, on a last axis."""
        if (a, n) not in self.copied:
            if a in self.use_of:
                self.copied[a, n] = self._output(self.use_of[a], n)
            else:
                self.copied[a, n] = self._value(self.made_by[a], n)
        return self.copied[a, n]

    def _value(self, eqn: JaxprEqn, n: int) -> Var:
        axes = [-1 if self.touches(a) else None for a in eqn.invars]
        ins = [self.of(a, n) if self.touches(a) else a for a in eqn.invars]
        return self.call(jax.vmap(lambda *values: bind(eqn, values)[0], axes, -1), ins)

    def _output(self, use: Use, n: int) -> Var:
        """n copies of the output of a use: a use of its own."""
        [y] = use.y
        shape = (*y.aval.shape, n)
        assert use.op is not None

        def copies(a: jax.Array) -> jax.Array:
            return lax.broadcast_in_dim(a, shape, range(a.ndim))

        if use.op.axes.x is None:
            f, ins, op = copies, use.eqn.invars[:1], elementwise(shape)
        else:
            f = jax.jit(lambda *values: copies(bind(use.eqn, values)[0]))
            ins, op = use.eqn.invars, _copied(use.op, y.aval.ndim, n)
        [made] = trace(f, *ins).jaxpr.eqns
        many = Var(made.outvars[0].aval)
        made = made.replace(invars=list(ins), outvars=[many], source_info=use.eqn.source_info)
        self.eqns.append(made)
        w = many if use.op.axes.x is None else use.w
        self.use_of[many] = Use(made, use.operand, w, (many,), op, use.meets, use.links)
        self.uses.append(self.use_of[many])
        return many


def _can_be_copied(eqn: JaxprEqn, moving: Sequence[int]) -> bool:
    """Whether an equation maps over copies of these operands."""
    kind = family(eqn)
    if kind is Family.CUSTOM:
        return is_elementwise(eqn, moving)
    return kind in (Family.ELEMENTWISE, Family.LAYOUT)


def _copied(op: Op, ndim: int, n: int) -> Op:
    """The op with n copies of its output, which has `ndim` axes without them, on a last axis."""
    used = f'{op.axes.x}{op.axes.w}{op.axes.y}'
    c = next(c for c in ascii_lowercase if c not in used)
    op_apply, op_outer, op_line_up_y = op.apply, op.outer, op.line_up_y
    op_gradient, op_with_arrays = op.gradient, op.with_arrays
    changed: dict[str, Any] = {'axes': op.axes._replace(y=op.axes.y + c)}
    if op.kept is not None:
        changed['kept'] = [*op.kept, c]
    if op_apply is not None:

        def apply(x, w):
            return jnp.repeat(op_apply(x, w)[..., None], n, -1)

        changed['apply'] = apply
    if op_gradient is not None:

        def gradient(x, dy, before):
            one_more = None if before is None else (before[0], before[1].sum(-1))
            return op_gradient(x, dy.sum(-1), one_more)

        changed['gradient'] = gradient
    if op_with_arrays is not None:

        def with_arrays(arrays):
            return _copied(op_with_arrays(arrays), ndim, n)

        changed['with_arrays'] = with_arrays
    if op_outer is not None:
        batch_axes = sum(k not in op.axes.w for k in op.axes.y)
        changed['outer'] = jax.vmap(op_outer, (None, -1), 1 + batch_axes)
    if op_line_up_y is not None:

        def line_up_y(a):
            lead = a.ndim - 1 - ndim
            return jnp.moveaxis(op_line_up_y(jnp.moveaxis(a, -1, lead)), lead, -1)

        changed['line_up_y'] = line_up_y
    return replace(op, **changed)
