"""Steps that are not finite, left out sample by sample.

A block of steps is run as it is, and looked at: states, traces, losses and gradients. Only if one
of them is not finite is it run again, with care. Then a sample takes no part in a step that would
give it a state, a trace or a gradient that is not finite: it keeps its state and its traces, and
adds nothing. With single-step credit that goes step by step, so that a block gives what windows of
one step give; with multi-step credit the window stays whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from .._jax import Var
from ..engine.evaluate import Given, Spared, along_axis, is_inexact
from ..engine.loop import scan
from ..engine.window import Cotangents, Window
from ..rules.carrier import Traces
from .records import Block, Carried, Outcome

if TYPE_CHECKING:
    from .core import Core

POLICIES = ('keep', 'skip', 'raise')


def check_policy(nonfinite: Any) -> str:
    """What a user says about numbers that are not finite."""
    if nonfinite not in POLICIES:
        raise ValueError(f"`nonfinite` must be 'keep', 'skip' or 'raise', got {nonfinite!r}.")
    return nonfinite


def all_finite(tree: Any) -> jax.Array:
    """Whether every number of a tree is finite."""
    flags = [jnp.isfinite(a).all() for a in jax.tree.leaves(tree) if is_inexact(a)]
    return jnp.stack(flags).all() if flags else jnp.array(True)


def finite_by_sample(a: Any, axis: int | None, size: int, lead: int = 0) -> jax.Array:
    """Whether each sample of an array is finite, `(*lead, samples)`; None: all of it is one."""
    if not is_inexact(a):
        return jnp.ones((*jnp.shape(a)[:lead], size), bool)
    kept = range(lead) if axis is None else (*range(lead), lead + axis)
    flags = jnp.isfinite(a).all(tuple(k for k in range(jnp.ndim(a)) if k not in kept))
    return flags[..., None] if axis is None else flags


def _finite_or_zero(a: Any) -> Any:
    return jnp.where(jnp.isfinite(a), a, 0) if is_inexact(a) else a


class Settled(NamedTuple):
    """Who takes part in each step, `(K, samples)`, and the outputs as the model itself gives
    them."""

    ok: jax.Array
    outs: list[Any]


def run_with_care(core: Core, carried: Carried, block: Block) -> Outcome:
    """A block in which samples are left out of the steps that are not finite for them. A trace
    that was not finite before begins anew."""
    carried = carried._replace(traces=jax.tree.map(_finite_or_zero, carried.traces))
    if not core.single_step or block.cotangents is None or block.length == 1:
        return _whole(core, carried, block)

    def turn(state, x):
        carried, totals = state
        inputs, cotangents, steps = jax.tree.map(lambda a: a[None], x)
        extra = block.extra._replace(steps=steps)
        if extra.weights is not None:
            extra = extra._replace(weights=cotangents[0])
        one = block._replace(inputs=inputs, cotangents=cotangents, extra=extra, length=1)
        made = _whole(core, carried, one._replace(alone=False, keep=True))
        sums = jax.tree.map(jnp.add, totals, (made.params, made.weights))
        return (made.carried, sums), jax.tree.map(lambda a: a[0], (made.outs, made.inputs))

    start = core.with_traces(carried) if block.alone else carried
    xs = list(block.inputs), list(block.cotangents), block.extra.steps
    totals = core.nothing_yet(block.weights.params)
    (after, sums), made = jax.lax.scan(turn, (start, totals), xs, length=block.length)
    if not block.keep:
        after = after._replace(traces=carried.traces)
    return Outcome(after, *sums, *made)


def _whole(core: Core, carried: Carried, block: Block) -> Outcome:
    """One window, with whoever can take part in each of its steps; with nobody, if even that is
    not finite."""
    settled = _settle(core, carried, block)
    made = _leaving_out(core, carried, block, settled)
    shared = [a for key, a in made.carried.traces.items() if key not in core.trace_axes]
    fine = block.split.all(all_finite((made.params, made.weights, shared)))
    made = made._replace(outs=_outs(core, block, settled, made.outs))
    if block.is_loss:
        made = made._replace(inputs={})
    nothing = jax.tree.map(jnp.zeros_like, made)
    stays = nothing._replace(carried=carried._replace(steps=made.carried.steps))
    stays = stays._replace(outs=_outs(core, block, settled, None))
    chosen: Outcome = jax.tree.map(lambda a, b: jnp.where(fine, a, b), made, stays)
    more = jnp.where(fine, (~settled.ok).sum(), settled.ok.size).astype(jnp.int32)
    skipped = core.counted(carried.skipped, block.split.total(more))
    after = chosen.carried._replace(skipped=skipped)
    return chosen._replace(carried=after)


def _leaving_out(core: Core, carried: Carried, block: Block, settled: Settled) -> Outcome:
    """A window with whoever takes part, and the traces of the others as they were."""
    ok = settled.ok
    if not core.trace_axes or not block.keep:
        return core.attempt(carried, block, ok)[1]
    if core.single_step and block.cotangents is not None:
        outcome = core.attempt(carried, block, ok)[1]
        traces = _choose(core, ok[0], outcome.carried.traces, carried.traces)
    else:
        window, outcome = core.attempt(carried, block._replace(keep=False), ok)
        traces = _advance_by_steps(core, carried.traces, window, ok)[0]
    return outcome._replace(carried=outcome.carried._replace(traces=traces))


def _choose(core: Core, ok: jax.Array, new: Traces, old: Traces) -> Traces:
    """The new traces of the samples that take part, the old ones of the others."""
    chosen = dict(new)
    for key, axis in core.trace_axes.items():
        mask = along_axis(ok, axis, jnp.ndim(new[key]))
        chosen[key] = jnp.where(mask, new[key], old[key])
    return chosen


def _advance_by_steps(
    core: Core, traces: Traces, window: Window, ok: jax.Array
) -> tuple[Traces, jax.Array]:
    """The traces at the end of a window, and who could take part in each step of it: a step leaves
    the traces of some as they were."""

    def turn(traces, x):
        k, ok = x
        new = {**traces, **core.advance(traces, window.step(k))}
        for key, axis in core.trace_axes.items():
            ok = ok & finite_by_sample(new[key], axis, ok.shape[0])
        return _choose(core, ok, new, traces), ok

    return jax.lax.scan(turn, traces, (jnp.arange(window.length), ok))


def _outs(core: Core, block: Block, settled: Settled, made: list[Any] | None) -> list[Any]:
    """The outputs as the model gives them. Losses of samples that were left out are zero; a loss
    over all samples is that of those who took part, in `made`, and zero if nobody did."""
    outs = list(settled.outs)
    for i in core.program.graded_outs if block.is_loss else ():
        v: Any = core.program.step.outs[i]
        axis = core.samples.axes.get(v) if isinstance(v, Var) else None
        if made is None:
            outs[i] = jnp.zeros_like(outs[i])
        elif axis is not None:
            outs[i] = jnp.where(settled.ok, outs[i], 0)
        else:
            some = settled.ok.any(1).reshape(-1, *[1] * (outs[i].ndim - 1))
            outs[i] = jnp.where(some, made[i], 0)
    return outs


# ---- who takes part ----


def _settle(core: Core, carried: Carried, block: Block) -> Settled:
    """Who can take part in each step. Everybody tries; who meets a number that is not finite is
    left out of that step, and all is tried again, since what follows is another story then."""

    def again(state):
        ok, _ = state
        forward = _forward(core, carried, block, ok)
        window = core.window(block, carried, forward.ok)
        fine = forward.ok & _by_credit(core, window, block)
        if core.trace_axes and block.keep:
            own = core.with_traces(carried) if block.alone else carried
            fine = fine & _advance_by_steps(core, own.traces, window, fine)[1]
        return fine, ~block.split.all((fine == ok).all())

    everybody = jnp.ones((block.length, core.samples.size), bool)
    ok, _ = jax.lax.while_loop(lambda s: s[1], again, (everybody, jnp.array(True)))
    return Settled(ok, _forward(core, carried, block, ok).outs)


def _forward(core: Core, carried: Carried, block: Block, ok: jax.Array) -> Settled:
    """Who has a finite state after each step, and finite losses in it."""
    program, samples = core.program, core.samples
    step = program.step
    handed = program.loop.before(*block.weights)
    states = [*step.hidden_vars, *step.other_vars]
    losses = [(i, step.outs[i]) for i in program.graded_outs] if block.is_loss else []

    def turn(state, x):
        inputs, ok = x
        made = program.loop.body(handed, *state, inputs)
        for v, a in zip(states, [*made.hidden, *made.other], strict=True):
            ok = ok & _finite(samples, v, a)
        for i, v in losses:
            if isinstance(v, Var) and v in samples.axes:
                ok = ok & _finite(samples, v, made.outs[i])
        spared = Spared(ok, samples.axes)
        chosen = [
            [spared.choose(*of) for of in zip(of_vars, new, old, strict=True)]
            for of_vars, new, old in zip(
                (step.hidden_vars, step.other_vars), (made.hidden, made.other), state, strict=True
            )
        ]
        return tuple(chosen), (ok, made.outs)

    start = list(carried.hidden), list(carried.other)
    _, (fine, outs) = scan(turn, start, (list(block.inputs), ok), block.length)
    return Settled(fine, outs)


def _finite(samples: Any, v: Var, a: Any, lead: int = 0) -> jax.Array:
    """Whether each sample's part of a variable is finite; what belongs to no sample of its own
    counts for all."""
    if v in samples.axes:
        return finite_by_sample(a, samples.axes[v], samples.size, lead)
    flags = finite_by_sample(a, None, samples.size, lead)
    return jnp.broadcast_to(flags, (*flags.shape[:-1], samples.size))


def _by_credit(core: Core, window: Window, block: Block) -> jax.Array:
    """Who has finite outputs of ops, and finite credit there, in each step. Credit that is not
    finite spoils that of all steps before: only the last such step of a sample is to blame."""
    if block.cotangents is None:
        return jnp.ones((window.length, core.samples.size), bool)
    samples = core.samples
    ys = [use.y[0] for use in core.graph.analysis.uses]
    pulled = window.vjp('hidden', variables=ys)(Cotangents(outs=list(block.cotangents)))
    fine = jnp.ones((window.length, samples.size), bool)
    blamed = fine
    for v, value, credit in zip(ys, window.values(ys), pulled.variables, strict=True):
        if v in samples.axes:
            fine = fine & _finite(samples, v, value, 1)
            blamed = blamed & _finite(samples, v, credit, 1)
    for v, credit in zip(window.program.step.hidden_vars, pulled.hidden, strict=True):
        if credit is not None:
            blamed = blamed.at[0].min(_finite(samples, v, credit))
    later = jnp.cumsum(~blamed[::-1], 0)[::-1]
    return fine & (blamed | (later > 1))


def given_of(core: Core, block: Block, carried: Carried, ok: Any) -> Given:
    """What a window starts from, with whoever takes part; None: everybody."""
    spared = None if ok is None else Spared(ok, core.samples.axes)
    captured, params = block.weights
    return Given(captured, params, carried.hidden, carried.other, block.inputs, spared)
