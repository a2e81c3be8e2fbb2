"""The flat program while it grows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import lax

from .._jax import (
    Atom,
    JaxprEqn,
    Literal,
    Traced,
    Var,
    is_float,
    new_jaxpr,
    prune,
    trace,
)
from ..ops.families import Family, family
from .constants import Constants
from .diagnostics import Diagnostics
from .flags import ACTIVE, DATA, PARAM, flow, is_weight, of_output
from .lines import located

# How an equation is opened: (program, equation, its operands there, alive) -> its outputs there.
Way: TypeAlias = Callable[['Flat', JaxprEqn, list[Atom], Atom | None], list[Atom]]


class Flat:
    """A flat program to which equations are appended.

    `ways` says by the name of a primitive how its equations are opened; the others are appended as
    they are. `captured` are the values that the program closes over, by variable. Where a method
    takes `alive`, that is a condition for the values to be used at all: the branch is taken.
    """

    def __init__(
        self,
        ways: Callable[[JaxprEqn], Way | None],
        flags: dict[Var, int],
        captured: Mapping[Var, Any],
        diagnostics: Diagnostics,
    ):
        self.ways, self.flags, self.diagnostics = ways, flags, diagnostics
        self.captured = dict(captured)
        self.eqns: list[JaxprEqn] = []
        self.depth = 0  # of control flow that is being opened
        self._around: JaxprEqn | None = None  # the call that is being opened

    def flag(self, a: Atom) -> int:
        """The flags of a value, see `flags`."""
        return 0 if isinstance(a, Literal) else self.flags.get(a, 0)

    def capture(self, program: Traced) -> list[Var]:
        """A variable of the step for each value that a program closes over."""
        held = [Var(v.aval) for v in program.jaxpr.invars[: len(program.consts)]]
        self.captured.update(zip(held, program.consts, strict=True))
        return held

    def walk(self, program: Traced, args: Sequence[Atom], alive: Atom | None = None) -> list[Atom]:
        """Append the program's equations with these arguments; its outputs."""
        jaxpr = program.jaxpr
        env: dict[Var, Atom] = dict(zip(jaxpr.invars, [*self.capture(program), *args], strict=True))

        def read(a: Atom) -> Atom:
            return a if isinstance(a, Literal) else env[a]

        around = self._around
        for eqn in jaxpr.eqns:
            self._around = eqn = located(eqn, around)
            way = self.ways(eqn) or Flat.emit
            opened = way(self, eqn, [read(a) for a in eqn.invars], alive)
            env.update(zip(eqn.outvars, opened, strict=True))
        self._around = around
        return [read(a) for a in jaxpr.outvars]

    def call(self, f: Callable, *ins: Atom) -> list[Atom]:
        """Append the equations of a function."""
        return self.walk(trace(f, *ins), ins)

    def emit(self, eqn: JaxprEqn, ins: list[Atom], alive: Atom | None = None) -> list[Atom]:
        """Append one equation; in a branch, see that a use of a weight there cannot poison its
        gradient while the branch is not taken."""
        f = flow(eqn, [self.flag(a) for a in ins])
        if alive is None or not f & DATA or not any(is_weight(self.flag(a)) for a in ins):
            return self._append(eqn, ins, f)
        weights = family(eqn) is Family.ELEMENTWISE  # which of the two factors is held

        def touched(a: Atom) -> bool:
            flag = self.flag(a)
            return is_float(a) and bool(flag & (PARAM | DATA)) and is_weight(flag) == weights

        held = lax.stop_gradient if weights else jnp.zeros_like
        ins = [self._guard(alive, a, held) if touched(a) else a for a in ins]
        outs = self._append(eqn, ins, f)
        return [self.guard(alive, v) if is_float(v) else v for v in outs]

    def _append(self, eqn: JaxprEqn, ins: list[Atom], f: int) -> list[Atom]:
        outs = [Var(v.aval) for v in eqn.outvars]
        self.flags.update({v: of_output(v, f) for v in outs})
        self.eqns.append(eqn.replace(invars=ins, outvars=outs))
        return list(outs)

    def guard(self, alive: Atom, a: Atom) -> Atom:
        """The value, without derivative while the branch is not taken."""
        return self._guard(alive, a, lax.stop_gradient)

    def _guard(self, alive: Atom, a: Atom, held: Callable) -> Atom:
        """A select drops what a product with zero would keep, a NaN."""
        return self.call(lambda up, x: lax.select_n(up, held(x), x), alive, a)[0]

    def matters(self, eqn: JaxprEqn, ins: Sequence[Atom]) -> bool:
        """Whether a derivative by a weight or a state goes through an equation."""
        return any(self.flag(a) & ACTIVE for a in ins) and any(is_float(v) for v in eqn.outvars)

    def made_by(self, a: Atom, name: str) -> JaxprEqn | None:
        """The equation that makes a value, if it is of this primitive."""
        for eqn in reversed(self.eqns):
            if a in eqn.outvars:
                return eqn if eqn.primitive.name == name else None
        return None

    def constant(self, a: Atom) -> np.ndarray | None:
        """The value, if it is known now."""
        if self.flag(a):
            return None
        program = new_jaxpr(list(self.captured), [a], prune(self.eqns, [a]))
        return Constants(program, self.captured)(a)
