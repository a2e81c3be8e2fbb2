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
from ..graph.uses import Use
from ..ops.axes import Op, outer
from .carrier import Contribution, Credit, Entry, Traces
from .slots import Layout


def full(layout: Layout) -> FullOfSamples | Full:
    """The whole of J, sample by sample where the samples of a batch are independent."""
    axes = sample_axes(layout.graph.found)
    step = layout.graph.step
    for v, leaf in zip([*step.hidden_vars, *step.other_vars], [*step.hidden, *step.other], strict=True):
        if axes is None and jnp.issubdtype(v.aval.dtype, jnp.complexfloating):
            raise NotSupportedError(f'RTRL: state {leaf.name} is complex, and the model leaves the complex numbers or has no batch axis. Keep real and '
                                    'imaginary part as two real states, or use d_rtrl.')
    return Full(layout) if axes is None else FullOfSamples(layout, tuple(axes))


class _Exact:
    """What both forms share."""
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
        return [next(rest) if is_float(v) else np.zeros(v.aval.shape, jax.dtypes.float0) for v in self.layout.graph.step.hidden_vars]

    def kept(self, leaves: Sequence[Any]) -> list[Any]:
        """The float ones of cotangents of all hidden states."""
        return [a for a, v in zip(leaves, self.layout.graph.step.hidden_vars, strict=True) if is_float(v)]

    def block(self, traces: Traces | None, window, credit: Credit, steps, keep: bool):
        raise NotImplementedError("RTRL has no single-step form of its own: use vjp_method='multi-step'.")


@dataclass(frozen=True, eq=False)
class Full(_Exact):
    """dh/dtheta for every float element of the state and every parameter."""
    layout: Layout

    @property
    def _params(self) -> list[tuple[str, Var]]:
        step = self.layout.graph.step
        return [(f'{i}:{leaf.name}', v) for i, (leaf, v) in enumerate(zip(step.params, step.param_vars, strict=True)) if is_float(v)]

    def init(self) -> Traces:
        n = sum(v.aval.size for v in self.state)
        return {name: jnp.zeros((n, *p.aval.shape), p.aval.dtype) for name, p in self._params}

    def read(self, traces: Traces, credit: Entry) -> Contribution:
        lam = jnp.concatenate([a.ravel() for a in self.moving(credit)])
        found = {p: jnp.tensordot(lam, traces[name], 1).astype(p.aval.dtype) for name, p in self._params}
        return Contribution(params=[found.get(p) for p in self.layout.graph.step.param_vars])

    def advance(self, traces: Traces, window) -> Traces:
        floats = lambda leaves: [a for a, v in zip(leaves, self.layout.graph.step.param_vars, strict=True) if is_float(v)]
        sizes = [v.aval.size for v in self.state]
        cuts = np.cumsum(sizes)[:-1]

        def pull(unit):
            parts = [p.reshape(v.aval.shape).astype(v.aval.dtype) for p, v in zip(jnp.split(unit, cuts), self.state, strict=True)]
            dp, dh, ds, _ = window.pull(hidden=self.spread(parts[:self.hidden]), other=parts[self.hidden:])
            return jnp.concatenate([a.ravel() for a in (*self.kept(dh), *ds)]), floats(dp)

        Phi, M = jax.vmap(pull)(jnp.eye(sum(sizes), dtype=self.state[0].aval.dtype))
        return {name: (m + jnp.tensordot(Phi, traces[name], 1)).astype(traces[name].dtype) for (name, _), m in zip(self._params, M, strict=True)}


@dataclass(frozen=True, eq=False)
class FullOfSamples(_Exact):
    """dh/dw for every element of a sample's state and every use of a weight, for each sample of a batch. `axes` says where y counts samples.

    A pull with a one at the same element of all samples gives a row of Phi and, through the credit of each y, a row of M for all of them at once.
    """
    layout: Layout
    axes: tuple[int, ...]

    @cached_property
    def _uses(self) -> list[tuple[str, Use, Op, str]]:
        """Name, use, op and the label of the samples, of each use that reaches a state."""
        found = self.layout.graph.found
        origin = Origin(found.step)
        reached = 0
        for row in [*found.rows, *found.others]:
            reached |= found.dep(row.new).seeds
        uses: list[tuple[str, Use, Op, str]] = []
        for i, (u, k) in enumerate(zip(found.uses, self.axes, strict=True)):
            if u.op is not None and reached >> found.seed(i) & 1:
                name = '+'.join(leaf.name for _, leaf, _, _ in origin.of(u.w))
                again = sum(n.split('#')[0] == name for n, *_ in uses)
                uses.append((f'{name}#{again}' if again else name, u, u.op, (u.op.kept or u.op.axes.y)[k]))
        return uses

    def _rows(self, leaves: Sequence[Any]) -> Any:
        """The state of each sample as one row."""
        return jnp.concatenate([a.reshape(a.shape[0], -1) for a in leaves], -1)

    def init(self) -> Traces:
        n = sum(v.aval.size // v.aval.shape[0] for v in self.state)
        return {name: jnp.zeros((n, *op.trace_shape(u.y[0].aval.shape)), u.w.aval.dtype) for name, u, op, _ in self._uses}

    def read(self, traces: Traces, credit: Entry) -> Contribution:
        lam = self._rows(self.moving(credit))
        gw = [jnp.einsum(f'{b}Z,Z{op.axes.trace}->{op.axes.w}', lam, traces[name]).reshape(op.w_shape).astype(u.w.aval.dtype)
              for name, u, op, b in self._uses]
        phi = weight_program(self.layout.graph.step, [u.w for _, u, _, _ in self._uses])
        _, pull = jax.vjp(lambda p: eval_jaxpr(phi.jaxpr, phi.consts, *p), list(credit.params))
        return Contribution(params=pull(gw)[0])

    def advance(self, traces: Traces, window) -> Traces:
        uses, sizes = self._uses, [v.aval.size // v.aval.shape[0] for v in self.state]
        cuts = np.cumsum(sizes)[:-1]
        pull_to_y = window.pull_to([u.y[0] for _, u, _, _ in uses])
        xs = [window.operand(u) for _, u, _, _ in uses]

        def pull(unit):
            parts = [jnp.broadcast_to(p.reshape(v.aval.shape[1:]), v.aval.shape).astype(v.aval.dtype)
                     for p, v in zip(jnp.split(unit, cuts), self.state, strict=True)]
            dh, ds, dy = pull_to_y(self.spread(parts[:self.hidden]), parts[self.hidden:])
            return self._rows([*self.kept(dh), *ds]), [outer(op, x, d[:, None])[0] for (_, _, op, _), x, d in zip(uses, xs, dy, strict=True)]

        Phi, M = jax.vmap(pull)(jnp.eye(sum(sizes), dtype=self.state[0].aval.dtype))
        grown = lambda name, op, b: jnp.einsum(f'Y{b}Z,Z{op.axes.trace}->Y{op.axes.trace}', Phi, traces[name])
        return {name: (m + grown(name, op, b)).astype(traces[name].dtype) for (name, _, op, b), m in zip(uses, M, strict=True)}
