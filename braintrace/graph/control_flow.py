"""Control flow inside a step, and how it becomes plain equations where that is possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._jax import (
    Atom,
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Traced,
    bind,
    is_float,
    open_jaxpr,
    subjaxprs,
    trace,
)
from .constants import unknown
from .dependence import NOTHING, Dep
from .diagnostics import DiagnosticKind as Kind
from .flags import ACTIVE, DATA, is_weight
from .flat import Flat
from .index_maps import positions
from .influence import influence
from .lines import place_of
from .open_calls import by_derivative

UNROLL_BUDGET = 20_000  # equations a long scan with a weight inside may become

_WORDS = {
    'cond': ('convert', 'opaque'),
    'while_hidden': ('opaque-fwd', 'error'),
    'etp_in_control_flow': ('error', 'exclude'),
    'scan_descent': ('auto', 'off'),
}


@dataclass(frozen=True)
class ControlFlowPolicy:
    """What the compiler does with control flow inside a step.

    Args:
        cond: 'convert' evaluates all branches and selects; 'opaque' keeps the equation.
        scan_unroll_limit: scans up to this length are unrolled; 0 or less turns that off.
        while_hidden: 'opaque-fwd' keeps a `while` that carries hidden state, with its forward
            derivative; 'error' refuses it.
        etp_in_control_flow: what to do with a marked weight that stays inside control flow: 'error'
            or 'exclude'.
        scan_descent: 'auto' also opens longer scans that hold a weight; 'off' does not.
        fixpoint_iteration_limit: how deep control flow may be nested.

    Example:
        >>> import braintrace
        >>> braintrace.ControlFlowPolicy(scan_unroll_limit=4).cond
        'convert'
    """

    cond: str = 'convert'
    scan_unroll_limit: int = 16
    while_hidden: str = 'opaque-fwd'
    etp_in_control_flow: str = 'error'
    scan_descent: str = 'auto'
    fixpoint_iteration_limit: int = 64

    def __post_init__(self):
        for name, allowed in _WORDS.items():
            value = getattr(self, name)
            if value not in allowed:
                raise ValueError(
                    f'`ControlFlowPolicy`: {name} must be one of {allowed}, got {value!r}.'
                )
        limit = self.fixpoint_iteration_limit
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ValueError(
                '`ControlFlowPolicy`: fixpoint_iteration_limit must be a positive int, '
                f'got {limit!r}.'
            )


def _go_deeper(flat: Flat, policy: ControlFlowPolicy, eqn: JaxprEqn) -> None:
    flat.depth += 1
    limit = policy.fixpoint_iteration_limit
    if flat.depth > limit:
        raise NotImplementedError(
            f'{place_of(eqn)} is nested deeper than fixpoint_iteration_limit={limit}. Raise it in '
            '`ControlFlowPolicy`.'
        )


class _Kept(NamedTuple):
    """Why control flow is not opened: the kind of diagnostic and the words."""

    kind: Kind
    why: str


def _keep(
    flat: Flat,
    policy: ControlFlowPolicy,
    eqn: JaxprEqn,
    ins: list[Atom],
    alive: Atom | None,
    kept: _Kept,
) -> list[Atom]:
    """Control flow that is kept: autodiff goes through it, but a weight inside has no trace."""
    name, where, why = eqn.primitive.name, place_of(eqn), kept.why
    flat.diagnostics.info(kept.kind, f'{where} is kept: {why}.', primitive=name)
    if any(is_weight(flat.flag(a)) for a in ins):
        if policy.etp_in_control_flow == 'error' and _holds_mark(eqn):
            raise NotImplementedError(
                f'A marked weight is used inside {where}, which is kept because {why}. Move it '
                "out, or pass `ControlFlowPolicy(etp_in_control_flow='exclude')` to train it "
                'without a trace.'
            )
        flat.diagnostics.warning(
            Kind.WEIGHT_IN_CONTROL_FLOW,
            f'A weight is used inside {where}, which is kept because {why}: it has no trace and '
            'gets its in-window gradient only.',
            primitive=name,
        )
    return flat.emit(eqn, ins, alive)


def _holds_mark(eqn: JaxprEqn) -> bool:
    return any(e.primitive.name == 'trace_mark' for j in subjaxprs(eqn) for e in j.eqns)


def _holds_while(program: ClosedJaxpr | Jaxpr) -> bool:
    return any(
        e.primitive.name == 'while' or any(map(_holds_while, subjaxprs(e)))
        for e in open_jaxpr(program).jaxpr.eqns
    )


def _size(program: ClosedJaxpr | Jaxpr) -> int:
    """How many equations a program becomes when its loops are written out."""
    total = 0
    for e in open_jaxpr(program).jaxpr.eqns:
        total += max(1, sum(map(_size, subjaxprs(e))) * e.params.get('length', 1))
    return total


# ---- cond ----------------------------------------------------------------------------------------


def open_cond(
    policy: ControlFlowPolicy, flat: Flat, eqn: JaxprEqn, ins: list[Atom], alive: Atom | None
) -> list[Atom]:
    """All branches and a `select_n`."""
    index, *operands = ins
    branches = eqn.params['branches']
    if not flat.matters(eqn, operands):
        return flat.emit(eqn, ins, alive)
    known = flat.constant(index)
    if known is not None:
        return flat.walk(open_jaxpr(branches[int(known)]), operands, alive)
    kept = _cond_stays(policy, eqn)
    if kept is not None:
        return _keep(flat, policy, eqn, ins, alive, kept)
    _go_deeper(flat, policy, eqn)
    cases = []
    for k, branch in enumerate(branches):
        taken = _is_taken(flat, k, index, alive)
        entering = [
            flat.guard(taken, a) if is_float(a) and flat.flag(a) & DATA else a for a in operands
        ]
        cases.append(flat.walk(open_jaxpr(branch), entering, taken))
    flat.depth -= 1
    flat.diagnostics.info(
        Kind.COND_IF_CONVERTED,
        f'{place_of(eqn)}: all {len(branches)} branches are evaluated and one is selected.',
        primitive='cond',
    )
    return [flat.call(lax.select_n, index, *case)[0] for case in zip(*cases, strict=True)]


def _cond_stays(policy: ControlFlowPolicy, eqn: JaxprEqn) -> _Kept | None:
    """Why a `cond` is not converted, if so."""
    skipped = Kind.COND_CONVERSION_SKIPPED
    if policy.cond == 'opaque':
        return _Kept(skipped, "the policy says cond='opaque'")
    if eqn.effects:
        return _Kept(skipped, 'it has effects')
    if any(map(_holds_while, eqn.params['branches'])):
        return _Kept(skipped, 'a branch holds a `while`')
    return None


def _is_taken(flat: Flat, k: int, index: Atom, alive: Atom | None) -> Atom:
    def here(i):
        return i.astype(jnp.int32) == k

    if alive is None:
        return flat.call(here, index)[0]
    return flat.call(lambda i, up: here(i) & up, index, alive)[0]


# ---- scan ----------------------------------------------------------------------------------------


def open_scan(
    policy: ControlFlowPolicy, flat: Flat, eqn: JaxprEqn, ins: list[Atom], alive: Atom | None
) -> list[Atom]:
    """A short scan, or one that holds a weight, turn by turn."""
    if not flat.matters(eqn, ins):
        return flat.emit(eqn, ins, alive)
    weight = any(is_weight(flat.flag(a)) for a in ins)
    kept = _scan_stays(policy, eqn, weight)
    if kept is not None:
        return _keep(flat, policy, eqn, ins, alive, kept)
    length = eqn.params['length']
    short = length <= policy.scan_unroll_limit
    flat.diagnostics.info(
        Kind.SCAN_UNROLLED if short else Kind.SCAN_DESCENT_APPLIED,
        f'{place_of(eqn)}: {length} turns are written out.',
        primitive='scan',
    )
    return _unroll(policy, flat, eqn, ins, alive)


def _scan_stays(policy: ControlFlowPolicy, eqn: JaxprEqn, weight: bool) -> _Kept | None:
    """Why a `scan` is not written out, if so."""
    length, limit = eqn.params['length'], policy.scan_unroll_limit
    if eqn.effects:
        return _Kept(Kind.SCAN_UNROLL_SKIPPED, 'it has effects')
    if not length:
        return _Kept(Kind.SCAN_UNROLL_SKIPPED, 'it is empty')
    if _holds_while(eqn.params['jaxpr']):
        return _Kept(Kind.SCAN_UNROLL_SKIPPED, 'its body holds a `while`')
    if length <= limit:
        return None
    if not weight:
        why = f'its length {length} is above scan_unroll_limit={limit}'
        return _Kept(Kind.SCAN_UNROLL_SKIPPED, why)
    if policy.scan_descent == 'off':
        return _Kept(Kind.SCAN_DESCENT_SKIPPED, "the policy says scan_descent='off'")
    size = length * _size(eqn.params['jaxpr'])
    if size > UNROLL_BUDGET:
        return _Kept(Kind.SCAN_DESCENT_SKIPPED, f'it would become {size} equations')
    return None


def _unroll(
    policy: ControlFlowPolicy, flat: Flat, eqn: JaxprEqn, ins: list[Atom], alive: Atom | None
) -> list[Atom]:
    _go_deeper(flat, policy, eqn)
    n, k, length = eqn.params['num_consts'], eqn.params['num_carry'], eqn.params['length']
    consts, carry, stacked = ins[:n], ins[n : n + k], ins[n + k :]
    body = open_jaxpr(eqn.params['jaxpr'])
    captured = flat.capture(body)  # once for all turns
    turns = range(length)
    ys: list[list[Atom]] = []
    for t in reversed(turns) if eqn.params['reverse'] else turns:
        xs = [flat.call(partial(_row, t), x)[0] for x in stacked]
        outs = flat.walk(Traced(body.jaxpr), [*captured, *consts, *carry, *xs], alive)
        carry = outs[:k]
        ys.append(outs[k:])
    if eqn.params['reverse']:
        ys.reverse()
    flat.depth -= 1
    return carry + [flat.call(_stack, *column)[0] for column in zip(*ys, strict=True)]


def _row(t: int, x: jax.Array) -> jax.Array:
    return lax.squeeze(lax.slice_in_dim(x, t, t + 1), (0,))


def _stack(*rows: jax.Array) -> jax.Array:
    return jnp.stack(rows)


# ---- while ---------------------------------------------------------------------------------------


def open_while(
    policy: ControlFlowPolicy, flat: Flat, eqn: JaxprEqn, ins: list[Atom], alive: Atom | None
) -> list[Atom]:
    """A loop that carries hidden state position by position, with its forward derivative beside it,
    so that reverse mode goes through."""
    if not flat.matters(eqn, ins):
        return flat.emit(eqn, ins, alive)
    where = place_of(eqn)
    if any(is_weight(flat.flag(a)) for a in ins):
        _refuse_weight(policy, flat, where)
    if policy.while_hidden == 'error':
        raise NotImplementedError(
            f"{where} carries hidden state and the policy says while_hidden='error'. Use "
            "'opaque-fwd' or a `scan`."
        )

    def moves(a: Atom) -> bool:
        flag = flat.flag(a)
        return is_float(a) and bool(flag & ACTIVE) and bool(flag & DATA)

    linear = _while_derivative(eqn, [i for i, a in enumerate(ins) if moves(a)])
    if linear is None:
        flat.diagnostics.warning(
            Kind.CONTROL_FLOW_OPAQUE_FWD,
            f'{where} mixes positions: it is evaluated, but no gradient flows through it.',
            primitive='while',
        )
        held = [flat.call(lax.stop_gradient, a)[0] if is_float(a) else a for a in ins]
        return flat.emit(eqn, held, alive)
    flat.diagnostics.info(
        Kind.CONTROL_FLOW_OPAQUE_FWD,
        f'{where} is kept, with its forward-mode derivative.',
        primitive='while',
    )
    return by_derivative(flat, eqn, ins, linear, alive)


def _refuse_weight(policy: ControlFlowPolicy, flat: Flat, where: str) -> None:
    message = (
        f'A weight is used inside {where}: a loop of unknown length has no reverse-mode derivative.'
    )
    if policy.etp_in_control_flow == 'error':
        raise NotImplementedError(
            f"{message} Use a `scan`, or pass `ControlFlowPolicy(etp_in_control_flow='exclude')` "
            'to train without it.'
        )
    flat.diagnostics.warning(
        Kind.WEIGHT_IN_WHILE, f'{message} It gets no gradient from there.', primitive='while'
    )


def _while_derivative(eqn: JaxprEqn, moving: Sequence[int]) -> Traced | None:
    """The derivative of a loop that acts position by position: one forward-mode pass with ones for
    each operand in `moving`. None if it mixes positions."""
    if any(jnp.issubdtype(eqn.invars[i].aval.dtype, jnp.complexfloating) for i in moving):
        return None
    here = {i: positions(eqn.invars[i].aval.shape) for i in moving}
    ins = [Dep({i: (here[i],)}) if i in here else NOTHING for i in range(len(eqn.invars))]
    outs, _ = influence(eqn, ins, unknown)
    for d in outs:
        stays = all(len(m) == 1 and np.array_equal(m[0], here[i]) for i, m in d.maps.items())
        if d.mixed or not stays:
            return None
    floats = [i for i, a in enumerate(eqn.invars) if is_float(a)]
    results = [j for j, v in enumerate(eqn.outvars) if is_float(v)]

    def tangent(*args):
        values = args[: len(eqn.invars)]
        tangents = dict(zip(floats, args[len(eqn.invars) :], strict=True))
        total = [jnp.zeros(eqn.outvars[j].aval.shape, eqn.outvars[j].aval.dtype) for j in results]
        for i in moving:
            slopes = _slopes(eqn, values, i, results)
            for k, j in enumerate(results):
                if i in outs[j].maps:
                    total[k] = total[k] + lax.stop_gradient(slopes[k]) * tangents[i]
        return total

    return trace(tangent, *eqn.invars, *[eqn.invars[i] for i in floats])


def _slopes(eqn: JaxprEqn, values: Sequence, i: int, results: Sequence[int]) -> list:
    """The derivatives of the outputs `results` by operand `i`, position by position."""

    def f(v):
        outs = bind(eqn, [*values[:i], v, *values[i + 1 :]])
        return [outs[j] for j in results]

    return jax.jvp(f, (values[i],), (jnp.ones_like(values[i]),))[1]
