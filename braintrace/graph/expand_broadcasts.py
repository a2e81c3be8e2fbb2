"""One output of an op for many units: a copy of it for each.

A trace remembers for each weight and each element of y the one unit that it feeds. Where an element of y is spread over more units than there are maps, the
step is rewritten so that y is taken with an axis more, which counts copies, and everything between y and the place where it is spread has that axis too:
`spread(f(op(x, w)))` becomes `f'(y')` with `y'[.., c] = op(x, w)`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from string import ascii_lowercase

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._jax import Atom, ClosedJaxpr, JaxprEqn, Var, bind, is_float, new_jaxpr, prune, trace
from ..ops.axes import Op, elementwise
from ..step import Step
from .index_maps import LAYOUT, move, positions
from .influence import ELEMENTWISE, Constants, is_elementwise
from .uses import Use


def spread_out(
    step: Step, uses: Sequence[Use], crowded: Collection[Var]
) -> tuple[Step, tuple[Use, ...]]:
    """An equal step in which the outputs `crowded` of some uses are copied where they are spread, and its uses."""
    jaxpr = step.jaxpr.jaxpr
    made = _Copies(step, uses, crowded)
    for eqn in jaxpr.eqns:
        made.add(eqn)
    eqns = prune(made.eqns, jaxpr.outvars)
    order = {v: k for k, e in enumerate(eqns) for v in e.outvars}
    kept = sorted((u for u in made.uses if u.y[0] in order), key=lambda u: order[u.y[0]])
    closed = ClosedJaxpr(
        new_jaxpr(jaxpr.invars, jaxpr.outvars, eqns, list(made.consts)), list(made.consts.values())
    )
    return Step(closed, step.params, step.hidden, step.other), tuple(kept)


class _Copies:
    """The new program as it grows."""

    def __init__(self, step: Step, uses: Sequence[Use], crowded: Collection[Var]):
        self.eqns: list[JaxprEqn] = []
        self.uses = list(uses)
        self.ends = set(
            step.hidden_outs
        )  # what others take from a new state they take from that variable
        self.use_of = {y: u for u in uses for y in u.y if y in crowded and y not in self.ends}
        self.made_by: dict[Var, JaxprEqn] = {}
        self.const = Constants(step.jaxpr)
        self.consts = dict(zip(step.jaxpr.jaxpr.constvars, step.jaxpr.consts, strict=True))
        self.copied: dict[tuple[Var, int], Var] = {}

    def touches(self, a: Atom) -> bool:
        """Whether copies of this value are copies of an output of an op."""
        return isinstance(a, Var) and (a in self.use_of or a in self.made_by)

    def append(self, eqn: JaxprEqn) -> None:
        self.eqns.append(eqn)
        moving = [i for i, a in enumerate(eqn.invars) if self.touches(a)]
        if (
            not moving
            or len(eqn.outvars) > 1
            or not is_float(eqn.outvars[0])
            or eqn.outvars[0] in self.ends
        ):
            return
        if (
            eqn.primitive.name in ELEMENTWISE | LAYOUT
            or eqn.primitive.name.startswith('custom_')
            and is_elementwise(eqn, moving)
        ):
            self.made_by[eqn.outvars[0]] = eqn

    def call(self, f, ins: Sequence[Atom], out: Var | None = None) -> Var:
        """Append the equations of a function of one result."""
        closed = trace(f, *ins)
        held = {v: Var(v.aval) for v in closed.jaxpr.constvars}
        self.consts.update(zip(held.values(), closed.consts, strict=True))
        env: dict = dict(zip(closed.jaxpr.invars, ins, strict=True)) | held
        [last] = closed.jaxpr.outvars
        for eqn in closed.jaxpr.eqns:
            env.update(
                {v: out if out is not None and v is last else Var(v.aval) for v in eqn.outvars}
            )
            self.append(
                eqn.replace(
                    invars=[env[a] if isinstance(a, Var) else a for a in eqn.invars],
                    outvars=[env[v] for v in eqn.outvars],
                )
            )
        return env[last]

    def add(self, eqn: JaxprEqn) -> None:
        """Append an equation of the old program; where it spreads a value, take copies of the value."""
        moving = [i for i, a in enumerate(eqn.invars) if self.touches(a)]
        if not moving or len(eqn.outvars) > 1:
            return self.append(eqn)
        [v], name = eqn.outvars, eqn.primitive.name
        for i in moving if name in ELEMENTWISE else ():
            a = eqn.invars[i]
            if a.aval.shape != v.aval.shape and a.aval.size:
                wide = self._widen(a, v.aval.shape, range(a.aval.ndim))
                eqn = eqn.replace(invars=[wide if j == i else b for j, b in enumerate(eqn.invars)])
        if name == 'broadcast_in_dim' and v.aval.size > eqn.invars[0].aval.size:
            self._widen(eqn.invars[0], v.aval.shape, eqn.params['broadcast_dimensions'], v)
        elif name not in LAYOUT or len(moving) > 1 or not self._repeat(eqn, moving[0], v):
            self.append(eqn)

    def _widen(
        self, a: Var, shape: tuple[int, ...], axes: Sequence[int], out: Var | None = None
    ) -> Var:
        """What broadcasts a value to this shape, of copies."""
        old = [k for j, k in enumerate(axes) if a.aval.shape[j] == shape[k]]
        order = [*old, *[k for k in range(len(shape)) if k not in old]]
        copies = self.of(a, math.prod(shape) // a.aval.size)
        return self.call(
            lambda c: jnp.copy(c.reshape([shape[k] for k in order]).transpose(np.argsort(order))),
            [copies],
            out,
        )

    def _repeat(self, eqn: JaxprEqn, i: int, v: Var) -> bool:
        """What puts elements of a value in several places, of copies; False where it does not."""
        moved = move(eqn, i, positions(eqn.invars[i].aval.shape), self.const)
        m = np.array([-1]) if moved is None else moved[0].ravel()
        if not m.size or (m < 0).any() or (n := int(np.bincount(m).max())) == 1:
            return False
        order = np.argsort(m, kind='stable')
        rank = np.empty_like(m)
        rank[order] = np.arange(len(m)) - np.searchsorted(m[order], m[order])
        at = (m * n + rank).reshape(v.aval.shape)
        self.call(lambda c: jnp.copy(c.reshape(-1)[at]), [self.of(eqn.invars[i], n)], v)
        return True

    def of(self, a: Var, n: int) -> Var:
        """n copies of a value, on a last axis."""
        if (a, n) not in self.copied:
            self.copied[a, n] = (
                self._output(self.use_of[a], n)
                if a in self.use_of
                else self._value(self.made_by[a], n)
            )
        return self.copied[a, n]

    def _value(self, eqn: JaxprEqn, n: int) -> Var:
        axes = [-1 if self.touches(a) else None for a in eqn.invars]
        ins = [self.of(a, n) if self.touches(a) else a for a in eqn.invars]
        return self.call(jax.vmap(lambda *values: bind(eqn, values)[0], axes, -1), ins)

    def _output(self, use: Use, n: int) -> Var:
        [y] = use.y
        shape = (*y.aval.shape, n)
        copies = lambda a: lax.broadcast_in_dim(a, shape, range(a.ndim))
        assert use.op is not None
        if use.op.axes.x is None:
            f, ins, op = copies, use.eqn.invars[:1], elementwise(shape)
        else:
            f, ins, op = (
                jax.jit(lambda *values: copies(bind(use.eqn, values)[0])),
                use.eqn.invars,
                _copied(use.op, y.aval.ndim, n),
            )
        [made] = trace(f, *ins).jaxpr.eqns
        many = Var(made.outvars[0].aval)
        made = made.replace(invars=list(ins), outvars=[many], source_info=use.eqn.source_info)
        self.eqns.append(made)
        self.use_of[many] = Use(
            made, use.operand, many if use.op.axes.x is None else use.w, (many,), op, use.meets
        )
        self.uses.append(self.use_of[many])
        return many


def _copied(op: Op, ndim: int, n: int) -> Op:
    """The op with n copies of its output, which has `ndim` axes without them, on a last axis."""
    c = next(c for c in ascii_lowercase if c not in f'{op.axes.x}{op.axes.w}{op.axes.y}')
    op_apply, op_outer, line_up = op.apply, op.outer, op.line_up_y
    changed: dict = {'axes': op.axes._replace(y=op.axes.y + c)}
    if op.kept is not None:
        changed['kept'] = [*op.kept, c]
    if op_apply is not None:
        changed['apply'] = lambda x, w: jnp.repeat(op_apply(x, w)[..., None], n, -1)
    if op_outer is not None:
        changed['outer'] = jax.vmap(
            op_outer, (None, -1), 1 + sum(k not in op.axes.w for k in op.axes.y)
        )
    if line_up is not None:

        def line_up_y(a):
            lead = a.ndim - 1 - ndim
            return jnp.moveaxis(line_up(jnp.moveaxis(a, -1, lead)), lead, -1)

        changed['line_up_y'] = line_up_y
    return replace(op, **changed)
