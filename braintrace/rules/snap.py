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

from ..graph.structure import Structure
from ..ops.axes import decay, gradient, outer, read
from .carrier import Contribution, Credit, Entry, Traces
from .full import Pulls, sample_label
from .slots import Layout


class Neighbours(NamedTuple):
    """For each element of y (of one sample) the elements of the state it may influence, in a list of equal length; `there` says which entries count."""
    units: np.ndarray
    there: np.ndarray

    @property
    def alike(self) -> bool:
        """Whether all elements have the same neighbours."""
        flat = self.units.reshape(len(self.units), -1)
        return bool(self.there.all()) and bool((flat == flat[:, :1]).all())


@dataclass(frozen=True, eq=False)
class SparseInfluence(Pulls):
    """The n-step neighbourhood of J, sample by sample where samples are independent."""
    layout: Layout
    n: int

    @cached_property
    def neighbours(self) -> list[Neighbours]:
        """The neighbourhoods of each use."""
        structure, step = Structure(self.layout.graph.found), self.layout.graph.step
        news = [new for old, new in zip([*step.hidden_vars, *step.other_vars], [*step.hidden_outs, *step.other_outs], strict=True) if old in self.state]

        def one_sample(sets):  # (element of the state, source)
            parts = [s if self.axes is None else s[:, 0] for s in sets]
            return np.concatenate([p.reshape(len(p), -1) for p in parts], 1).T

        whose = np.eye(self.size, dtype=np.float32)
        cuts = np.cumsum([v.aval.size // (1 if self.axes is None else v.aval.shape[0]) for v in self.state])[:-1]
        axis = -1 if self.axes is None else 0
        A = one_sample(structure.reach({v: _in_first_sample(part, v.aval.shape, axis) for v, part in zip(
            self.state, np.split(whose, cuts, 1), strict=True)}, news))
        found = []
        for _, use, _, k in self.uses:
            y = use.y[0].aval.shape
            inner = [m for a, m in enumerate(y) if a != k]
            start = _in_first_sample(np.eye(int(np.prod(inner)), dtype=np.float32), y, k)
            reached = one_sample(structure.reach({use.y[0]: start}, news))
            for _ in range(self.n - 1):
                reached = reached | (A.astype(np.float32) @ reached.astype(np.float32) > 0)
            most = max(1, int(reached.sum(0).max(initial=0)))
            index = np.argsort(~reached, axis=0, kind='stable')[:most]
            found.append(Neighbours(index.reshape(most, *inner), np.take_along_axis(reached, index, 0).reshape(most, *inner)))
        return found

    def init(self) -> Traces:
        return {name: jnp.zeros((len(near.units), *op.trace_shape(u.y[0].aval.shape)), u.w.aval.dtype)
                for (name, u, op, _), near in zip(self.uses, self.neighbours, strict=True)}

    def _read(self, traces: Traces, lam: Any) -> list[Any]:
        found = []
        for (name, _, op, k), near in zip(self.uses, self.neighbours, strict=True):
            at = lam[..., near.units] * near.there
            found.append(read(op, at if k < 0 else jnp.moveaxis(at, 0, 1 + k), traces[name]))
        return found

    def _push(self, traces: Traces, Phi: Any) -> Traces:
        """`Phi e`, inside the neighbourhoods."""
        new = {}
        for (name, _, op, k), near in zip(self.uses, self.neighbours, strict=True):
            if near.alike:
                rows = near.units.reshape(len(near.units), -1)[:, 0]
                new[name] = jnp.einsum(f'Y{sample_label(op, k)}Z,Z{op.axes.trace}->Y{op.axes.trace}', Phi[rows][..., rows], traces[name])
                continue
            to, of = near.units[:, None], near.units[None]
            block = (Phi[to, of] if k < 0 else jnp.moveaxis(jnp.moveaxis(Phi, 1, 2)[to, of], -1, 2 + k))
            there = near.there[:, None] & near.there[None]
            new[name] = decay(op, block * (there if k < 0 else np.expand_dims(there, 2 + k)), traces[name])
        return new

    def _advance(self, traces: Traces, window) -> tuple[Traces, Traces]:
        """What the old traces become, and the new traces."""
        Phi, dys, xs = self.pulled(window)
        pushed, new = self._push(traces, Phi), {}
        for (name, _, op, k), near, dy, x in zip(self.uses, self.neighbours, dys, xs, strict=True):
            index, there = (a if k < 0 else np.expand_dims(a, 1 + k) for a in near)
            q = jnp.take_along_axis(dy, jnp.asarray(index[:, None]), 0) * there[:, None]
            new[name] = (pushed[name] + outer(op, x, jnp.moveaxis(q, 0, 1))).astype(traces[name].dtype)
        return pushed, new

    def read(self, traces: Traces, credit: Entry) -> Contribution:
        return self.to_params(self._read(traces, self.rows(self.moving(credit))), credit.params)

    def advance(self, traces: Traces, window) -> Traces:
        return self._advance(traces, window)[1]

    def block(self, traces: Traces | None, window, credit: Credit, steps, keep: bool) -> tuple[Contribution, Traces | None]:
        """Step by step: `dw_t = same-step gradient + s_t . (Phi e_{t-1})`."""
        floats = self.kept(credit.signals(together=True)) + [jnp.zeros((window.length, *v.aval.shape), v.aval.dtype) for v in self.state[self.hidden:]]
        old = self.init() if traces is None else traces
        others = floats[self.hidden:]

        def turn(carry, k):
            traces, total = carry
            at = lambda leaves: self.rows([jax.lax.dynamic_index_in_dim(a, k, keepdims=False) for a in leaves])
            pushed, new = self._advance(traces, window.step(k))
            got = self._read(pushed, at(floats))
            if credit.past is not None:
                got = [a + b for a, b in zip(got, self._read(traces, at([*self.kept(credit.past), *others])), strict=True)]
            return (new, [a + b.astype(a.dtype) for a, b in zip(total, got, strict=True)]), None

        zero = [jnp.zeros(u.w.aval.shape, u.w.aval.dtype) for _, u, _, _ in self.uses]
        (new, total), _ = jax.lax.scan(turn, (old, zero), jnp.arange(window.length))
        same = {r: gradient(x.op, window.operands[r], credit.y[r]) for r, x in enumerate(self.layout.relations)}
        return Contribution(same, self.to_params(total, window.params).params), new if keep else None


def _in_first_sample(sources: np.ndarray, shape: tuple[int, ...], axis: int) -> np.ndarray:
    """Sources (number, elements of one sample) in a value of this shape: those of the first sample along an axis (-1: there are none)."""
    if axis < 0:
        return sources.reshape(-1, *shape)
    whole = np.zeros((len(sources), *shape), np.float32)
    np.moveaxis(whole, 1 + axis, 1)[:, 0] = sources.reshape(len(sources), *[m for a, m in enumerate(shape) if a != axis])
    return whole
