"""Which elements of which seeds does each element of a value depend on, as far as derivatives go.

One forward abstract interpretation over the lattice of `dependence`. A rule answers operand by
operand, since first derivatives add up; an operand that an equation cannot carry position by
position is *cut* there, whole, so that an evaluator can follow the maps by choosing for each
operand either its live or its constant value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import jax
import numpy as np

from .._jax import Atom, JaxprEqn, Literal, Traced, bind, is_float, open_jaxpr, prune, trace
from ..ops.families import BY_OPERAND, Family, called_program, family
from .constants import Const, Constants, unknown
from .dependence import NO_SIZES, NOTHING, Dep, Sizes, inverted, join, same, union
from .index_maps import Maps, constant_along, move, positions
from .inverse_maps import destinations, is_base

FEW_TURNS = 64  # of a scan that is followed turn by turn

Outs = list[Dep]  # one for each output of an equation
Answer = list[Outs | None]  # one for each operand; None: cut


def influence(
    eqn: JaxprEqn,
    ins: Sequence[Dep],
    const: Const,
    known: frozenset[str] = frozenset(),
    sizes: Sizes = NO_SIZES,
) -> tuple[Outs, frozenset[int]]:
    """The dependences of an equation's outputs, and the operands whose maps are cut by it.

    Args:
        eqn: the equation.
        ins: the dependences of its operands.
        const: the values that are known.
        known: primitives whose derivative is being looked at, which contains themselves.
        sizes: the seeds that may have an inverse map.
    """
    live = [i for i, d in enumerate(ins) if d]
    if not live or family(eqn) is Family.NO_DERIVATIVE:
        return [NOTHING] * len(eqn.outvars), frozenset()
    answer: Answer
    if family(eqn) in BY_OPERAND:
        answer = [_operand_or_inverse(eqn, i, ins[i], const, sizes) for i in live]
    else:
        live = list(range(len(ins)))
        answer = _whole_or_inverse(eqn, ins, known, sizes)
    outs, cut = [NOTHING] * len(eqn.outvars), set()
    for i, told in zip(live, answer, strict=True):
        joined = None
        if told is not None:
            joined = [join(o, d, sizes) for o, d in zip(outs, told, strict=True)]
        if joined is None or any(crowded for _, crowded in joined):
            joined = [join(o, Dep(mixed=ins[i].seeds)) for o in outs]
            if ins[i].live:
                cut.add(i)
        outs = [o for o, _ in joined]
    floats = [o if is_float(v) else NOTHING for v, o in zip(eqn.outvars, outs, strict=True)]
    return floats, frozenset(cut)


def run(program: Traced, ins: Sequence[Dep], known: frozenset[str] = frozenset()) -> Outs:
    """The dependences of a program's outputs, given those of its inputs after the constants."""
    jaxpr, consts = program
    captured, inputs = jaxpr.invars[: len(consts)], jaxpr.invars[len(consts) :]
    const = Constants(jaxpr, dict(zip(captured, consts, strict=True)))
    deps = {v: d for v, d in zip(inputs, ins, strict=True) if d}

    def read(a: Atom) -> Dep:
        return NOTHING if isinstance(a, Literal) else deps.get(a, NOTHING)

    for eqn in jaxpr.eqns:
        outs, _ = influence(eqn, [read(a) for a in eqn.invars], const, known)
        deps.update({v: d for v, d in zip(eqn.outvars, outs, strict=True) if d and is_float(v)})
    return [read(a) for a in jaxpr.outvars]


def is_elementwise(eqn: JaxprEqn, operands: Sequence[int]) -> bool:
    """Whether these operands act on the outputs element by element, as far as derivatives go."""
    shape = eqn.outvars[0].aval.shape
    if any(a.aval.shape != shape for a in (*eqn.outvars, *[eqn.invars[i] for i in operands])):
        return False
    here = positions(shape)
    ins = [Dep({i: (here,)}) if i in operands else NOTHING for i in range(len(eqn.invars))]
    outs, _ = influence(eqn, ins, unknown)

    def stays(ms: Maps) -> bool:
        return len(ms) == 1 and np.array_equal(ms[0], here)

    return all(not d.mixed and all(map(stays, d.maps.values())) for d in outs)


def linearised(eqn: JaxprEqn) -> Traced | None:
    """The derivative of one equation as a program
    `(operands, tangents of the float operands) -> tangents of the float outputs`.

    A custom backward rule is transposed: it says which tangents it believes in. None when JAX knows
    no derivative or cannot transpose it.
    """
    floats = [i for i, a in enumerate(eqn.invars) if is_float(a)]

    def tangent(*args):
        values, tangents = list(args[: len(eqn.invars)]), args[len(eqn.invars) :]

        def f(*moving):
            for i, v in zip(floats, moving, strict=True):
                values[i] = v
            return [o for o, v in zip(bind(eqn, values), eqn.outvars, strict=True) if is_float(v)]

        at = [values[i] for i in floats]
        if eqn.primitive.name == 'custom_vjp_call':
            out, pull = jax.vjp(f, *at)
            return jax.linear_transpose(pull, out)(tangents)[0]
        return jax.jvp(f, at, list(tangents))[1]

    try:
        jaxpr, consts = trace(tangent, *eqn.invars, *[eqn.invars[i] for i in floats])
    except Exception:  # whatever a foreign rule raises: there is no derivative to look at
        return None
    return Traced(jaxpr.replace(eqns=prune(jaxpr.eqns, jaxpr.outvars)), consts)


# ---- primitives that answer operand by operand ---------------------------------------------------


def _operand_or_inverse(eqn: JaxprEqn, i: int, d: Dep, const: Const, sizes: Sizes) -> Outs | None:
    """What becomes of an operand's dependences, with inverse maps where index maps do not do."""
    outs = _operand(eqn, i, d, const)
    if outs is not None or sizes.keys().isdisjoint(d.maps):
        return outs

    def passes(part: Dep) -> bool:
        return _by_maps(eqn, i, part, const) is not None

    return _operand(eqn, i, inverted(d, sizes, keep=passes), const)


def _operand(eqn: JaxprEqn, i: int, d: Dep, const: Const) -> Outs | None:
    """What becomes of the dependences of an operand, maps and inverse maps."""
    outs = _by_maps(eqn, i, d, const)
    if outs is None or not d.inverse or is_base(eqn, i) or _keeps_places(eqn, i):
        return outs
    to = destinations(eqn, i, const)
    if to is None:
        return None
    moved = []
    for t in to:
        inverse = {s: np.where(m >= 0, t[m], -1) for s, m in d.inverse.items()}
        if any((m < -1).any() for m in inverse.values()):
            return None
        moved.append({s: m for s, m in inverse.items() if (m >= 0).any()})
    return [Dep(o.maps, o.mixed, inverse) for o, inverse in zip(outs, moved, strict=True)]


def _keeps_places(eqn: JaxprEqn, i: int) -> bool:
    """Whether each element of an operand stays at its flat position."""
    same_shape = eqn.invars[i].aval.shape == eqn.outvars[0].aval.shape
    return family(eqn) is Family.ELEMENTWISE and same_shape


def _by_maps(eqn: JaxprEqn, i: int, d: Dep, const: Const) -> Outs | None:
    """What becomes of the index maps of an operand."""
    kind = family(eqn)
    if kind is Family.ELEMENTWISE:
        return _elementwise(eqn, d)
    if not d.maps or is_base(eqn, i):
        return [d] * len(eqn.outvars)
    if kind is Family.LAYOUT:
        return _layout(eqn, i, d, const)
    if kind is Family.REDUCTION:
        return _reduction(eqn, d)
    if eqn.primitive.name == 'dot_general':
        return _dot_general(eqn, i, d)
    if eqn.primitive.name == 'conv_general_dilated':
        return _conv(eqn, i, d)
    return None


def _elementwise(eqn: JaxprEqn, d: Dep) -> Outs:
    shape = eqn.outvars[0].aval.shape
    if any(m.shape != shape for m in d.all_maps()):
        d = d.each(lambda m: np.broadcast_to(m, shape))
    return [d] * len(eqn.outvars)


def _layout(eqn: JaxprEqn, i: int, d: Dep, const: Const) -> Outs | None:
    outs: list[dict[int, Maps]] = [{} for _ in eqn.outvars]
    for s, ms in d.maps.items():
        for m in ms:
            moved = move(eqn, i, m, const)
            if moved is None:
                return None
            for out, n in zip(outs, moved, strict=True):
                if (n >= 0).any():
                    out[s] = (*out.get(s, ()), n)
    return [Dep(out, d.mixed, d.inverse) for out in outs]


def _contraction(
    axes: Sequence[int], d: Dep, place: Callable[[np.ndarray], np.ndarray]
) -> Outs | None:
    """Sums over `axes` keep a map only where all summed elements depend on one seed element."""
    along = tuple(axes)

    def one(m: np.ndarray) -> np.ndarray:
        return m.max(along, keepdims=True, initial=-1)

    if not all(bool(((m < 0) | (m == one(m))).all()) for m in d.all_maps()):
        return None
    return [d.each(lambda m: place(one(m)))]


def _reduction(eqn: JaxprEqn, d: Dep) -> Outs | None:
    shape = eqn.outvars[0].aval.shape
    return _contraction(eqn.params['axes'], d, lambda m: m.reshape(shape))


def _dot_general(eqn: JaxprEqn, i: int, d: Dep) -> Outs | None:
    contract, batch = (tuple(dims[i]) for dims in eqn.params['dimension_numbers'])
    free = [a for a in range(eqn.invars[i].aval.ndim) if a not in contract and a not in batch]
    shape = eqn.outvars[0].aval.shape
    first = len(batch) + (0 if i == 0 else len(shape) - len(batch) - len(free))

    def place(m: np.ndarray) -> np.ndarray:
        kept = [m.shape[a] for a in (*batch, *free)]
        m = m.transpose([*batch, *free, *contract]).reshape(kept)  # summed axes have length one
        at = [1] * len(shape)
        at[: len(batch)] = m.shape[: len(batch)]
        at[first : first + len(free)] = m.shape[len(batch) :]
        return np.broadcast_to(m.reshape(at), shape)

    return _contraction(contract, d, place)


def _conv(eqn: JaxprEqn, i: int, d: Dep) -> Outs | None:
    """Whatever the sum over a patch and its channels does to units, samples stay apart."""
    lhs, _, out = eqn.params['dimension_numbers']
    if i or eqn.params['batch_group_count'] > 1:
        return None
    shape = eqn.outvars[0].aval.shape

    def place(m: np.ndarray) -> np.ndarray:
        return np.broadcast_to(np.moveaxis(m, lhs[0], out[0]), shape)

    return _contraction(lhs[1:], d, place)


# ---- equations with a program inside, and those that only their derivative tells about -----------


def _whole_or_inverse(
    eqn: JaxprEqn, ins: Sequence[Dep], known: frozenset[str], sizes: Sizes
) -> Answer:
    """What becomes of all operands together, with inverse maps where index maps do not do."""
    answer = _whole(eqn, ins, known)
    if None in answer and any(not sizes.keys().isdisjoint(d.maps) for d in ins):
        return _whole(eqn, [inverted(d, sizes) for d in ins], known)
    return answer


def _whole(eqn: JaxprEqn, ins: Sequence[Dep], known: frozenset[str]) -> Answer:
    """An equation with a program inside is carried whole or cut whole: nobody can reach in to cut
    a part of it."""
    pure = [Dep(d.maps, inverse=d.inverse) for d in ins]
    rule = _WHOLE.get(eqn.primitive.name, _first_derivative)
    outs = _call(eqn, pure, known) if family(eqn) is Family.CALL else rule(eqn, pure, known)
    if outs is None or any(d.mixed for d in outs):
        return [None] * len(ins)
    mixed = 0
    for d in ins:
        mixed |= d.mixed
    first = [Dep(d.maps, mixed, d.inverse) for d in outs]
    return [first, *[[NOTHING] * len(outs)] * (len(ins) - 1)]


def _call(eqn: JaxprEqn, ins: Sequence[Dep], known: frozenset[str]) -> Outs:
    return run(open_jaxpr(eqn.params[called_program(eqn)]), ins, known)


def _first_derivative(eqn: JaxprEqn, ins: Sequence[Dep], known: frozenset[str]) -> Outs | None:
    """A primitive without a rule here: what its own derivative does with the tangents."""
    name = eqn.primitive.name
    linear = None if name in known else linearised(eqn)
    if linear is None:
        return None
    tangents = [d for a, d in zip(eqn.invars, ins, strict=True) if is_float(a)]
    outs = iter(run(linear, [NOTHING] * len(eqn.invars) + tangents, known | {name}))
    return [next(outs) if is_float(v) else NOTHING for v in eqn.outvars]


def _loop(body: Callable[[Outs], Outs], carry: Outs) -> Outs:
    """The carry's dependences after any number of turns: the lattice is finite and a turn only
    adds, so this ends."""
    while True:
        turned = [union(pair) for pair in zip(carry, body(carry), strict=True)]
        if all(same(a, b) for a, b in zip(turned, carry, strict=True)):
            return carry
        carry = turned


def _scan(eqn: JaxprEqn, ins: Sequence[Dep], known: frozenset[str]) -> Outs | None:
    """What holds after any number of turns; where that mixes and turns are few, what holds after
    just as many."""
    outs = _any_turns(eqn, ins, known)
    if outs is not None and not any(d.mixed for d in outs):
        return outs
    return _all_turns(eqn, ins, known) if eqn.params['length'] <= FEW_TURNS else None


def _any_turns(eqn: JaxprEqn, ins: Sequence[Dep], known: frozenset[str]) -> Outs | None:
    n, k, length = eqn.params['num_consts'], eqn.params['num_carry'], eqn.params['length']
    for d in ins[n + k :]:
        if d.inverse or not all(constant_along(m, (0,)) for m in d.all_maps()):
            return None
    consts, xs = list(ins[:n]), [d.each(lambda m: m[0]) for d in ins[n + k :]]
    body = open_jaxpr(eqn.params['jaxpr'])

    def turn(carry: Outs) -> Outs:
        return run(body, [*consts, *carry, *xs], known)

    carry = _loop(lambda c: turn(c)[:k], list(ins[n : n + k]))
    ys = turn(carry)[k:]
    if any(d.inverse for d in ys):
        return None
    return carry + [d.each(lambda m: np.broadcast_to(m, (length, *m.shape))) for d in ys]


def _all_turns(eqn: JaxprEqn, ins: Sequence[Dep], known: frozenset[str]) -> Outs | None:
    n, k, length = eqn.params['num_consts'], eqn.params['num_carry'], eqn.params['length']
    consts, carry, stacked = list(ins[:n]), list(ins[n : n + k]), ins[n + k :]
    if any(d.inverse for d in stacked):
        return None
    body, numbers = open_jaxpr(eqn.params['jaxpr']), range(length)
    ys: dict[int, Outs] = {}
    for t in reversed(numbers) if eqn.params['reverse'] else numbers:
        outs = run(body, [*consts, *carry, *[_at_turn(d, t) for d in stacked]], known)
        carry, ys[t] = outs[:k], outs[k:]
        if any(d.mixed for d in outs) or any(d.inverse for d in ys[t]):
            return None
    shapes = [v.aval.shape[1:] for v in eqn.outvars[k:]]
    rows = [[ys[t][j] for t in numbers] for j in range(len(shapes))]
    return carry + [_stacked(of_y, shape) for of_y, shape in zip(rows, shapes, strict=True)]


def _at_turn(d: Dep, t: int) -> Dep:
    """The dependences of one row of a stacked value."""
    return d.each(lambda m: m[t])


def _stacked(rows: Sequence[Dep], shape: tuple[int, ...]) -> Dep:
    """The dependences of rows of this shape, stacked."""
    nothing = np.full(shape, -1, np.int32)
    maps: dict[int, Maps] = {}
    for s in sorted({s for d in rows for s in d.maps}):
        of_rows = [d.maps.get(s, ()) for d in rows]
        most = max(map(len, of_rows))
        filled = [[*ms, *[nothing] * (most - len(ms))] for ms in of_rows]
        maps[s] = tuple(np.stack(column) for column in zip(*filled, strict=True))
    return Dep(maps)


def _while(eqn: JaxprEqn, ins: Sequence[Dep], known: frozenset[str]) -> Outs:
    a, b = eqn.params['cond_nconsts'], eqn.params['body_nconsts']
    body = partial(run, open_jaxpr(eqn.params['body_jaxpr']), known=known)
    return _loop(lambda carry: body([*ins[a : a + b], *carry]), list(ins[a + b :]))


def _cond(eqn: JaxprEqn, ins: Sequence[Dep], known: frozenset[str]) -> Outs:
    cases = [run(open_jaxpr(branch), ins[1:], known) for branch in eqn.params['branches']]
    return [union(case) for case in zip(*cases, strict=True)]


def _barrier(eqn: JaxprEqn, ins: Sequence[Dep], known: frozenset[str]) -> Outs:
    return list(ins)


_WHOLE: dict[str, Callable[[JaxprEqn, Sequence[Dep], frozenset[str]], Outs | None]] = {
    'scan': _scan,
    'while': _while,
    'cond': _cond,
    'optimization_barrier': _barrier,
}
