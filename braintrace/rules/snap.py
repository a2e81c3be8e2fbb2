"""SnAp-n: each weight remembers the units it can reach within n steps (Menick et al. 2021).

    e <- Phi e + x (x) dh/dy, on the neighbourhood of the unit that the weight feeds; everything outside of it is dropped

n = 1 keeps what a weight reaches in its own step; an n that reaches everything gives RTRL. The neighbourhoods come from the true structure of the step, across
layers: the whole of a dense weight, the pattern of a sparse or masked one, the receptive field of a convolution. As index lists they give a trace as
many rows as the largest neighbourhood has units.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..engine.loop import scan
from ..ops.axes import decay, gradient, kept_at, outer, read
from ..plan.layout import Layout
from .carrier import Contribution, Credit, Entry, Traces
from .rtrl import Pulls, sample_label

DENSE = 0.4  # a neighbourhood of more than this part of all is kept as all of them


class Neighbours(NamedTuple):
    """For each element of y (of one sample) the elements of the state it may influence, in a list of equal length; `there` says which entries count."""

    units: np.ndarray
    there: np.ndarray

    @property
    def alike(self) -> bool:
        """Whether all elements have the same list."""
        flat = self.units.reshape(len(self.units), -1)
        return bool((flat == flat[:, :1]).all())


class Pulled(NamedTuple):
    """Rows of `Phi` and of `dh/dy`, each the sum over the elements of the state of one colour, and which colour each element has; None: one row for each."""

    Phi: Any
    dys: list
    xs: list
    colour: np.ndarray | None


@dataclass(frozen=True, eq=False)
class SparseInfluence(Pulls):
    """The n-step neighbourhood of J, sample by sample where samples are independent."""

    layout: Layout
    n: int

    @cached_property
    def reach(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """Which elements of the new state depend on which of the old state, and on which elements of each use's output, in one step of one sample."""
        step = self.layout.graph.step
        news = [
            new
            for old, new in zip(
                [*step.hidden_vars, *step.other_vars],
                [*step.hidden_outs, *step.other_outs],
                strict=True,
            )
            if old in self.state
        ]

        def one_sample(sets):  # (element of the state, source)
            parts = [s if self.axes is None else s[:, 0] for s in sets]
            return np.concatenate([p.reshape(len(p), -1) for p in parts], 1).T

        cuts = np.cumsum(
            [v.aval.size // (1 if self.axes is None else v.aval.shape[0]) for v in self.state]
        )[:-1]
        start = {
            v: _in_first_sample(part, v.aval.shape, -1 if self.axes is None else 0)
            for v, part in zip(
                self.state, np.split(np.eye(self.size, dtype=np.float32), cuts, 1), strict=True
            )
        }
        of_uses = []
        for _, use, _, k in self.uses:
            size = use.y[0].aval.size // (1 if k < 0 else use.y[0].aval.shape[k])
            of_uses.append(
                one_sample(
                    self.structure.reach(
                        {
                            use.y[0]: _in_first_sample(
                                np.eye(size, dtype=np.float32), use.y[0].aval.shape, k
                            )
                        },
                        news,
                    )
                )
            )
        return one_sample(self.structure.reach(start, news)), of_uses

    @cached_property
    def neighbours(self) -> list[Neighbours]:
        """The neighbourhoods of each use."""
        found = []
        A, of_uses = self.reach
        for (_, use, _, k), reached in zip(self.uses, of_uses, strict=True):
            for _ in range(self.n - 1):
                reached = reached | (A.astype(np.float32) @ reached.astype(np.float32) > 0)
            most, anywhere = (
                max(1, int(reached.sum(0).max(initial=0))),
                np.flatnonzero(reached.any(1)),
            )
            index = np.argsort(~reached, axis=0, kind='stable')[:most]
            if most > DENSE * len(
                anywhere
            ):  # one list for all, and one dense product instead of many small ones
                most, index = (
                    len(anywhere),
                    np.broadcast_to(anywhere[:, None], (len(anywhere), reached.shape[1])),
                )
            inner = [m for a, m in enumerate(use.y[0].aval.shape) if a != k]
            found.append(
                Neighbours(
                    index.reshape(most, *inner),
                    np.take_along_axis(reached, index, 0).reshape(most, *inner),
                )
            )
        return found

    @cached_property
    def colours(self) -> np.ndarray:
        """A colour for each element of the state: no source reaches two of one colour, so that one pull serves them all."""
        A, of_uses = self.reach
        sources = np.concatenate([A, *of_uses], 1).astype(np.float32)
        apart = sources @ sources.T > 0
        found = np.full(self.size, -1)
        for i in np.argsort(-apart.sum(0), kind='stable'):
            taken = np.zeros(self.size + 1, bool)
            taken[found[apart[i]]] = True  # -1 for those without a colour is the last place
            found[i] = np.argmin(taken[:-1])
        return found

    @cached_property
    def step_bytes(self) -> int:
        """What the pulls of one step keep."""
        samples = 1 if self.axes is None else self.state[0].aval.shape[0]
        return (
            int(self.colours.max(initial=0) + 1)
            * 4
            * (self.size * samples + sum(u.y[0].aval.size for _, u, _, _ in self.uses))
        )

    def init(self) -> Traces:
        return {
            name: jnp.zeros((len(near.units), *op.trace_shape(u.y[0].aval.shape)), u.w.aval.dtype)
            for (name, u, op, _), near in zip(self.uses, self.neighbours, strict=True)
        }

    def _read(self, traces: Traces, lam: Any) -> list[Any]:
        found = []
        for (name, _, op, k), near in zip(self.uses, self.neighbours, strict=True):
            at = lam[..., near.units] * near.there
            found.append(read(op, at if k < 0 else jnp.moveaxis(at, 0, 1 + k), traces[name]))
        return found

    def _push(self, traces: Traces, pulled: Pulled) -> Traces:
        """`Phi e`, inside the neighbourhoods."""
        new, colour, A = {}, pulled.colour, self.reach[0]
        mine = (lambda units: units) if colour is None else (lambda units: colour[units])
        for (name, _, op, k), near in zip(self.uses, self.neighbours, strict=True):
            if near.alike:
                rows = near.units.reshape(len(near.units), -1)[:, 0]
                Phi = pulled.Phi[mine(rows)][..., rows]
                if colour is not None:
                    Phi = Phi * (A[rows][:, rows] if self.axes is None else A[rows][:, None, rows])
                grown = jnp.einsum(
                    f'Y{sample_label(op, k)}Z,Z{op.axes.trace}->Y{op.axes.trace}', Phi, traces[name]
                )
                there = near.there if k < 0 else np.expand_dims(near.there, 1 + k)
                new[name] = grown if near.there.all() else kept_at(op, grown, there)
                continue
            to, of = near.units[:, None], near.units[None]
            there = (
                near.there[:, None] & near.there[None] & (A[to, of] if colour is not None else True)
            )
            block = (
                pulled.Phi[mine(to), of]
                if k < 0
                else jnp.moveaxis(jnp.moveaxis(pulled.Phi, 1, 2)[mine(to), of], -1, 2 + k)
            )
            new[name] = decay(
                op, block * (there if k < 0 else np.expand_dims(there, 2 + k)), traces[name]
            )
        return new

    def _added(self, traces: Traces, pushed: Traces, pulled: Pulled) -> Traces:
        """The old traces, pushed, and what the steps add."""
        new = {}
        for i, ((name, use, op, k), near, dy, x) in enumerate(
            zip(self.uses, self.neighbours, pulled.dys, pulled.xs, strict=True)
        ):
            units, there = near
            if pulled.colour is not None:
                reached = self.reach[1][i].reshape(
                    self.size, *[m for a, m in enumerate(use.y[0].aval.shape) if a != k]
                )
                units, there = pulled.colour[units], there & np.take_along_axis(reached, units, 0)
            index, there = (a if k < 0 else np.expand_dims(a, 1 + k) for a in (units, there))
            q = jnp.take_along_axis(dy, jnp.asarray(index[:, None]), 0) * there[:, None]
            new[name] = (pushed[name] + outer(op, x, jnp.moveaxis(q, 0, 1))).astype(
                traces[name].dtype
            )
        return new

    def read(self, traces: Traces, credit: Entry) -> Contribution:
        return self.to_params(self._read(traces, self.rows(self.moving(credit))), credit.params)

    def advance(self, traces: Traces, window) -> Traces:
        pulled = Pulled(*self.pulled(window), None)
        return self._added(traces, self._push(traces, pulled), pulled)

    def _by_colour(self, window) -> Pulled:
        """The pulls of every step of a window by itself, steps first."""
        pull_to_y = window.pull_each([u.y[0] for _, u, _, _ in self.uses])
        ones = np.eye(int(self.colours.max(initial=0)) + 1, dtype=self.state[0].aval.dtype)[
            self.colours
        ].T

        def pull(units):
            parts = [jnp.broadcast_to(p, (window.length, *p.shape)) for p in self.parts(units)]
            dh, ds, dy = pull_to_y(self.spread(parts[: self.hidden]), parts[self.hidden :])
            return jax.vmap(lambda *leaves: self.rows(leaves))(*self.kept(dh), *ds), dy

        Phi, dys = jax.vmap(pull, out_axes=1)(jnp.asarray(ones))
        return Pulled(
            Phi,
            [d[:, :, None] for d in dys],
            [window.operand(u) for _, u, _, _ in self.uses],
            self.colours,
        )

    def block(
        self, traces: Traces | None, window, credit: Credit, steps, keep: bool
    ) -> tuple[Contribution, Traces | None]:
        """Step by step: `dw_t = same-step gradient + s_t . (Phi e_{t-1})`."""
        zeros = [
            jnp.zeros((window.length, *v.aval.shape), v.aval.dtype)
            for v in self.state[self.hidden :]
        ]
        by_step = lambda leaves: jax.vmap(lambda *a: self.rows(a))(*self.kept(leaves), *zeros)
        signals, past = (
            by_step(credit.signals(together=True)),
            None if credit.past is None else by_step(credit.past),
        )
        every = self._by_colour(window)

        def turn(carry, at):
            (traces, total), (signal, past, Phi, dys, xs) = carry, at
            pulled = Pulled(Phi, dys, [None if x is None else x[None] for x in xs], every.colour)
            pushed = self._push(traces, pulled)
            got = [self._read(pushed, signal)] + (
                [] if past is None else [self._read(traces, past)]
            )
            return (
                self._added(traces, pushed, pulled),
                [sum(parts).astype(parts[0].dtype) for parts in zip(total, *got, strict=True)],
            ), None

        zero = [jnp.zeros(u.w.aval.shape, u.w.aval.dtype) for _, u, _, _ in self.uses]
        start = self.init() if traces is None else traces, zero
        (new, total), _ = scan(
            turn, start, (signals, past, every.Phi, every.dys, every.xs), window.length
        )
        same = {
            r: gradient(x.op, window.operands[r], credit.y[r])
            for r, x in enumerate(self.layout.relations)
        }
        return Contribution(
            same, self.to_params(total, window.params).params
        ), new if keep else None


def _in_first_sample(sources: np.ndarray, shape: tuple[int, ...], axis: int) -> np.ndarray:
    """Sources (number, elements of one sample) in a value of this shape: those of the first sample along an axis (-1: there are none)."""
    if axis < 0:
        return sources.reshape(-1, *shape)
    whole = np.zeros((len(sources), *shape), np.float32)
    np.moveaxis(whole, 1 + axis, 1)[:, 0] = sources.reshape(
        len(sources), *[m for a, m in enumerate(shape) if a != axis]
    )
    return whole
