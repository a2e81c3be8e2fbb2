"""A program with a variable added to some of its values, whose derivative is the credit of each."""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax

from .._jax import Jaxpr, JaxprEqn, Var, is_float, new_jaxpr, trace


def perturb(jaxpr: Jaxpr, variables: Sequence[Var]) -> tuple[Jaxpr, list[Var]]:
    """The program with one more input for each of these variables, added to its value where it is
    made or, if it is an input itself, where it is returned; and the new inputs.

    Example:
        >>> import jax.numpy as jnp
        >>> from braintrace._jax import run_jaxpr, trace
        >>> from braintrace.graph.perturbation import perturb
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
