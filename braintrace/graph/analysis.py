"""The influence of every hidden state and every use of a weight on everything that follows, in one
pass over a flat step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import lax

from .._jax import (
    Atom,
    JaxprEqn,
    Literal,
    Var,
    is_complex,
    is_float,
    new_jaxpr,
    prune,
    real_dtype,
    trace,
)
from ..step import Fragment, Leaf, Step
from .constants import constants
from .dependence import NO_SIZES, NOTHING, Dep, Sizes, union
from .index_maps import positions
from .influence import influence
from .uses import Use

Cuts = Mapping[int, frozenset[int]]  # operands by the number of their equation
Deps = dict[Var, Dep]
Values = TypeVar('Values')


class Part(Enum):
    """What a state is of a number."""

    REAL = auto()  # its real part, which is all of a real number
    IMAGINARY = auto()
    WHOLE = auto()  # all of a complex number


class Row(NamedTuple):
    """One state of a unit: a leaf of the model's state, or one column of it, or a part of such a
    state where it is complex.

    The rows of an analysis are real; a plan may take the two parts of a complex state as one.
    """

    leaf: Leaf
    old: Var
    new: Atom
    column: int | None
    part: Part = Part.REAL

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the units."""
        return self.old.aval.shape if self.column is None else self.old.aval.shape[:-1]

    @property
    def dtype(self) -> np.dtype:
        """The type of its values."""
        dtype = self.old.aval.dtype
        return dtype if self.part is Part.WHOLE or not is_float(self.old) else real_dtype(dtype)

    def place(self, a: Values) -> Values:
        """The elements of the leaf that belong to this row, of an array with the leaf's shape."""
        return a if self.column is None else a[..., self.column]  # type: ignore[index]

    def of(self, a: Any) -> Any:
        """This row of the leaf's value."""
        a = self.place(a)
        match self.part:
            case Part.REAL:
                return jnp.real(a)
            case Part.IMAGINARY:
                return jnp.imag(a)
            case Part.WHOLE:
                return a

    @property
    def first_part(self) -> Row:
        """The first of its parts."""
        return self._replace(part=Part.REAL) if self.part is Part.WHOLE else self

    def credit(self, a: Any) -> Any:
        """The credit of this row, from that of the leaf: a complex `c` says that the loss changes
        by `Re(c dh) = Re(c) Re(dh) - Im(c) Im(dh)`."""
        return -self.of(a) if self.part is Part.IMAGINARY else self.of(a)


class Analysis:
    """Who depends on whom in a flat step. Seed `i` is row `i` of the hidden states, then come the
    rows of the other states, then the uses.

    `cuts` has the operands, by equation, where the paths of states are cut, `use_cuts` those for
    the outputs of uses. They are one and the same object where one set serves both; else a path of
    the one kind goes on where one of the other ends, and the two must be followed one after the
    other.
    """

    def __init__(self, step: Step, uses: Sequence[Use]):
        self.step, self.uses = step, tuple(uses)
        self.eqns: list[JaxprEqn] = step.jaxpr.eqns
        self.made_by = {v: k for k, e in enumerate(self.eqns) for v in e.outvars}
        self.rows = _rows(step.hidden, step.hidden_vars, step.hidden_outs)
        self.others = _rows(step.other, step.other_vars, step.other_outs)
        of_states, self.cuts = self._follow(self._born_as_states(), NO_SIZES)
        of_uses, self.use_cuts = self._follow(self._born_in_uses(), self._single_outputs())
        self.deps: Deps = {**of_states, **of_uses}
        for v in of_states.keys() & of_uses.keys():
            a, b = of_states[v], of_uses[v]
            self.deps[v] = Dep(a.maps | b.maps, a.mixed | b.mixed, b.inverse)
        if self._goes_on(of_states, self.cuts, self.use_cuts):
            return
        if self._goes_on(of_uses, self.use_cuts, self.cuts):
            return
        both = self.cuts.keys() | self.use_cuts.keys()
        self.cuts = self.use_cuts = {
            k: self.cuts.get(k, frozenset()) | self.use_cuts.get(k, frozenset())
            for k in sorted(both)
        }

    def seed(self, use: int) -> int:
        """The seed of a use, by its number."""
        return len(self.rows) + len(self.others) + use

    def seed_of(self, use: Use) -> int:
        """The seed of a use."""
        return self.seed(self.uses.index(use))

    def seeds_of(self, rows: Iterable[Row]) -> list[int]:
        """The seeds of rows of the hidden states; of a whole complex one that of its real part, on
        which just the same depends."""
        number = {row: s for s, row in enumerate(self.rows)}
        return [number[row.first_part] for row in rows]

    def cuts_of(self, seed: int) -> Cuts:
        """The operands, by equation, at which the paths of a seed are cut."""
        return self.use_cuts if seed >= self.seed(0) else self.cuts

    def dep(self, a: Atom) -> Dep:
        """What a value depends on."""
        return NOTHING if isinstance(a, Literal) else self.deps.get(a, NOTHING)

    def of_row(self, row: Row) -> Dep:
        """What the row's new value depends on, with maps in the shape of the row."""
        d, n = self.dep(row.new), row.leaf.columns
        if row.column is None:
            return d
        inverse = {}
        for s, m in d.inverse.items():
            mine = np.where((m >= 0) & (m % n == row.column), m // n, -1)
            if (mine >= 0).any():
                inverse[s] = mine
        return Dep(d.each(row.place).maps, d.mixed, inverse)

    def along(self, seeds: Iterable[int], inputs: Sequence[Var], outs: Sequence[Atom]) -> Fragment:
        """The program `inputs -> outs` along the position-wise paths of these seeds."""
        seeds = set(seeds)
        cuts = self.cuts_of(min(seeds, default=0))

        def live(a: Atom) -> bool:
            return isinstance(a, Var) and not seeds.isdisjoint(self.dep(a).live)

        def makers(atoms: Iterable[Atom]) -> list[int]:
            wanted = (a for a in atoms if live(a) and a not in inputs)
            return [self.made_by[a] for a in wanted if a in self.made_by]

        todo, needed = makers(outs), set()
        while todo:
            k = todo.pop()
            if k not in needed:
                needed.add(k)
                cut = cuts.get(k, frozenset())
                todo += makers(a for i, a in enumerate(self.eqns[k].invars) if i not in cut)
        eqns: list[JaxprEqn] = []
        for k in sorted(needed):
            cut = cuts.get(k, frozenset())
            held = [i for i in sorted(cut) if live(self.eqns[k].invars[i])]
            eqns += _holding(self.eqns[k], held)
        return _fragment(inputs, outs, eqns)

    def between(self, inputs: Sequence[Var], outs: Sequence[Atom]) -> Fragment:
        """The program `inputs -> outs` along all paths."""
        live, eqns = set(inputs), []
        for eqn in self.eqns:
            if any(isinstance(a, Var) and a in live for a in eqn.invars):
                eqns.append(eqn)
                live.update(eqn.outvars)
        return _fragment(inputs, outs, prune(eqns, outs))

    def blame(self, seed: int, target: Atom) -> JaxprEqn | None:
        """The first equation, on the way of a seed to `target`, that ends its position-wise
        path."""
        reaching: set[int] = set()
        todo = [target]
        while todo:
            a = todo.pop()
            k = self.made_by.get(a) if isinstance(a, Var) else None
            if k is not None and k not in reaching and self.dep(a).seeds >> seed & 1:
                reaching.add(k)
                todo += [b for b in self.eqns[k].invars if isinstance(b, Var)]
        for k in sorted(reaching):
            cut = self.cuts_of(seed).get(k, frozenset())
            if any(seed in self.dep(self.eqns[k].invars[i]).live for i in cut):
                return self.eqns[k]
        return None

    # ---- the pass ----

    def _born_as_states(self) -> list[tuple[Var, Dep]]:
        """Each state's old value with the unit that each of its elements belongs to."""
        return [
            (row.old, Dep({s: (_units(row),)}))
            for s, row in enumerate([*self.rows, *self.others])
            if is_float(row.old) and row.old.aval.size
        ]

    def _born_in_uses(self) -> list[tuple[Var, Dep]]:
        """Each output of a use with its own positions; without a rule they are not told apart."""
        born = []
        for u, use in enumerate(self.uses):
            for y in use.y:
                if y.aval.size:
                    here = Dep({self.seed(u): (positions(y.aval.shape),)})
                    born.append((y, here if use.axes else Dep(mixed=1 << self.seed(u))))
        return born

    def _single_outputs(self) -> Sizes:
        """The uses whose influence may be followed by inverse maps, with their sizes."""
        return {
            self.seed(u): use.y[0].aval.size
            for u, use in enumerate(self.uses)
            if use.axes and len(use.y) == 1
        }

    def _follow(
        self, born: Iterable[tuple[Var, Dep]], sizes: Sizes
    ) -> tuple[Deps, dict[int, frozenset[int]]]:
        """What depends on these seeds, and the operands of equations where their paths are cut.
        `sizes` has the seeds that may have an inverse map."""
        const = constants(self.step)
        weighted = [use for use in self.uses if use.op is None or use.op.axes.x is not None]
        products = {y for use in weighted for y in use.y}
        new: Deps = {}
        for v, d in born:
            new[v] = union([new.get(v, NOTHING), d])
        deps, cuts = dict(new), {}
        for k, eqn in enumerate(self.eqns):
            ins = [NOTHING if isinstance(a, Literal) else deps.get(a, NOTHING) for a in eqn.invars]
            if not any(ins):
                continue
            ended: set[int] = set()
            may = sizes
            if not products.isdisjoint(eqn.outvars):
                # Through another weight an inverse map ends, whatever the shape: position-wise
                # rules do not cross it.
                ended = {i for i, d in enumerate(ins) if d.inverse}
                ins = [Dep(mixed=d.seeds) if i in ended else d for i, d in enumerate(ins)]
                may = NO_SIZES
            outs, cut = influence(eqn, ins, const, sizes=may)
            if cut | ended:
                cuts[k] = cut | ended
            for v, d in zip(eqn.outvars, outs, strict=True):
                if d:
                    deps[v] = union([d, new.get(v, NOTHING)])
        return deps, cuts

    def _goes_on(self, deps: Deps, cuts: Cuts, others: Cuts) -> bool:
        """Whether a path of these seeds, to a new state, goes on where a path of the others is
        cut."""
        arrives = set(self.step.hidden_outs)
        for k, eqn in reversed(list(enumerate(self.eqns))):
            if arrives.isdisjoint(eqn.outvars):
                continue
            cut = cuts.get(k, frozenset())
            on = [
                i
                for i, a in enumerate(eqn.invars)
                if isinstance(a, Var) and a in deps and deps[a].live and i not in cut
            ]
            if not others.get(k, frozenset()).isdisjoint(on):
                return True
            arrives.update(eqn.invars[i] for i in on)
        return False


def _holding(eqn: JaxprEqn, operands: Iterable[int]) -> list[JaxprEqn]:
    """The equation, after those that hold these operands of it still."""
    eqns = []
    for i in operands:
        held = Var(eqn.invars[i].aval)
        [hold] = trace(lax.stop_gradient, eqn.invars[i]).jaxpr.eqns
        eqns.append(hold.replace(invars=[eqn.invars[i]], outvars=[held]))
        eqn = eqn.replace(invars=[held if j == i else a for j, a in enumerate(eqn.invars)])
    return [*eqns, eqn]


def _fragment(inputs: Sequence[Var], outs: Sequence[Atom], eqns: Sequence[JaxprEqn]) -> Fragment:
    """These equations as a program in which whatever they do not make themselves is free."""
    made = {v for e in eqns for v in e.outvars}.union(inputs)
    needed = [a for atoms in (*[e.invars for e in eqns], outs) for a in atoms]
    free = dict.fromkeys(a for a in needed if isinstance(a, Var) and a not in made)
    return Fragment(new_jaxpr([*free, *inputs], outs, eqns), tuple(free))


def _rows(leaves: Sequence[Leaf], olds: Sequence[Var], news: Sequence[Atom]) -> list[Row]:
    rows = []
    for leaf, old, new in zip(leaves, olds, news, strict=True):
        columns = range(leaf.columns) if leaf.columns else [None]
        parts = (Part.REAL, Part.IMAGINARY) if is_complex(old) else (Part.REAL,)
        rows += [Row(leaf, old, new, c, part) for c in columns for part in parts]
    return rows


def _units(row: Row) -> np.ndarray:
    """The unit that each element of a row's leaf belongs to, -1 for other columns."""
    if row.column is None:
        return positions(row.shape)
    units = np.full(row.old.aval.shape, -1, np.int32)
    units[..., row.column] = positions(row.shape)
    return units
