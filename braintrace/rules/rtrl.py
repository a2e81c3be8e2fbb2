"""RTRL: the whole of J. Exact for any model; a window of about n steps brings the price from n^4 to n^3 a step (Schmidhuber 1992).

J_b = Phi J_a + M        Phi = d h_b / d h_a,  M = d h_b / d theta at fixed h_a, both by one pull through the window for each element of the state
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._jax import Var, eval_jaxpr, is_float
from ..errors import NotSupportedError
from ..graph.relations import Origin, weight_program
from ..graph.samples import sample_axes
from ..graph.structure import Structure
from ..graph.uses import Use
from ..ops.axes import Op, outer
from ..ops.masked import compact
from ..plan.layout import Layout
from .carrier import Contribution, Credit, Entry, Traces


def full(layout: Layout) -> FullOfSamples | Full:
    """The whole of J, sample by sample where the samples of a batch are independent."""
    axes = sample_axes(layout.graph.found)
    step = layout.graph.step
    for v, leaf in zip(
        [*step.hidden_vars, *step.other_vars], [*step.hidden, *step.other], strict=True
    ):
        if axes is None and jnp.issubdtype(v.aval.dtype, jnp.complexfloating):
            raise NotSupportedError(
                f'RTRL: state {leaf.name} is complex, and the model leaves the complex numbers or has no batch axis. Keep real and '
                'imaginary part as two real states, or use d_rtrl.'
            )
    return Full(layout) if axes is None else FullOfSamples(layout)


class Exactly:
    """All float states of a model, hidden or not: whatever carries influence."""

    layout: Layout

    @cached_property
    def state(self) -> list[Var]:
        """All float states: whatever carries influence."""
        step = self.layout.graph.step
        return [v for v in [*step.hidden_vars, *step.other_vars] if is_float(v)]

    @cached_property
    def hidden(self) -> int:
        """How many of them are hidden."""
        return sum(is_float(v) for v in self.layout.graph.step.hidden_vars)

    def moving(self, credit: Entry) -> list[Any]:
        """The credit of all float states."""
        flags = [is_float(v) for v in self.layout.graph.step.hidden_vars]
        return [c for c, f in zip(credit.hidden, flags, strict=True) if f] + list(credit.other)

    def spread(self, parts: Sequence[Any]) -> list[Any]:
        """Cotangents of the float hidden states among those of all."""
        rest = iter(parts)
        return [
            next(rest) if is_float(v) else np.zeros(v.aval.shape, jax.dtypes.float0)
            for v in self.layout.graph.step.hidden_vars
        ]

    def kept(self, leaves: Sequence[Any]) -> list[Any]:
        """The float ones of cotangents of all hidden states."""
        return [
            a
            for a, v in zip(leaves, self.layout.graph.step.hidden_vars, strict=True)
            if is_float(v)
        ]

    def whole(self, window) -> tuple[Any, list[Any]]:
        """`Phi`, and `M` by float parameter: one pull for each element of the state."""
        floats = lambda leaves: [
            a for a, v in zip(leaves, self.layout.graph.step.param_vars, strict=True) if is_float(v)
        ]
        sizes = [v.aval.size for v in self.state]
        cuts = np.cumsum(sizes)[:-1]

        def pull(unit):
            parts = [
                p.reshape(v.aval.shape).astype(v.aval.dtype)
                for p, v in zip(jnp.split(unit, cuts), self.state, strict=True)
            ]
            dp, dh, ds, _ = window.pull(
                hidden=self.spread(parts[: self.hidden]), other=parts[self.hidden :]
            )
            return jnp.concatenate([a.ravel() for a in (*self.kept(dh), *ds)]), floats(dp)

        return jax.vmap(pull)(jnp.eye(sum(sizes), dtype=self.state[0].aval.dtype))


class Pulls(Exactly):
    """For each element of the state (of a sample, where samples are independent) its row of Phi and of dh/dy, by pulls through a window.

    A pull with a one at the same element of all samples serves all of them at once.
    """

    layout: Layout

    @cached_property
    def axes(self) -> list[int] | None:
        """For each use of a weight the axis of y that counts samples; None where samples are not independent, or there are none."""
        return sample_axes(self.layout.graph.found)

    @cached_property
    def structure(self) -> Structure:
        return Structure(self.layout.graph.found)

    @cached_property
    def uses(self) -> list[tuple[str, Use, Op, int]]:
        """Name, use, op and axis of the samples (-1 for none), of each use that reaches a state. Of a masked weight the op has what is not masked out."""
        found = self.layout.graph.found
        origin = Origin(found.step)
        reached = 0
        for row in [*found.rows, *found.others]:
            reached |= found.dep(row.new).seeds
        uses: list[tuple[str, Use, Op, int]] = []
        for i, u in enumerate(found.uses):
            if reached >> found.seed(i) & 1:
                name = '+'.join(leaf.name for _, leaf, _, _ in origin.of(u.w))
                if u.op is None:
                    raise NotSupportedError(
                        f'{name} is used by {u.place}, which has no op rule, so this rule cannot trace it. Use rtrl or d_rtrl.'
                    )
                again = sum(n.split('#')[0] == name for n, *_ in uses)
                op = (
                    compact(u.op, self.structure.pattern(u.w))
                    if u.op.plain and u.op.axes.x is not None
                    else u.op
                )
                uses.append(
                    (
                        f'{name}#{again}' if again else name,
                        u,
                        op,
                        -1 if self.axes is None else self.axes[i],
                    )
                )
        return uses

    @cached_property
    def size(self) -> int:
        """The number of elements of the state (of one sample)."""
        return sum(v.aval.size // (1 if self.axes is None else v.aval.shape[0]) for v in self.state)

    def rows(self, leaves: Sequence[Any]) -> Any:
        """The state as one row, or one for each sample."""
        return jnp.concatenate(
            [a.ravel() if self.axes is None else a.reshape(a.shape[0], -1) for a in leaves], -1
        )

    def parts(self, row: Any) -> list[Any]:
        """One row, for all samples, as leaves of the state."""
        shapes = [v.aval.shape if self.axes is None else v.aval.shape[1:] for v in self.state]
        cuts = np.cumsum([int(np.prod(s)) for s in shapes])[:-1]
        return [
            jnp.broadcast_to(p.reshape(s), v.aval.shape).astype(v.aval.dtype)
            for p, s, v in zip(jnp.split(row, cuts), shapes, self.state, strict=True)
        ]

    def pulled(self, window) -> tuple[Any, list[Any], list[Any]]:
        """`Phi[element, (sample,) element]`, for each use `dh_b/dy[element, step, y]`, and what multiplies its weight."""
        pull_to_y = window.pull_to([u.y[0] for _, u, _, _ in self.uses])

        def pull(unit):
            parts = self.parts(unit)
            dh, ds, dy = pull_to_y(self.spread(parts[: self.hidden]), parts[self.hidden :])
            return self.rows([*self.kept(dh), *ds]), dy

        Phi, dys = jax.vmap(pull)(jnp.eye(self.size, dtype=self.state[0].aval.dtype))
        return Phi, dys, [window.operand(u) for _, u, _, _ in self.uses]

    def to_params(self, weights: Sequence[Any], params: Sequence[Any]) -> Contribution:
        """Gradients of the weights as ops take them, to gradients of the parameters."""
        phi = weight_program(self.layout.graph.step, [u.w for _, u, _, _ in self.uses])
        _, pull = jax.vjp(lambda p: eval_jaxpr(phi.jaxpr, phi.consts, *p), list(params))
        return Contribution(
            params=pull(
                [
                    g.astype(u.w.aval.dtype)
                    for g, (_, u, _, _) in zip(weights, self.uses, strict=True)
                ]
            )[0]
        )


def sample_label(op: Op, axis: int) -> str:
    """The label of the samples in a trace, '' for none."""
    return '' if axis < 0 else (op.kept or op.axes.y)[axis]


@dataclass(frozen=True, eq=False)
class Full(Exactly):
    """dh/dtheta for every float element of the state and every parameter."""

    layout: Layout

    @property
    def _params(self) -> list[tuple[str, Var]]:
        step = self.layout.graph.step
        return [
            (f'{i}:{leaf.name}', v)
            for i, (leaf, v) in enumerate(zip(step.params, step.param_vars, strict=True))
            if is_float(v)
        ]

    def init(self) -> Traces:
        n = sum(v.aval.size for v in self.state)
        return {name: jnp.zeros((n, *p.aval.shape), p.aval.dtype) for name, p in self._params}

    def read(self, traces: Traces, credit: Entry) -> Contribution:
        lam = jnp.concatenate([a.ravel() for a in self.moving(credit)])
        found = {
            p: jnp.tensordot(lam, traces[name], 1).astype(p.aval.dtype) for name, p in self._params
        }
        return Contribution(params=[found.get(p) for p in self.layout.graph.step.param_vars])

    def advance(self, traces: Traces, window) -> Traces:
        Phi, M = self.whole(window)
        return {
            name: (m + jnp.tensordot(Phi, traces[name], 1)).astype(traces[name].dtype)
            for (name, _), m in zip(self._params, M, strict=True)
        }

    def block(self, traces: Traces | None, window, credit: Credit, steps, keep: bool):
        raise NotImplementedError(
            "RTRL has no single-step form of its own: use vjp_method='multi-step'."
        )


@dataclass(frozen=True, eq=False)
class FullOfSamples(Pulls):
    """dh/dw for every element of a sample's state and every use of a weight, for each sample of a batch."""

    layout: Layout

    def init(self) -> Traces:
        return {
            name: jnp.zeros((self.size, *op.trace_shape(u.y[0].aval.shape)), u.w.aval.dtype)
            for name, u, op, _ in self.uses
        }

    def read(self, traces: Traces, credit: Entry) -> Contribution:
        lam = self.rows(self.moving(credit))
        return self.to_params(
            [
                op.to_weight(
                    jnp.einsum(
                        f'{sample_label(op, k)}Z,Z{op.axes.trace}->{op.axes.w}', lam, traces[name]
                    )
                )
                for name, _, op, k in self.uses
            ],
            credit.params,
        )

    def advance(self, traces: Traces, window) -> Traces:
        Phi, dys, xs = self.pulled(window)
        new: Traces = {}
        for (name, _, op, k), dy, x in zip(self.uses, dys, xs, strict=True):
            grown = jnp.einsum(
                f'Y{sample_label(op, k)}Z,Z{op.axes.trace}->Y{op.axes.trace}', Phi, traces[name]
            )
            new[name] = (grown + outer(op, x, jnp.moveaxis(dy, 0, 1))).astype(traces[name].dtype)
        return new

    def block(self, traces: Traces | None, window, credit: Credit, steps, keep: bool):
        raise NotImplementedError(
            "RTRL has no single-step form of its own: use vjp_method='multi-step'."
        )
