"""What the rules share that follow all float states of a model, hidden or not: whatever carries
influence.

An *element* of the state is a real number. A complex state has two for each of its values, the real
parts first: a loss is a real function of both, whether or not the step is holomorphic. Credit `c`
of a complex value means, as everywhere in JAX, a change `Re(c dh)` of the loss, so `Re(c)` is the
credit of its real part and `-Im(c)` that of its imaginary part. An influence on a complex parameter
is kept in the same way, as one complex number for each element of the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._jax import JaxprEqn, Var, is_complex, is_float, real_dtype
from ..engine import through
from ..engine.window import Cotangents, Window
from ..errors import NotSupportedError
from ..graph.compile import Graph
from ..graph.samples import Samples, find_samples, sample_axes
from ..graph.sources import Origin, weight_program
from ..graph.structure import Structure
from ..graph.uses import Use
from ..ops.axes import Op
from ..ops.families import Family, family
from ..ops.masked import compact
from ..plan.kept import Passage
from ..plan.keys import TraceKey, distinct
from ..step import Leaf
from .carrier import Contribution, Entry


class FloatParam(NamedTuple):
    """A parameter leaf that has a gradient: its number, its key, its variable."""

    number: int
    key: TraceKey
    var: Var


class WholeState:
    """The float states and parameters of a graph, and the order in which they are taken."""

    def __init__(self, graph: Graph):
        self.graph = graph

    @cached_property
    def vars(self) -> list[Var]:
        """All float states, the hidden ones first."""
        step = self.graph.step
        return [v for v in [*step.hidden_vars, *step.other_vars] if is_float(v)]

    @cached_property
    def leaves(self) -> list[Leaf]:
        """Their leaves."""
        step = self.graph.step
        pairs = zip([*step.hidden_vars, *step.other_vars], [*step.hidden, *step.other], strict=True)
        return [leaf for v, leaf in pairs if is_float(v)]

    @cached_property
    def hidden(self) -> int:
        """How many of them are hidden."""
        return sum(is_float(v) for v in self.graph.step.hidden_vars)

    @cached_property
    def size(self) -> int:
        """How many elements they have."""
        return sum(_parts_of(v) * v.aval.size for v in self.vars)

    @property
    def dtype(self) -> Any:
        """The type of an element."""
        return real_dtype(self.vars[0].aval.dtype)

    def params(self, kind: str) -> list[FloatParam]:
        """The float parameters that reach a state, each with the key of a trace of this kind."""
        step, reaching = self.graph.step, self._reaching
        chosen = [i for i, v in enumerate(step.param_vars) if is_float(v) and v in reaching]
        keys = distinct(TraceKey((step.params[i],), kind=kind) for i in chosen)
        return [FloatParam(i, k, step.param_vars[i]) for i, k in zip(chosen, keys, strict=True)]

    @cached_property
    def _reaching(self) -> set[Var]:
        """What the new states depend on with a derivative."""
        analysis = self.graph.analysis
        new = [row.new for row in [*analysis.rows, *analysis.others]]
        found = {a for a in new if isinstance(a, Var)}
        for eqn in reversed(analysis.eqns):
            if family(eqn) is not Family.NO_DERIVATIVE and not found.isdisjoint(eqn.outvars):
                found.update(a for a in eqn.invars if isinstance(a, Var))
        return found

    def of_entry(self, entry: Entry) -> list[Any]:
        """The credit of the float states at a window's entry."""
        return [a for a in (*entry.hidden, *entry.other) if a is not None]

    def of_hidden(self, leaves: Sequence[Any]) -> list[Any]:
        """The float ones of all hidden leaves."""
        pairs = zip(leaves, self.graph.step.hidden_vars, strict=True)
        return [a for a, v in pairs if is_float(v)]

    def cotangents(self, parts: Sequence[Any]) -> Cotangents:
        """Credit of the float states as credit of a window's exit."""
        step, rest = self.graph.step, iter(parts)
        hidden = [next(rest) if is_float(v) else None for v in step.hidden_vars]
        other = [next(rest) if is_float(v) else None for v in step.other_vars]
        return Cotangents(hidden=hidden, other=other)

    def to_params(self, gradients: dict[int, Any]) -> Contribution:
        """A contribution of gradients by number of the parameter."""
        n = len(self.graph.step.params)
        return Contribution(params=[gradients.get(i) for i in range(n)])

    def influence(self, window: Window, params: Sequence[FloatParam]) -> tuple[Any, list[Any]]:
        """`Phi[element, element]`, and `M[element, *parameter]` for each parameter: one pull for
        each element."""
        entry, M = self.pull(window, params, [jnp.conj(a) for a in self.ones()])
        return jax.vmap(self.credit_row)(entry), M

    def ones(self) -> list[jax.Array]:
        """Changes of the state by one element at a time, `[element, *leaf]` for each leaf."""

        def one(row):
            split = zip(jnp.split(row, self._cuts), self.vars, strict=True)
            return [_change_of_leaf(p, v) for p, v in split]

        return jax.vmap(one)(jnp.eye(self.size, dtype=self.dtype))

    def pull(
        self, window: Window, params: Sequence[FloatParam], credit: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Rows of credit of the exit state through the window: `[row, *leaf]` for each leaf to the
        same of the entry state, and `[row, *parameter]` for each parameter."""
        numbers = [p.number for p in params]

        def one(credit):
            entry, pulled = through.pull(window, self._by_number(credit), numbers)
            return _leaves(entry), [pulled[i] for i in numbers]

        return jax.vmap(one)(self._as_state(credit))

    def push(
        self,
        window: Window,
        params: Sequence[FloatParam],
        state: Sequence[Any],
        changes: Sequence[Any],
    ) -> list[Any]:
        """Rows of changes of the entry state, `[row, *leaf]` for each leaf, and of the parameters,
        `[row, *parameter]`, through the window: the changes of the exit state."""

        def one(state, changes):
            by_number = {p.number: a for p, a in zip(params, changes, strict=True)}
            return _leaves(through.push(window, self._by_number(state), by_number))

        return jax.vmap(one)(self._as_state(state), list(changes))

    def _as_state(self, rows: Sequence[Any]) -> list[Any]:
        """Rows for each leaf, of its type."""
        return [a.astype(v.aval.dtype) for a, v in zip(rows, self.vars, strict=True)]

    def changed(self, window: Window, state: Sequence[Any]) -> list[Any]:
        """The change of the exit state, leaf by leaf, from that of the entry state."""
        return _leaves(through.push(window, self._by_number(state), {}))

    def _by_number(self, leaves: Sequence[Any]) -> through.State:
        """Something for each float state, by its number among the hidden and among the others."""
        step, rest = self.graph.step, iter(leaves)
        hidden = {i: next(rest) for i, v in enumerate(step.hidden_vars) if is_float(v)}
        return hidden, {i: next(rest) for i, v in enumerate(step.other_vars) if is_float(v)}

    @property
    def _cuts(self) -> np.ndarray:
        """Where the elements of one leaf end and those of the next begin."""
        return np.cumsum([_parts_of(v) * v.aval.size for v in self.vars])[:-1]

    def credit_row(self, leaves: Sequence[Any]) -> jax.Array:
        """The credit of all elements, from that of the leaves."""
        return jnp.concatenate([p.ravel() for a in leaves for p in _credit_of_parts(a)])


def _parts_of(v: Var) -> int:
    """How many real numbers one value is."""
    return 2 if is_complex(v) else 1


def _leaves(state: through.State) -> list[Any]:
    return [a for leaves in state for a in leaves.values()]


def _parts(a: Any) -> list[Any]:
    """The real numbers that the values of a leaf are."""
    return [a.real, a.imag] if jnp.iscomplexobj(a) else [a]


def _change_of_leaf(elements: jax.Array, v: Var) -> jax.Array:
    """The change of a leaf, from that of its elements."""
    parts = [p.reshape(v.aval.shape) for p in jnp.split(elements, _parts_of(v))]
    whole = jax.lax.complex(*parts) if is_complex(v) else parts[0]
    return whole.astype(v.aval.dtype)


def _credit_of_parts(a: Any) -> list[Any]:
    """The credit of the parts of a leaf, from that of the leaf."""
    return [a.real, -a.imag] if jnp.iscomplexobj(a) else [a]


def _credit_of_leaf(elements: jax.Array, v: Var, shape: tuple[int, ...]) -> jax.Array:
    """The credit of a leaf, of this shape, from that of its elements."""
    parts = [p.reshape(shape) for p in jnp.split(elements, _parts_of(v))]
    whole = jax.lax.complex(parts[0], -parts[1]) if is_complex(v) else parts[0]
    return whole.astype(v.aval.dtype)


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
        return [_parts_of(v) * int(np.prod(shape)) for v, shape in pairs]

    @cached_property
    def value_of_element(self) -> np.ndarray:
        """For each element of one sample the number of the value that it is, or is a part of."""
        first, numbers = 0, []
        for v, shape in zip(self.vars, self.shapes, strict=True):
            n = int(np.prod(shape))
            numbers += [np.arange(first, first + n)] * _parts_of(v)
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
        parts = [p for a in leaves for p in _credit_of_parts(a)]
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
        """For each use a variable whose credit is that of its y: what y ends up in by sums alone,
        the same for uses whose outputs are added up."""
        jaxpr = self.graph.step.jaxpr
        readers: dict[Var, list[JaxprEqn | None]] = {}
        read = [(a, eqn) for eqn in jaxpr.eqns for a in eqn.invars]
        for a, reader in [*read, *[(a, None) for a in jaxpr.outvars]]:
            if isinstance(a, Var):
                readers.setdefault(a, []).append(reader)

        def last_sum(y: Var) -> Var:
            [eqn, *others] = readers.get(y, [None])
            if others or eqn is None or eqn.primitive.name not in ('add', 'add_any'):
                return y
            [out] = eqn.outvars
            return last_sum(out) if out.aval.shape == y.aval.shape else y

        return [last_sum(u.y) for u in self.uses]

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
