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
from ..ops.axes import decay, gradient, kept_at, outer, read
from ..plan.kept import Passage
from ..plan.keys import trace_type
from ..plan.layout import Layout
from .carrier import BlockCarrier, Contribution, Credit, Entry, Traces
from .neighbourhoods import Lists, Neighbourhoods, Neighbours
from .whole_state import SampleState, TracedUse


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
    """The n-step neighbourhood of J, sample by sample where samples are independent."""

    layout: Layout
    n: int
    mixes_states: ClassVar[bool] = False

    @cached_property
    def state(self) -> SampleState:
        return SampleState(self.layout.graph)

    @cached_property
    def near(self) -> Neighbourhoods:
        """Which elements of the state each use can reach."""
        return Neighbourhoods(self.state, self.n)

    @property
    def _pairs(self) -> list[tuple[TracedUse, Neighbours]]:
        return list(zip(self.state.uses, self.near.of_uses, strict=True))

    @cached_property
    def step_bytes(self) -> int:  # type: ignore[override]
        state = self.state
        samples = 1 if state.axes is None else state.vars[0].aval.shape[0]
        row = state.size_of_one * samples + sum(u.y.aval.size for u in state.uses)
        return self.near.number_of_colours * row * state.vars[0].aval.dtype.itemsize

    @property
    def window_step_bytes(self) -> int:
        return self.state.bytes_of_a_step

    def init(self) -> Traces:
        traces: Traces = {}
        for u, near in self._pairs:
            shape = len(near.units), *u.op.trace_shape(u.y.aval.shape)
            traces[u.key] = jnp.zeros(shape, trace_type(u.use.w.aval.dtype))
        return traces

    def _read(self, traces: Traces, lam: jax.Array) -> list[Any]:
        """What credit of the state, `(samples, elements)`, gives with the traces: a gradient for
        each use."""
        weights = []
        for u, near in self._pairs:
            at = lam[..., near.units] * near.there
            if u.sample_axis >= 0:
                at = jnp.moveaxis(at, 0, 1 + u.sample_axis)
            weights.append(read(u.op, at, traces[u.key]))
        return weights

    def _push(self, traces: Traces, pulled: PulledRows) -> Traces:
        """`Phi e`, inside the neighbourhoods."""
        new: Traces = {}
        blocks: dict[bytes, jax.Array] = {}  # by the lists that they are for
        for u, near in self._pairs:
            e = traces[u.key]
            if near.alike:
                new[u.key] = self._push_together(u, near, e, pulled)
            elif u.op.line_up_y is None:
                lists = near.by_list
                told = lists.units.tobytes() + lists.there.tobytes()
                if told not in blocks:
                    blocks[told] = self._blocks(lists, pulled)
                new[u.key] = _push_by_list(u, lists, blocks[told], e)
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
        picked = jnp.moveaxis(Phi, 1, 2)[pulled.row_of(to), of]
        return jnp.moveaxis(picked, -1, 0) * there

    def _push_together(self, u: TracedUse, near: Neighbours, e: Any, pulled: PulledRows) -> Any:
        """Where all elements of y have the same neighbourhood: one dense product."""
        rows = near.units.reshape(len(near.units), -1)[:, 0]
        Phi = pulled.Phi[pulled.row_of(rows)][..., rows]
        if pulled.colour is not None:
            reach = self.near.of_state[rows][:, rows]
            Phi = Phi * (reach if self.state.axes is None else reach[:, None])
        trace = u.op.axes.trace
        grown = jnp.einsum(f'Y{u.sample_label}Z,Z{trace}->Y{trace}', Phi, e)
        if near.there.all():
            return grown
        return kept_at(u.op, grown, _beside_samples(near.there, u, 1))

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

    def _added(self, traces: Traces, pushed: Traces, pulled: PulledRows) -> Traces:
        """The old traces, pushed, and what the steps add."""
        new: Traces = {}
        for i, (u, near) in enumerate(self._pairs):
            there = near.there
            if pulled.colour is not None:
                reached = self.near.of_outputs[i].reshape(self.state.size_of_one, *u.inner_shape)
                there = there & np.take_along_axis(reached, near.units, 0)
            index = _beside_samples(pulled.row_of(near.units), u, 1)
            q = jnp.take_along_axis(pulled.dys[i], jnp.asarray(index[:, None]), 0)
            q = q * _beside_samples(there, u, 1)[:, None]
            grown = pushed[u.key] + outer(u.op, pulled.xs[i], jnp.moveaxis(q, 0, 1))
            new[u.key] = grown.astype(traces[u.key].dtype)
        return new

    def read(self, traces: Traces, entry: Entry) -> Contribution:
        weights = self._read(traces, self.state.rows(self.state.of_entry(entry)))
        return self.state.weights_to_params(weights, entry.captured, entry.params)

    def advance(self, traces: Traces, window: Window) -> Traces:
        pulled = PulledRows(*self.state.influence_of_uses(window), None)
        return self._added(traces, self._push(traces, pulled), pulled)

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
        """Step by step: `dw_t = same-step gradient + s_t . (Phi e_{t-1})`."""
        state = self.state
        no_credit = window.zeros_at(state.vars[state.hidden :])
        signals = self._rows_of_steps([*state.of_hidden(credit.signals(True)), *no_credit])
        past = None
        if credit.past is not None:
            past = self._rows_of_steps([*state.of_hidden(credit.past), *no_credit])
        every = self._pulled_by_colour(window)

        def turn(carry, at):
            (traces, total), (signal, past, Phi, dys, xs) = carry, at
            one_step = [None if x is None else x[None] for x in xs]
            pulled = PulledRows(Phi, dys, one_step, every.colour)
            pushed = self._push(traces, pulled)
            terms = [self._read(pushed, signal)]
            if past is not None:
                terms.append(self._read(traces, past))
            sums = [sum(a).astype(a[0].dtype) for a in zip(total, *terms, strict=True)]
            return (self._added(traces, pushed, pulled), sums), None

        none = [jnp.zeros(u.use.w.aval.shape, u.use.w.aval.dtype) for u in state.uses]
        start = self.init() if traces is None else traces, none
        xs = signals, past, every.Phi, every.dys, every.xs
        (new, total), _ = scan(turn, start, xs, window.length)
        same_step = {
            r: gradient(window.ops[r], window.operands[r], credit.y[r])
            for r in range(len(self.layout.relations))
        }
        from_before = state.weights_to_params(total, window.given.captured, window.params)
        return Contribution(same_step, from_before.params), new if keep else None

    def loses(self, way: Passage) -> str | None:
        if way.use is None:
            return self.state.lost_outside_uses(way)
        if way.new is None:
            is_hidden = way.old is None or way.old in self.layout.graph.analysis.rows
            return None if is_hidden else 'single-step credit does not reach states of other kinds'
        if way.old is None or not self.near.leaves(way.use, way.old, way.new):
            return None
        return f'it goes beyond what the weight reaches within n = {self.n} steps'


def _push_by_list(u: TracedUse, lists: Lists, blocks: jax.Array, e: jax.Array) -> jax.Array:
    """A trace of `(number, *trace)` times the block of the list that each element of y has."""
    op = u.op
    inner = [c for c in op.axes.y if c != u.sample_label]
    rest = [c for c in op.axes.trace if c not in op.axes.y]
    labels = f'.{op.axes.trace}'  # the dot stands for the elements of the list
    front = [labels.index(c) for c in (*u.sample_label, *inner)]
    back = [labels.index(c) for c in rest]
    order = [*front, 0, *back]
    shape = [e.shape[a] for a in order]
    flat = e.transpose(order).reshape(len(blocks), lists.place.size, len(e), -1)
    # All elements with one list beside each other: one product of matrices for a list.
    many, most = lists.members.shape
    together = flat[:, lists.members.ravel()].reshape(len(blocks), many, most, len(e), -1)
    grown = jnp.einsum('blrs,blmsi->blmri', blocks, together)
    grown = grown.reshape(len(blocks), many * most, len(e), -1)[:, lists.place]
    return grown.reshape(shape).transpose(np.argsort(order))


def _beside_samples(a: np.ndarray, u: TracedUse, lead: int) -> np.ndarray:
    """Values at y of one sample, with `lead` axes before, with an axis of one in the place of the
    samples."""
    return a if u.sample_axis < 0 else np.expand_dims(a, lead + u.sample_axis)
