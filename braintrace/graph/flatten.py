"""One flat program: calls opened, control flow turned into plain equations where that is possible,
dead code gone.

Takes a Step as a front-end gives it, gives an equal Step in which
- jit, checkpoint and other calls are opened;
- a `cond` that matters to the gradient is all its branches and a `select_n`, a short `scan` (or one
  that holds a weight) is unrolled;
- a call with a custom derivative in which a weight meets data is replaced by its value plus its own
  derivative, in ordinary equations;
- a `while` that carries hidden state position by position has its forward derivative beside it, so
  that reverse mode goes through;
- each new hidden state is a variable of its own;
- what inner programs close over is captured by the step.
"""

from __future__ import annotations

from functools import partial

import jax.numpy as jnp

from .._jax import JaxprEqn, Literal, Traced, Var, new_jaxpr, prune
from ..ops.families import Family, members
from ..ops.register import ETPPrimitive
from ..step import Step
from .control_flow import ControlFlowPolicy, open_cond, open_scan, open_while
from .diagnostics import Diagnostics
from .flags import Trace, seed_flags
from .flat import Flat, Way
from .lines import located
from .open_calls import (
    open_barrier,
    open_call,
    open_custom,
    open_function,
    open_scatter,
    open_sparse,
)


def flatten(
    step: Step, policy: ControlFlowPolicy, diagnostics: Diagnostics, traced: Trace = 'all'
) -> Step:
    """An equal step, flat. `traced` says which weights may have a trace: 'all', 'marked', or a
    function of the path."""
    table = _ways(policy)

    def ways(eqn: JaxprEqn) -> Way | None:
        if isinstance(eqn.primitive, ETPPrimitive):
            return open_function
        return table.get(eqn.primitive.name)

    jaxpr = step.jaxpr
    captured = dict(zip(step.captured_vars, step.captured, strict=True))
    flat = Flat(ways, seed_flags(step, traced), captured, diagnostics)
    live = jaxpr.replace(eqns=prune(jaxpr.eqns, jaxpr.outvars))
    outs = flat.walk(Traced(live), jaxpr.invars)
    seen: set = {*jaxpr.invars, *flat.captured}
    made_by = {v: eqn for eqn in flat.eqns for v in eqn.outvars}
    for i, out in enumerate(outs[: len(step.hidden)]):
        if isinstance(out, Literal) or out in seen:
            source = made_by.get(out) if isinstance(out, Var) else None
            [outs[i]] = flat.call(jnp.copy, out)
            flat.eqns[-1] = located(flat.eqns[-1], source)
        seen.add(outs[i])
    eqns = prune(flat.eqns, outs)
    used = {a for atoms in (*[e.invars for e in eqns], outs) for a in atoms if isinstance(a, Var)}
    kept = {v: c for v, c in flat.captured.items() if v in used}
    inputs = jaxpr.invars[len(step.captured) :]
    return step.with_program(new_jaxpr([*kept, *inputs], outs, eqns), tuple(kept.values()))


def _ways(policy: ControlFlowPolicy) -> dict[str, Way]:
    """How the equations of each primitive are opened."""
    return {
        **dict.fromkeys(members(Family.CALL), open_call),
        **dict.fromkeys(members(Family.SPARSE), open_sparse),
        **dict.fromkeys(members(Family.BARRIER), open_barrier),
        **dict.fromkeys(members(Family.SCATTER_ADD), open_scatter),
        'custom_jvp_call': open_custom,
        'custom_vjp_call': open_custom,
        'cond': partial(open_cond, policy),
        'scan': partial(open_scan, policy),
        'while': partial(open_while, policy),
    }
