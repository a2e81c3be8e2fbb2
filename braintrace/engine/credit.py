"""The credit of each step inside that step: what the classical rules, with single-step credit, are
made of.

Every step is differentiated by itself, all of them at once. The old hidden state is a constant
except along its own position-wise transition, so that nothing here depends on how time is cut into
windows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._jax import Var, is_float
from .course import Moment
from .evaluate import NOTHING, Overrides, Track, Wanted, combine, evaluate, floats_of
from .factors import new_hidden, pull_both
from .known import held_once
from .window import Window

Feedback = Mapping[Var, Any]  # by the output of a product, the weight that credit goes back through
NO_FEEDBACK: Feedback = {}


class Asked(NamedTuple):
    """What gets credit inside a step besides the parameters: the outputs of some relations, by
    number (None: of all), and the inputs."""

    outputs: frozenset[int] | None = None
    inputs: bool = True


ALL = Asked()


class SameStep(NamedTuple):
    """Credit of the parameters (summed over the steps; None for those that are weights of relations
    and nothing else), of each relation's y (None where it was not asked for), and of the inputs by
    number; all but the first with the steps first."""

    params: list[Any]
    y: list[Any]
    inputs: dict[int, Any]


def same_step(
    window: Window,
    cotangents: Sequence[Any],
    feedback: Feedback = NO_FEEDBACK,
    asked: Asked = ALL,
) -> SameStep:
    """The credit of each step inside that step.

    The weights of relations are constants here: their gradient is made from the credit of y.
    """
    program, step = window.program, window.program.step
    relations = window.layout.relations
    ys = {
        i: r.y_var for i, r in enumerate(relations) if asked.outputs is None or i in asked.outputs
    }
    params = {i: window.params[i] for i in program.free_params}
    inputs = floats_of(window.given.inputs) if asked.inputs else {}
    moving = [*[step.param_vars[i] for i in params], *[step.input_vars[i] for i in inputs]]
    wanted = Wanted(program.graded(step.outs, step.hidden_outs), moving)

    def outputs(params, added, inputs):
        params = combine(params, window.params)

        def one(moment: Moment, added, inputs):
            moment = moment._replace(inputs=combine(inputs, moment.inputs))
            overrides = Overrides(
                known=window.known(moment),
                feedback=feedback,
                added={ys[i]: a for i, a in added.items()},
                held=window.weights,
            )
            given = window.at(moment, params)
            return evaluate(program, given, overrides=overrides, wanted=wanted).of(wanted.atoms)

        return window.over_steps(one, added, inputs)

    added = dict(zip(ys, window.zeros_at([*ys.values()]), strict=True))
    _, pull = jax.vjp(outputs, params, added, inputs)
    of_params, of_ys, of_inputs = pull(list(cotangents))
    return SameStep(
        [of_params.get(i) for i in range(len(window.params))],
        [of_ys.get(i) for i in range(len(relations))],
        of_inputs,
    )


def of_old_state(
    window: Window, cotangents: Sequence[Any], feedback: Feedback = NO_FEEDBACK
) -> list[Any]:
    """Credit of the old hidden leaves along their own transition, by way of all that reads the new
    ones in the same step; with the steps first."""
    program, step = window.program, window.program.step
    wanted = Wanted(program.graded(step.outs, step.hidden_outs))

    def outputs(moving):
        def one(moment: Moment, moving):
            overrides = Overrides(known=window.known(moment), feedback=feedback)
            track = Track(
                start=dict(zip(step.hidden_vars, moving, strict=True)),
                cuts=program.analysis.cuts,
                joins=frozenset(step.hidden_outs),
                detours=window.detours(moment),
                overrides=overrides,
            )
            given = window.at(moment)
            return evaluate(program, given, track, overrides, wanted).of(wanted.atoms)

        return window.over_steps(one, moving)

    return jax.vjp(outputs, list(window.before))[1](list(cotangents))[0]


def of_state_before(
    window: Window, cotangents: Sequence[Any], feedback: Feedback = NO_FEEDBACK
) -> list[Any] | None:
    """Credit of the old hidden leaves from outputs that read them directly (a spike before its
    reset, a read-out of the old state): credit of the step before. None where no output does."""
    if not window.layout.read_before:
        return None
    program, step = window.program, window.program.step

    def outputs(moving):
        def one(moment: Moment, moving):
            overrides = Overrides(
                known=window.known(moment), feedback=feedback, fixed=frozenset(step.hidden_outs)
            )
            given = window.at(moment)._replace(hidden=moving)
            values = evaluate(program, given, overrides=overrides)
            new = [held_once(a) for a in values.of(step.hidden_outs)]
            return program.graded(values.of(step.outs), new)

        return window.over_steps(one, moving)

    return jax.vjp(outputs, list(window.before))[1](list(cotangents))[0]


def along_units(
    window: Window, cotangents: Sequence[Any], feedback: Feedback = NO_FEEDBACK
) -> list[Any]:
    """The part of the credit of each relation's y that arrives along position-wise paths, `(K, *y)`
    each."""
    program, step = window.program, window.program.step
    ys = [r.y_var for r in window.layout.relations]

    def outputs(added):
        def one(moment: Moment, added):
            overrides = Overrides(known=window.known(moment), feedback=feedback)
            track = Track(
                start=dict(zip(step.hidden_vars, moment.hidden, strict=True)),
                added=dict(zip(ys, added, strict=True)),
                cuts=program.analysis.use_cuts,
                joins=frozenset(step.hidden_outs),
                detours=window.detours(moment),
                overrides=overrides,
            )
            values = evaluate(program, window.at(moment), track, overrides)
            return program.graded(values.of(step.outs), values.of(step.hidden_outs))

        return window.over_steps(one, added)

    return jax.vjp(outputs, window.zeros_at(ys))[1](list(cotangents))[0]


def of_new_state(
    window: Window,
    cotangents: Sequence[Any],
    feedback: Feedback = NO_FEEDBACK,
    together: bool = False,
) -> list[Any]:
    """The learning signal: credit of each new hidden leaf inside its step, `(K, *leaf)` each.

    The other states of its group are held fixed meanwhile; with `together` all other states are.
    """
    step = window.program.step
    signals = window.zeros_at(step.hidden_vars)
    leaves = {i: v for i, v in enumerate(step.hidden_outs) if is_float(v)}
    for mine in [Moved(leaves, held=True)] if together else _moved_at_once(window, leaves):
        pull = _pull_to_new(window, mine, feedback)
        for i, credit in pull(list(cotangents)).items():
            signals[i] = credit
    return signals


def through_readers(
    window: Window, readers: Mapping[int, Any], feedback: Feedback = NO_FEEDBACK
) -> list[Any]:
    """Credit of each new hidden leaf by way of others that read it in the same step, with the rest
    of its group held fixed.

    Args:
        window: the step is its first.
        readers: the credit of those that read, by number.
        feedback: weights that credit goes back through.
    """
    first, step = window.step(0), window.program.step
    through = [jnp.zeros(v.aval.shape, v.aval.dtype) for v in step.hidden_outs]
    leaves = {i: v for i, v in enumerate(step.hidden_outs) if i not in readers and is_float(v)}
    for mine in _moved_at_once(window, leaves):
        pull = _pull_to_new(first, mine, feedback, [step.hidden_outs[i] for i in readers])
        for i, credit in pull([a[None] for a in readers.values()]).items():
            through[i] = credit[0]
    return through


class Moved(NamedTuple):
    """New hidden leaves by number, of which one pull gives the credit; and whether each is held
    fixed while another moves."""

    leaves: dict[int, Var]
    held: bool


def _moved_at_once(window: Window, leaves: dict[int, Var]) -> list[Moved]:
    """These leaves in as few pulls as their groups allow: a group of which a state reads another
    one has a pull of its own, in which they are held."""
    layout = window.layout
    by_group = {
        g.index: {i: v for i, v in leaves.items() if v in g.outvars} for g in layout.graph.groups
    }
    alone = {g: mine for g, mine in by_group.items() if layout.read_in_step.by_itself(g)}
    rest = {i: v for g, mine in by_group.items() if g not in alone for i, v in mine.items()}
    sets = [Moved(rest, held=False), *[Moved(mine, held=True) for mine in alone.values()]]
    return [mine for mine in sets if mine.leaves]


def _pull_to_new(
    window: Window, mine: Moved, feedback: Feedback, seen: Sequence[Var] | None = None
) -> Callable[[list[Any]], dict[int, Any]]:
    """From credit of what is `seen`, the graded outputs by default, to that of these new hidden
    leaves."""
    program, step = window.program, window.program.step
    ends = program.graded(step.outs, step.hidden_outs) if seen is None else seen
    wanted = Wanted(ends)

    def outputs(moved):
        def one(moment: Moment, moved):
            known = window.known(moment)
            terms = {v: moved[i] for i, v in mine.leaves.items()}
            track = Track(
                born=terms if mine.held else NOTHING,
                added=NOTHING if mine.held else terms,
                overrides=Overrides(known=known, feedback=feedback),
            )
            overrides = Overrides(known=known)
            given = window.at(moment)
            return evaluate(program, given, track, overrides, wanted).on_track(ends)

        return window.over_steps(one, moved)

    zeros = dict(zip(mine.leaves, window.zeros_at([*mine.leaves.values()]), strict=True))
    _, pull = jax.vjp(outputs, zeros)
    return lambda credit: pull(credit)[0]


def from_signals(window: Window, signals: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Signals at the new hidden leaves to credit of each relation's y and of the old hidden leaves,
    along position-wise paths; all with the steps first."""
    step, relations = window.program.step, window.layout.relations
    floats = [i for i, v in enumerate(step.hidden_vars) if is_float(v)]

    def one(moment: Moment, signals):
        def new_floats(cuts, added, moving):
            return new_hidden(window, moment, cuts, added, moving, floats)

        ys = enumerate(r.y_var.aval for r in relations)
        added = {r: jnp.zeros(y.shape, y.dtype) for r, y in ys}
        values, pull = pull_both(window, new_floats, added, list(moment.hidden))
        return pull([a.astype(v.dtype) for a, v in zip(signals, values, strict=True)])

    at_y, at_hidden = window.over_steps(one, [signals[i] for i in floats])
    return [at_y[r] for r in range(len(relations))], at_hidden
