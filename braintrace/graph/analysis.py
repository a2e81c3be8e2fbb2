"""The influence of every hidden state and every use of a weight on everything that follows, in one pass over a flat step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jax import lax

from .._jax import Atom, Jaxpr, JaxprEqn, Literal, Var, is_float, new_jaxpr, prune, trace
from ..step import Leaf, Step
from .influence import NOTHING, Constants, Dep, influence, union
from .layout import positions
from .uses import Use


class Row(NamedTuple):
    """One state of a unit: a leaf of the model's state, or one column of it."""
    leaf: Leaf
    old: Var
    new: Atom
    column: int | None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.old.aval.shape if self.column is None else self.old.aval.shape[:-1]

    def of(self, a):
        """This row of the leaf's value, or of a map with its shape."""
        return a if self.column is None else a[..., self.column]


class Analysis:
    """Who depends on whom. Seed `i` is row `i`; the seeds of the uses follow."""

    def __init__(self, step: Step, uses: Sequence[Use]):
        self.step, self.uses = step, tuple(uses)
        self.eqns: list[JaxprEqn] = step.jaxpr.jaxpr.eqns
        self.made_by = {v: k for k, e in enumerate(self.eqns) for v in e.outvars}
        self.rows = [r for old, new, leaf in zip(step.hidden_vars, step.hidden_outs, step.hidden, strict=True) for r in _rows(leaf, old, new)]
        self.others = [r for old, new, leaf in zip(step.other_vars, step.other_outs, step.other, strict=True) for r in _rows(leaf, old, new)]
        self.deps: dict[Var, Dep] = {}
        self.cuts: dict[int, frozenset[int]] = {}
        self._spread()

    def seed(self, use: int) -> int:
        return len(self.rows) + len(self.others) + use

    def dep(self, a: Atom) -> Dep:
        return NOTHING if isinstance(a, Literal) else self.deps.get(a, NOTHING)

    def of_row(self, row: Row) -> Dep:
        """What the row's new value depends on, with maps in the shape of the row."""
        return self.dep(row.new).each(row.of) if row.column is not None else self.dep(row.new)

    def _spread(self) -> None:
        const = Constants(self.step.jaxpr)
        for s, row in enumerate([*self.rows, *self.others]):
            if is_float(row.old) and row.old.aval.size:
                self.deps[row.old] = union([self.dep(row.old), Dep({s: (_start(row),)})])
        born: dict[Var, list[Dep]] = {}
        for u, use in enumerate(self.uses):
            for y in (y for y in use.y if y.aval.size):
                start = Dep({self.seed(u): (positions(y.aval.shape),)}) if use.axes else Dep(mixed=1 << self.seed(u))
                born.setdefault(y, []).append(start)
        for k, eqn in enumerate(self.eqns):
            outs, cut = influence(eqn, [self.dep(a) for a in eqn.invars], const)
            if cut:
                self.cuts[k] = cut
            for v, d in zip(eqn.outvars, outs, strict=True):
                if d or v in born:
                    self.deps[v] = union([d, *born.get(v, ())])

    def along(self, seeds: Iterable[int], inputs: Sequence[Var], outs: Sequence[Atom]) -> Jaxpr:
        """The program `inputs -> outs` along the position-wise paths of these seeds; everything else it needs is a constvar."""
        seeds = set(seeds)
        live = lambda a: isinstance(a, Var) and not seeds.isdisjoint(self.dep(a).maps)
        todo = [self.made_by[a] for a in outs if live(a) and a not in inputs and a in self.made_by]
        needed: set[int] = set()
        while todo:
            k = todo.pop()
            if k in needed:
                continue
            needed.add(k)
            todo += [self.made_by[a] for i, a in enumerate(self.eqns[k].invars)
                     if live(a) and i not in self.cuts.get(k, ()) and a not in inputs and a in self.made_by]
        eqns: list[JaxprEqn] = []
        for k in sorted(needed):
            eqn = self.eqns[k]
            for i in sorted(self.cuts.get(k, ())):
                if live(eqn.invars[i]):
                    held = Var(eqn.invars[i].aval)
                    [hold] = trace(lax.stop_gradient, eqn.invars[i]).jaxpr.eqns
                    eqns.append(hold.replace(invars=[eqn.invars[i]], outvars=[held]))
                    eqn = eqn.replace(invars=[held if j == i else a for j, a in enumerate(eqn.invars)])
            eqns.append(eqn)
        return _program(inputs, outs, eqns)

    def between(self, inputs: Sequence[Var], outs: Sequence[Atom]) -> Jaxpr:
        """The program `inputs -> outs` along all paths; everything else it needs is a constvar."""
        live, eqns = set(inputs), []
        for eqn in self.eqns:
            if any(isinstance(a, Var) and a in live for a in eqn.invars):
                eqns.append(eqn)
                live.update(eqn.outvars)
        return _program(inputs, outs, prune(eqns, outs))

    def blame(self, seed: int, target: Atom) -> JaxprEqn | None:
        """The first equation, on the way of a seed to `target`, that ends its position-wise path."""
        reaching, todo = set(), [target]
        while todo:
            a = todo.pop()
            if a in self.made_by and self.made_by[a] not in reaching and self.dep(a).seeds >> seed & 1:
                reaching.add(self.made_by[a])
                todo += [b for b in self.eqns[self.made_by[a]].invars if isinstance(b, Var)]
        for k in sorted(reaching):
            if any(seed in self.dep(self.eqns[k].invars[i]).maps for i in self.cuts.get(k, ())):
                return self.eqns[k]
        return None


def _program(inputs: Sequence[Var], outs: Sequence[Atom], eqns: Sequence[JaxprEqn]) -> Jaxpr:
    """These equations as a program in which whatever they do not make themselves is a constvar."""
    made = {v for e in eqns for v in e.outvars}.union(inputs)
    free = dict.fromkeys(a for group in (*[e.invars for e in eqns], outs) for a in group if isinstance(a, Var) and a not in made)
    return new_jaxpr(inputs, outs, eqns, list(free))


def _rows(leaf: Leaf, old: Var, new: Atom) -> list[Row]:
    return [Row(leaf, old, new, c) for c in range(leaf.columns)] if leaf.columns else [Row(leaf, old, new, None)]


def _start(row: Row) -> np.ndarray:
    """The map of a row's old value: the unit each element of the leaf belongs to."""
    if row.column is None:
        return positions(row.shape)
    start = np.full(row.old.aval.shape, -1, np.int32)
    start[..., row.column] = positions(row.shape)
    return start
