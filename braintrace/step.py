"""One step of a recurrent model, free of any framework: what every front-end gives and every pass takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ._jax import Atom, ClosedJaxpr, Var


class Leaf(NamedTuple):
    """One array of the model: the path the user knows it by, its place inside a pytree value, and the states per unit.

    `columns` > 0 says that the last axis holds that many states of each unit.
    """

    path: tuple
    key: tuple = ()
    columns: int = 0

    @property
    def name(self) -> str:
        return '.'.join(str(p) for p in (*self.path, *self.key))


@dataclass(frozen=True)
class Step:
    """`(params, hidden, other, inputs) -> (hidden, other, outputs)` as a closed jaxpr, with a name for each leaf of the first three."""

    jaxpr: ClosedJaxpr
    params: tuple[Leaf, ...]
    hidden: tuple[Leaf, ...]
    other: tuple[Leaf, ...]

    def _invars(self, start: int, count: int | None) -> list[Var]:
        return self.jaxpr.jaxpr.invars[start : None if count is None else start + count]

    @property
    def param_vars(self) -> list[Var]:
        return self._invars(0, len(self.params))

    @property
    def hidden_vars(self) -> list[Var]:
        return self._invars(len(self.params), len(self.hidden))

    @property
    def other_vars(self) -> list[Var]:
        return self._invars(len(self.params) + len(self.hidden), len(self.other))

    @property
    def input_vars(self) -> list[Var]:
        return self._invars(len(self.params) + len(self.hidden) + len(self.other), None)

    @property
    def hidden_outs(self) -> list[Atom]:
        return self.jaxpr.jaxpr.outvars[: len(self.hidden)]

    @property
    def other_outs(self) -> list[Atom]:
        return self.jaxpr.jaxpr.outvars[len(self.hidden) : len(self.hidden) + len(self.other)]

    @property
    def outs(self) -> list[Atom]:
        return self.jaxpr.jaxpr.outvars[len(self.hidden) + len(self.other) :]
