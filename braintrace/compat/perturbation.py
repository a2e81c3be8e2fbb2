"""The step with a variable added to each new hidden state, as 0.2 published it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .._jax import (
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Traced,
    Var,
    is_float,
    new_jaxpr,
    open_jaxpr,
    run_jaxpr,
    trace,
)


class PerturbationError(ValueError, AssertionError):
    """The number of perturbations is not the number of hidden states."""


class HiddenPerturbation(NamedTuple):
    """The program of a step with one more input for each hidden state, added to its new value.

    `perturb_jaxpr` has the program (`.jaxpr`) and the values of its first inputs (`.consts`); then
    come the inputs of the step and `perturb_vars`.
    """

    perturb_vars: list
    perturb_hidden_paths: list
    perturb_hidden_states: list
    perturb_jaxpr: Traced

    def _check(self, perturb_data: Sequence[Any]) -> None:
        if len(perturb_data) != len(self.perturb_vars):
            raise PerturbationError(
                f'`perturb_data` must have one array for each of the {len(self.perturb_vars)} '
                f'hidden states, got {len(perturb_data)}.'
            )

    def eval_jaxpr(self, inputs: Sequence[Any], perturb_data: Sequence[Any]) -> list[Any]:
        """The outputs of the perturbed step."""
        self._check(perturb_data)
        jaxpr, captured = opened(self.perturb_jaxpr)
        return run_jaxpr(jaxpr, *captured, *inputs, *perturb_data)

    def init_perturb_data(self) -> list[jax.Array]:
        """A zero for each hidden state."""
        return [jnp.zeros(v.aval.shape, v.aval.dtype) for v in self.perturb_vars]

    def perturb_data_to_hidden_group_data(
        self, perturb_data: Sequence[Any], hidden_groups: Sequence[Any]
    ) -> list[jax.Array]:
        """The perturbations (or their gradients) of each group, `(*varshape, num_state)`."""
        self._check(perturb_data)
        at = dict(zip(self.perturb_hidden_paths, perturb_data, strict=True))
        return [g.concat_hidden([at[p] for p in g.hidden_paths]) for g in hidden_groups]

    def dict(self) -> dict[str, Any]:
        """The fields by name."""
        return self._asdict()


def opened(program: Traced | ClosedJaxpr) -> Traced:
    """A program without constants of its own: what it closes over comes first."""
    return program if isinstance(program, Traced) else open_jaxpr(program)


def perturbation(
    program: Traced | ClosedJaxpr,
    outvars: Sequence[Var],
    paths: Sequence[tuple],
    states: Sequence[Any],
) -> HiddenPerturbation:
    """The record of a program whose variables `outvars` are the new hidden states, which have these
    paths and belong to these state objects."""
    jaxpr, captured = opened(program)
    perturbed, added = perturb(jaxpr, outvars)
    return HiddenPerturbation(added, list(paths), list(states), Traced(perturbed, captured))


def perturb(jaxpr: Jaxpr, variables: Sequence[Var]) -> tuple[Jaxpr, list[Var]]:
    """The program with one more input for each of these variables, added to its value where it is
    made or, if it is an input itself, where it is returned; and the new inputs.

    Example:
        >>> import jax.numpy as jnp
        >>> from braintrace._jax import run_jaxpr, trace
        >>> from braintrace.compat.perturbation import perturb
        >>> jaxpr, _ = trace(lambda x: 2 * x, jnp.float32(3))
        >>> run_jaxpr(perturb(jaxpr, jaxpr.outvars)[0], jnp.float32(3), jnp.float32(10))
        [Array(16., dtype=float32)]
    """
    added = {v: Var(v.aval) for v in variables}
    inputs = set(jaxpr.invars)
    eqns = []
    for eqn in jaxpr.eqns:
        raw = {v: Var(v.aval) for v in eqn.outvars if v in added}
        eqns.append(eqn.replace(outvars=[raw.get(v, v) for v in eqn.outvars]) if raw else eqn)
        eqns += [_plus(r, added[v], v) for v, r in raw.items()]
    returned = {}
    for v in added:
        if v in inputs:
            returned[v] = Var(v.aval)
            eqns.append(_plus(v, added[v], returned[v]))
    outs = [returned.get(a, a) if isinstance(a, Var) else a for a in jaxpr.outvars]
    return new_jaxpr([*jaxpr.invars, *added.values()], outs, eqns), list(added.values())


def _plus(a: Var, b: Var, out: Var) -> JaxprEqn:
    """`out = a + b`; what is no float stays as it is."""
    if not is_float(a):
        [copy] = trace(jnp.copy, a).jaxpr.eqns
        return copy.replace(invars=[a], outvars=[out])
    [add] = trace(lax.add, a, b).jaxpr.eqns
    return add.replace(invars=[a, b], outvars=[out])
