"""The position-wise factors of a window: how a unit's states move on, and what an op's output adds
to them.

Position p of a new state depends on position p alone along these paths, so one pull with ones at
every position yields the factors of all of them at once; where units act on each other's neighbours
along an index map, one pull for each colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..graph.analysis import Row
from ..graph.samples import sample_axes
from ..plan.steady import Steady
from .entries import Entries
from .evaluate import Cuts, Overrides, Track, Wanted, combine, evaluate

if TYPE_CHECKING:
    from .course import Moment
    from .window import Window


class OfGroup(NamedTuple):
    """The factors of one group in a step, entry by entry: `D[new state][old state]` of the shape of
    the units, and by relation, for each colour of units, `df[new state]` of that of y."""

    D: Entries
    df: dict[int, list[list[jax.Array]]]


class Factors:
    """The factors of all groups of a window, for the new states that `rows_of(group)` names: in all
    steps, with the steps first, or in one `moment`, without an axis of steps."""

    def __init__(
        self,
        window: Window,
        rows_of: Callable[[int], Sequence[Row]],
        moment: Moment | None = None,
    ):
        self._window, self._rows_of, self._moment = window, rows_of, moment

    def in_step(self, moment: Moment) -> Factors:
        """Those of one step. A loop that needs them at each of its turns has them so without
        writing them down."""
        return Factors(self._window, self._rows_of, moment)

    @cached_property
    def _of_groups(self) -> dict[int, OfGroup]:
        rows = {g: self._rows_of(g) for g in self._window.layout.units}

        def one(moment: Moment) -> dict[int, OfGroup]:
            pulled = partial(pull_units, self._window, moment)
            return {g: pulled(g, of_group) for g, of_group in rows.items() if of_group}

        return self._window.over_steps(one) if self._moment is None else one(self._moment)

    @cached_property
    def _in_first_step(self) -> dict[int, OfGroup]:
        return self.in_step(self._window.moment(0))._of_groups

    @property
    def _states_axis(self) -> int:
        return 1 if self._moment is None else 0

    def entries(self, group: int) -> Entries:
        """`D[a][b]`, the derivative of new state `a` by old carried state `b` of the same unit."""
        return self._of_groups[group].D

    def transition(self, group: int) -> jax.Array:
        """The same in one array, `D[k, a, b, unit]`."""
        rows = [jnp.stack(row, self._states_axis) for row in self.entries(group)]
        return jnp.stack(rows, self._states_axis)

    def least_entries(self, group: int) -> Entries:
        """The entries with an axis of length one along which they do not change, and None where
        there is no way."""

        def entry(steady: Steady | None, a: int, b: int) -> Any:
            if steady is None:
                return None
            if steady.steps and self._repeats:
                return steady.of_one_step(self._in_first_step[group].D[a][b])[None]
            return self.entries(group)[a][b]

        rows = self._window.layout.steady_transitions[group]
        return [[entry(s, a, b) for b, s in enumerate(row)] for a, row in enumerate(rows)]

    def slopes(self, relation: int, group: int, unit: np.ndarray) -> list[Any]:
        """`df[a]`, the derivative of new state `a`, of the unit that `unit` names for an element of
        y, by that element."""
        by_colour = self._of_groups[group].df[relation]
        if len(by_colour) == 1:
            return by_colour[0]
        colours = self._window.layout.units[group].colours.ravel()[unit.clip(0)]
        there = unit >= 0

        def of_state(of_colours: Sequence[Any]) -> Any:
            return sum(jnp.where((colours == c) & there, df, 0) for c, df in enumerate(of_colours))

        return [of_state(of_colours) for of_colours in zip(*by_colour, strict=True)]

    def slope(self, relation: int, group: int, unit: np.ndarray) -> jax.Array:
        """The same in one array, `df[k, a, y]`."""
        return jnp.stack(self.slopes(relation, group, unit), self._states_axis)

    def least_slopes(self, relation: int, group: int, unit: np.ndarray) -> list[Any]:
        """`slopes` with an axis of length one where they are the same in all steps, for all
        samples, or for all units."""
        steady = self._window.layout.steady_slopes[relation, group]
        if not (steady.steps and self._repeats):
            return self.slopes(relation, group, unit)
        [df] = self._in_first_step[group].df[relation]
        return [steady.of_one_step(a)[None] for a in df]

    @property
    def _repeats(self) -> bool:
        """Whether there are several steps, in all of which everyone takes part."""
        return self._window.length > 1 and self._window.given.spared is None


def pull_units(window: Window, moment: Moment, group: int, new_rows: Sequence[Row]) -> OfGroup:
    """The factors of one group in a step, by pulls from each of these new states."""
    layout, program = window.layout, window.program
    units = layout.units[group]
    leaf_of = {v: i for i, v in enumerate(program.step.hidden_vars)}
    mine = sorted({f.relation for s in layout.slots_of(group) for f in s.feeds})
    colours = range(units.number_of_colours)
    ys = {r: layout.relations[r].y_var.aval for r in mine}
    added = {r: jnp.zeros(y.shape, y.dtype) for r, y in ys.items()}
    moving = {i: moment.hidden[i] for i in units.leaves}
    D: Entries = []
    df: dict[int, list[list]] = {r: [[] for _ in colours] for r in mine}
    for row in new_rows:

        def new_state(cuts, added, moving, row=row):
            old = combine(moving, moment.hidden)
            [new] = new_hidden(window, moment, cuts, added, old, [leaf_of[row.old]])
            return row.of(new)

        value, pull = pull_both(window, new_state, added, moving)
        by_colour = []
        for c in colours:
            ones, chosen = jnp.ones_like(value), units.colours == c
            dy, dh = pull(ones if len(colours) == 1 else ones * chosen)
            for r in mine:
                df[r][c].append(dy[r])
            pairs = zip(units.rows, units.leaves, strict=True)
            slopes = [old.credit(dh[i]) for old, i in pairs]
            by_colour.append(
                slopes if len(colours) == 1 else [jnp.where(chosen, a, 0) for a in slopes]
            )
        D.append([reduce(jnp.add, of_colours) for of_colours in zip(*by_colour, strict=True)])
    return OfGroup(D, df)


def new_hidden(
    window: Window,
    moment: Moment,
    cuts: Cuts,
    added: dict[int, Any],
    moving: Sequence[Any],
    leaves: Sequence[int],
) -> list[Any]:
    """Some of the new hidden leaves, by number, of one step, as functions of the old ones
    (`moving`) and of what is added to the outputs of relations, along position-wise paths."""
    program, layout = window.program, window.layout
    wanted = [program.step.hidden_outs[i] for i in leaves]
    overrides = Overrides(known=window.known(moment))
    track = Track(
        start=dict(zip(program.step.hidden_vars, moving, strict=True)),
        added={layout.relations[r].y_var: a for r, a in added.items()},
        cuts=cuts,
        detours=window.detours(moment),
        overrides=overrides,
    )
    values = evaluate(program, window.at(moment), track, overrides, Wanted(wanted))
    return values.on_track(wanted)


def pull_both(
    window: Window, f: Callable[[Cuts, Any, Any], Any], added: Any, moving: Any
) -> tuple[Any, Callable]:
    """The value of `f(cuts, added, moving)` and its pull-back to both, where the paths of states
    and those of the outputs of ops may end in different places."""
    of_states, of_uses = window.program.analysis.cuts, window.program.analysis.use_cuts
    if of_states is of_uses:
        return jax.vjp(lambda a, m: f(of_states, a, m), added, moving)
    value, to_uses = jax.vjp(lambda a: f(of_uses, a, moving), added)
    _, to_states = jax.vjp(lambda m: f(of_states, added, m), moving)
    return value, lambda ct: (*to_uses(ct), *to_states(ct))


def diagonal(window: Window, group: int) -> jax.Array:
    """`D[k, a, b, unit]` of the whole Jacobian of a step: one pull for each unit, through
    everything, kept where it comes back to the unit."""
    layout, program = window.layout, window.program
    units = layout.units[group]
    samples = len(units.shape) > 1 and sample_axes(layout.graph.analysis) is not None
    inner = units.shape[1:] if samples else units.shape
    states, n = units.states, math.prod(inner)
    handed = program.loop.before(window.given.captured, window.params)

    def new(moving):
        def one(moment, moving):
            hidden = combine(moving, moment.hidden)
            turn = program.loop.body(handed, hidden, moment.other, moment.inputs)
            return units.of_leaves(turn.hidden, 0)

        return window.over_steps(one, moving)

    value, pull = jax.vjp(new, {i: window.before[i] for i in units.leaves})

    def back_to_itself(at):
        state, unit = at
        here = jax.nn.one_hot(unit, n, dtype=value.dtype).reshape(inner)
        of_state = jax.nn.one_hot(state, states, dtype=value.dtype)
        of_state = of_state.reshape(-1, *[1] * len(units.shape))
        [dh] = pull(jnp.broadcast_to(here, value.shape) * of_state)
        rows = units.credit_of_leaves(dh, 1)
        return (rows * here).sum(tuple(range(rows.ndim - len(inner), rows.ndim)))

    every = jnp.repeat(jnp.arange(states), n), jnp.tile(jnp.arange(n), states)
    D = jax.lax.map(back_to_itself, every)  # (states * n, K, states, *samples)
    D = D.reshape(states, n, *D.shape[1:])
    D = jnp.moveaxis(jnp.moveaxis(D, 1, -1), 0, 1)
    return D.reshape(window.length, states, states, *units.shape)
