"""One step of a recurrent model, free of any framework: what every front-end gives and every pass
takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from ._jax import Atom, Jaxpr, JaxprEqn, Literal, Var, run_jaxpr


class Leaf(NamedTuple):
    """One array of the model: the path the user knows it by, its place inside a pytree value, and
    the states per unit. `columns` > 0 says that the last axis holds that many states of each
    unit. `traced` is False for a parameter that its model keeps out of the traces."""

    path: tuple
    key: tuple = ()
    columns: int = 0
    traced: bool = True

    @property
    def name(self) -> str:
        """The path and the key with dots between: `cell.Wh.weight`."""
        return dotted((*self.path, *self.key))


def dotted(path: Sequence[Any]) -> str:
    """A path as people write it."""
    return '.'.join(map(str, path))


@dataclass(frozen=True, eq=False)
class Step:
    """`(captured, params, hidden, other, inputs) -> (hidden, other, outputs)` as a program without
    constants.

    `captured` are the values that the step closes over (masks, index arrays, a target of an outer
    trace); they enter the program in front of everything else. `params`, `hidden` and `other` name
    their leaves.
    """

    jaxpr: Jaxpr
    captured: tuple[Any, ...]
    params: tuple[Leaf, ...]
    hidden: tuple[Leaf, ...]
    other: tuple[Leaf, ...]

    @property
    def captured_vars(self) -> list[Var]:
        return self.jaxpr.invars[: len(self.captured)]

    @property
    def param_vars(self) -> list[Var]:
        return self._invars(len(self.captured), len(self.params))

    @property
    def hidden_vars(self) -> list[Var]:
        return self._invars(len(self.captured) + len(self.params), len(self.hidden))

    @property
    def other_vars(self) -> list[Var]:
        before = len(self.captured) + len(self.params) + len(self.hidden)
        return self._invars(before, len(self.other))

    @property
    def input_vars(self) -> list[Var]:
        before = len(self.captured) + len(self.params) + len(self.hidden) + len(self.other)
        return self.jaxpr.invars[before:]

    @property
    def hidden_outs(self) -> list[Var]:
        return self.jaxpr.outvars[: len(self.hidden)]

    @property
    def other_outs(self) -> list[Atom]:
        return self.jaxpr.outvars[len(self.hidden) : len(self.hidden) + len(self.other)]

    @property
    def outs(self) -> list[Atom]:
        return self.jaxpr.outvars[len(self.hidden) + len(self.other) :]

    @cached_property
    def once(self) -> list[JaxprEqn]:
        """The equations that captured values and parameters alone decide: they are the same at
        every step."""
        fixed: set[Var] = {*self.captured_vars, *self.param_vars}
        once: list[JaxprEqn] = []
        for eqn in self.jaxpr.eqns:
            known = all(isinstance(a, Literal) or a in fixed for a in eqn.invars)
            if known and not eqn.effects:
                once.append(eqn)
                fixed.update(eqn.outvars)
        return once

    def with_program(self, jaxpr: Jaxpr, captured: Sequence[Any]) -> Step:
        """This step with an equal program in the place of its own."""
        return Step(jaxpr, tuple(captured), self.params, self.hidden, self.other)

    def _invars(self, start: int, count: int) -> list[Var]:
        return self.jaxpr.invars[start : start + count]


class Fragment(NamedTuple):
    """A part of a step as a program `(free, inputs) -> outs`: `free` are the variables of the step
    that it needs besides its inputs, and come first."""

    jaxpr: Jaxpr
    free: tuple[Var, ...]

    def __call__(self, free: Sequence[Any], *inputs: Any) -> list[Any]:
        """The outputs, from the values of the free variables and of the inputs."""
        return run_jaxpr(self.jaxpr, *free, *inputs)
