"""A window: K steps of a program from a given state, and what may be asked about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._jax import Literal, Var, is_float, run_jaxpr
from ..graph.sources import weight_program
from ..graph.uses import Use
from ..ops.axes import Op
from ..plan.layout import Layout
from ..plan.self_paths import Detour
from .course import Course, Moment, State
from .evaluate import PLAIN, Given, Overrides, Spared, Values, combine, evaluate, floats_of
from .factors import Factors
from .loop import all_steps, moved_up, scan
from .program import Program
from .split import TOGETHER, Split


class Cotangents(NamedTuple):
    """Credit of what a window (or each step of it, with the steps first) gives; None for none.

    `outs` are those of the graded outputs, with the steps first. `hidden` and `other` are those of
    the state at the end, one for each leaf; leaves that are not float are passed over.
    """

    outs: Values | None = None
    hidden: Values | None = None
    other: Values | None = None


class Pulled(NamedTuple):
    """Credit of what a window is made from. Leaves that are not float, and what was not asked for,
    are None.

    `inputs` and `variables` have the steps first.
    """

    params: list[Any]
    hidden: list[Any]
    other: list[Any]
    inputs: list[Any]
    variables: list[Any]


class Window:
    """K steps of a program. All arrays have the steps as their first axis.

    Nothing is computed before it is asked for, and under `jit` nothing is computed that is not
    used.

    Args:
        program: the compiled step.
        given: captured values, parameters and the state at the entry; the inputs have the steps
            first, and so has `given.spared.ok`. A sample that is left out of a step keeps its
            state, and is left out of all derivatives there.
        length: K.
        steps: the number of steps done before, if it is known.
        split: how the samples are cut over devices.
        went: its course and the state at its end, where it was run before.
    """

    def __init__(
        self,
        program: Program,
        given: Given,
        length: int,
        steps: Any = None,
        split: Split = TOGETHER,
        went: tuple[Course, State] | None = None,
    ):
        self.program, self.length, self.steps, self.split = program, length, steps, split
        self.given = _stand_in(program.step.input_vars, given)
        self.course, (self.hidden, self.other) = self._run() if went is None else went
        self.before, self.before_other, self.outs, self.kept = self.course

    def _run(self) -> tuple[Course, State]:
        program, given, length = self.program, self.given, self.length
        start, inputs = (list(given.hidden), list(given.other)), list(given.inputs)
        of_model = given.captured, given.params
        if given.spared is None:
            exit, kept = program.phases(length).run(*of_model, *start, inputs, length)
        else:
            handed = program.loop.before(*of_model)
            exit, kept = scan(partial(self._forward, handed), start, (inputs, self._ok), length)
        return Course(*kept), exit

    def _forward(self, handed: Values, carry: tuple, x: tuple) -> tuple[tuple, tuple]:
        """One step, in which some samples may be left out."""
        inputs, ok = x
        start = self._of_others(carry, ok)
        turn = self.program.loop.body(handed, *start, inputs)
        new = self._of_sample(carry, (turn.hidden, turn.other), ok)
        return new, (*start, turn.outs, turn.wanted)

    @property
    def layout(self) -> Layout:
        return self.program.layout

    @property
    def _ok(self) -> Any:
        """Who takes part, with the steps first; nothing where everyone does."""
        return () if self.given.spared is None else self.given.spared.ok

    def _spared(self, ok: Any) -> Spared | None:
        """Who takes part in one step."""
        spared = self.given.spared
        return None if spared is None else spared._replace(ok=ok)

    def _of_others(self, state: tuple, ok: Any) -> tuple[list[Any], list[Any]]:
        """A state as a step is evaluated with it: that of another in the place of a sample that is
        left out."""
        spared, step = self._spared(ok), self.program.step
        if spared is None:
            return state
        hidden = [spared.stand_in(*of) for of in zip(step.hidden_vars, state[0], strict=True)]
        other = [spared.stand_in(*of) for of in zip(step.other_vars, state[1], strict=True)]
        return hidden, other

    def _of_sample(self, old: tuple, new: tuple, ok: Any) -> tuple[list[Any], list[Any]]:
        """The state after a step: a sample that is left out keeps its own."""
        spared, step = self._spared(ok), self.program.step
        if spared is None:
            return new
        hidden = zip(step.hidden_vars, new[0], old[0], strict=True)
        other = zip(step.other_vars, new[1], old[1], strict=True)
        return [spared.choose(*of) for of in hidden], [spared.choose(*of) for of in other]

    @property
    def params(self) -> Values:
        return self.given.params

    @cached_property
    def moments(self) -> Moment:
        """All steps, each with what is known of it."""
        detours = [self._comes_back(d) for d in self.program.detours]
        state, inputs = (self.before, self.before_other), self.given.inputs
        return Moment(*state, inputs, self.kept, detours, self._ok, self._new_states)

    @property
    def _renewed(self) -> dict[int, Var]:
        """The new states that are known: none where samples are left out, which keep their own."""
        return self.program.renewed if self.given.spared is None else {}

    @cached_property
    def _new_states(self) -> list[Any]:
        return [moved_up(self.before[i], self.hidden[i]) for i in self._renewed]

    def moment(self, k: int) -> Moment:
        """One of the steps, without an axis of steps."""
        return jax.tree.map(lambda a: a[k], self.moments)

    def over_steps(self, f: Callable, *moving: Any) -> Any:
        """`f(moment, *moving of that step)` for all steps at once."""
        return all_steps(f, self.length, self.moments, *moving)

    def at(self, moment: Moment, params: Values | None = None) -> Given:
        """What one step starts from."""
        params = self.params if params is None else params
        state = moment.hidden, moment.other, moment.inputs
        return Given(self.given.captured, params, *state, self._spared(moment.ok))

    def known(self, moment: Moment) -> Mapping[Var, Any]:
        """What is known of one step, by variable: what the loop kept, and the new states."""
        kept = dict(zip(self.program.kept, moment.kept, strict=True))
        return dict(zip(self._renewed.values(), moment.new, strict=True)) | kept

    def detours(self, moment: Moment) -> Mapping[Detour, Any]:
        """What a unit's change comes back as in one step, by detour."""
        return dict(zip(self.program.detours, moment.detours, strict=True))

    def zeros_at(self, variables: Sequence[Var]) -> list[jax.Array]:
        """A zero for each of these variables at each step."""
        return [jnp.zeros((self.length, *v.aval.shape), v.aval.dtype) for v in variables]

    def step(self, k: Any) -> Window:
        """One of the steps, as a window."""

        def at_k(leaves):
            return [jax.lax.dynamic_index_in_dim(a, k, keepdims=False) for a in leaves]

        inputs = [x[None] for x in at_k(self.given.inputs)]
        given = self.given._replace(
            hidden=at_k(self.before), other=at_k(self.before_other), inputs=inputs
        )
        if given.spared is not None:
            [ok] = at_k([self._ok])
            given = given._replace(spared=given.spared._replace(ok=ok[None]))
        steps = None if self.steps is None else self.steps + k
        return Window(self.program, given, 1, steps, self.split)

    # ---- values inside the steps ----

    def values(self, wanted: Sequence[Var]) -> list[Any]:
        """The values of some variables at all steps, `(K, *shape)` each."""
        step, known = self.program.step, [*self.program.kept, *self._renewed.values()]
        made_of = self.program.making(wanted, known)
        values = [*self.given.captured, *self.params, *self.before, *self.before_other]
        values += [*self.given.inputs, *self.kept, *self._new_states]
        value_of = dict(zip([*step.jaxpr.invars, *known], values, strict=True))
        constant = {*step.captured_vars, *step.param_vars}
        first = [value_of[v] for v in made_of.invars if v in constant]
        moving = [value_of[v] for v in made_of.invars if v not in constant]

        def one(_, moving):  # with their numbers, since a value may be the same in all steps
            return run_jaxpr(made_of, *first, *moving)

        return all_steps(one, self.length, jnp.arange(self.length), moving)

    def operand(self, use: Use) -> Any:
        """What multiplies the weight of a use at all steps, `(K, ...)`; None for an element-wise
        use."""
        if use.op is None or use.op.axes.x is None:
            return None
        op = use.op
        wanted = [a for a in use.eqn.invars if isinstance(a, Var)]

        def one(values):
            at = dict(zip(wanted, values, strict=True))
            return op.x([a.val if isinstance(a, Literal) else at[a] for a in use.eqn.invars])

        x = all_steps(one, self.length, self.values(wanted))
        return jnp.real(x) if self.program.was_real(use.x_var) else x

    @cached_property
    def ops(self) -> list[Op]:
        """The op of each relation, with its arrays among the values of this program."""
        return self.layout.linked_ops(self.given.captured)

    @cached_property
    def weights(self) -> dict[int, dict[int, Any]]:
        """The values of `program.relation_weights`."""
        wanted = self.program.relation_weights
        at = list(dict.fromkeys(v for of in wanted.values() for v in of.values()))
        made = weight_program(self.program.step, at)(self.given.captured, *self.params)
        value = dict(zip(at, made, strict=True))
        return {k: {i: value[v] for i, v in of.items()} for k, of in wanted.items()}

    @cached_property
    def operands(self) -> list[Any]:
        """What multiplies the weight of each relation at all steps."""
        return [self.operand(r.use) for r in self.layout.relations]

    def _comes_back(self, d: Detour) -> jax.Array:
        """What a unit's change comes back as over two products at all steps."""
        assert d.second.x_var is not None
        between = self.program.analysis.along({d.seed}, [d.first.y[0]], [d.second.x_var])
        start, *free = self.values([d.first.y[0], *between.free])

        def follow(y):
            return all_steps(lambda free, y: between(free, y)[0], self.length, free, y)

        _, slopes = jax.jvp(follow, (start,), (jnp.ones_like(start),))
        weights = weight_program(self.program.step, [d.first.w, d.second.w])
        return d.scale(slopes, *weights(self.given.captured, *self.params))

    # ---- position-wise factors ----

    @cached_property
    def factors(self) -> Factors:
        """`D` and `df` of the states that are carried."""
        return Factors(self, lambda group: self.layout.units[group].rows)

    @cached_property
    def exposed_factors(self) -> Factors:
        """`D` and `df` of the new values of the states that the rest of the model reads."""
        return Factors(self, self.layout.exposed)

    # ---- derivatives ----

    @cached_property
    def reverse(self) -> Callable[[Cotangents], Pulled]:
        """Credit of outputs and exit state to that of everything the window is made from."""
        return self.vjp('params', 'hidden', 'other', 'inputs')

    def vjp(
        self,
        *to: str,
        variables: Sequence[Var] = (),
        per_step: bool = False,
        overrides: Overrides = PLAIN,
    ) -> Callable[[Cotangents], Pulled]:
        """A function from credit of what the window gives to credit of what it is made from.

        Args:
            to: what gets credit: 'params', 'hidden', 'other' (the state at the entry), 'inputs'.
            variables: these get credit too, at each step.
            per_step: every step by itself: the state at the end and at the entry are those of each
                step, with the steps first.
            overrides: what differs from the program as it is written.
        """
        state = (self.before, self.before_other) if per_step else self.given[2:4]
        places = {
            'params': self.params,
            'hidden': state[0],
            'other': state[1],
            'inputs': self.given.inputs,
        }
        moving = {name: floats_of(places[name]) for name in to}

        def run(moving: dict[str, dict[int, Any]], added: list[Any]):
            values = {name: combine(moving.get(name, {}), a) for name, a in places.items()}
            turn = self.turn(values['params'], overrides, variables)
            if per_step:
                state = values['hidden'], values['other']
                inputs = values['inputs'], added, self._ok
                (hidden, other), outs = all_steps(turn, self.length, state, inputs)
            else:
                start = values['hidden'], values['other']
                xs = values['inputs'], added, self._ok
                (hidden, other), outs = scan(turn, start, xs, self.length)
            return Cotangents(outs, self._float_hidden(hidden), self._float_other(other))

        made, pull = jax.vjp(run, moving, self.zeros_at(variables))

        def credit_of(given: Cotangents) -> Pulled:
            chosen = Cotangents(
                given.outs,
                None if given.hidden is None else self._float_hidden(given.hidden),
                None if given.other is None else self._float_other(given.other),
            )
            filled = [
                jax.tree.map(jnp.zeros_like, like) if ct is None else list(ct)
                for ct, like in zip(chosen, made, strict=True)
            ]
            moved, at_variables = pull(Cotangents(*filled))
            leaves = {
                name: [moved.get(name, {}).get(i) for i in range(len(a))]
                for name, a in places.items()
            }
            return Pulled(**leaves, variables=at_variables)

        return credit_of

    @property
    def inputs(self) -> tuple[Values, list[Any], Any]:
        """What a step of `turn` takes besides the state, for all steps."""
        return list(self.given.inputs), [], self._ok

    def turn(
        self, params: Values, overrides: Overrides = PLAIN, variables: Sequence[Var] = ()
    ) -> Callable:
        """One step as the body of a loop:
        `((hidden, other), (inputs, added, ok)) -> (state, graded outputs)`."""
        program, captured = self.program, self.given.captured
        if overrides is PLAIN and not variables and self.given.spared is None:
            handed = program.loop.before(captured, params)

            def plain(state, x):
                turn = program.loop.body(handed, *state, x[0])
                return (turn.hidden, turn.other), program.graded(turn.outs, turn.hidden)

            return plain

        def changed(state, x):
            inputs, added, ok = x
            given = Given(captured, params, *state, inputs, self._spared(ok))
            terms = dict(zip(variables, added, strict=True))
            values = evaluate(program, given, overrides=replace(overrides, added=terms))
            hidden, outs = values.of(program.step.hidden_outs), values.of(program.step.outs)
            new = self._of_sample(state, (hidden, values.of(program.step.other_outs)), ok)
            return new, program.graded(outs, hidden)

        return changed

    def _float_hidden(self, leaves: Values) -> list[Any]:
        hidden = self.program.step.hidden_vars
        return [a for a, v in zip(leaves, hidden, strict=True) if is_float(v)]

    def _float_other(self, leaves: Values) -> list[Any]:
        other = self.program.step.other_vars
        return [a for a, v in zip(leaves, other, strict=True) if is_float(v)]


def _stand_in(input_vars: Sequence[Var], given: Given) -> Given:
    """The inputs as steps are evaluated with them, where samples are left out."""
    spared = given.spared
    if spared is None:
        return given

    def one(ok, inputs):
        pairs = zip(input_vars, inputs, strict=True)
        return [spared._replace(ok=ok).stand_in(v, a) for v, a in pairs]

    return given._replace(inputs=jax.vmap(one)(spared.ok, list(given.inputs)))
