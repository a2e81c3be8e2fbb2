"""brainstate modules: any `brainstate.nn.Module` whose states are initialised."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.tree_util as jtu
import numpy as np

from .._jax import ClosedJaxpr, Jaxpr, Var, eval_jaxpr, new_jaxpr, subjaxprs
from ..errors import CompilationError, NotSupportedError
from ..step import Leaf, Step

_double = jax.config.jax_enable_x64
import brainstate  # noqa: E402

if (
    _double and not jax.config.jax_enable_x64
):  # importing brainstate resets the precision; the user's choice stands
    brainstate.environ.set(precision=64)


class ModuleInfo(NamedTuple):
    """One step of a brainstate module as a program `(arguments, states) -> (outputs, states)`, and which variable is which state."""

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
    out_tree: Any = None
    uses: tuple = ()

    @property
    def jaxpr(self) -> Jaxpr:
        """The program of one step."""
        return self.closed_jaxpr.jaxpr

    @property
    def paths(self) -> list[tuple]:
        """The path of each compiled state."""
        return [self.state_id_to_path[id(s)] for s in self.compiled_model_states]

    @property
    def states(self) -> dict[tuple, Any]:
        """The compiled states by path."""
        return dict(zip(self.paths, self.compiled_model_states, strict=True))

    def _roles(self) -> dict[str, list[tuple[Leaf, Var, Any]]]:
        found: dict[str, list] = {'param': [], 'hidden': [], 'other': []}
        for path, state, ins, outs in zip(
            self.paths,
            self.compiled_model_states,
            self.state_tree_invars,
            self.state_tree_outvars,
            strict=True,
        ):
            columns = state.num_state if isinstance(state, brainstate.HiddenGroupState) else 0
            keyed = jtu.tree_flatten_with_path(ins)[0]
            for (key, old), new in zip(keyed, jax.tree.leaves(outs), strict=True):
                found[_role(state)].append((Leaf(path, _names(key), columns), old, new))
        return found

    @property
    def step(self) -> Step:
        """The same program, framework-free."""
        roles = self._roles()
        states = [item for role in roles.values() for item in role]
        inputs = self.jaxpr.invars[: len(self.jaxpr.invars) - len(states)]
        outs = [new for _, _, new in roles['hidden'] + roles['other']] + self.jaxpr.outvars[
            : self.num_var_out
        ]
        program = new_jaxpr(
            [old for _, old, _ in states] + inputs, outs, self.jaxpr.eqns, self.jaxpr.constvars
        )
        leaves = {role: tuple(leaf for leaf, _, _ in items) for role, items in roles.items()}
        return Step(
            ClosedJaxpr(program, self.closed_jaxpr.consts),
            leaves['param'],
            leaves['hidden'],
            leaves['other'],
        )

    def with_step(self, step: Step, uses: tuple = ()) -> ModuleInfo:
        """This record with its program replaced by an equal step over the same inputs."""
        new = dict(zip(step.param_vars, step.param_vars, strict=True))
        new.update(zip(step.hidden_vars, step.hidden_outs, strict=True))
        new.update(zip(step.other_vars, step.other_outs, strict=True))
        states = [v for tree in self.state_tree_invars for v in jax.tree.leaves(tree)]
        program = new_jaxpr(
            self.jaxpr.invars,
            [*step.outs[: self.num_var_out], *[new[v] for v in states]],
            step.jaxpr.jaxpr.eqns,
            step.jaxpr.jaxpr.constvars,
        )
        return _tabulate(
            self.stateful_model,
            ClosedJaxpr(program, step.jaxpr.consts),
            self.retrieved_model_states,
            self.states,
            self.state_tree_invars,
            self.num_var_out,
            self.control_flow,
            self.out_tree,
            uses,
        )

    def add_jaxpr_outs(self, variables: Sequence[Var]) -> ModuleInfo:
        """A record whose program also returns the values of these variables."""
        outs = [*self.jaxpr.outvars, *variables]
        return self._replace(
            closed_jaxpr=ClosedJaxpr(
                new_jaxpr(self.jaxpr.invars, outs, self.jaxpr.eqns, self.jaxpr.constvars),
                self.closed_jaxpr.consts,
            )
        )

    def split_state_outvars(self) -> tuple[dict, dict, dict]:
        """The variables of the states after the step, by path: weights, hidden, other."""
        split: dict[str, dict] = {'param': {}, 'hidden': {}, 'other': {}}
        for path, state, tree in zip(
            self.paths, self.compiled_model_states, self.state_tree_outvars, strict=True
        ):
            split[_role(state)][path] = tree
        return split['param'], split['hidden'], split['other']

    def flat_inputs(
        self,
        args: Sequence[Any],
        old_state_vals: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """The program's inputs: arguments, then the states' values (by default the present ones)."""
        values = (
            [s.value for s in self.compiled_model_states]
            if old_state_vals is None
            else list(old_state_vals)
        )
        return jax.tree.leaves((tuple(args), dict(kwargs or {}), values))

    def unflatten(self, outs: Sequence[Any]) -> tuple[Any, dict, dict, dict]:
        """`(out, {hidden path: value}, {other path: value}, {variable: value})` from the program's outputs; hidden values come without unit."""
        n, m = self.num_var_out, self.num_var_out + self.num_var_state
        rest = iter(outs[n:m])
        hidden, other = {}, {}
        for path, state, tree in zip(
            self.paths, self.compiled_model_states, self.state_tree_invars, strict=True
        ):
            leaves = [next(rest) for _ in jax.tree.leaves(tree)]
            if _role(state) == 'hidden':
                hidden[path] = leaves[0] if len(leaves) == 1 else leaves
            elif _role(state) == 'other':
                other[path] = jax.tree.unflatten(jax.tree.structure(tree), leaves)
        return (
            self.out_tree.unflatten(outs[:n]),
            hidden,
            other,
            dict(zip(self.jaxpr.outvars[m:], outs[m:], strict=True)),
        )

    def jaxpr_call(
        self, *args: Any, old_state_vals: Sequence[Any] | None = None, **kwargs: Any
    ) -> tuple[Any, dict, dict, dict]:
        """Run the program; nothing is written to the model."""
        flat = self.flat_inputs(args, old_state_vals, kwargs)
        return self.unflatten(eval_jaxpr(self.jaxpr, self.closed_jaxpr.consts, *flat))

    def read(self, role: str) -> list[Any]:
        """The present leaves of the states of one role ('param', 'hidden', 'other'), in the order of the step."""
        return [
            leaf
            for s in self.compiled_model_states
            if _role(s) == role
            for leaf in jax.tree.leaves(s.value)
        ]

    def write(self, role: str, leaves: Sequence[Any]) -> None:
        """Put leaves back into the states of one role."""
        rest = iter(leaves)
        for s in self.compiled_model_states:
            if _role(s) == role:
                s.value = jax.tree.map(lambda _: next(rest), s.value)

    def dict(self) -> dict[str, Any]:
        """The fields by name."""
        return self._asdict()


def trace(
    model: Any, *args: Any, control_flow: Any = None, **kwargs: Any
) -> tuple[ModuleInfo, list[tuple]]:
    """One step of a module as it is traced, and the paths of states that are not found in the module. The model is left as it was."""
    if not isinstance(model, brainstate.nn.Module):
        raise TypeError(f'`model` must be a brainstate.nn.Module, got {type(model).__name__}.')
    return trace_function(model, states_of(model), *args, control_flow=control_flow, **kwargs)


def states_of(model: Any) -> dict[tuple, Any]:
    """The states of a model by path."""
    states = dict(brainstate.graph.states(model).items())
    if not any(isinstance(s, brainstate.HiddenState) for s in states.values()):
        raise CompilationError(
            '`model` has no hidden state. If it is recurrent, its states are not initialised: call '
            '`brainstate.nn.init_all_states(model)` first. Otherwise there is nothing to trace.'
        )
    return states


def trace_function(
    model: Any, retrieved: Mapping[tuple, Any], *args: Any, control_flow: Any = None, **kwargs: Any
) -> tuple[ModuleInfo, list[tuple]]:
    """The same for any function of states; `retrieved` names those that are known."""
    stateful = brainstate.transform.StatefulFunction(
        _watched(model, retrieved), return_only_write=False, name='step'
    )
    with (
        brainstate.check_state_value_tree()
    ):  # else a state whose unit changes keeps a tracer for ever
        closed = stateful.get_jaxpr(*args, **kwargs)
    _choose_kernels(closed.jaxpr)
    states = stateful.get_states(*args, **kwargs)
    for s in stateful.get_write_states(*args, **kwargs):
        if isinstance(s, brainstate.ParamState):
            path = next((p for p, t in retrieved.items() if t is s), '?')
            raise NotSupportedError(
                f'Parameter {_dotted(path)} is written inside the step. A parameter must only be read there: '
                'make it another kind of state, or update it outside.'
            )
    known = {id(s): p for p, s in retrieved.items()}
    strange = [s for s in states if id(s) not in known]
    compiled = {
        known.get(id(s))
        or (f'_unknown_path_{next(i for i, t in enumerate(strange) if t is s)}',): s
        for s in states
    }
    flat = closed.jaxpr.invars
    first = len(flat) - sum(len(jax.tree.leaves(s.value)) for s in states)
    rest = iter(flat[first:])
    trees = [jax.tree.map(lambda _: next(rest), s.value) for s in states]
    out_tree = jax.tree.structure(stateful.get_out_shapes(*args, **kwargs)[0])
    info = _tabulate(
        stateful,
        closed,
        retrieved,
        compiled,
        trees,
        out_tree.num_leaves,
        control_flow,
        out_tree,
        (),
    )
    return info, [p for p, s in compiled.items() if any(s is t for t in strange)]


def _tabulate(
    stateful,
    closed,
    retrieved,
    compiled: dict[tuple, Any],
    trees: Sequence[Any],
    num_out: int,
    control_flow,
    out_tree,
    uses,
) -> ModuleInfo:
    rest = iter(closed.jaxpr.outvars[num_out:])
    outs = [jax.tree.map(lambda _: next(rest), tree) for tree in trees]
    hidden = {
        p: (jax.tree.leaves(i), jax.tree.leaves(o))
        for (p, s), i, o in zip(compiled.items(), trees, outs, strict=True)
        if _role(s) == 'hidden'
    }
    weights = {
        p: jax.tree.leaves(i)
        for (p, s), i in zip(compiled.items(), trees, strict=True)
        if _role(s) == 'param'
    }
    return ModuleInfo(
        stateful,
        closed,
        retrieved,
        list(compiled.values()),
        {id(s): p for p, s in compiled.items()},
        trees,
        outs,
        {p: i[0] for p, (i, _) in hidden.items()},
        {p: o[0] for p, (_, o) in hidden.items()},
        {v: p for p, (i, _) in hidden.items() for v in i},
        {v: p for p, (_, o) in hidden.items() for v in o if isinstance(v, Var)},
        {b: a for i, o in hidden.values() for a, b in zip(i, o, strict=True) if isinstance(b, Var)},
        [v for vs in weights.values() for v in vs],
        weights,
        {v: p for p, vs in weights.items() for v in vs},
        num_out,
        sum(len(jax.tree.leaves(t)) for t in trees),
        control_flow,
        out_tree,
        uses,
    )


def _choose_kernels(jaxpr: Jaxpr) -> None:
    """brainevent's kernels on a CPU need numba. Where it is missing and nobody has chosen others, they run in plain JAX instead of not at all."""

    def uses(jaxpr: Jaxpr) -> bool:
        return any(
            str(e.params.get('name', '')).startswith('brainevent.') or any(map(uses, subjaxprs(e)))
            for e in jaxpr.eqns
        )

    import brainevent

    if (
        jax.default_backend() == 'cpu'
        and brainevent.config.get_backend('cpu') is None
        and importlib.util.find_spec('numba') is None
        and uses(jaxpr)
    ):
        brainevent.config.set_backend('cpu', 'jax_raw')


def surroundings() -> tuple[tuple, dict[str, Any]]:
    """What a step may read from `brainstate.environ`: the settings it is compiled for, and values that move with time (`t`, `i` and arrays)."""
    settings, moving = [], {}
    for name, value in brainstate.environ.all().items():
        leaves, tree = jax.tree.flatten(value)
        if name in ('t', 'i') or any(isinstance(a, jax.Array | np.ndarray) for a in leaves):
            moving[name] = value
        else:
            settings.append(
                (name, tree, *[a if isinstance(a, Hashable) else id(a) for a in leaves])
            )
    return tuple(settings), moving


def within(f: Callable) -> Callable:
    """`f` as a function of the moving values of `brainstate.environ` too."""

    def run(moving, *args):
        if not moving:
            return f(*args)
        with brainstate.environ.context(**moving):
            return f(*args)

    return run


def _role(state: Any) -> str:
    return (
        'param'
        if isinstance(state, brainstate.ParamState)
        else 'hidden'
        if isinstance(state, brainstate.HiddenState)
        else 'other'
    )


def _names(keys: Sequence[Any]) -> tuple:
    """The keys a user wrote: those of dicts and sequences, not the inside of a quantity."""
    return tuple(
        k.key if isinstance(k, jtu.DictKey) else k.idx
        for k in keys
        if isinstance(k, jtu.DictKey | jtu.SequenceKey)
    )


def _dotted(path: Sequence[Any]) -> str:
    return '.'.join(map(str, path))


def _watched(model: Any, states: Mapping[tuple, Any]):
    """The model's step, in which every state takes part, used or not, and a refused write names the state."""

    def step(*args, **kwargs):
        try:
            out = model(*args, **kwargs)
        except ValueError as error:
            culprit = _written_by(error)
            if culprit is None:
                raise
            path = next(
                (_dotted(p) for p, s in states.items() if s is culprit),
                f'(a {type(culprit).__name__} outside the model)',
            )
            raise ValueError(
                f'State {path} changes in the step: {error} A state must keep its unit and its structure: convert the new value.'
            ) from error
        for s in states.values():
            s.value  # noqa: B018
        return out

    return step


def _written_by(error: BaseException) -> Any:
    """The state whose setter refused a value, if that is what the error is about."""
    tb, found = error.__traceback__, None
    while tb is not None:
        if tb.tb_frame.f_globals.get('__name__') == 'brainstate._state' and isinstance(
            tb.tb_frame.f_locals.get('self'), brainstate.State
        ):
            found = tb.tb_frame.f_locals['self']
        tb = tb.tb_next
    return found if 'tree structure' in str(error) else None
