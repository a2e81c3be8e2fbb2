"""A window: K steps with the model's past fixed, and what the carriers may ask about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from .._jax import Literal, Var, eval_jaxpr, is_float, new_jaxpr, prune
from ..graph.analysis import Row
from ..graph.perturbation import perturb
from ..graph.relations import weight_program
from ..graph.samples import sample_axes
from ..graph.uses import Use
from ..plan.layout import Layout
from ..plan.self_paths import Detour
from .evaluate import Known, Program
from .loop import scan


class Window:
    """K steps of a program from a given state. All arrays have the steps as their first axis.

    Nothing is computed before it is asked for, and under `jit` nothing is computed that is not used.
    """

    def __init__(
        self,
        program: Program,
        params: Sequence,
        hidden: Sequence,
        other: Sequence,
        inputs: Sequence,
        length: int,
    ):
        self.program, self.params, self.inputs, self.length = program, params, inputs, length
        self.entry = (hidden, other)

        handed = program.loop.before(params)

        def forward(carry, x):
            h, s, out, y = program.loop.body(handed, *carry, x)
            return (h, s), (*carry, out, y)

        start = list(hidden), list(other)
        (self.hidden, self.other), (self.before, self.before_other, self.outs, self.y) = scan(
            forward, start, list(inputs), length
        )

    @property
    def layout(self) -> Layout:
        return self.program.layout

    def _zeros(self) -> list[jax.Array]:
        return [
            jnp.zeros((self.length, *r.y_var.aval.shape), r.y_var.aval.dtype)
            for r in self.layout.relations
        ]

    def _over_time(self, f: Callable) -> Callable:
        """`f(hidden, other, inputs, known y, ...)` for all steps at once."""
        return lambda *moving: jax.vmap(f)(
            self.before, self.before_other, self.inputs, self.known, *moving
        )

    @cached_property
    def known(self) -> Known:
        """What need not be computed again, step by step."""
        return Known(self.y, [self._scale(d) for d in self.program.detours])

    def _scale(self, d: Detour) -> jax.Array:
        """What a unit's change comes back as over two products, step by step."""
        program = weight_program(self.program.step, [d.first.w, d.second.w])
        between = self.program.found.along({d.seed}, [d.first.y[0]], [d.second.x_var])
        start, *rest = self._values([d.first.y[0], *between.constvars])
        follow = lambda y: jax.vmap(lambda c, y: eval_jaxpr(between, c, y)[0])(rest, y)
        _, slopes = jax.jvp(follow, (start,), (jnp.ones_like(start),))
        return d.scale(slopes, *eval_jaxpr(program.jaxpr, program.consts, *self.params))

    def _values(self, wanted: Sequence[Var], f: Callable = lambda values: values) -> Any:
        """The values of some variables, or a function of them, at all steps."""
        jaxpr, known = self.program.step.jaxpr.jaxpr, self.program.products
        eqns = [e for e in jaxpr.eqns if not e.effects and set(known).isdisjoint(e.outvars)]
        program = new_jaxpr([*jaxpr.invars, *known], wanted, prune(eqns, wanted), jaxpr.constvars)
        return jax.vmap(
            lambda h, s, x, y: f(
                eval_jaxpr(program, self.program.step.jaxpr.consts, *self.params, *h, *s, *x, *y)
            )
        )(self.before, self.before_other, self.inputs, self.y)

    def _pull_both(self, f: Callable, along: Any, moving: Any) -> tuple[Any, Callable]:
        """The value of `f(cuts, along, moving)` and its pull-back, where paths of states and of outputs of ops may end in different places."""
        of_states, of_uses = self.program.found.cuts, self.program.found.use_cuts
        if of_states is of_uses:
            return jax.vjp(lambda a, m: f(of_states, a, m), along, moving)
        value, to_uses = jax.vjp(lambda a: f(of_uses, a, moving), along)
        _, to_states = jax.vjp(lambda m: f(of_states, along, m), moving)
        return value, lambda ct: (*to_uses(ct), *to_states(ct))

    # ---- the classical rules: credit of each step inside that step ----

    def same_step(
        self, cotangents: Sequence[Any], feedback: Mapping[Var, Any] | None = None
    ) -> tuple[list, list, list, dict[int, Any]]:
        """Credit of each step inside that step: of the parameters, of each relation's y, of the old hidden state along its own transition, of the inputs.

        The weights of relations are constants here: their gradient is made from the credit of y. `feedback` has the weights that
        credit goes back through, by the output of the product.
        """
        floats = {i: x for i, x in enumerate(self.inputs) if jnp.issubdtype(x.dtype, jnp.inexact)}

        def outputs(params, everywhere, moving, inputs):
            run = lambda h, s, x, y, e, m, mine: self.program.dual(
                params,
                h,
                s,
                [mine.get(i, v) for i, v in enumerate(x)],
                moving=m,
                everywhere=e,
                known=y,
                feedback=feedback,
            )[1:]
            return self._over_time(run)(everywhere, moving, inputs)

        _, pull, xs = jax.vjp(
            outputs, list(self.params), self._zeros(), list(self.before), floats, has_aux=True
        )
        self.__dict__['operands'] = xs
        return pull(list(cotangents))

    def past(
        self, cotangents: Sequence[Any], feedback: Mapping[Var, Any] | None = None
    ) -> list | None:
        """Credit of the old hidden leaves from outputs that read them directly; None where no output does."""
        if not self.layout.read_before:
            return None
        run = lambda h, s, x, y, m: self.program.run(
            self.params, m, s, x, y, feedback, hold_new=True
        )[0]
        return jax.vjp(lambda m: self._over_time(run)(m), list(self.before))[1](list(cotangents))[0]

    def direct(self, cotangents: Sequence[Any], feedback: Mapping[Var, Any] | None = None) -> list:
        """The part of the credit of each relation's y that arrives along position-wise paths."""

        def outputs(along):
            run = lambda h, s, x, y, a: self.program.dual(
                self.params,
                h,
                s,
                x,
                moving=h,
                along=a,
                known=y,
                feedback=feedback,
                cuts=self.program.found.use_cuts,
            )[1]
            return self._over_time(run)(along)

        return jax.vjp(outputs, self._zeros())[1](list(cotangents))[0]

    def signals(
        self,
        cotangents: Sequence[Any],
        feedback: Mapping[Var, Any] | None = None,
        together: bool = False,
    ) -> list:
        """The learning signal: credit of each new hidden leaf inside its step, the other states of its group (`together`: all others) held fixed."""
        step = self.program.step
        found = [jnp.zeros((self.length, *v.aval.shape), v.aval.dtype) for v in step.hidden_vars]
        for group in (
            [step.hidden_outs]
            if together
            else [g.hidden_outvars for g in self.layout.graph.hidden_groups]
        ):
            mine = {i: v for i, v in enumerate(step.hidden_outs) if v in group and is_float(v)}

            def outputs(added, mine=mine):
                run = lambda h, s, x, y, a: self.program.outputs(
                    self.params, h, s, x, {v: a[i] for i, v in mine.items()}, y, feedback
                )
                return self._over_time(run)(added)

            if mine:
                [credit] = jax.vjp(outputs, {i: found[i] for i in mine})[1](list(cotangents))
                for i, c in credit.items():
                    found[i] = c
        return found

    def from_signals(self, signals: Sequence[Any]) -> tuple[list, list]:
        """Signals at the new hidden leaves to credit of each relation's y and of the old hidden leaves, along position-wise paths."""
        floats = [i for i, v in enumerate(self.program.step.hidden_vars) if is_float(v)]

        def new(cuts, along, moving):
            run = lambda h, s, x, y, a, m: [
                self.program.dual(
                    self.params, h, s, x, moving=m, along=a, known=y, join=False, cuts=cuts
                )[0][i]
                for i in floats
            ]
            return self._over_time(run)(along, moving)

        values, pull = self._pull_both(new, self._zeros(), list(self.before))
        return pull([signals[i].astype(v.dtype) for i, v in zip(floats, values, strict=True)])

    def step(self, k: Any) -> Window:
        """One of the steps, as a window."""
        at = lambda leaves: [jax.lax.dynamic_index_in_dim(a, k, keepdims=False) for a in leaves]
        return Window(
            self.program,
            self.params,
            at(self.before),
            at(self.before_other),
            [x[None] for x in at(self.inputs)],
            1,
        )

    def push(self, hidden: Sequence[Any], other: Sequence[Any]) -> tuple[list, list]:
        """Tangents of the entry state to those of the exit state, both of the float leaves."""
        step, (h0, s0) = self.program.step, self.entry
        moving_h = [i for i, v in enumerate(step.hidden_vars) if is_float(v)]
        moving_s = [i for i, v in enumerate(step.other_vars) if is_float(v)]
        handed = self.program.loop.before(self.params)

        def run(h, s):
            def forward(carry, x):
                return self.program.loop.body(handed, *carry, x)[:2], None

            at = lambda old, idx, new: [
                dict(zip(idx, new, strict=True)).get(i, a) for i, a in enumerate(old)
            ]
            (h, s), _ = scan(
                forward, (at(h0, moving_h, h), at(s0, moving_s, s)), list(self.inputs), self.length
            )
            return [h[i] for i in moving_h], [s[i] for i in moving_s]

        return jax.jvp(
            run, ([h0[i] for i in moving_h], [s0[i] for i in moving_s]), (list(hidden), list(other))
        )[1]

    @cached_property
    def operands(self) -> list:
        """What multiplies the weight of each relation, step by step."""
        return self._over_time(
            lambda h, s, x, y: self.program.dual(self.params, h, s, x, moving=h, known=y)[2]
        )()

    # ---- position-wise factors ----

    @cached_property
    def _factors(self) -> dict[int, tuple[jax.Array, dict[int, list[jax.Array]]]]:
        return {g: self._pull_units(g, units.rows) for g, units in self.layout.units.items()}

    @cached_property
    def _exposed(self) -> dict[int, tuple[jax.Array, dict[int, list[jax.Array]]]]:
        return {g: self._pull_units(g, self.layout.exposed(g)) for g in self.layout.units}

    def transition_out(self, group: int) -> jax.Array:
        """The same as `transition`, for the new values of the states that the rest of the model reads."""
        return self._exposed[group][0]

    def slope_out(self, relation: int, group: int, unit) -> jax.Array:
        """The same as `slope`, for the new values of the states that the rest of the model reads."""
        return self._chosen(self._exposed, relation, group, unit)

    def diagonal(self, group: int) -> jax.Array:
        """`D[k, a, b, unit]` of the whole Jacobian of a step: one pull for each unit, through everything, kept where it comes back to the unit."""
        units = self.layout.units[group]
        samples = len(units.shape) > 1 and sample_axes(self.layout.graph.found) is not None
        inner = units.shape[1:] if samples else units.shape
        handed = self.program.loop.before(self.params)

        def new(moving):
            def run(h, s, x, y, m):
                h = [m.get(i, a) for i, a in enumerate(h)]
                out = self.program.loop.body(handed, h, s, x)[0]
                return jnp.stack(
                    [row.of(out[i]) for row, i in zip(units.rows, units.leaves, strict=True)]
                )

            return self._over_time(run)(moving)

        value, pull = jax.vjp(new, {i: self.before[i] for i in units.leaves})

        def one(at):
            a, u = at
            here = jax.nn.one_hot(u, math.prod(inner), dtype=value.dtype).reshape(inner)
            [dh] = pull(
                jnp.broadcast_to(here, value.shape)
                * jax.nn.one_hot(a, len(units.rows), dtype=value.dtype).reshape(
                    -1, *[1] * len(units.shape)
                )
            )
            rows = jnp.stack(
                [row.of(dh[i]) for row, i in zip(units.rows, units.leaves, strict=True)], 1
            )
            return (rows * here).sum(tuple(range(rows.ndim - len(inner), rows.ndim)))

        S, n = len(units.rows), math.prod(inner)
        found = jax.lax.map(
            one, (jnp.repeat(jnp.arange(S), n), jnp.tile(jnp.arange(n), S))
        )  # (S n, K, S, samples)
        found = found.reshape(S, n, *found.shape[1:])
        return jnp.moveaxis(jnp.moveaxis(found, 1, -1), 0, 1).reshape(
            self.length, S, S, *units.shape
        )

    def transition(self, group: int) -> jax.Array:
        """`D[k, a, b, unit]`, the derivative of carried state `a` by old carried state `b` of the same unit."""
        return self._factors[group][0]

    def slope(self, relation: int, group: int, unit) -> jax.Array:
        """`df[k, a, y]`, the derivative of carried state `a` of the unit that an element of y feeds, by that element."""
        return self._chosen(self._factors, relation, group, unit)

    def _chosen(self, factors, relation: int, group: int, unit) -> jax.Array:
        pulled = factors[group][1][relation]
        if len(pulled) == 1:
            return pulled[0]
        colours = self.layout.units[group].colours.ravel()[unit.clip(0)]
        return sum(jnp.where((colours == c) & (unit >= 0), p, 0) for c, p in enumerate(pulled))

    def _pull_units(
        self, group: int, new_rows: Sequence[Row]
    ) -> tuple[jax.Array, dict[int, list[jax.Array]]]:
        units, leaf_of = (
            self.layout.units[group],
            {v: i for i, v in enumerate(self.program.step.hidden_vars)},
        )
        mine = sorted({f.relation for s in self.layout.slots if s.group == group for f in s.feeds})
        colours = range(int(units.colours.max(initial=0)) + 1)
        D: list = []
        df: dict[int, list[list]] = {r: [[] for _ in colours] for r in mine}
        zeros = self._zeros()
        for row, leaf in [(row, leaf_of[row.old]) for row in new_rows]:

            def new(cuts, along, moving, row=row, leaf=leaf):
                full = [along.get(i, z) for i, z in enumerate(zeros)]
                old = [moving.get(i, b) for i, b in enumerate(self.before)]
                run = lambda h, s, x, y, a, m: row.of(
                    self.program.dual(
                        self.params, h, s, x, moving=m, along=a, known=y, join=False, cuts=cuts
                    )[0][leaf]
                )
                return self._over_time(run)(full, old)

            value, pull = self._pull_both(
                new, {r: zeros[r] for r in mine}, {i: self.before[i] for i in units.leaves}
            )
            total = 0.0
            for c in colours:
                chosen = units.colours == c
                dy, dh = pull(
                    jnp.ones_like(value) * chosen if len(colours) > 1 else jnp.ones_like(value)
                )
                for r in mine:
                    df[r][c].append(dy[r])
                blocks = jnp.stack(
                    [other.of(dh[i]) for other, i in zip(units.rows, units.leaves, strict=True)], 1
                )
                total = total + (jnp.where(chosen, blocks, 0) if len(colours) > 1 else blocks)
            D.append(total)
        return jnp.stack(D, 1), {
            r: [jnp.stack(rows, 1) for rows in per_colour] for r, per_colour in df.items()
        }

    # ---- the whole window in reverse ----

    @cached_property
    def _reverse(self):
        """Graded outputs and exit state of the window as a function of parameters, entry state and inputs, and its pull-back."""
        hidden, other = self.entry
        floats = {i: o for i, o in enumerate(other) if is_float(self.program.step.other_vars[i])}
        inputs = {i: x for i, x in enumerate(self.inputs) if jnp.issubdtype(x.dtype, jnp.inexact)}

        def run(params, hidden, moving, inputs):
            handed = self.program.loop.before(params)

            def forward(carry, x):
                h, s, out, _ = self.program.loop.body(handed, *carry, x)
                return (h, s), self.program.graded(out, h)

            xs = [inputs.get(i, x) for i, x in enumerate(self.inputs)]
            (h, s), outs = scan(
                forward,
                (list(hidden), [moving.get(i, o) for i, o in enumerate(other)]),
                xs,
                self.length,
            )
            return outs, h, [s[i] for i in floats]

        return jax.vjp(run, list(self.params), list(hidden), floats, inputs)

    def pull(
        self,
        outs: Sequence[Any] | None = None,
        hidden: Sequence[Any] | None = None,
        other: Sequence[Any] | None = None,
    ) -> tuple[list, list, list, dict[int, Any]]:
        """Cotangents of graded outputs and exit state to those of parameters, entry hidden state, entry float state of other kinds, inputs."""
        shapes, pull = self._reverse
        given = [
            jax.tree.map(jnp.zeros_like, shape) if ct is None else list(ct)
            for ct, shape in zip((outs, hidden, other), shapes, strict=True)
        ]
        dp, dh, ds, dx = pull(tuple(given))
        return dp, dh, list(ds.values()), dx

    def pull_through(self, outs: Sequence[Any], feedback: Mapping[Var, Any]) -> list:
        """Cotangents of graded outputs to those of the entry hidden state, through feedback weights."""

        def run(hidden):
            def forward(carry, x):
                graded, h, s = self.program.run(self.params, *carry, x, None, feedback)
                return (h, s), graded

            return scan(
                forward, (list(hidden), list(self.entry[1])), list(self.inputs), self.length
            )[1]

        return jax.vjp(run, list(self.entry[0]))[1](list(outs))[0]

    def pull_untraced(self, hidden: Sequence[Any]) -> list:
        """Cotangents of the exit state to those of the parameters, as far as they act in other ways than through the weights of relations."""
        traced = {r.w_var for r in self.layout.relations}

        def run(params):
            handed = self.program.loop.before(params, held=traced)
            forward = lambda carry, x: (self.program.loop.body(handed, *carry, x)[:2], None)
            return scan(
                forward, (list(self.entry[0]), list(self.entry[1])), list(self.inputs), self.length
            )[0][0]

        return jax.vjp(run, list(self.params))[1](list(hidden))[0]

    def pull_to(self, variables: Sequence[Var]) -> Callable:
        """`(hidden, other) -> (hidden, other, variables)`: cotangents of the exit state to those of the entry state and of these variables at each step."""
        hidden, other = self.entry
        floats = {i: o for i, o in enumerate(other) if is_float(self.program.step.other_vars[i])}
        program = perturb(self.program.step.jaxpr, list(variables), [], []).perturb_jaxpr
        n, m = len(hidden), len(hidden) + len(other)
        zeros = [jnp.zeros((self.length, *v.aval.shape), v.aval.dtype) for v in variables]

        def run(hidden, moving, added):
            def forward(carry, x):
                inputs, added = x
                out = eval_jaxpr(
                    program.jaxpr,
                    program.consts,
                    *self.params,
                    *carry[0],
                    *carry[1],
                    *inputs,
                    *added,
                )
                return (out[:n], out[n:m]), None

            (h, s), _ = scan(
                forward,
                (list(hidden), [moving.get(i, o) for i, o in enumerate(other)]),
                (list(self.inputs), added),
                self.length,
            )
            return h, [s[i] for i in floats]

        _, pull = jax.vjp(run, list(hidden), floats, zeros)

        def of(hidden, other):
            dh, ds, dy = pull((list(hidden), list(other)))
            return dh, list(ds.values()), dy

        return of

    def pull_each(self, variables: Sequence[Var]) -> Callable:
        """The same for every step by itself: cotangents of each step's new state, with the steps first, to those of its old state and of these variables."""
        hidden, other, step = self.before, self.before_other, self.program.step
        floats = {i: o for i, o in enumerate(other) if is_float(step.other_vars[i])}
        program = perturb(step.jaxpr, list(variables), [], []).perturb_jaxpr
        n = len(hidden)

        def one(hidden, moving, added, other, inputs):
            out = eval_jaxpr(
                program.jaxpr,
                program.consts,
                *self.params,
                *hidden,
                *[moving.get(i, o) for i, o in enumerate(other)],
                *inputs,
                *added,
            )
            return out[:n], [out[n + i] for i in floats]

        zeros = [jnp.zeros((self.length, *v.aval.shape), v.aval.dtype) for v in variables]
        _, pull = jax.vjp(
            lambda h, m, a: jax.vmap(one)(h, m, a, other, self.inputs), list(hidden), floats, zeros
        )

        def of(hidden, other):
            dh, ds, dy = pull((list(hidden), list(other)))
            return dh, list(ds.values()), dy

        return of

    def operand(self, use: Use) -> Any:
        """What multiplies the weight of a use, step by step."""
        if use.axes is None or use.axes.x is None:
            return None
        wanted = [a for a in use.eqn.invars if isinstance(a, Var)]

        def x(values):
            at = dict(zip(wanted, values, strict=True))
            return use.op.x([a.val if isinstance(a, Literal) else at[a] for a in use.eqn.invars])  # type: ignore[union-attr]

        return self._values(wanted, x)
