"""One step of a brainstate module as 0.2 published it: a view of `frontends.base.TracedModel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from .._jax import Atom, ClosedJaxpr, Jaxpr, Var, close_jaxpr, new_jaxpr, open_jaxpr, run_jaxpr
from ..frontends.base import HIDDEN, OTHER, PARAM, Held, TracedModel
from ..graph.uses import Use
from ..step import Step


class ModuleInfo(NamedTuple):
    """One step of a brainstate module as a program `(arguments, states) -> (outputs, states)`, and
    which variable is which state."""

    stateful_model: Any
    closed_jaxpr: ClosedJaxpr
    retrieved_model_states: Mapping[tuple, Any]
    compiled_model_states: Sequence[Any]
    state_id_to_path: dict[int, tuple]
    state_tree_invars: Sequence[Any]
    state_tree_outvars: Sequence[Any]
    hidden_path_to_invar: dict[tuple, Var]
    hidden_path_to_outvar: dict[tuple, Var]
    invar_to_hidden_path: dict[Var, tuple]
    outvar_to_hidden_path: dict[Var, tuple]
    hidden_outvar_to_invar: dict[Var, Var]
    weight_invars: list[Var]
    weight_path_to_invars: dict[tuple, list[Var]]
    invar_to_weight_path: dict[Var, tuple]
    num_var_out: int
    num_var_state: int
    control_flow: Any = None
    traced: TracedModel = None  # type: ignore[assignment]
    uses: tuple[Use, ...] = ()

    @property
    def jaxpr(self) -> Jaxpr:
        """The program of one step."""
        return self.closed_jaxpr.jaxpr

    @property
    def step(self) -> Step:
        """The program of one step as the compiler takes it, free of any framework."""
        return self.traced.step

    @property
    def states(self) -> dict[tuple, Any]:
        """The compiled states by path."""
        return {h.path: h.holder for h in self.traced.held}

    def add_jaxpr_outs(self, variables: Sequence[Var]) -> ModuleInfo:
        """A record whose program also returns the values of these variables."""
        jaxpr, captured = open_jaxpr(self.closed_jaxpr)
        wider = new_jaxpr(jaxpr.invars, [*jaxpr.outvars, *variables], jaxpr.eqns)
        return self._replace(closed_jaxpr=close_jaxpr(wider, captured))

    def split_state_outvars(self) -> tuple[dict, dict, dict]:
        """The variables of the states after the step, by path: weights, hidden, other."""
        split: dict[str, dict] = {PARAM: {}, HIDDEN: {}, OTHER: {}}
        for h, tree in zip(self.traced.held, self.state_tree_outvars, strict=True):
            split[h.role][h.path] = tree
        return split[PARAM], split[HIDDEN], split[OTHER]

    def flat_inputs(
        self,
        args: Sequence[Any],
        old_state_vals: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """The program's inputs: arguments, then the states' values (by default the present
        ones)."""
        values = old_state_vals
        if values is None:
            values = [s.value for s in self.compiled_model_states]
        return jax.tree.leaves((tuple(args), dict(kwargs or {}), list(values)))

    def unflatten(self, outs: Sequence[Any]) -> tuple[Any, dict, dict, dict]:
        """`(out, {hidden path: value}, {other path: value}, {variable: value})` from the program's
        outputs; hidden values come without unit."""
        n, m = self.num_var_out, self.num_var_out + self.num_var_state
        rest = iter(outs[n:m])
        hidden, other = {}, {}
        for h, tree in zip(self.traced.held, self.state_tree_invars, strict=True):
            leaves = [next(rest) for _ in jax.tree.leaves(tree)]
            if h.role == HIDDEN:
                hidden[h.path] = leaves[0] if len(leaves) == 1 else leaves
            elif h.role == OTHER:
                other[h.path] = jax.tree.unflatten(jax.tree.structure(tree), leaves)
        further = dict(zip(self.jaxpr.outvars[m:], outs[m:], strict=True))
        return self.traced.out_tree.unflatten(outs[:n]), hidden, other, further

    def jaxpr_call(
        self, *args: Any, old_state_vals: Sequence[Any] | None = None, **kwargs: Any
    ) -> tuple[Any, dict, dict, dict]:
        """Run the program; nothing is written to the model."""
        jaxpr, captured = open_jaxpr(self.closed_jaxpr)
        flat = self.flat_inputs(args, old_state_vals, kwargs)
        return self.unflatten(run_jaxpr(jaxpr, *captured, *flat))

    def dict(self) -> dict[str, Any]:
        """The fields by name."""
        return self._asdict()


def module_info(
    traced: TracedModel, control_flow: Any = None, uses: tuple[Use, ...] = ()
) -> ModuleInfo:
    """The published record of a traced step."""
    step, held = traced.step, traced.held
    ins = _in_states(held, step.param_vars, step.hidden_vars, step.other_vars)
    outs = _in_states(held, step.param_vars, step.hidden_outs, step.other_outs)
    states_in, states_out = jax.tree.leaves(ins), jax.tree.leaves(outs)
    program = new_jaxpr(
        [*step.captured_vars, *step.input_vars, *states_in],
        [*step.outs, *states_out],
        step.jaxpr.eqns,
    )
    hidden = [
        (h.path, jax.tree.leaves(i), jax.tree.leaves(o))
        for h, i, o in zip(held, ins, outs, strict=True)
        if h.role == HIDDEN
    ]
    weights = {
        h.path: jax.tree.leaves(i) for h, i in zip(held, ins, strict=True) if h.role == PARAM
    }
    pairs = [(path, a, b) for path, i, o in hidden for a, b in zip(i, o, strict=True)]
    return ModuleInfo(
        stateful_model=traced.origin.stateful,
        closed_jaxpr=close_jaxpr(program, step.captured),
        retrieved_model_states=traced.origin.known,
        compiled_model_states=[h.holder for h in held],
        state_id_to_path={id(h.holder): h.path for h in held},
        state_tree_invars=ins,
        state_tree_outvars=outs,
        hidden_path_to_invar={path: i[0] for path, i, _ in hidden},
        hidden_path_to_outvar={path: o[0] for path, _, o in hidden},
        invar_to_hidden_path={a: path for path, a, _ in pairs},
        outvar_to_hidden_path={b: path for path, _, b in pairs if isinstance(b, Var)},
        hidden_outvar_to_invar={b: a for _, a, b in pairs if isinstance(b, Var)},
        weight_invars=[v for vs in weights.values() for v in vs],
        weight_path_to_invars=weights,
        invar_to_weight_path={v: path for path, vs in weights.items() for v in vs},
        num_var_out=len(step.outs),
        num_var_state=len(states_in),
        control_flow=control_flow,
        traced=traced,
        uses=uses,
    )


def _in_states(
    held: Sequence[Held], params: Sequence[Atom], hidden: Sequence[Atom], other: Sequence[Atom]
) -> list[Any]:
    """The variables of each state, in the form of its value, from those of each role in order."""
    rest = {PARAM: iter(params), HIDDEN: iter(hidden), OTHER: iter(other)}
    states = []
    for h in held:
        leaves, form = jax.tree.flatten(h.holder.value)
        states.append(jax.tree.unflatten(form, [next(rest[h.role]) for _ in leaves]))
    return states
