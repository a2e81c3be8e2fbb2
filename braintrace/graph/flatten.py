"""One flat program: calls opened, control flow turned into plain equations where that is possible, dead code gone.

Takes a Step as a front-end gives it, gives an equal Step in which
- jit, checkpoint and other calls are opened;
- a `cond` that matters to the gradient is all its branches and a `select_n`, a short `scan` (or one that holds a weight) is unrolled;
- a call with a custom derivative in which a weight meets data is replaced by its value plus its own derivative, in ordinary equations;
- a `while` that carries hidden state position by position has its forward derivative beside it, so that reverse mode goes through;
- each new hidden state is a variable of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .._jax import (
    Atom,
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    Var,
    bind,
    is_float,
    located,
    new_jaxpr,
    open_jaxpr,
    prune,
    source_line,
    subjaxprs,
    trace,
)
from ..ops.marker import marked
from ..ops.register import ETPPrimitive
from ..ops.sparse import JAX_SPARSE, is_kernel, plain_form
from ..step import Step
from .diagnostics import DiagnosticKind as Kind
from .diagnostics import Diagnostics
from .index_maps import positions
from .influence import (
    CALLS,
    ELEMENTWISE,
    ZERO,
    Constants,
    Dep,
    influence,
    is_elementwise,
    linearised,
)

PARAM, DATA, ACTIVE, MARKABLE = (
    1,
    2,
    4,
    8,
)  # depends on a weight to trace, on run-time data, on a weight or a state, on a weight that a mark makes traced
UNROLL_BUDGET = 20_000  # equations a long scan with a weight inside may become


@dataclass(frozen=True)
class ControlFlowPolicy:
    """What the compiler does with control flow inside a step.

    Args:
        cond: 'convert' evaluates all branches and selects; 'opaque' keeps the equation.
        scan_unroll_limit: scans up to this length are unrolled; 0 or less turns that off.
        while_hidden: 'opaque-fwd' keeps a `while` that carries hidden state, with its forward derivative; 'error' refuses it.
        etp_in_control_flow: what to do with a marked weight that stays inside control flow: 'error' or 'exclude'.
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
        words = dict(
            cond=('convert', 'opaque'),
            while_hidden=('opaque-fwd', 'error'),
            etp_in_control_flow=('error', 'exclude'),
            scan_descent=('auto', 'off'),
        )
        for name, allowed in words.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f'`ControlFlowPolicy`: {name} must be one of {allowed}, got {getattr(self, name)!r}.'
                )
        limit = self.fixpoint_iteration_limit
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise ValueError(
                f'`ControlFlowPolicy`: fixpoint_iteration_limit must be a positive int, got {limit!r}.'
            )


def flow(eqn: JaxprEqn, flags: Sequence[int]) -> int:
    """The flags of an equation's float outputs, given its operands'."""
    out = 0
    for f in flags:
        out |= f
    if eqn.primitive.name in ZERO:
        out &= DATA
    if eqn.primitive.name == 'trace_mark':
        out = out & ~(PARAM | MARKABLE) | (
            PARAM | MARKABLE if eqn.params['traced'] and out & MARKABLE else 0
        )
    return out


def seed_flags(step: Step, traced: Callable[[tuple], bool] | str) -> dict[Var, int]:
    """What each input of a step is; `traced` says which weights may have a trace."""
    wanted = (lambda path: True) if isinstance(traced, str) else traced
    as_wanted = MARKABLE if traced == 'marked' else MARKABLE | PARAM
    flags = {
        v: ACTIVE | (as_wanted if wanted(leaf.path) else 0)
        for leaf, v in zip(step.params, step.param_vars, strict=True)
    }
    flags.update(dict.fromkeys([*step.hidden_vars, *step.other_vars], ACTIVE | DATA))
    flags.update(dict.fromkeys(step.input_vars, DATA))
    return {v: f if is_float(v) else f & DATA for v, f in flags.items()}


def is_weight(f: int) -> bool:
    return f & (PARAM | DATA) == PARAM


def canonicalise(
    step: Step,
    policy: ControlFlowPolicy,
    diagnostics: Diagnostics,
    traced: Callable[[tuple], bool] | str = 'all',
) -> Step:
    """An equal step, flat. `traced` says which weights may have a trace ('all', 'marked' or a function of the path)."""
    jaxpr, consts = open_jaxpr(step.jaxpr)
    flat = Flat(policy, diagnostics, seed_flags(step, traced))
    outs = flat.walk(
        ClosedJaxpr(jaxpr.replace(eqns=prune(jaxpr.eqns, jaxpr.outvars)), consts), jaxpr.invars
    )
    seen: set = {*jaxpr.invars, *flat.consts}
    for i in range(len(step.hidden)):
        if isinstance(outs[i], Literal) or outs[i] in seen:
            [outs[i]] = flat.call(jnp.copy, outs[i])
        seen.add(outs[i])
    eqns = prune(flat.eqns, outs)
    used = {a for e in eqns for a in e.invars if isinstance(a, Var)} | {
        a for a in outs if isinstance(a, Var)
    }
    constants = {v: c for v, c in flat.consts.items() if v in used}
    flattened = new_jaxpr(jaxpr.invars, outs, eqns, list(constants))
    return Step(
        ClosedJaxpr(flattened, list(constants.values())), step.params, step.hidden, step.other
    )


class Flat:
    """The flat program while it grows."""

    def __init__(self, policy: ControlFlowPolicy, diagnostics: Diagnostics, flags: dict[Var, int]):
        self.policy, self.diagnostics, self.flags = policy, diagnostics, flags
        self.eqns: list[JaxprEqn] = []
        self.consts: dict[Var, object] = {}
        self.depth = 0
        self.around: JaxprEqn | None = None  # the call that is being opened

    def flag(self, a: Atom) -> int:
        return 0 if isinstance(a, Literal) else self.flags.get(a, 0)

    def walk(
        self, program: ClosedJaxpr | Jaxpr, args: Sequence[Atom], alive: Atom | None = None
    ) -> list[Atom]:
        """Append the program's equations with these arguments; its outputs. `alive`: a condition for the values to be used at all."""
        jaxpr, consts = open_jaxpr(program)
        env: dict[Var, Atom] = dict(zip(jaxpr.invars, args, strict=True))
        for v, c in zip(jaxpr.constvars, consts, strict=True):
            env[v] = Var(v.aval)
            self.consts[env[v]] = c
        read = lambda a: a if isinstance(a, Literal) else env[a]
        around = self.around
        for eqn in jaxpr.eqns:
            self.around = eqn = located(eqn, around)
            way = (
                Flat.open_function
                if isinstance(eqn.primitive, ETPPrimitive)
                else _OPEN.get(eqn.primitive.name, Flat.emit)
            )
            opened = way(self, eqn, [read(a) for a in eqn.invars], alive)
            env.update(zip(eqn.outvars, opened, strict=True))
        self.around = around
        return [read(a) for a in jaxpr.outvars]

    def emit(self, eqn: JaxprEqn, ins: list[Atom], alive: Atom | None = None) -> list[Atom]:
        """Append one equation; in a branch, see that a use of a weight there cannot poison its gradient while the branch is not taken."""
        f = flow(eqn, [self.flag(a) for a in ins])
        guarded = alive is not None and f & DATA and any(is_weight(self.flag(a)) for a in ins)
        if guarded:
            whole = eqn.primitive.name in ELEMENTWISE
            touched = lambda a: (
                is_float(a) and self.flag(a) & (PARAM | DATA) and is_weight(self.flag(a)) == whole
            )
            ins = [self._guard(alive, a, weight=whole) if touched(a) else a for a in ins]
        outs: list[Atom] = [Var(v.aval) for v in eqn.outvars]
        self.flags.update({v: f if is_float(v) else f & DATA for v in outs})
        self.eqns.append(eqn.replace(invars=ins, outvars=outs))
        return [self._guard(alive, v) if guarded and is_float(v) else v for v in outs]

    def _guard(self, alive: Atom, a: Atom, weight: bool = True) -> Atom:
        """The value as it is, or zero, without derivative while the branch is not taken: a select drops what a product with zero would keep, a NaN."""
        held = lax.stop_gradient if weight else jnp.zeros_like
        return self.call(lambda up, x: lax.select_n(up, held(x), x), alive, a)[0]

    def call(self, f: Callable, *ins: Atom) -> list[Atom]:
        """Append the equations of a function."""
        return self.walk(trace(f, *ins), ins)

    # ---- calls ----

    def open_call(self, eqn: JaxprEqn, ins: list[Atom], alive: Atom | None) -> list[Atom]:
        return (
            self.emit(eqn, ins, alive)
            if is_kernel(eqn)
            else self.walk(eqn.params[CALLS[eqn.primitive.name]], ins, alive)
        )

    def open_function(self, eqn: JaxprEqn, ins: list[Atom], alive: Atom | None) -> list[Atom]:
        """An op of the user's own, its weights marked: what it computes, or the op itself if a rule tells about it."""
        weights = eqn.primitive.trainable(eqn.params).values()
        if eqn.primitive.op_rule is not None:
            return self.emit(
                eqn,
                [self.call(marked, a)[0] if i in weights else a for i, a in enumerate(ins)],
                alive,
            )
        program = lambda *a: eqn.primitive.f(
            *[marked(v) if i in weights else v for i, v in enumerate(a)], **eqn.params
        )
        return self.walk(trace(program, *ins), ins, alive)

    def open_sparse(self, eqn: JaxprEqn, ins: list[Atom], alive: Atom | None) -> list[Atom]:
        """JAX's sparse products in a form that can be mapped over time, as one call."""
        f = plain_form(eqn, lambda a: self._constant(ins[eqn.invars.index(a)]))
        if f is None:
            return self.emit(eqn, ins, alive)
        [call] = trace(jax.jit(f), *ins).jaxpr.eqns
        return self.emit(call.replace(invars=list(ins)), ins, alive)

    def open_custom(self, eqn: JaxprEqn, ins: list[Atom], alive: Atom | None) -> list[Atom]:
        """A custom derivative is kept. Where a weight meets data inside, `f(x, w)` becomes a constant with the slope of `df.(dx, dw)`."""
        flags = [self.flag(a) for a in ins]
        weights = [i for i, f in enumerate(flags) if is_weight(f)]
        if not weights or not any(f & DATA for f in flags) or is_elementwise(eqn, weights):
            return self.emit(eqn, ins, alive)
        linear = linearised(eqn)
        if linear is None:
            return self.emit(eqn, ins, alive)
        return self._by_derivative(eqn, ins, linear, alive)

    def _by_derivative(
        self, eqn: JaxprEqn, ins: list[Atom], linear: ClosedJaxpr, alive: Atom | None
    ) -> list[Atom]:
        held = [self.call(lax.stop_gradient, a)[0] if is_float(a) else a for a in ins]
        moved = [self.call(_nothing_but_slope, a)[0] for a in ins if is_float(a)]
        values = self.emit(eqn, held, alive)
        tangents = iter(self.walk(linear, [*held, *moved], alive))
        return [self.call(_with_slope, v, next(tangents))[0] if is_float(v) else v for v in values]

    # ---- control flow ----

    def _matters(self, eqn: JaxprEqn, ins: Sequence[Atom]) -> bool:
        return any(self.flag(a) & ACTIVE for a in ins) and any(is_float(v) for v in eqn.outvars)

    def _deeper(self, eqn: JaxprEqn) -> None:
        self.depth += 1
        if self.depth > self.policy.fixpoint_iteration_limit:
            raise NotImplementedError(
                f'`{eqn.primitive.name}` at {source_line(eqn)} is nested deeper than '
                f'fixpoint_iteration_limit={self.policy.fixpoint_iteration_limit}. Raise it in `ControlFlowPolicy`.'
            )

    def _stays(
        self, eqn: JaxprEqn, ins: list[Atom], alive: Atom | None, kind: Kind, why: str
    ) -> list[Atom]:
        """Control flow that is kept: autodiff goes through it, but a weight inside has no trace."""
        where = f'`{eqn.primitive.name}` at {source_line(eqn)}'
        self.diagnostics.info(kind, f'{where} is kept: {why}.', primitive=eqn.primitive.name)
        if any(is_weight(self.flag(a)) for a in ins):
            if self.policy.etp_in_control_flow == 'error' and any(
                e.primitive.name == 'trace_mark' for j in subjaxprs(eqn) for e in j.eqns
            ):
                raise NotImplementedError(
                    f'A marked weight is used inside {where}, which is kept because {why}. Move it out, or pass '
                    "`ControlFlowPolicy(etp_in_control_flow='exclude')` to train it without a trace."
                )
            self.diagnostics.warning(
                Kind.WEIGHT_IN_CONTROL_FLOW,
                f'A weight is used inside {where}, which is kept because {why}: it has no trace and '
                'gets its in-window gradient only.',
                primitive=eqn.primitive.name,
            )
        return self.emit(eqn, ins, alive)

    def open_cond(self, eqn: JaxprEqn, ins: list[Atom], alive: Atom | None) -> list[Atom]:
        index, *operands = ins
        branches = eqn.params['branches']
        if not self._matters(eqn, operands):
            return self.emit(eqn, ins, alive)
        known = self._constant(index)
        if known is not None:
            return self.walk(branches[int(known)], operands, alive)
        if (
            self.policy.cond == 'opaque'
            or eqn.effects
            or any(_holds_while(b.jaxpr) for b in branches)
        ):
            why = (
                "the policy says cond='opaque'"
                if self.policy.cond == 'opaque'
                else 'it has effects'
                if eqn.effects
                else 'a branch holds a `while`'
            )
            return self._stays(eqn, ins, alive, Kind.COND_CONVERSION_SKIPPED, why)
        self._deeper(eqn)
        cases = []
        for k, branch in enumerate(branches):
            taken = (
                self.call(lambda i, k=k: i.astype(jnp.int32) == k, index)
                if alive is None
                else self.call(lambda i, up, k=k: (i.astype(jnp.int32) == k) & up, index, alive)
            )
            entering = [
                self._guard(taken[0], a) if is_float(a) and self.flag(a) & DATA else a
                for a in operands
            ]
            cases.append(self.walk(branch, entering, taken[0]))
        self.depth -= 1
        self.diagnostics.info(
            Kind.COND_IF_CONVERTED,
            f'`cond` at {source_line(eqn)}: all {len(branches)} branches are evaluated and one is selected.',
            primitive='cond',
        )
        return [self.call(lax.select_n, index, *case)[0] for case in zip(*cases, strict=True)]

    def _constant(self, a: Atom) -> np.ndarray | None:
        if self.flag(a):
            return None
        program = new_jaxpr([], [a], prune(self.eqns, [a]), list(self.consts))
        return Constants(ClosedJaxpr(program, list(self.consts.values())))(a)

    def open_scan(self, eqn: JaxprEqn, ins: list[Atom], alive: Atom | None) -> list[Atom]:
        if not self._matters(eqn, ins):
            return self.emit(eqn, ins, alive)
        length, limit = eqn.params['length'], self.policy.scan_unroll_limit
        weight = any(is_weight(self.flag(a)) for a in ins)
        if eqn.effects or _holds_while(eqn.params['jaxpr'].jaxpr) or not length:
            why = (
                'it has effects'
                if eqn.effects
                else 'its body holds a `while`'
                if length
                else 'it is empty'
            )
            return self._stays(eqn, ins, alive, Kind.SCAN_UNROLL_SKIPPED, why)
        size = length * _size(eqn.params['jaxpr'].jaxpr)
        if length > limit and not weight:
            return self._stays(
                eqn,
                ins,
                alive,
                Kind.SCAN_UNROLL_SKIPPED,
                f'its length {length} is above scan_unroll_limit={limit}',
            )
        if length > limit and (self.policy.scan_descent == 'off' or size > UNROLL_BUDGET):
            why = (
                "the policy says scan_descent='off'"
                if self.policy.scan_descent == 'off'
                else f'it would become {size} equations'
            )
            return self._stays(eqn, ins, alive, Kind.SCAN_DESCENT_SKIPPED, why)
        kind = Kind.SCAN_UNROLLED if length <= limit else Kind.SCAN_DESCENT_APPLIED
        self.diagnostics.info(
            kind, f'`scan` at {source_line(eqn)}: {length} turns are written out.', primitive='scan'
        )
        return self._unroll(eqn, ins, alive)

    def _unroll(self, eqn: JaxprEqn, ins: list[Atom], alive: Atom | None) -> list[Atom]:
        self._deeper(eqn)
        n, k, length = eqn.params['num_consts'], eqn.params['num_carry'], eqn.params['length']
        body, consts = open_jaxpr(eqn.params['jaxpr'])
        shared = {v: Var(v.aval) for v in body.constvars}
        self.consts.update(zip(shared.values(), consts, strict=True))
        program = new_jaxpr([*body.constvars, *body.invars], body.outvars, body.eqns)
        carry = ins[n : n + k]
        rows: list[list[Atom]] = []
        for t in reversed(range(length)) if eqn.params['reverse'] else range(length):
            xs = [
                self.call(lambda x, t=t: lax.squeeze(lax.slice_in_dim(x, t, t + 1), (0,)), x)[0]
                for x in ins[n + k :]
            ]
            outs = self.walk(program, [*shared.values(), *ins[:n], *carry, *xs], alive)
            carry, rows = outs[:k], [*rows, outs[k:]]
        if eqn.params['reverse']:
            rows = rows[::-1]
        self.depth -= 1
        return carry + [
            self.call(lambda *y: jnp.stack(y), *column)[0] for column in zip(*rows, strict=True)
        ]

    def open_while(self, eqn: JaxprEqn, ins: list[Atom], alive: Atom | None) -> list[Atom]:
        if not self._matters(eqn, ins):
            return self.emit(eqn, ins, alive)
        where = f'`while` at {source_line(eqn)}'
        if any(is_weight(self.flag(a)) for a in ins):
            message = f'A weight is used inside {where}: a loop of unknown length has no reverse-mode derivative.'
            if self.policy.etp_in_control_flow == 'error':
                raise NotImplementedError(
                    f"{message} Use a `scan`, or pass `ControlFlowPolicy(etp_in_control_flow='exclude')` to train without it."
                )
            self.diagnostics.warning(
                Kind.WEIGHT_IN_WHILE,
                f'{message} It gets no gradient from there.',
                primitive='while',
            )
        if self.policy.while_hidden == 'error':
            raise NotImplementedError(
                f"{where} carries hidden state and the policy says while_hidden='error'. Use 'opaque-fwd' or a `scan`."
            )
        moving = [
            i
            for i, a in enumerate(ins)
            if is_float(a) and self.flag(a) & ACTIVE and self.flag(a) & DATA
        ]
        linear = _while_derivative(eqn, moving)
        if linear is None:
            self.diagnostics.warning(
                Kind.CONTROL_FLOW_OPAQUE_FWD,
                f'{where} mixes positions: it is evaluated, but no gradient flows through it.',
                primitive='while',
            )
            return self.emit(
                eqn, [self.call(lax.stop_gradient, a)[0] if is_float(a) else a for a in ins], alive
            )
        self.diagnostics.info(
            Kind.CONTROL_FLOW_OPAQUE_FWD,
            f'{where} is kept, with its forward-mode derivative.',
            primitive='while',
        )
        return self._by_derivative(eqn, ins, linear, alive)


_OPEN: dict[str, Callable] = {name: Flat.open_call for name in CALLS} | {
    **dict.fromkeys(JAX_SPARSE, Flat.open_sparse),
    'custom_jvp_call': Flat.open_custom,
    'custom_vjp_call': Flat.open_custom,
    'cond': Flat.open_cond,
    'scan': Flat.open_scan,
    'while': Flat.open_while,
    'optimization_barrier': lambda flat, eqn, ins, alive: ins,
}


@jax.custom_jvp
def _nothing_but_slope(x):
    """Zero, with derivative one."""
    return jnp.zeros_like(x)


_nothing_but_slope.defjvp(lambda p, t: (_nothing_but_slope(*p), t[0]))


@jax.custom_jvp
def _with_slope(x, t):
    """The value of x with the derivatives of both; t's own value is never used, so it may be 0 * inf."""
    return x


_with_slope.defjvp(lambda p, t: (_with_slope(*p), t[0] + t[1]))


def _holds_while(jaxpr: Jaxpr) -> bool:
    return any(
        e.primitive.name == 'while' or any(map(_holds_while, subjaxprs(e))) for e in jaxpr.eqns
    )


def _size(jaxpr: Jaxpr) -> int:
    return sum(
        max(1, sum(map(_size, subjaxprs(e))) * e.params.get('length', 1)) for e in jaxpr.eqns
    )


def _while_derivative(eqn: JaxprEqn, moving: Sequence[int]) -> ClosedJaxpr | None:
    """The derivative of a loop that acts position by position: one forward-mode pass with ones for each operand. None if it mixes positions."""
    if any(jnp.issubdtype(eqn.invars[i].aval.dtype, jnp.complexfloating) for i in moving):
        return None
    shapes = {i: eqn.invars[i].aval.shape for i in moving}
    outs, _ = influence(
        eqn,
        [
            Dep({i: (positions(shapes[i]),)}) if i in moving else Dep()
            for i in range(len(eqn.invars))
        ],
        lambda a: None,
    )
    for d in outs:
        if d.mixed or any(
            len(ms) > 1 or not np.array_equal(ms[0], positions(shapes[i]))
            for i, ms in d.maps.items()
        ):
            return None
    floats = [i for i, a in enumerate(eqn.invars) if is_float(a)]
    results = [j for j, v in enumerate(eqn.outvars) if is_float(v)]

    def tangent(*args):
        values, tangents = (
            args[: len(eqn.invars)],
            dict(zip(floats, args[len(eqn.invars) :], strict=True)),
        )
        total = [jnp.zeros(eqn.outvars[j].aval.shape, eqn.outvars[j].aval.dtype) for j in results]
        for i in moving:
            f = lambda v, i=i: [bind(eqn, [*values[:i], v, *values[i + 1 :]])[j] for j in results]
            _, slope = jax.jvp(f, (values[i],), (jnp.ones_like(values[i]),))
            total = [
                t + lax.stop_gradient(s) * tangents[i] if i in outs[j].maps else t
                for t, s, j in zip(total, slope, results, strict=True)
            ]
        return total

    return trace(tangent, *eqn.invars, *[eqn.invars[i] for i in floats])
