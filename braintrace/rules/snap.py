"""SnAp-n: each weight remembers the units it can reach within n steps (Menick et al. 2021).

    e <- Phi e + x (x) dh/dy

on the neighbourhood of the unit that the weight feeds; what is outside is dropped. n = 1 keeps what
a weight reaches in its own step; an n that reaches everything gives RTRL. The neighbourhoods come
from the true structure of the step, across layers: the whole of a dense weight, the pattern of a
sparse or masked one, the receptive field of a convolution. As index lists they give a trace as many
rows as the largest neighbourhood has units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..engine.loop import scan
from ..engine.window import Window
from ..ops.axes import decay, gradient
from ..plan.kept import Passage
from ..plan.layout import Layout
from .carrier import BlockCarrier, Contribution, Credit, Entry, Traces
from .list_trace import ListTrace
from .lists_over_blocks import AtOnce, BackInLists, back_in_lists
from .neighbourhoods import Lists, Neighbourhoods, Neighbours
from .sample_state import SampleState, TracedUse


class PulledRows(NamedTuple):
    """Rows of `Phi` and of `dh/dy`, each the sum over the elements of the state of one colour, what
    multiplies the weights, and which colour each element has; None: one row for each element."""

    Phi: Any
    dys: list[Any]
    xs: list[Any]
    colour: np.ndarray | None

    def row_of(self, elements: np.ndarray) -> np.ndarray:
        """The rows that hold these elements."""
        return elements if self.colour is None else self.colour[elements]


@dataclass(frozen=True, eq=False)
class SparseInfluence(BlockCarrier):
    """The n-step neighbourhood of J, sample by sample where samples are independent; for
    `far_reach` see `Neighbourhoods`."""

    layout: Layout
    n: int
    far_reach: bool = True
    mixes_states: ClassVar[bool] = False

    @cached_property
    def state(self) -> SampleState:
        return SampleState(self.layout.graph)

    @cached_property
    def near(self) -> Neighbourhoods:
        """Which elements of the state each use can reach."""
        return Neighbourhoods(self.state, self.n, self.far_reach)

    @cached_property
    def _kept(self) -> list[ListTrace]:
        """The trace of each use."""
        return list(map(ListTrace, self.state.uses, self.near.of_uses))

    @cached_property
    def _at_once(self) -> dict[int, Lists]:
        """The lists of those uses, by number, that go over a block at once: of which the blocks of
        Phi are no larger than the traces that they move, unless one dense product moves all."""
        lists = {i: kept.near.by_list for i, kept in enumerate(self._kept)}
        moved: dict[tuple, int] = {}
        for i, a in lists.items():
            moved[_told(a)] = moved.get(_told(a), 0) + self._kept[i].use.weights
        dense = {i for i, a in lists.items() if self._kept[i].near.alike and len(a.units) > 1}
        return {
            i: a for i, a in lists.items() if a.units.size <= moved[_told(a)] and i not in dense
        }

    @cached_property
    def _step_by_step(self) -> list[int]:
        """The other uses."""
        return [i for i in range(len(self._kept)) if i not in self._at_once]

    @cached_property
    def step_bytes(self) -> int:  # type: ignore[override]
        state = self.state
        samples = 1 if state.axes is None else state.vars[0].aval.shape[0]
        row = state.size_of_one * samples + sum(u.y.aval.size for u in state.uses)
        of_lists = {_told(a): a.units.size * a.units.shape[1] for a in self._at_once.values()}
        numbers = self.near.number_of_colours * row + 2 * samples * sum(of_lists.values())
        return numbers * state.vars[0].aval.dtype.itemsize

    @property
    def window_step_bytes(self) -> int:
        return self.state.bytes_of_a_step

    def init(self) -> Traces:
        return {kept.use.key: kept.init() for kept in self._kept}

    def _read(self, traces: Traces, lam: jax.Array, uses: Sequence[int]) -> list[Any]:
        """What credit of the state, `(samples, elements)`, gives with the traces: a gradient for
        each of these uses."""
        chosen = [self._kept[i] for i in uses]
        return [kept.read_state(lam, traces[kept.use.key]) for kept in chosen]

    def _push(self, traces: Traces, pulled: PulledRows, uses: Sequence[int]) -> Traces:
        """`Phi e`, inside the neighbourhoods of these uses."""
        new: Traces = {}
        blocks: dict[tuple, jax.Array] = {}  # by the lists that they are for
        for kept in [self._kept[i] for i in uses]:
            (u, near), e = kept, traces[kept.use.key]
            if near.alike:
                new[u.key] = self._push_together(kept, e, pulled)
            elif u.op.line_up_y is None:
                lists = near.by_list
                if _told(lists) not in blocks:
                    blocks[_told(lists)] = self._blocks(lists, pulled)
                new[u.key] = kept.pushed_by_list(lists, blocks[_told(lists)], e)
            else:
                new[u.key] = self._push_apart(u, near, e, pulled)
        return new

    def _blocks(self, lists: Lists, pulled: PulledRows) -> jax.Array:
        """The part of Phi inside of each list, `(samples, lists, number, number)`."""
        to, of = lists.units[:, :, None], lists.units[:, None]
        there = lists.there[:, :, None] & lists.there[:, None]
        if pulled.colour is not None:
            there = there & self.near.of_state[to, of]
        Phi = pulled.Phi if self.state.axes is not None else pulled.Phi[:, None]
        if len(lists.units) == 1:
            [units] = lists.units
            picked = Phi[pulled.row_of(units)][..., units][None].transpose(2, 0, 1, 3)
        else:
            picked = jnp.moveaxis(jnp.moveaxis(Phi, 1, 2)[pulled.row_of(to), of], -1, 0)
        return picked * there

    def _push_together(self, kept: ListTrace, e: Any, pulled: PulledRows) -> Any:
        """Where all elements of y have the same list: one dense product."""
        rows = kept.near.first
        Phi = pulled.Phi[pulled.row_of(rows)][..., rows]
        if pulled.colour is not None:
            reach = self.near.of_state[rows][:, rows]
            Phi = Phi * (reach if self.state.axes is None else reach[:, None])
        return kept.pushed_together(Phi, e)

    def _push_apart(self, u: TracedUse, near: Neighbours, e: Any, pulled: PulledRows) -> Any:
        """Where neighbourhoods differ and each weight has its own: a block of Phi for each."""
        to, of = near.units[:, None], near.units[None]
        there = near.there[:, None] & near.there[None]
        if pulled.colour is not None:
            there = there & self.near.of_state[to, of]
        if u.sample_axis < 0:
            block = pulled.Phi[pulled.row_of(to), of]
        else:
            by_element = jnp.moveaxis(pulled.Phi, 1, 2)[pulled.row_of(to), of]
            block = jnp.moveaxis(by_element, -1, 2 + u.sample_axis)
        return decay(u.op, block * _beside_samples(there, u, 2), e)

    def _in_own_step(self, i: int, pulled: PulledRows) -> jax.Array:
        """What the outputs of a use do to their neighbourhoods in their own steps,
        `(K, number, *y)`."""
        u, near = self._kept[i]
        there = near.there
        if pulled.colour is not None:
            reached = self.near.of_outputs[i].reshape(self.state.size_of_one, *u.inner_shape)
            there = there & np.take_along_axis(reached, near.units, 0)
        index = _beside_samples(pulled.row_of(near.units), u, 1)
        q = jnp.take_along_axis(pulled.dys[i], jnp.asarray(index[:, None]), 0)
        return jnp.moveaxis(q * _beside_samples(there, u, 1)[:, None], 0, 1)

    def _added(
        self, traces: Traces, pushed: Traces, pulled: PulledRows, uses: Sequence[int]
    ) -> Traces:
        """The old traces of these uses, pushed, and what the steps add."""
        new: Traces = {}
        for i in uses:
            kept, key = self._kept[i], self._kept[i].use.key
            grown = pushed[key] + kept.outer(pulled.xs[i], self._in_own_step(i, pulled))
            new[key] = grown.astype(traces[key].dtype)
        return new

    def read(self, traces: Traces, entry: Entry) -> Contribution:
        every = range(len(self._kept))
        weights = self._read(traces, self.state.rows(self.state.of_entry(entry)), every)
        return self.state.weights_to_params(weights, entry.captured, entry.params)

    def advance(self, traces: Traces, window: Window) -> Traces:
        pulled, every = (
            PulledRows(*self.state.influence_of_uses(window), None),
            range(len(self._kept)),
        )
        return self._added(traces, self._push(traces, pulled, every), pulled, every)

    def _pulled_by_colour(self, window: Window) -> PulledRows:
        """The pulls of every step of a window by itself, steps first."""
        state, colours = self.state, self.near.colours
        variables = [u.y for u in state.uses]
        pull_back = window.vjp('hidden', 'other', variables=variables, per_step=True)
        ones = np.eye(self.near.number_of_colours, dtype=state.dtype)[colours].T

        def pull(elements):
            parts = [jnp.broadcast_to(p, (window.length, *p.shape)) for p in state.parts(elements)]
            pulled = pull_back(state.cotangents(parts))
            entry = [a for a in (*pulled.hidden, *pulled.other) if a is not None]
            return self._rows_of_steps(entry), pulled.variables

        Phi, dys = jax.vmap(pull, out_axes=1)(jnp.asarray(ones))
        xs = [window.operand(u.use) for u in state.uses]
        return PulledRows(Phi, [d[:, :, None] for d in dys], xs, colours)

    def _rows_of_steps(self, leaves: Sequence[Any]) -> jax.Array:
        """The state as rows, for every step."""
        return jax.vmap(lambda *a: self.state.rows(a))(*leaves)

    def block(
        self, traces: Traces | None, window: Window, credit: Credit, steps: Any, keep: bool
    ) -> tuple[Contribution, Traces | None]:
        """`dw_t = same-step gradient + s_t . (Phi e_{t-1})`."""
        state = self.state
        old = self.init() if traces is None else traces
        no_credit = window.zeros_at(state.vars[state.hidden :])
        signals = self._rows_of_steps([*state.of_hidden(credit.signals(True)), *no_credit])
        past = None
        if credit.past is not None:
            past = self._rows_of_steps([*state.of_hidden(credit.past), *no_credit])
        every = self._pulled_by_colour(window)
        new, weights = self._over_block(old, signals, past, every)
        if self._step_by_step:
            more, of_others = self._over_steps(old, signals, past, every)
            new, weights = new | more, weights | of_others
        same_step = {
            r: gradient(window.ops[r], window.operands[r], credit.y[r])
            for r in range(len(self.layout.relations))
        }
        total = [weights[i] for i in range(len(state.uses))]
        from_before = state.weights_to_params(total, window.given.captured, window.params)
        return Contribution(same_step, from_before.params), new if keep else None

    def _over_block(
        self, traces: Traces, signals: jax.Array, past: Any, every: PulledRows
    ) -> tuple[Traces, dict[int, Any]]:
        """New traces and gradients of the uses that go over a block at once."""
        new: Traces = {}
        weights: dict[int, Any] = {}
        found: dict[tuple, BackInLists] = {}
        for i, lists in self._at_once.items():
            if _told(lists) not in found:
                found[_told(lists)] = self._back_in_lists(lists, signals, past, every)
            u, back = self.state.uses[i], found[_told(lists)]
            dys = every._replace(dys=[jnp.moveaxis(d[:, :, 0], 1, 0) for d in every.dys])
            use = AtOnce(self._kept[i], lists, every.xs[i], self._in_own_step(i, dys))
            weights[i] = use.gradient(back, traces[u.key]).astype(u.use.w.aval.dtype)
            new[u.key] = use.trace(back, traces[u.key]).astype(traces[u.key].dtype)
        return new, weights

    def _back_in_lists(
        self, lists: Lists, signals: Any, past: Any, every: PulledRows
    ) -> BackInLists:
        def at_lists(rows: jax.Array) -> jax.Array:
            rows = rows if self.state.axes is not None else rows[:, None]
            return rows[..., lists.units] * lists.there

        P = jax.vmap(lambda Phi: self._blocks(lists, every._replace(Phi=Phi)))(every.Phi)
        return back_in_lists(P, at_lists(signals), None if past is None else at_lists(past))

    def _over_steps(
        self, traces: Traces, signals: jax.Array, past: Any, every: PulledRows
    ) -> tuple[Traces, dict[int, Any]]:
        """New traces and gradients of the other uses."""
        state, uses = self.state, self._step_by_step

        def turn(carry, at):
            (traces, total), (signal, past, Phi, dys, xs) = carry, at
            one_step = [None if x is None else x[None] for x in xs]
            pulled = PulledRows(Phi, dys, one_step, every.colour)
            pushed = self._push(traces, pulled, uses)
            terms = [self._read(pushed, signal, uses)]
            if past is not None:
                terms.append(self._read(traces, past, uses))
            sums = [sum(a).astype(a[0].dtype) for a in zip(total, *terms, strict=True)]
            return (self._added(traces, pushed, pulled, uses), sums), None

        weights = [state.uses[i].use.w.aval for i in uses]
        own = {state.uses[i].key: traces[state.uses[i].key] for i in uses}
        start = own, [jnp.zeros(w.shape, w.dtype) for w in weights]
        xs = signals, past, every.Phi, every.dys, every.xs
        (new, total), _ = scan(turn, start, xs, len(signals))
        return new, dict(zip(uses, total, strict=True))

    def loses(self, way: Passage) -> str | None:
        if way.use is None:
            return self.state.lost_outside_uses(way)
        if way.new is None:
            is_hidden = way.old is None or way.old in self.layout.graph.analysis.rows
            return None if is_hidden else 'single-step credit does not reach states of other kinds'
        if way.old is None:
            if not self.near.drops(way.use, way.new):
                return None
            return 'it acts through the product of another weight, and `far_reach` is False'
        if not self.near.leaves(way.use, way.old, way.new):
            return None
        return f'it goes beyond what the weight reaches within n = {self.n} steps'


def _beside_samples(a: np.ndarray, u: TracedUse, lead: int) -> np.ndarray:
    """Values at y of one sample, with `lead` axes before, with an axis of one in the place of the
    samples."""
    return a if u.sample_axis < 0 else np.expand_dims(a, lead + u.sample_axis)


def _told(lists: Lists) -> tuple:
    """What tells lists apart."""
    return lists.units.shape, lists.units.tobytes(), lists.there.tobytes()
