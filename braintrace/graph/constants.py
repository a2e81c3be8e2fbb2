"""The values of a step that are known while it is compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from .._jax import Atom, Jaxpr, JaxprEqn, Literal, Var, bind
from ..step import Step

Const = Callable[[Atom], np.ndarray | None]  # the value of an atom, or None if it is not known


def unknown(a: Atom) -> None:
    """The `Const` of a program about which nothing is known."""
    return None


class Constants:
    """The values that depend on no input of a program but those in `values`, computed when asked
    for. A value that is itself being traced by an outer transformation is not known."""

    def __init__(self, jaxpr: Jaxpr, values: Mapping[Var, Any]):
        self._values = {v: c for v, c in values.items() if not isinstance(c, jax.core.Tracer)}
        self._made_by: dict[Var, JaxprEqn] = {}
        for eqn in jaxpr.eqns:
            if not eqn.effects and all(self._is_known(a) for a in eqn.invars):
                self._made_by.update(dict.fromkeys(eqn.outvars, eqn))

    def _is_known(self, a: Atom) -> bool:
        return isinstance(a, Literal) or a in self._values or a in self._made_by

    def __call__(self, a: Atom) -> np.ndarray | None:
        """The value, or None if it is not known."""
        if isinstance(a, Literal):
            return np.asarray(a.val)
        if a not in self._values and a in self._made_by:
            eqn = self._made_by[a]
            with jax.ensure_compile_time_eval():
                results = bind(eqn, [self(b) for b in eqn.invars])
            self._values.update(zip(eqn.outvars, results, strict=True))
        value = self._values.get(a)
        return None if value is None else np.asarray(value)


def constants(step: Step) -> Constants:
    """What is known of a step: the values it closes over and all that follows from them."""
    return Constants(step.jaxpr, dict(zip(step.captured_vars, step.captured, strict=True)))
