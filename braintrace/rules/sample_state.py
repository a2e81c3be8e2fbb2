"""What the rules share that follow all float states of the samples of a batch, each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._jax import Var, is_complex
from ..engine.window import Window
from ..errors import NotSupportedError
from ..graph.samples import Samples, find_samples, sample_axes
from ..graph.sources import Origin, weight_program
from ..graph.structure import Structure
from ..graph.uses import Use
from ..ops.axes import Op
from ..ops.masked import compact
from ..plan.kept import Passage
from ..plan.keys import TraceKey, distinct
from ..plan.readers import shared_sums
from .carrier import Contribution
from .whole_state import WholeState, credit_of_parts, parts_of


class TracedUse(NamedTuple):
    """A use of a weight that reaches a state: the key of its trace, its op (of a masked weight with
    what is not masked out), and the axis of y that counts samples, -1 for none."""

    key: TraceKey
    use: Use
    op: Op
    sample_axis: int

    @property
    def y(self) -> Var:
        return self.use.y[0]

    @property
    def inner_shape(self) -> list[int]:
        """The shape of y for one sample."""
        return [n for a, n in enumerate(self.y.aval.shape) if a != self.sample_axis]

    @property
    def weights(self) -> int:
        """How many weights a trace holds."""
        return int(np.prod(self.op.labelled or self.op.w_shape))

    @property
    def sample_label(self) -> str:
        """The label of the samples in a trace, '' for none."""
        if self.sample_axis < 0:
            return ''
        return (self.op.kept or self.op.axes.y)[self.sample_axis]


class Influence(NamedTuple):
    """Rows of the influence of a window: `Phi[row, (sample,) element]`, for each use
    `dys[row, K, *y]`, and what multiplies its weight, `xs[K, ...]`."""

    Phi: Any
    dys: list[Any]
    xs: list[Any]


class SampleState(WholeState):
    """The float states where the samples of a batch are independent: its elements are those of one
    sample, and a pull with a one at the same element of all samples serves all of them at once."""

    @cached_property
    def axes(self) -> list[int] | None:
        """For each use of a weight the axis of y that counts samples; None where samples are not
        independent, or there are none."""
        return sample_axes(self.graph.analysis)

    @cached_property
    def _samples(self) -> Samples:
        return find_samples(self.graph.analysis)

    def operand_axis(self, u: TracedUse) -> int:
        """The axis that counts samples of what multiplies the weight, as `spread` makes it; -1 for
        none."""
        if u.sample_axis < 0 or u.op.axes.x is None:
            return -1
        if u.op.line_up_x is None:
            return u.op.axes.x.find(u.sample_label)
        axis = self._samples.axes.get(u.use.x_var) if u.use.x_var is not None else None
        return -1 if axis is None else axis

    @cached_property
    def structure(self) -> Structure:
        return Structure(self.graph.analysis)

    @cached_property
    def uses(self) -> list[TracedUse]:
        """Every use of a weight that reaches a state."""
        analysis, origin = self.graph.analysis, Origin(self.graph.step)
        reached = 0
        for row in [*analysis.rows, *analysis.others]:
            reached |= analysis.dep(row.new).seeds
        uses = []
        for i, use in enumerate(analysis.uses):
            if not reached >> analysis.seed(i) & 1:
                continue
            key = TraceKey(tuple(source.leaf for source in origin.of(use.w)))
            if use.op is None:
                raise NotSupportedError(
                    f'{key} is used by {use.place}, which has no op rule, so this rule cannot '
                    'trace it. Use rtrl or d_rtrl.'
                )
            op, axis = use.op, -1 if self.axes is None else self.axes[i]
            if op.plain and op.axes.x is not None:
                pattern = self.structure.pattern(use.w)
                assert pattern is not None
                op = compact(op, pattern)
            uses.append(TracedUse(key, use, op, axis))
        keys = distinct(u.key for u in uses)
        return [u._replace(key=key) for u, key in zip(uses, keys, strict=True)]

    @cached_property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the states of one sample."""
        return [v.aval.shape if self.axes is None else v.aval.shape[1:] for v in self.vars]

    @cached_property
    def size_of_one(self) -> int:
        """The number of elements of the state of one sample."""
        return sum(self._sizes)

    @property
    def _sizes(self) -> list[int]:
        """How many elements of one sample each leaf has."""
        pairs = zip(self.vars, self.shapes, strict=True)
        return [parts_of(v) * int(np.prod(shape)) for v, shape in pairs]

    @cached_property
    def value_of_element(self) -> np.ndarray:
        """For each element of one sample the number of the value that it is, or is a part of."""
        first, numbers = 0, []
        for v, shape in zip(self.vars, self.shapes, strict=True):
            n = int(np.prod(shape))
            numbers += [np.arange(first, first + n)] * parts_of(v)
            first += n
        return np.concatenate(numbers)

    @property
    def bytes_of_a_step(self) -> int:
        """What `influence_of_uses` keeps of each step of a window: rows of credit of every y,
        once for those that are added up."""
        avals = [v.aval for v in dict.fromkeys(self._credited)]
        return self.size_of_one * sum(a.size * a.dtype.itemsize for a in avals)

    def rows(self, leaves: Sequence[Any]) -> jax.Array:
        """The credit of all elements, from that of the leaves: one row, or one for each sample."""
        if self.axes is None:
            return self.credit_row(leaves)
        parts = [p for a in leaves for p in credit_of_parts(a)]
        return jnp.concatenate([p.reshape(p.shape[0], -1) for p in parts], -1)

    def parts(self, row: jax.Array) -> list[jax.Array]:
        """Credit of all elements, one row for all samples, as credit of the leaves."""
        cuts = np.cumsum(self._sizes)[:-1]
        triples = zip(jnp.split(row, cuts), self.shapes, self.vars, strict=True)
        return [
            jnp.broadcast_to(_credit_of_leaf(elements, v, shape), v.aval.shape)
            for elements, shape, v in triples
        ]

    def influence_of_uses(self, window: Window) -> Influence:
        """One row for each element of the state of a sample, through the whole window."""
        variables = list(dict.fromkeys(self._credited))
        pull_back = window.vjp('hidden', 'other', variables=variables)

        def pull(unit):
            pulled = pull_back(self.cotangents(self.parts(unit)))
            entry = [a for a in (*pulled.hidden, *pulled.other) if a is not None]
            return self.rows(entry), pulled.variables

        ones = jnp.eye(self.size_of_one, dtype=self.dtype)
        Phi, credit = jax.vmap(pull)(ones)
        at = dict(zip(variables, credit, strict=True))
        xs = [window.operand(u.use) for u in self.uses]
        return Influence(Phi, [at[v] for v in self._credited], xs)

    @cached_property
    def _credited(self) -> list[Var]:
        """For each use a variable whose credit is that of its y: the sum that it goes into, the
        same for uses whose outputs are added up."""
        ys = [u.y for u in self.uses]
        sums = shared_sums(self.graph, ys)
        return [sums[y] for y in ys]

    @cached_property
    def uses_of_one_credit(self) -> list[list[int]]:
        """The uses, by number, with those together whose credit is that of the same variable."""
        uses: dict[Var, list[int]] = {}
        for n, v in enumerate(self._credited):
            uses.setdefault(v, []).append(n)
        return list(uses.values())

    def weights_to_params(
        self, weights: Sequence[Any], captured: Sequence[Any], params: Sequence[Any]
    ) -> Contribution:
        """Gradients of the weights as their ops take them, to gradients of the parameters."""
        phi = weight_program(self.graph.step, [u.use.w for u in self.uses])
        _, pull = jax.vjp(lambda p: phi(captured, *p), list(params))
        pairs = zip(weights, self.uses, strict=True)
        [gradients] = pull([g.astype(u.use.w.aval.dtype) for g, u in pairs])
        return Contribution(params=gradients)

    @staticmethod
    def lost_outside_uses(way: Passage) -> str | None:
        """Why a rule with a trace for every use of a weight loses what goes around all of them."""
        if way.use is None and way.new is not None:
            return 'the parameter has no trace'
        return None


def _credit_of_leaf(elements: jax.Array, v: Var, shape: tuple[int, ...]) -> jax.Array:
    """The credit of a leaf, of this shape, from that of its elements."""
    parts = [p.reshape(shape) for p in jnp.split(elements, parts_of(v))]
    whole = jax.lax.complex(parts[0], -parts[1]) if is_complex(v) else parts[0]
    return whole.astype(v.aval.dtype)
