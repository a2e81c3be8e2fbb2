"""Whether a rule gives a parameter the gradient of BPTT, at every window: known before running.

The argument. A parameter acts on outputs in its own step, and on later ones through states. The
first part is in the gradient of the step itself, whatever the rule. The second is `lambda . J`, and
it is whole if J is whole on every state that matters. So follow the influence as J does, one step
at a time:

1. A state *matters* if its old value reaches an output that is graded, or the new value of a state
   that matters. Influence on any other state may be lost.
2. The influence of a parameter *enters* states in its own step, through each of its uses (the
   equations in which it meets data) and around them, where it has none.
3. From every state it has reached it *goes on* to the new states that depend on it.

Each of these steps is a `Passage`, and the carrier says what it loses of it (`Carrier.loses`): a
rule is described where it is written, and there is no table of rules here. If nothing is lost on
any step, then by induction over time J is whole where it matters, for every window, and the
parameter is exact. The states of a step are rows of units, so that the answer errs on the side of
caution: what two parts of one array do to each other counts as done by all of it.

Where a carrier keeps all states in one product (`Carrier.mixes_states`), influence on states that
do not matter disturbs the others, and counts too.

With single-step credit the past is a constant but for what the carrier takes along. Then influence
that reaches an output through a new state must be carried into that state even if the state does
not matter later, and the same goes for outputs that read an old state directly. And where the
signal is not the gradient, only parameters that no credit of that signal reaches are exact.

This is about derivatives, in the precision of the model. A trace that is stored in less has lost
something too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from .._jax import Atom, JaxprEqn, Var, is_float
from ..graph.analysis import Row
from ..graph.lines import place_of
from ..graph.sources import Origin
from ..graph.uses import Use
from ..ops.families import Family, family
from ..plan.kept import Passage, name_of
from ..step import Leaf
from .core import Core


class Exactness(NamedTuple):
    """Whether a rule gives one parameter the gradient of BPTT at every window, and if not, which
    influence is lost and through which op of which line."""

    exact: bool
    why: str = ''
    through: str = ''


EXACT = Exactness(True)


def exactness(core: Core) -> dict[str, Exactness]:
    """For each parameter, by name, whether its gradient is that of BPTT at every window."""
    ways = _Ways(core)
    step = core.program.step
    pairs = zip(step.params, step.param_vars, strict=True)
    return {leaf.name: ways.of_parameter(leaf, v) for leaf, v in pairs}


class _Ways:
    """The ways of influence in the step of a core."""

    def __init__(self, core: Core):
        self.core, self.analysis = core, core.graph.analysis
        self.step = core.program.step
        self.rows = [*self.analysis.rows, *self.analysis.others]
        self.deps = [self.analysis.of_row(row).seeds for row in self.rows]
        self.origin = Origin(self.step)

    # ---- what matters ----

    @cached_property
    def graded(self) -> list[Atom]:
        """What credit comes from."""
        return self.core.program.graded(self.step.outs, self.step.hidden_outs)

    def _is_read(self, seed: int) -> bool:
        """Whether a graded output depends on the old value of a state."""
        return any(self.analysis.dep(a).seeds >> seed & 1 for a in self.graded)

    @cached_property
    def mattering(self) -> frozenset[int]:
        """The states, by seed, whose influence on later steps matters."""
        matter = {s for s in range(len(self.rows)) if self._is_read(s)}
        while True:
            more = {s for s in range(len(self.rows)) for t in matter if self.deps[t] >> s & 1}
            if more <= matter:
                return frozenset(matter)
            matter |= more

    def _reached(
        self, start: Iterable[Atom], around: frozenset[tuple[int, int]], ends: frozenset[Var]
    ) -> set[Var]:
        """What depends on these variables, on ways that avoid these operands of equations and do
        not go on from `ends`."""
        reached = {v for v in start if isinstance(v, Var) and is_float(v)}
        going = set(reached)
        for k, eqn in enumerate(self.analysis.eqns):
            touched = [i for i, a in enumerate(eqn.invars) if isinstance(a, Var) and a in going]
            if family(eqn) is Family.NO_DERIVATIVE or all((k, i) in around for i in touched):
                continue
            made = {v for v in eqn.outvars if is_float(v)}
            reached |= made
            going |= made - ends
        return reached

    def _is_shown(self, row: Row) -> bool:
        """Whether a graded output depends on a state's new value, in the same step."""
        reached = self._reached([row.new], frozenset(), frozenset())
        return not reached.isdisjoint(a for a in self.graded if isinstance(a, Var))

    def _shown_after(self, seed: int) -> Iterator[int]:
        """The hidden states that depend on the old value of a state by a way over no other new
        hidden state, and on which an output of that step depends."""
        ends = frozenset(self.step.hidden_outs)
        direct = self._reached([self.rows[seed].old], frozenset(), ends)
        for t, row in enumerate(self.analysis.rows):
            if row.new in direct and self.deps[t] >> seed & 1 and self._is_shown(row):
                yield t

    # ---- one parameter ----

    def of_parameter(self, leaf: Leaf, v: Var) -> Exactness:
        if not is_float(v):
            return EXACT
        uses = [u for u in self.analysis.uses if v in [s.var for s in self.origin.of(u.w)]]
        replaced = self._replaced_signal(v, uses)
        if replaced is not None:
            return replaced
        for use in uses:
            lost = self._first_loss(use, self._entered_by(use))
            if lost is not None:
                return lost
        lost = self._first_loss(None, self._entered_around(v))
        return lost or self._rounded(leaf, uses) or EXACT

    def _entered_by(self, use: Use) -> list[int]:
        seed = self.analysis.seed_of(use)
        return [t for t, dep in enumerate(self.deps) if dep >> seed & 1]

    def _entered_around(self, v: Var) -> list[int]:
        """The states that a parameter enters outside of all uses."""
        taken = frozenset((self.analysis.made_by[u.y[0]], u.operand) for u in self.analysis.uses)
        reached = self._reached([v], taken, frozenset())
        return [t for t, row in enumerate(self.rows) if row.new in reached]

    def _first_loss(self, use: Use | None, entered: list[int]) -> Exactness | None:
        """Follow the influence of a use from step to step to where something of it is lost."""
        lost = None if use is None else self._lost(use, None, None)
        todo = [t for t in entered if t in self.mattering]
        for t in entered if self.core.carrier.mixes_states else todo:
            lost = lost or self._lost(use, None, t)
        met = set(todo)
        while todo and lost is None:
            s = todo.pop(0)
            later = [t for t in self.mattering if self.deps[t] >> s & 1]
            shown = self._shown_after(s) if self.core.single_step else []
            for t in dict.fromkeys([*sorted(later), *shown]):
                lost = lost or self._lost(use, s, t)
            if self.core.single_step and self._is_read(s):
                lost = lost or self._lost(use, s, None)
            todo += [t for t in sorted(later) if t not in met]
            met.update(later)
        return lost

    def _lost(self, use: Use | None, old: int | None, new: int | None) -> Exactness | None:
        """What the carrier loses of one step of the influence."""
        before, after = (None if s is None else self.rows[s] for s in (old, new))
        matters = new in self.mattering
        way = Passage(use, before, after, self.core.single_step, matters, self.graded)
        reason = self.core.carrier.loses(way)
        if reason is None:
            return None
        through = self._place(use, old, new)
        over = f' through {through}' if through else ''
        if before is not None and after is not None:
            what = f'what it has done to {name_of(before)} goes on to {name_of(after)}{over}'
        elif after is not None:
            what = f'it acts on {name_of(after)}{over}'
        elif before is not None:
            what = f'outputs read {name_of(before)} of the step before'
        else:
            what = f'it acts{over}'
        inside = '' if self.core.single_step else ' Inside a window it is whole.'
        return Exactness(False, f'{what}: {reason}.{inside}', through)

    def _place(self, use: Use | None, old: int | None, new: int | None) -> str:
        """The op, with the user's line, by which an influence goes on: the one that ends its
        position-wise way if there is one."""
        eqn: JaxprEqn | None = None
        if new is not None:
            seed = old
            if seed is None and use is not None:
                seed = self.analysis.seed_of(use)
            if seed is not None:
                eqn = self.analysis.blame(seed, self.rows[new].new)
            if eqn is None and (old is not None or use is None):
                eqn = self._maker(self.rows[new].new)
        if eqn is not None:
            return place_of(eqn)
        return '' if use is None else use.place

    def _maker(self, a: Atom) -> JaxprEqn | None:
        made_by = self.analysis.made_by.get(a) if isinstance(a, Var) else None
        return None if made_by is None else self.analysis.eqns[made_by]

    # ---- what is not in the graph ----

    def _replaced_signal(self, v: Var, uses: list[Use]) -> Exactness | None:
        """Where credit is not the gradient: a parameter that acts on states gets that credit. With
        single-step credit it also goes back through every product with a weight."""
        if self.core.signal.is_gradient:
            return None
        states = {row.new for row in self.rows}
        reached = self._reached([v], frozenset(), frozenset())
        ends = states & reached
        if self.core.single_step:
            mine = {y for u in uses for y in u.y}
            ends |= {u.y[0] for u in self.analysis.uses if u.y[0] in reached} - mine
        if not ends:
            return None
        return Exactness(False, 'its credit is not the gradient of the loss.')

    def _rounded(self, leaf: Leaf, uses: list[Use]) -> Exactness | None:
        """Where its traces are stored in less than the precision of the model, or in less than
        32 bits."""
        needed = max([32, *[_bits(y.aval.dtype) for u in uses for y in u.y]])
        for key, trace in self.core.shapes.items():
            if leaf in key.weight and is_float_type(trace.dtype) and _bits(trace.dtype) < needed:
                return Exactness(False, f'its trace is stored as {trace.dtype}.')
        return None


def is_float_type(dtype: np.dtype) -> bool:
    return jnp.issubdtype(dtype, jnp.inexact)


def _bits(dtype: np.dtype) -> int:
    return jnp.finfo(dtype).bits
