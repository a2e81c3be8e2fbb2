"""The step with a variable added to each new hidden state, whose derivative is the learning signal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._jax import ClosedJaxpr, Var, eval_jaxpr, is_float, new_jaxpr, trace


class PerturbationError(ValueError, AssertionError):
    """The number of perturbations is not the number of hidden states."""


class HiddenPerturbation(NamedTuple):
    """The step's jaxpr with one more input for each hidden state, added to its new value."""

    perturb_vars: list
    perturb_hidden_paths: list
    perturb_hidden_states: list
    perturb_jaxpr: ClosedJaxpr

    def _check(self, perturb_data: Sequence[Any]) -> None:
        if len(perturb_data) != len(self.perturb_vars):
            raise PerturbationError(
                f'`perturb_data` must have one array for each of the {len(self.perturb_vars)} hidden states, got {len(perturb_data)}.'
            )

    def eval_jaxpr(self, inputs: Sequence[Any], perturb_data: Sequence[Any]) -> list[Any]:
        """The outputs of the perturbed step."""
        self._check(perturb_data)
        return eval_jaxpr(
            self.perturb_jaxpr.jaxpr, self.perturb_jaxpr.consts, *inputs, *perturb_data
        )

    def init_perturb_data(self) -> list[jax.Array]:
        """A zero for each hidden state."""
        return [jnp.zeros(v.aval.shape, v.aval.dtype) for v in self.perturb_vars]

    def perturb_data_to_hidden_group_data(
        self, perturb_data: Sequence[Any], hidden_groups: Sequence[Any]
    ) -> list[Any]:
        """The perturbations (or their gradients) of each group, `(*varshape, num_state)`."""
        self._check(perturb_data)
        at = dict(zip(self.perturb_hidden_paths, perturb_data, strict=True))
        return [g.concat_hidden([at[p] for p in g.hidden_paths]) for g in hidden_groups]

    def dict(self) -> dict[str, Any]:
        """The fields by name."""
        return self._asdict()


def perturb(
    program: ClosedJaxpr, outvars: Sequence[Var], paths: Sequence[tuple], states: Sequence[Any]
) -> HiddenPerturbation:
    """Add a fresh variable to each of these variables of a flat program, where it is made or, if it is an input, where it is returned."""
    jaxpr = program.jaxpr
    fresh = {v: Var(v.aval) for v in outvars}
    inputs = set(jaxpr.invars)
    eqns = []
    for eqn in jaxpr.eqns:
        raw = {v: Var(v.aval) for v in eqn.outvars if v in fresh}
        eqns.append(eqn.replace(outvars=[raw.get(v, v) for v in eqn.outvars]) if raw else eqn)
        eqns += [_plus(r, fresh[v], v) for v, r in raw.items()]
    renamed = {}
    for v in fresh:
        if v in inputs:
            renamed[v] = Var(v.aval)
            eqns.append(_plus(v, fresh[v], renamed[v]))
    outs = [renamed.get(a, a) if isinstance(a, Var) else a for a in jaxpr.outvars]
    made = new_jaxpr([*jaxpr.invars, *fresh.values()], outs, eqns, jaxpr.constvars)
    return HiddenPerturbation(
        list(fresh.values()), list(paths), list(states), ClosedJaxpr(made, program.consts)
    )


def _plus(a: Var, b: Var, out: Var):
    [add] = trace(lambda x, y: x + y if is_float(a) else jnp.copy(x), a, b).jaxpr.eqns
    if not is_float(a):
        return add.replace(invars=[a], outvars=[out])
    return add.replace(invars=[a, b], outvars=[out])
