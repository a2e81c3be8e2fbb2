"""The influence of every hidden state and every use of a weight on everything that follows, in one pass over a flat step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jax import lax

from .._jax import Atom, Jaxpr, JaxprEqn, Literal, Var, is_float, new_jaxpr, prune, trace
from ..step import Leaf, Step
from .index_maps import positions
from .influence import NO_FANS, NOTHING, Constants, Dep, influence, union
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
    """Who depends on whom. Seed `i` is row `i`; the seeds of the uses follow.

    `cuts` has the operands, by equation, where the paths of states are cut, `use_cuts` those for the outputs of uses. They are one and the same object where
    one set serves both; else a path of the one kind goes on where one of the other ends, and the two must be followed one after the other.
    """

    def __init__(self, step: Step, uses: Sequence[Use]):
        self.step, self.uses = step, tuple(uses)
        self.eqns: list[JaxprEqn] = step.jaxpr.jaxpr.eqns
        self.made_by = {v: k for k, e in enumerate(self.eqns) for v in e.outvars}
        self.rows = [
            r
            for old, new, leaf in zip(step.hidden_vars, step.hidden_outs, step.hidden, strict=True)
            for r in _rows(leaf, old, new)
        ]
        self.others = [
            r
            for old, new, leaf in zip(step.other_vars, step.other_outs, step.other, strict=True)
            for r in _rows(leaf, old, new)
        ]
        first = self.seed(0)
        states = [
            (row.old, Dep({s: (_start(row),)}))
            for s, row in enumerate([*self.rows, *self.others])
            if is_float(row.old) and row.old.aval.size
        ]
        outputs = [
            (
                y,
                Dep({first + u: (positions(y.aval.shape),)})
                if use.axes
                else Dep(mixed=1 << first + u),
            )
            for u, use in enumerate(self.uses)
            for y in use.y
            if y.aval.size
        ]
        of_states, self.cuts = self._spread(states, {})
        of_uses, self.use_cuts = self._spread(
            outputs,
            {
                first + u: use.y[0].aval.size
                for u, use in enumerate(self.uses)
                if use.axes and len(use.y) == 1
            },
        )
        self.deps: dict[Var, Dep] = of_states | of_uses
        self.deps.update(
            {
                v: Dep(d.maps | of_uses[v].maps, d.mixed | of_uses[v].mixed, of_uses[v].fans)
                for v, d in of_states.items()
                if v in of_uses
            }
        )
        if not self._apart(of_states, self.cuts, self.use_cuts) and not self._apart(
            of_uses, self.use_cuts, self.cuts
        ):
            cuts = {
                k: self.cuts.get(k, frozenset()) | self.use_cuts.get(k, frozenset())
                for k in {**self.cuts, **self.use_cuts}
            }
            self.cuts = self.use_cuts = cuts

    def seed(self, use: int) -> int:
        return len(self.rows) + len(self.others) + use

    def cuts_of(self, seed: int) -> Mapping[int, frozenset[int]]:
        """The operands, by equation, at which the paths of a seed are cut."""
        return self.use_cuts if seed >= self.seed(0) else self.cuts

    def dep(self, a: Atom) -> Dep:
        return NOTHING if isinstance(a, Literal) else self.deps.get(a, NOTHING)

    def of_row(self, row: Row) -> Dep:
        """What the row's new value depends on, with maps in the shape of the row."""
        d, n = self.dep(row.new), row.leaf.columns
        if row.column is None:
            return d
        fans = {
            s: np.where((fan >= 0) & (fan % n == row.column), fan // n, -1)
            for s, fan in d.fans.items()
        }
        return Dep(
            d.each(row.of).maps, d.mixed, {s: fan for s, fan in fans.items() if (fan >= 0).any()}
        )

    def _spread(
        self, born: Iterable[tuple[Var, Dep]], sizes: Mapping[int, int]
    ) -> tuple[dict[Var, Dep], dict[int, frozenset[int]]]:
        """What depends on these seeds, and the operands of equations where their paths are cut. `sizes`: those that may have a fan."""
        const = Constants(self.step.jaxpr)
        products = {
            y for use in self.uses if use.op is None or use.op.axes.x is not None for y in use.y
        }
        new: dict[Var, Dep] = {}
        cuts: dict[int, frozenset[int]] = {}
        for v, d in born:
            new[v] = union([new.get(v, NOTHING), d])
        deps = dict(new)
        for k, eqn in enumerate(self.eqns):
            ins = [NOTHING if isinstance(a, Literal) else deps.get(a, NOTHING) for a in eqn.invars]
            if any(ins):
                weighted = any(
                    v in products for v in eqn.outvars
                )  # through another weight a fan ends, whatever the shape: position-wise rules do not cross it
                gathered = {i for i, d in enumerate(ins) if weighted and d.fans}
                ins = [Dep(mixed=d.seeds) if i in gathered else d for i, d in enumerate(ins)]
                outs, cut = influence(eqn, ins, const, sizes=NO_FANS if weighted else sizes)
                cut = cut | gathered
                if cut:
                    cuts[k] = cut
                deps.update(
                    {
                        v: union([d, new.get(v, NOTHING)])
                        for v, d in zip(eqn.outvars, outs, strict=True)
                        if d
                    }
                )
        return deps, cuts

    def _apart(
        self,
        deps: Mapping[Var, Dep],
        cuts: Mapping[int, frozenset[int]],
        others: Mapping[int, frozenset[int]],
    ) -> bool:
        """Whether a path of these seeds, to a new state, goes on where a path of the others is cut."""
        arrives = set(self.step.hidden_outs)
        for k, eqn in reversed(list(enumerate(self.eqns))):
            if not arrives.isdisjoint(eqn.outvars):
                on = [
                    i
                    for i, a in enumerate(eqn.invars)
                    if isinstance(a, Var)
                    and a in deps
                    and deps[a].live
                    and i not in cuts.get(k, ())
                ]
                if not others.get(k, frozenset()).isdisjoint(on):
                    return True
                arrives.update(eqn.invars[i] for i in on)
        return False

    def along(self, seeds: Iterable[int], inputs: Sequence[Var], outs: Sequence[Atom]) -> Jaxpr:
        """The program `inputs -> outs` along the position-wise paths of these seeds; everything else it needs is a constvar."""
        seeds = set(seeds)
        cuts = self.cuts_of(min(seeds, default=0))
        live = lambda a: isinstance(a, Var) and not seeds.isdisjoint(self.dep(a).live)
        todo = [self.made_by[a] for a in outs if live(a) and a not in inputs and a in self.made_by]
        needed: set[int] = set()
        while todo:
            k = todo.pop()
            if k in needed:
                continue
            needed.add(k)
            todo += [
                self.made_by[a]
                for i, a in enumerate(self.eqns[k].invars)
                if live(a) and i not in cuts.get(k, ()) and a not in inputs and a in self.made_by
            ]
        eqns: list[JaxprEqn] = []
        for k in sorted(needed):
            eqn = self.eqns[k]
            for i in sorted(cuts.get(k, ())):
                if live(eqn.invars[i]):
                    held = Var(eqn.invars[i].aval)
                    [hold] = trace(lax.stop_gradient, eqn.invars[i]).jaxpr.eqns
                    eqns.append(hold.replace(invars=[eqn.invars[i]], outvars=[held]))
                    eqn = eqn.replace(
                        invars=[held if j == i else a for j, a in enumerate(eqn.invars)]
                    )
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
            if (
                a in self.made_by
                and self.made_by[a] not in reaching
                and self.dep(a).seeds >> seed & 1
            ):
                reaching.add(self.made_by[a])
                todo += [b for b in self.eqns[self.made_by[a]].invars if isinstance(b, Var)]
        for k in sorted(reaching):
            if any(
                seed in self.dep(self.eqns[k].invars[i]).live for i in self.cuts_of(seed).get(k, ())
            ):
                return self.eqns[k]
        return None


def _program(inputs: Sequence[Var], outs: Sequence[Atom], eqns: Sequence[JaxprEqn]) -> Jaxpr:
    """These equations as a program in which whatever they do not make themselves is a constvar."""
    made = {v for e in eqns for v in e.outvars}.union(inputs)
    free = dict.fromkeys(
        a
        for group in (*[e.invars for e in eqns], outs)
        for a in group
        if isinstance(a, Var) and a not in made
    )
    return new_jaxpr(inputs, outs, eqns, list(free))


def _rows(leaf: Leaf, old: Var, new: Atom) -> list[Row]:
    return (
        [Row(leaf, old, new, c) for c in range(leaf.columns)]
        if leaf.columns
        else [Row(leaf, old, new, None)]
    )


def _start(row: Row) -> np.ndarray:
    """The map of a row's old value: the unit each element of the leaf belongs to."""
    if row.column is None:
        return positions(row.shape)
    start = np.full(row.old.aval.shape, -1, np.int32)
    start[..., row.column] = positions(row.shape)
    return start
