"""A hidden group as 0.2 published it: a view of `graph.groups.Group` with its transition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._jax import Jaxpr, run_jaxpr
from ..errors import NotSupportedError
from ..graph.analysis import Analysis
from ..graph.groups import Group, colour, concat_hidden, is_diagonal, split_hidden, transition
from ..graph.index_maps import Maps
from ..graph.structure import SnapPattern, Structure


class HiddenGroup(NamedTuple):
    """Hidden states tied position by position, with the program that takes their old values to
    their new ones.

    `hidden_invars` and `hidden_outvars` are the states' variables in the step. `transition_jaxpr`
    maps the one to the other; its first inputs are `transition_jaxpr_constvars`, what it needs
    besides. `carried` lists the rows (states of a unit) whose old value is used position by
    position: only those need a trace. `elsewhere` has the index maps by which a unit's new state
    depends on old states of other units, where that is known element by element. `snap` has the
    units that each unit reaches, if the graph was compiled with `sparse_n`.
    """

    index: int  # type: ignore[assignment]
    hidden_paths: list
    hidden_states: list
    hidden_invars: list
    hidden_outvars: list
    transition_jaxpr: Jaxpr
    transition_jaxpr_constvars: list
    is_diagonal_recurrence: bool = True
    snap: SnapPattern | None = None
    descent: Any = None
    columns: tuple = ()
    carried: tuple = ()
    elsewhere: Maps = ()
    mixing: bool = False

    @property
    def _columns(self) -> tuple[int, ...]:
        return self.columns or (0,) * len(self.hidden_invars)

    @property
    def varshape(self) -> tuple[int, ...]:
        """The shape of the units."""
        shape = self.hidden_invars[0].aval.shape
        return shape[:-1] if self._columns[0] else shape

    @property
    def num_state(self) -> int:
        """How many states a unit has."""
        return sum(max(c, 1) for c in self._columns)

    @property
    def trace_state_width(self) -> int:
        """How many values of the group a trace holds for each weight: the states of one unit, or of
        a neighbourhood of units."""
        return self.num_state * (1 if self.snap is None else self.snap.valid.shape[-1])

    def check_consistent_varshape(self) -> None:
        """Raise `NotSupportedError` unless all states have the group's shape."""
        for path, v, c in zip(self.hidden_paths, self.hidden_invars, self._columns, strict=True):
            if (v.aval.shape[:-1] if c else v.aval.shape) != self.varshape:
                raise NotSupportedError(
                    f'Hidden state {path} has shape {v.aval.shape}, but its group has '
                    f'{self.varshape}.'
                )

    def concat_hidden(self, splitted: Sequence[Any]) -> jax.Array:
        """One array `(*varshape, num_state)` from the value of each state."""
        return concat_hidden(self._columns, splitted)

    def split_hidden(self, concat: jax.Array) -> list[jax.Array]:
        """The value of each state from one array `(*varshape, num_state)`."""
        return split_hidden(self._columns, [v.aval.dtype for v in self.hidden_invars], concat)

    def transition(self, hidden_vals: Sequence[Any], input_vals: Sequence[Any]) -> list[Any]:
        """The new hidden values; `input_vals` are those of `transition_jaxpr_constvars`."""
        return run_jaxpr(self.transition_jaxpr, *input_vals, *hidden_vals)

    def diagonal_jacobian(self, hidden_vals: Sequence[Any], input_vals: Sequence[Any]) -> jax.Array:
        """`D[p, a, b]`, the derivative of new state `a` of unit `p` by old state `b` of the same
        unit, shape `(*varshape, S, S)`. Of complex states it is the complex derivative, which only
        a holomorphic transition has.

        One pull for each state and colour; units of one colour do not depend on each other's old
        value. With neighbourhoods `snap` of K units it is their block of the Jacobian,
        `(*varshape, K S, K S)`, with zeros where there are fewer.
        """
        if self.mixing:
            return self._blocks(self.full_jacobian(hidden_vals, input_vals))
        h = self.concat_hidden(hidden_vals)
        _, pull = jax.vjp(self._on_concat(input_vals), h)
        colours = self.colours()
        states = jnp.eye(self.num_state, dtype=h.dtype)

        def of_colour(c: int) -> jax.Array:
            chosen = jnp.asarray(colours == c)[..., None]
            rows = jax.vmap(lambda one: pull(jnp.where(chosen, one, 0))[0])(states)
            return jnp.where(chosen[..., None], jnp.moveaxis(rows, 0, -2), 0)

        total: Any = sum(of_colour(c) for c in range(int(colours.max(initial=0)) + 1))
        return total

    def full_jacobian(self, hidden_vals: Sequence[Any], input_vals: Sequence[Any]) -> jax.Array:
        """The derivative of every new value by every old one along the transition, shape
        `(*varshape, S, *varshape, S)`."""
        h = self.concat_hidden(hidden_vals)
        return jax.jacrev(self._on_concat(input_vals), holomorphic=jnp.iscomplexobj(h))(h)

    def colours(self) -> np.ndarray:
        """A colour for each unit, shape `varshape`; units of one colour do not depend on each
        other's old states along the transition."""
        return colour(int(np.prod(self.varshape)), self.elsewhere).reshape(self.varshape)

    def dict(self) -> dict[str, Any]:
        """The fields by name."""
        return self._asdict()

    def _on_concat(self, input_vals: Sequence[Any]) -> Callable[[jax.Array], jax.Array]:
        """The transition on arrays `(*varshape, num_state)`."""

        def f(h: jax.Array) -> jax.Array:
            return self.concat_hidden(self.transition(self.split_hidden(h), input_vals))

        return f

    def _blocks(self, jacobian: jax.Array) -> jax.Array:
        """The blocks of a whole Jacobian that belong to one unit, or to its neighbourhood."""
        n, states, width = int(np.prod(self.varshape)), self.num_state, self.trace_state_width
        near, there = np.arange(n).reshape(n, 1), np.ones((n, 1), bool)
        if self.snap is not None:
            near, there = self.snap.neighbours.reshape(n, -1), self.snap.valid.reshape(n, -1)
        full = jacobian.reshape(n, states, n, states)
        both = there[:, :, None] & there[:, None, :]
        block = full[near[:, :, None], :, near[:, None, :], :] * both[..., None, None]
        return jnp.swapaxes(block, 2, 3).reshape(*self.varshape, width, width)


def published_group(
    analysis: Analysis, group: Group, states: Mapping[tuple, Any], *, mixing: bool = False
) -> HiddenGroup:
    """The view of a group; `states` has the state objects by path. With `mixing` the operations
    that mix units stay in the transition."""
    fragment = transition(analysis, group, mixing)
    return HiddenGroup(
        group.index,
        group.paths,
        [states.get(p) for p in group.paths],
        group.invars,
        group.outvars,
        fragment.jaxpr,
        list(fragment.free),
        is_diagonal(analysis, group),
        columns=group.columns,
        carried=group.carried,
        elsewhere=group.elsewhere,
        mixing=mixing,
    )


def with_neighbours(
    analysis: Analysis, groups: Sequence[HiddenGroup], n: int, limit: int | None = None
) -> list[HiddenGroup]:
    """The groups with the neighbourhoods of SnAp-n, whose blocks of the Jacobian may have `limit`
    elements if there is one."""
    structure, done = Structure(analysis), []
    for g in groups:
        g = g._replace(snap=structure.neighbours(g.hidden_invars, g.hidden_outvars, g.varshape, n))
        size = int(np.prod(g.varshape)) * g.trace_state_width**2
        if limit is not None and size > limit:
            raise NotSupportedError(
                f'sparse_n={n}: the Jacobian of hidden group {g.index} would have {size} elements '
                'in the neighbourhoods of its units, more than snap_max_jacobian_elements='
                f'{limit}. Use a smaller n, or raise the limit.'
            )
        done.append(g)
    return done
