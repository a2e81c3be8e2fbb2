"""The pure core of a learner: a program, the carrier of its influence and a signal, as functions of
flat leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp

from ..engine.blocks import in_blocks
from ..engine.credit import Asked, through_readers
from ..engine.program import Program
from ..engine.window import Cotangents, Window
from ..graph.compile import Graph, without_large_traces
from ..graph.samples import Samples, find_samples, one_sample
from ..graph.sources import weight_program
from ..plan.keys import TraceKey
from ..plan.layout import lay_out
from ..rules.carrier import BlockCarrier, Carrier, Contribution, Entry, Traces
from ..rules.changed import OnTraces, changed
from ..rules.rule import Rule
from ..rules.signals import NO_EXTRA, Extra, Signal
from . import nonfinite
from .alone import grad_in_parts
from .block_sizes import BlockSizes
from .progress import advance
from .records import Block, Carried, Gradients, Outcome, Run, Weights

KEEP, RAISE = 'keep', 'raise'
BUDGET = 256 * 2**20  # bytes that one block of steps may keep


@dataclass(frozen=True, eq=False)
class Core:
    """A learner of flat leaves.

    Args:
        program: the compiled step.
        carrier: takes the influence of the weights across the edge of a window.
        signal: where credit comes from.
        single_step: whether credit is that of the classical rule; otherwise it is exact inside a
            window.
        budget: bytes that one block of steps may keep.
        nonfinite: what to do about numbers that are not finite: 'keep', 'skip' or 'raise'.
    """

    program: Program
    carrier: Carrier
    signal: Signal
    single_step: bool
    budget: int = BUDGET
    nonfinite: str = KEEP

    @property
    def graph(self) -> Graph:
        return self.program.layout.graph

    def init(self, params: Sequence[Any] | None = None) -> Traces:
        """Zero traces, and what the signal keeps."""
        return {**self.carrier.init(), **self.signal.init(params)}

    @cached_property
    def shapes(self) -> dict[TraceKey, jax.ShapeDtypeStruct]:
        """The shapes of the traces."""
        return jax.eval_shape(self.init)

    @cached_property
    def _of_carrier(self) -> list[TraceKey]:
        return list(jax.eval_shape(self.carrier.init))

    def _own(self, traces: Traces) -> Traces:
        return {key: traces[key] for key in self._of_carrier}

    def grad(
        self,
        weights: Weights,
        carried: Carried,
        inputs: Sequence[Any],
        cotangents: Sequence[Any],
        run: Run,
        extra: Extra = NO_EXTRA,
    ) -> tuple[list[Any], list[Any], Carried]:
        """Gradients of the parameters summed over the steps, all outputs, and what is carried on.

        `inputs` and `cotangents`, which weigh the graded outputs of each step, have the steps
        first.
        """
        if run.fresh:
            carried = self.with_traces(carried)._replace(steps=jnp.zeros_like(carried.steps))
        alone = run.fresh and run.window >= run.length
        if alone and self.sizes.part_of(run.length) < run.length:
            return grad_in_parts(self, weights, carried, inputs, cotangents, run, extra)

        def block(state, x):
            (carried, totals), (inputs, cotangents, per_step) = state, x
            length = len(cotangents[0])
            here = extra._replace(steps=per_step, weights=cotangents[0])
            asked = Block(
                weights, inputs, length, cotangents, here, alone, not alone, True, run.split
            )
            outcome = self.run(carried, asked)
            gradients = outcome.params, outcome.weights
            if totals is not None:
                gradients = tuple(map(add, totals, gradients))
            if run.progress:
                advance(length, run.length)
            return (outcome.carried, gradients), outcome.outs

        only_one = run.window >= run.length
        start = carried, None if only_one else self.nothing_yet(weights.params)
        xs = list(inputs), list(cotangents), extra.steps
        (carried, totals), outs = in_blocks(block, start, xs, run.length, run.window)
        return self.to_params(weights, *totals), outs, carried

    def evolve(
        self, weights: Weights, carried: Carried, inputs: Sequence[Any], run: Run
    ) -> tuple[list[Any], Carried]:
        """Outputs and what is carried on, without a gradient."""

        def block(carried, x):
            inputs, steps = x
            asked = Block(weights, inputs, len(steps), split=run.split)
            outcome = self.run(carried, asked)
            return outcome.carried, outcome.outs

        xs = list(inputs), jnp.zeros(run.length)
        carried, outs = in_blocks(block, carried, xs, run.length, run.window)
        return outs, carried

    def forward(
        self, weights: Weights, carried: Carried, inputs: Sequence[Any], length: int
    ) -> tuple[list[Any], Carried]:
        """One window: its outputs, and what is carried on."""
        outcome = self.run(carried, Block(weights, inputs, length))
        return outcome.outs, outcome.carried

    def online(
        self,
        weights: Weights,
        carried: Carried,
        inputs: Sequence[Any],
        length: int,
        extra: Extra,
        at_outs: Sequence[Any],
        at_hidden: Sequence[Any],
    ) -> tuple[list[Any], dict[int, Any]]:
        """Gradients of the parameters, and of the inputs by number, of one window, by credit of its
        outputs, with the steps first, and of its last hidden state (None for leaves that have
        none)."""
        at_end = [
            h if h is None else jnp.zeros((length, *h.shape), h.dtype).at[-1].set(h)
            for h in at_hidden
        ]
        cotangents = self.program.graded(at_outs, at_end)
        block = Block(weights, inputs, length, cotangents, extra, keep=False)
        outcome = self.run(carried, block)
        return self.to_params(weights, outcome.params, outcome.weights), outcome.inputs

    @cached_property
    def shared(self) -> frozenset[TraceKey]:
        """What all samples share: the same on all devices over which they are cut."""
        return self.carrier.shared | (self.shapes.keys() - set(self._of_carrier))

    def advance(self, traces: Traces, window: Window) -> Traces:
        """The traces of the carrier at the end of a window."""
        return self.carrier.advance(self._own(traces), window)

    def with_traces(self, carried: Carried) -> Carried:
        """The same, with zero influence."""
        return carried._replace(traces={**carried.traces, **self.carrier.init()})

    @property
    def looks_on(self) -> bool:
        """Whether something is done about numbers that are not finite."""
        return self.nonfinite != KEEP

    @cached_property
    def sizes(self) -> BlockSizes:
        """How long its blocks are, and what they take."""
        return BlockSizes(self)

    # ---- one block ----

    def run(self, carried: Carried, block: Block) -> Outcome:
        """A block of steps, with what the learner does about numbers that are not finite."""
        window, first = self.attempt(carried, block)
        if not self.looks_on:
            return first
        if block.is_loss:
            first = first._replace(inputs={})
        losses = self.program.losses(window.outs) if block.is_loss else []
        after = first.carried.hidden, first.carried.other, first.carried.traces
        fine = nonfinite.all_finite((after, window.before, first.params, first.weights, losses))
        fine = block.split.all(fine)
        if self.nonfinite == RAISE:
            more = self.counted(carried.skipped, (~fine).astype(jnp.int32))
            return first._replace(carried=first.carried._replace(skipped=more))

        def with_care(state: tuple[Any, Outcome]) -> tuple[Any, Outcome]:
            return jnp.array(True), nonfinite.run_with_care(self, carried, block)

        return jax.lax.while_loop(lambda s: ~s[0], with_care, (fine, first))[1]

    def attempt(self, carried: Carried, block: Block, ok: Any = None) -> tuple[Window, Outcome]:
        """A block of steps as it comes, with the samples that take part in each, `(K, samples)`;
        None: all of them."""
        window = self.window(block, carried, ok)
        if block.cotangents is None:
            made = Gradients(Contribution(), {}, None)
            if block.keep:
                made = made._replace(traces=self.advance(carried.traces, window))
        else:
            made = self._credit(window, carried, block)
        kept = {**carried.traces, **(made.traces or {})}
        steps = self.counted(carried.steps, window.length)
        after = Carried(window.hidden, window.other, kept, steps, carried.skipped)
        gradients = self.gradients_of(made.given, block.weights.params)
        return window, Outcome(after, *gradients, window.outs, made.inputs)

    def window(self, block: Block, carried: Carried, ok: Any = None) -> Window:
        """The window of a block."""
        given = nonfinite.given_of(self, block, carried, ok)
        return Window(self.program, given, block.length, carried.steps, block.split)

    @staticmethod
    def counted(count: Any, more: Any) -> Any:
        """A count that stays at the largest number there is."""
        most = jnp.iinfo(count.dtype).max
        return jnp.where(count > most - more, most, count + more).astype(count.dtype)

    def _credit(self, window: Window, carried: Carried, block: Block) -> Gradients:
        """What a window adds to the gradient."""
        own, keep, extra = self._own(carried.traces), block.keep, block.extra
        cotangents = list(block.cotangents or ())
        if self.single_step:
            assert isinstance(self.carrier, BlockCarrier)
            extra = extra._replace(asked=Asked(self.carrier.asks_of, not block.is_loss))
            step = self.signal.same_step(window, cotangents, carried.traces, extra)
            before = None if block.alone else own
            given, traces = self.carrier.block(before, window, step.credit, carried.steps, keep)
            params = step.params if given.params is None else add(step.params, given.params)
            return Gradients(Contribution(given.weights, params), step.inputs, traces)
        pulled = window.reverse(Cotangents(outs=cotangents))
        hidden = self.signal.entry(window, cotangents, pulled.hidden, carried.traces)
        given, traces = Contribution(), None
        if block.alone:
            traces = self.carrier.advance(own, window) if keep else None
        else:
            feedback = self.signal.feedback(window, carried.traces)
            entry = Entry(
                hidden,
                pulled.other,
                carried.steps,
                window.given.captured,
                window.params,
                window.ops,
                partial(through_readers, window, feedback=feedback),
            )
            if keep:
                given, traces = self.carrier.read_and_advance(own, entry, window)
            else:
                given = self.carrier.read(own, entry)
        params = add(pulled.params, self.signal.beyond(window, extra))
        params = params if given.params is None else add(params, given.params)
        inputs = {i: a for i, a in enumerate(pulled.inputs) if a is not None}
        return Gradients(Contribution(given.weights, params), inputs, traces)

    @cached_property
    def samples(self) -> Samples:
        """What counts as a sample: those of the batch, or the whole step."""
        samples = find_samples(self.graph.analysis)
        if samples.told_apart and None in self.carrier.sample_axes(samples).values():
            return one_sample(self.graph.analysis)
        return samples

    @cached_property
    def trace_axes(self) -> dict[TraceKey, int | None]:
        """The axis of samples of the traces of which a sample that is left out keeps its part."""
        if not self.samples.told_apart:
            return dict.fromkeys(self._of_carrier)
        return self.carrier.sample_axes(self.samples)

    # ---- sums of gradients ----

    def nothing_yet(self, params: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """No gradients of the parameters and of the weights of relations."""
        return self.gradients_of(Contribution(), params)

    def gradients_of(
        self, given: Contribution, params: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """Gradients of the parameters and of the weights of relations, zeros where none is
        given."""
        of_params = [None] * len(params) if given.params is None else given.params
        of_weights = [given.weights.get(r) for r in range(len(self.program.layout.relations))]
        weights = [r.w_var.aval for r in self.program.layout.relations]
        pairs = zip(of_params, params, strict=True), zip(of_weights, weights, strict=True)
        filled = [[_or_zeros(a, like) for a, like in of] for of in pairs]
        return filled[0], filled[1]

    @staticmethod
    def added(totals: tuple[list, list], given: Contribution) -> tuple[list[Any], list[Any]]:
        """Gradients of the parameters and of the weights of relations, with more of them."""
        of_params, of_weights = totals
        weights = [given.weights.get(r) for r in range(len(of_weights))]
        return add(of_params, given.params), add(of_weights, weights)

    def to_params(self, weights: Weights, of_params: list, of_weights: list) -> list[Any]:
        """Gradients of the parameters, from those and from the gradients of the weights as their
        ops take them."""
        step, relations = self.program.step, self.program.layout.relations
        phi = weight_program(step, [r.w_var for r in relations])
        _, pull = jax.vjp(lambda p: phi(weights.captured, *p), list(weights.params))
        return add(of_params, pull(list(of_weights))[0])


def core_of(
    graph: Graph,
    rule: Rule,
    options: dict[str, Any],
    single_step: bool,
    *,
    graded: Sequence[int] | None = None,
    grade_hidden: bool = False,
    budget: int = BUDGET,
    nonfinite: str = KEEP,
    on_traces: OnTraces | None = None,
) -> Core:
    """The core of a rule, with settled options, for a graph.

    `graded` are the outputs that credit comes from, all by default; with `grade_hidden` the new
    hidden states too. After each step the traces go through `on_traces`.
    """
    if 'trace_limit' in options:
        graph = without_large_traces(graph, options['trace_limit'], options.get('embedding_rows'))
    every_state = rule.carrier.follows_relations and not single_step
    layout = lay_out(graph, rule.scope(**options), every_state)
    program = Program(layout, graded, grade_hidden)
    carrier, signal = rule.carrier_of(layout, options), rule.signal(layout, **options)
    if on_traces is not None:
        carrier = changed(carrier, on_traces)
    return Core(program, carrier, signal, single_step, budget, nonfinite)


def add(total: Sequence[Any], more: Sequence[Any] | None) -> list[Any]:
    """Sums in the types of the first, which is None or of no float type where there is no
    gradient."""
    if more is None:
        return list(total)
    return [_plus(a, b) for a, b in zip(total, more, strict=True)]


def _or_zeros(gradient: Any, like: Any) -> Any:
    if _is_none(gradient):
        return jnp.zeros(like.shape, like.dtype)
    return gradient.astype(like.dtype)


def _is_none(gradient: Any) -> bool:
    return gradient is None or gradient.dtype == jax.dtypes.float0


def _plus(a: Any, b: Any) -> Any:
    if _is_none(b):
        return a
    return b if a is None else a + b.astype(a.dtype)
