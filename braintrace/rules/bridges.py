"""The diagonal of a mixing op: what `y = x @ w` takes from a unit's own old state to the unit itself.

With `scope='block'` a position-wise path does not end at such an op. It crosses on the one weight between the element of x that comes from a unit and the
element of y that feeds the same unit, so no Jacobian larger than y is ever formed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from .._jax import Var
from ..graph.etrace_graph import ETraceGraph
from ..graph.relations import HiddenParamOpRelation


@dataclass(frozen=True, eq=False)
class Bridge:
    """For each element of y the element of x that comes from the unit it feeds (`near`, -1 for none), and the weight between them."""
    x: Var
    rows: frozenset[int]
    near: np.ndarray
    weight: tuple[np.ndarray, ...]

    def __call__(self, dx: Any, w: Any) -> Any:
        """The change of y by a change of x, along the diagonal."""
        return jnp.where(self.near >= 0, dx.reshape(-1)[self.near.clip(0)] * w[self.weight], 0)


def find_bridges(graph: ETraceGraph) -> dict[Var, Bridge]:
    """The bridges of a graph, by the op's output."""
    found = {}
    for r in graph.hidden_param_op_relations:
        bridge = _bridge(graph, r) if r.axes.x is not None and r.x_var is not None and r.primitive.name == 'dot_general' else None
        if bridge is not None:
            found[r.y_var] = bridge
    return found


def _bridge(graph: ETraceGraph, r: HiddenParamOpRelation) -> Bridge | None:
    assert r.x_var is not None
    seeds = {g.index: [s for s, row in enumerate(graph.found.rows) if any(row.old is v for v in g.hidden_invars)] for g in r.hidden_groups}
    maps = graph.found.dep(r.x_var).maps
    near = np.full(r.y_var.aval.shape, -1, np.int64)
    rows: set[int] = set()
    for g in r.hidden_groups:
        for s in seeds[g.index]:
            for from_unit in maps.get(s, ()):
                for unit in r.maps[g.index]:
                    here = _meet(from_unit, unit, r)
                    near = np.where(near < 0, here, near)
                    rows |= {s} if (here >= 0).any() else set()
    if not rows:
        return None
    of_x, of_y = np.unravel_index(near.clip(0), r.x_var.aval.shape), np.indices(r.y_var.aval.shape)
    weight = tuple(of_y[r.axes.y.index(c)] if c in r.axes.y else of_x[_letters(r).index(c)] for c in r.axes.w)
    return Bridge(r.x_var, frozenset(rows), near, weight)


def _meet(from_unit: np.ndarray, unit: np.ndarray, r: HiddenParamOpRelation) -> np.ndarray:
    """The element of x that comes from the unit each element of y feeds, where both lie at the same place of the axes they share."""
    at = np.full(max(int(from_unit.max()), int(unit.max())) + 1, -1, np.int64)
    elements = np.flatnonzero(from_unit.ravel() >= 0)
    at[from_unit.ravel()[elements]] = elements
    near = np.where(unit >= 0, at[unit.clip(0)], -1)
    of_x, of_y = np.unravel_index(near.clip(0), from_unit.shape), np.indices(unit.shape)
    for k, c in enumerate(_letters(r)):
        if c in r.axes.y:
            near = np.where(of_x[k] == of_y[r.axes.y.index(c)], near, -1)
    return near


def _letters(r: HiddenParamOpRelation) -> Sequence[str]:
    assert r.axes.x is not None
    return list(r.axes.x)
