"""One evaluator of a compiled step.

The *plain* values of a step are what it computes. Beside them a *track* may be followed: a second
value of some variables, along some of the paths only. Position-wise paths are such a track: it
starts at the old hidden state, ends where units are mixed, and joins the plain values at the new
hidden state, so that from there credit flows on freely to the read-out, the loss, the next layer of
the same step. An intermediate that is used both ways (a spike that resets the membrane and is sent
through a matrix) simply exists twice; XLA merges what is equal. `Overrides` says what differs from
the program as it is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from .._jax import Atom, JaxprEqn, Literal, Var, bind
from ..plan.self_paths import Detour
from .known import held_once, known, known_as
from .program import Program

Values = Sequence[Any]
Cuts = Mapping[int, frozenset[int]]  # operands, by the number of their equation
NOTHING: Mapping = MappingProxyType({})


class Spared(NamedTuple):
    """Which samples take part in a step, and which axis of a variable counts them.

    A sample that does not is left out of all derivatives: nothing flows through its states, its
    inputs and the outputs of its ops. It is evaluated with the values of one that does.

    Args:
        ok: `(samples,)`, whether each of them takes part.
        axes: by variable, the axis that counts samples; None where all of it is one sample.
    """

    ok: Any
    axes: Mapping[Var, int | None]

    def hold(self, v: Any, a: Any) -> Any:
        """A value, without derivative where it belongs to a sample that is left out."""
        if v not in self.axes or not is_inexact(a):
            return a
        return jnp.where(self.mask(v, a), a, hold(a))

    def stand_in(self, v: Var, a: Any) -> Any:
        """A value with that of a sample that takes part in the place of those that do not."""
        if v not in self.axes:
            return a
        axis = self.axes[v]
        own = jnp.where(jnp.isfinite(a), a, 0) if is_inexact(a) else a
        if axis is not None:
            of_other = lax.dynamic_index_in_dim(a, jnp.argmax(self.ok), axis)
            own = jnp.where(self.ok.any(), of_other, own)
        return jnp.where(self.mask(v, a), a, hold(own))

    def choose(self, v: Var, new: Any, old: Any) -> Any:
        """The new value of a state, and the old one of a sample that is left out."""
        return jnp.where(self.mask(v, new), new, old) if v in self.axes else new

    def mask(self, v: Var, a: Any) -> Any:
        """`ok` beside a value of this variable."""
        return along_axis(self.ok, self.axes[v], jnp.ndim(a))


def along_axis(flags: Any, axis: int | None, ndim: int) -> Any:
    """One flag for each sample, `(samples,)`, beside an array with the samples on this axis; None:
    all of it is one sample."""
    if axis is None:
        return flags.reshape((1,) * ndim)
    return flags.reshape([-1 if k == axis else 1 for k in range(ndim)])


class Given(NamedTuple):
    """What a step starts from: flat leaves, in the order of the step; and who takes part in it,
    None for everyone."""

    captured: Values
    params: Values
    hidden: Values
    other: Values
    inputs: Values
    spared: Spared | None = None


@dataclass(frozen=True, eq=False)
class Overrides:
    """What differs from the program as it is written.

    Args:
        known: values of products, and of curves of them, that need not be computed again; only
            their derivative is, if it is asked for.
        feedback: by the output of a product, the weight that credit goes back through in place of
            its own.
        added: terms on top of these variables.
        held: values of operands, by equation and operand, in the place of what arrives there: they
            do not move.
        fixed: variables whose derivative ends where they are made.
    """

    known: Mapping[Var, Any] = field(default_factory=lambda: NOTHING)
    feedback: Mapping[Var, Any] = field(default_factory=lambda: NOTHING)
    added: Mapping[Var, Any] = field(default_factory=lambda: NOTHING)
    held: Mapping[int, Mapping[int, Any]] = field(default_factory=lambda: NOTHING)
    fixed: frozenset[Var] = frozenset()


PLAIN = Overrides()


@dataclass(frozen=True, eq=False)
class Track:
    """A second value of some variables, along some of the paths.

    Args:
        start: values at the start of its paths.
        born: by variable made in the step, a term on top of its *plain* value: a path begins here,
            whatever arrives.
        added: by variable, a term on top of what arrives.
        cuts: operands at which its paths end.
        joins: variables whose plain value it becomes, and at which it ends.
        detours: what a unit's change comes back as over each self-path of two products; without a
            value there the track does not take that path.
        overrides: of the values on the track.
    """

    start: Mapping[Var, Any] = field(default_factory=lambda: NOTHING)
    born: Mapping[Var, Any] = field(default_factory=lambda: NOTHING)
    added: Mapping[Var, Any] = field(default_factory=lambda: NOTHING)
    cuts: Cuts = field(default_factory=lambda: NOTHING)
    joins: frozenset[Var] = frozenset()
    detours: Mapping[Detour, Any] = field(default_factory=lambda: NOTHING)
    overrides: Overrides = PLAIN


NO_TRACK = Track()


class Wanted(NamedTuple):
    """What is wanted of an evaluation, so that nothing else is done: the values of some variables,
    and their derivatives by what is on the track, by terms that are added, and by the values given
    for some variables that are `moving`."""

    atoms: Sequence[Atom]
    moving: Sequence[Var] = ()


class Evaluated(NamedTuple):
    """The values of all variables of a step, and those on the track that was followed."""

    plain: dict[Var, Any]
    track: dict[Var, Any]

    def of(self, atoms: Sequence[Atom]) -> list[Any]:
        """The plain values."""
        return [a.val if isinstance(a, Literal) else self.plain[a] for a in atoms]

    def on_track(self, atoms: Sequence[Atom]) -> list[Any]:
        """The values on the track, the plain ones where it has none."""
        plain = self.of(atoms)
        return [
            value if isinstance(a, Literal) else self.track.get(a, value)
            for a, value in zip(atoms, plain, strict=True)
        ]


def evaluate(
    program: Program,
    given: Given,
    track: Track = NO_TRACK,
    overrides: Overrides = PLAIN,
    wanted: Wanted | None = None,
) -> Evaluated:
    """The values of one step from what is given, with a track beside them: all of them, or what is
    wanted."""
    step = program.step
    starting = [*given.captured, *given.params, *given.hidden, *given.other, *given.inputs]
    values = Evaluated(dict(zip(step.jaxpr.invars, starting, strict=True)), dict(track.start))
    for v in overrides.fixed & values.plain.keys():
        values.plain[v] = held_once(values.plain[v])
    spared = given.spared
    if spared is not None:
        for of in values:
            of.update({v: spared.stand_in(v, a) for v, a in of.items()})
    needed = _needed(program, track, overrides, wanted)
    for k, eqn in enumerate(step.jaxpr.eqns):
        if not eqn.outvars or k not in needed:
            continue  # an effect had its turn in the loop
        if needed[k]:
            made = _apply(program, k, eqn, values.of(eqn.invars), overrides)
            followed = _follow(program, k, eqn, made, values, track)
        else:
            made = _changed(eqn, [overrides.known[eqn.outvars[0]]], overrides)
            followed = _with_terms(eqn, made, None, track)
        if spared is not None:
            made = _held(spared, eqn, made)
            followed = None if followed is None else _held(spared, eqn, followed)
        values.plain.update(zip(eqn.outvars, made, strict=True))
        if followed is not None:
            values.track.update(zip(eqn.outvars, followed, strict=True))
        for v in eqn.outvars:
            if v in track.born:
                values.track[v] = values.plain[v] + track.born[v]
                if spared is not None:
                    values.track[v] = spared.hold(v, values.track[v])
            if v in track.joins and v in values.track:
                values.plain[v] = values.track.pop(v)
    return values


def _held(spared: Spared, eqn: JaxprEqn, made: Values) -> list[Any]:
    """The outputs of an equation, without derivative for samples that are left out."""
    return [spared.hold(v, a) for v, a in zip(eqn.outvars, made, strict=True)]


def _follow(
    program: Program, k: int, eqn: JaxprEqn, made: Values, values: Evaluated, track: Track
) -> list[Any] | None:
    """The outputs of an equation on the track; None where the track does not pass through it."""
    plain = values.of(eqn.invars)
    cut = track.cuts.get(k, frozenset())
    arriving = {
        i: values.track[a]
        for i, a in enumerate(eqn.invars)
        if isinstance(a, Var) and a in values.track and i not in cut
    }
    followed = None
    if arriving:
        operands = combine(arriving, plain)
        followed = _apply(program, k, eqn, operands, track.overrides)
    else:
        for path in program.layout.self_paths.get(eqn.outvars[0], ()):
            if path.x not in values.track or (
                isinstance(path, Detour) and path not in track.detours
            ):
                continue
            if isinstance(path, Detour):
                scale = track.detours[path]
            else:
                operands = combine(track.overrides.held.get(k, NOTHING), plain)
                scale = operands[program.weight_operand[eqn.outvars[0]]][path.weight]
            moved = path(values.track[path.x] - values.plain[path.x], scale)
            followed = list(made) if followed is None else followed
            followed[0] = followed[0] + moved
    return _with_terms(eqn, made, followed, track)


def _with_terms(
    eqn: JaxprEqn, made: Values, followed: list[Any] | None, track: Track
) -> list[Any] | None:
    """What is on the track, and the terms that it has on top of these outputs."""
    added = [v for v in eqn.outvars if v in track.added]
    if added and followed is None:
        followed = list(made)
    for v in added:
        place = eqn.outvars.index(v)
        followed[place] = lax.add(followed[place], track.added[v])  # type: ignore[index]
    return followed


def _needed(
    program: Program, track: Track, overrides: Overrides, wanted: Wanted | None
) -> dict[int, bool]:
    """The equations, by number, that are needed, and whether one needs its operands: what is known
    does not where nothing that arrives moves. Behind it nothing is evaluated, so a layer does not
    look at the layers before it, nor a read-out at the units."""
    eqns, self_paths = program.step.jaxpr.eqns, program.layout.self_paths
    if wanted is None:
        return dict.fromkeys(range(len(eqns)), True)
    moved = _moved(program, track, overrides, wanted.moving)
    alive, needed = {a for a in wanted.atoms if isinstance(a, Var)}, {}
    for k in reversed(range(len(eqns))):
        eqn = eqns[k]
        if alive.isdisjoint(eqn.outvars):
            continue
        needed[k] = k in moved or eqn.outvars[0] not in overrides.known
        if needed[k]:
            alive.update(a for a in eqn.invars if isinstance(a, Var))
            alive.update(path.x for v in eqn.outvars for path in self_paths.get(v, ()))
    return needed


def _moved(program: Program, track: Track, overrides: Overrides, moving: Sequence[Var]) -> set[int]:
    """The equations, by number, of which an operand moves, on the track or beside it."""
    on_track: set[Var] = {*track.start, *track.born, *track.added}
    plain: set[Var] = {*moving}
    moved = set()
    for k, eqn in enumerate(program.step.jaxpr.eqns):
        if not eqn.outvars:
            continue
        atoms = {i: a for i, a in enumerate(eqn.invars) if isinstance(a, Var)}
        held, cut = overrides.held.get(k, NOTHING), track.cuts.get(k, frozenset())
        paths = program.layout.self_paths.get(eqn.outvars[0], ())
        moves = any(a in plain for i, a in atoms.items() if i not in held)
        follows = any(a in on_track for i, a in atoms.items() if i not in cut)
        follows = follows or any(path.x in on_track for path in paths)
        if moves or follows:
            moved.add(k)
        if moves:
            plain.update(eqn.outvars)
        if follows:
            on_track.update(eqn.outvars)
        plain.update(v for v in eqn.outvars if v in overrides.added)
        plain.update(v for v in eqn.outvars if v in track.joins and v in on_track)
    return moved


def _apply(
    program: Program, k: int, eqn: JaxprEqn, values: list[Any], overrides: Overrides
) -> list[Any]:
    """The outputs of one equation."""
    values = combine(overrides.held.get(k, NOTHING), values)
    y = eqn.outvars[0]
    if y in overrides.feedback:
        weight = program.weight_operand[y]
        made = [_through_feedback(eqn, values, weight, overrides.feedback[y])]
    elif y in overrides.known:
        made = [known(eqn, values, overrides.known[y], program.side_by_side(eqn))]
    else:
        made = bind(eqn, values)
    return _changed(eqn, made, overrides)


def _changed(eqn: JaxprEqn, made: list[Any], overrides: Overrides) -> list[Any]:
    """The outputs of an equation with the terms on top of them, and held where they are fixed."""
    for place, v in enumerate(eqn.outvars):
        if v in overrides.added:
            made[place] = lax.add(made[place], overrides.added[v])
        if v in overrides.fixed:
            made[place] = held_once(made[place])
    return made


def _through_feedback(eqn: JaxprEqn, values: Values, weight: int, feedback: Any) -> Any:
    """The product as it is, whose other operands get their credit through the feedback weight."""
    [forward] = bind(eqn, [v if i == weight else held_once(v) for i, v in enumerate(values)])
    [back] = bind(eqn, [feedback if i == weight else v for i, v in enumerate(values)])
    return known_as(forward, forward + back)


def hold(value: Any) -> Any:
    """The value, without any derivative."""
    return lax.stop_gradient(value) if is_inexact(value) else value


def is_inexact(value: Any) -> bool:
    """Whether a derivative can flow through an array."""
    return jnp.issubdtype(jnp.result_type(value), jnp.inexact)


def floats_of(leaves: Values) -> dict[int, Any]:
    """Those leaves that a derivative can flow through, by number."""
    return {i: a for i, a in enumerate(leaves) if is_inexact(a)}


def combine(moving: Mapping[int, Any], leaves: Values) -> list[Any]:
    """The leaves, with those that move in their places."""
    return [moving.get(i, a) for i, a in enumerate(leaves)]
