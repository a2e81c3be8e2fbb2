"""`'auto'`: the most exact rule that fits into a budget of memory, found from the structure of the
step.

The candidates, by what they keep: the whole influence (rtrl), its neighbourhoods at the first n
where nothing is outside of them (snap), the one unit that each weight feeds (d_rtrl), that for the
weights it fits for and factors for the others (hybrid), factors alone (pp_prop). What counts first
is the number of exact parameters. Among rules that are as exact as any the one with the smallest
traces is taken, among others the one that keeps more.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax

from ..errors import NotSupportedError
from ..graph.compile import Graph
from ..graph.lines import frames_inside
from ..rules.registry import find_rule
from .core import BUDGET, Core, core_of
from .exactness import exactness
from .sizes import number_of_bytes
from .trace_bytes import bytes_of_parameters

MOST_STEPS_AHEAD = 8  # the largest n of snap that is tried
NEEDED = {'decay_or_rank': 0.9}  # where a rule needs an option that was not given
NO_LIMIT = 2**62  # of a single trace: the budget speaks for all of them together
MOST_OF_STRUCTURE = 2**30  # bytes that the search for neighbourhoods may keep
LADDER = ('rtrl', 'snap', 'd_rtrl', 'hybrid', 'pp_prop')  # what keeps more comes first


class Candidate(NamedTuple):
    """A rule with its options, the bytes of its traces and of the shortest block, which is one
    step, and the number of parameters that it makes exact; or why it cannot be used
    (`refused`)."""

    rule: str
    options: dict[str, Any]
    trace_bytes: int = 0
    step_bytes: int = 0
    exact: int = 0
    refused: str = ''

    @property
    def needs(self) -> int:
        """All bytes that it needs; with more its blocks are longer."""
        return self.trace_bytes + self.step_bytes


@dataclass(frozen=True, eq=False)
class Choice:
    """What was taken for 'auto', all that was looked at, and the budget in bytes."""

    taken: Candidate
    looked_at: tuple[Candidate, ...]
    budget: int

    @property
    def others(self) -> list[Candidate]:
        """What was not taken."""
        return [c for c in self.looked_at if c is not self.taken]

    @property
    def better(self) -> Candidate | None:
        """The cheapest rule that would be better, if there is one."""
        usable = [c for c in self.looked_at if not c.refused]
        above = [c for c in usable if _rank(c, usable) < _rank(self.taken, usable)]
        return min(above, key=lambda c: c.needs, default=None)

    @property
    def block_budget(self) -> int:
        """What the traces leave for a block of steps."""
        return max(1, min(BUDGET, self.budget - self.taken.trace_bytes))


@dataclass(frozen=True)
class Wishes:
    """What the hybrid rule is asked for: whole traces for the parameters at these paths."""

    full: frozenset[tuple]

    def __call__(self, path: tuple) -> str:
        return 'full' if path in self.full else 'approx'


def is_auto(rule: Any) -> bool:
    """Whether a user leaves the rule to the compiler."""
    return isinstance(rule, str) and rule.strip().lower() == 'auto'


def default_budget() -> int:
    """A quarter of the memory that is free on the device."""
    return free_memory() // 4


def choose(
    graph: Graph,
    budget: float | str | None = None,
    options: Mapping[str, Any] | None = None,
    vjp_method: str | None = None,
    grade_hidden: bool = False,
) -> Choice:
    """The most exact rule for a graph whose traces and one block fit into `budget` bytes.

    Args:
        graph: of the step.
        budget: a quarter of the free memory by default.
        options: of rules; each goes to those that take it.
        vjp_method: the kind of credit, the usual one of each rule by default.
        grade_hidden: whether credit comes from the new hidden states too.
    """
    budget = default_budget() if budget is None else number_of_bytes('memory_budget', budget, 1)
    given = dict(options or {})
    _check_options(given)
    looked = list(_Look(graph, budget, given, vjp_method, grade_hidden).candidates())
    usable = [c for c in looked if not c.refused]
    fitting = [c for c in usable if c.needs <= budget]
    taken = min(fitting, key=lambda c: _rank(c, usable), default=None)
    if taken is None:
        taken = min(usable, key=lambda c: c.needs)
        warnings.warn(
            f"`memory_budget`: no rule fits into {budget} bytes. 'auto' takes {taken.rule}, the "
            f'smallest, which needs {taken.needs}.',
            stacklevel=2 + frames_inside(),
        )
    return Choice(taken, tuple(looked), budget)


GENERAL = ('name', 'control_flow', 'trace', 'nonfinite')  # options of a learner, whatever its rule


def choose_for_learner(
    graph_of: Callable[..., Graph], options: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The rule and the options of the learner of a model that holds its states: of these `options`
    of a user, with how it was found as `choice`. `graph_of(**options)` gives the model's graph."""
    said: dict[str, Any] = {k: v for k, v in options.items() if k in GENERAL}
    budget, vjp_method = options.get('memory_budget'), options.get('vjp_method')
    given = {*GENERAL, 'memory_budget', 'vjp_method'}
    of_rules = {k: v for k, v in options.items() if k not in given}
    choice = choose(graph_of(**said), budget, of_rules, vjp_method, grade_hidden=True)
    taken = {**said, **choice.taken.options, 'memory_budget': choice.block_budget}
    if vjp_method is not None:
        taken['vjp_method'] = vjp_method
    return choice.taken.rule, {**taken, 'choice': choice}


def _rank(c: Candidate, usable: list[Candidate]) -> tuple[int, int, int]:
    """Smaller is better."""
    is_best = c.exact == max(other.exact for other in usable)
    return -c.exact, c.trace_bytes if is_best else 0, LADDER.index(c.rule)


def _check_options(given: Mapping[str, Any]) -> None:
    known = {name for rule in LADDER for name in find_rule(rule).options}
    for name in given:
        if name not in known:
            raise TypeError(
                f"'auto' has no option `{name}`. It takes those of {', '.join(LADDER)}: "
                f'{", ".join(sorted(known))}.'
            )


@dataclass(frozen=True, eq=False)
class _Look:
    """Rules, looked at for one graph."""

    graph: Graph
    budget: int
    given: dict[str, Any]
    vjp_method: str | None
    grade_hidden: bool
    cores: dict[str, Core] = field(default_factory=dict)

    def candidates(self) -> Iterator[Candidate]:
        d_rtrl = self._of('d_rtrl')
        yield d_rtrl
        if d_rtrl.exact == len(self.graph.step.params) and d_rtrl.needs <= self.budget:
            return  # nothing can be better
        rtrl = self._of('rtrl')
        yield rtrl
        yield self._snap(rtrl)
        if d_rtrl.needs > self.budget:
            pp_prop = self._of('pp_prop')
            yield self._hybrid(pp_prop)
            yield pp_prop

    def _of(self, name: str, **own: Any) -> Candidate:
        """A rule with the options that it takes of those given."""
        rule = find_rule(name)
        usual = {**NEEDED, 'trace_limit': NO_LIMIT, **self.given, **own}
        options = {k: v for k, v in usual.items() if k in rule.options}
        try:
            single_step = rule.is_single_step(self.vjp_method)
            settled = rule.settle(options)
            core = core_of(self.graph, rule, settled, single_step, grade_hidden=self.grade_hidden)
            exact = sum(told.exact for told in exactness(core).values())
            traces = core.sizes.memory()['trace_bytes']
        except (NotSupportedError, ValueError) as error:
            return Candidate(name, options, refused=str(error))
        self.cores[name] = core
        return Candidate(name, options, traces, core.sizes.bytes_per_step, exact)

    def _snap(self, rtrl: Candidate) -> Candidate:
        """SnAp at the first n at which it is as exact as RTRL."""
        n = self.given.get('n', 1)
        if self._bytes_of_structure() > MOST_OF_STRUCTURE:
            return Candidate('snap', {'n': n}, refused='the model is too large to find its pattern')
        most = n if 'n' in self.given else MOST_STEPS_AHEAD
        while True:
            snap = self._of('snap', n=n)
            if snap.refused or snap.exact >= rtrl.exact or n >= most:
                return snap
            n += 1

    def _bytes_of_structure(self) -> int:
        """What the search for neighbourhoods keeps: a number for each pair of an element of a
        sample's state and an element of a variable."""
        step = self.graph.step
        states = sum(v.aval.size for v in [*step.hidden_vars, *step.other_vars])
        values = sum(v.aval.size for e in self.graph.analysis.eqns for v in e.outvars)
        return 4 * states * values

    def _hybrid(self, pp_prop: Candidate) -> Candidate:
        """Whole traces for as many weights as fit, the smallest first."""
        if 'd_rtrl' not in self.cores:
            return Candidate('hybrid', {}, refused='d_rtrl cannot be used')
        whole = bytes_of_parameters(self.cores['d_rtrl']).by_name
        by_path: dict[tuple, int] = {}
        for leaf in self.graph.step.params:
            by_path[leaf.path] = by_path.get(leaf.path, 0) + whole[leaf.name]
        left, full = self.budget - pp_prop.needs, set()
        for path, size in sorted(by_path.items(), key=lambda item: item[1]):
            if size > left:
                break
            left -= size
            full.add(path)
        if not any(by_path[path] for path in full):
            return Candidate('hybrid', {}, refused='no weight has room for a whole trace')
        return self._of('hybrid', **{'prefer': Wishes(frozenset(full)), **self.given})


def free_memory() -> int:
    """The bytes that are free on the device that computes by default."""
    [device] = jax.device_put(0.0).devices()
    stats = device.memory_stats()
    if stats and 'bytes_limit' in stats:
        return stats['bytes_limit'] - stats.get('bytes_in_use', 0)
    for pages in ('SC_AVPHYS_PAGES', 'SC_PHYS_PAGES'):
        if pages in getattr(os, 'sysconf_names', {}):
            return os.sysconf(pages) * os.sysconf('SC_PAGE_SIZE')
    return 4 * 2**30  # a system that does not tell
