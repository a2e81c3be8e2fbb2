"""Steps of models that hold their states, as files of `jax.export`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..frontends.base import PARAM, Held
from ..step import dotted
from .exporting import check_for_any_batch, with_time, without_time, write, write_for_any_batch
from .options import first_of
from .saving import arrays_of, memory_of, memory_parts, traced_with
from .stateful import CompiledModel, Learning, compile_step, nothing_learned

Out = Callable[[Any], Any]


def export_module(
    path: Any, learning: Learning, f: Callable, finish: Out, inputs: tuple, names: Mapping[int, str]
) -> dict[str, Any]:
    """Write `finish(f(*inputs))`, which may read and write states; the present values.

    `names` are those of the learner's states by their `id`; others are numbered.
    """

    def whole(*inputs: Any) -> Any:
        return finish(f(*inputs))

    part = _Part(learning, whole, inputs, names)
    present = part.trees(part.values())

    def call(values, *inputs):
        new, out = part(traced_with(present, values), *inputs)
        return arrays_of(new), out

    values = arrays_of(present)
    write(path, call, values, inputs)
    return values


class _Part:
    """A function of states as one of named trees: those of the states that it meets.

    Args:
        learning: the learner.
        f: the function.
        inputs: like those it will get.
        names: of states by their `id`; it is given the names of those that have none.
    """

    def __init__(self, learning: Learning, f: Callable, inputs: tuple, names: Mapping[int, str]):
        self.memory, self._held = learning.memory, learning.framework.held
        self._run = learning.framework.compiled(f, learning.watch())
        self.states = list(self._run.states(*inputs))
        self.names = dict(names)
        for state in self.states:
            if id(state) not in names and state is not self.memory:
                count = sum(name.startswith('met/') for name in self.names.values())
                self.names[id(state)] = f'met/{count}'

    def values(self) -> list[Any]:
        """The present ones of the states."""
        return [self._held((), s).value for s in self.states]

    def trees(self, values: list[Any]) -> dict[str, Any]:
        """Values of the states by name."""
        trees: dict[str, Any] = {}
        for state, value in zip(self.states, values, strict=True):
            own = state is self.memory
            trees |= memory_parts(value) if own else {self.names[id(state)]: value}
        return trees

    def __call__(self, trees: Mapping[str, Any], *inputs: Any) -> tuple[dict[str, Any], Any]:
        """The new trees and the result."""
        memory = memory_of(trees)
        old = [memory if s is self.memory else trees[self.names[id(s)]] for s in self.states]
        new, out = self._run.pure(old, *inputs)
        return self.trees(new), out


def streamed(learner: Any, step_fn: Callable | None, several: bool) -> Callable:
    """`f(*inputs)`: a step or a block of a learner that holds its states; what the model gives, or
    with `step_fn` `(grads, loss)`."""

    def f(*inputs: Any) -> Any:
        inputs = with_time(inputs, several)
        if step_fn is None:
            outs = learner.etrace_evolve(*inputs, return_outputs=True)
            return without_time(outs, several)
        grads, loss = learner.etrace_grad(*inputs, step_fn=step_fn, return_value=True)
        return grads, without_time(loss, several)

    return f


def finish_of(step_fn: Callable | None, update: Callable | None) -> Out:
    """What is done with what `streamed` gives: nothing, or the update of the parameters."""
    if update is not None and step_fn is None:
        raise TypeError('`update` needs gradients: give `step_fn` too.')

    def finish(out: Any) -> Any:
        if step_fn is None:
            return out
        grads, loss = out
        if update is None:
            return arrays_of({f'param/{dotted(path)}': g for path, g in grads.items()}), loss
        update(grads)
        return loss

    return finish


# ---- any number of samples ----


class ForEachSample(NamedTuple):
    """How a learner is exported for any number of samples.

    Args:
        learning: the learner.
        compiled: its step.
        example: the shapes of the inputs of a step.
        held: who holds its values, by name.
        graded: whether `f` gives gradient and loss.
        axis: of the samples in inputs, 0, or 1 for a block of steps.
    """

    learning: Learning
    compiled: CompiledModel
    example: tuple
    held: Mapping[str, Held]
    graded: bool
    axis: int

    def export(self, path: Any, f: Callable, finish: Out, inputs: tuple) -> dict[str, Any]:
        """As `export_module`, mapped over any number of samples. The present values have the
        samples first, all but the parameters and what only `finish` meets."""
        apart = self._apart()
        samples = {name: h.value for name, h in apart.items()}
        steps = self.learning.memory.value['steps']
        check_for_any_batch(self.compiled.core.graph.analysis, samples, steps)
        [batch] = {len(a) for a in jax.tree.leaves(samples)}
        names = {id(h.holder): name for name, h in self.held.items()}
        ones = jax.tree.map(lambda a: jax.lax.slice_in_dim(a, 0, 1, axis=self.axis), inputs)
        with self._of_one_sample(apart, batch):
            one = _Part(self.learning, f, ones, names)
            alone = one.trees(one.values())
            own = [name for name in alone if name in samples or name.startswith(_OF_LEARNER)]
            per_sample = {
                n: samples[n] if n in samples else _repeated(alone[n], batch) for n in own
            }
            parts, shared = [one], {n: tree for n, tree in alone.items() if n not in own}
            if self.graded:
                _, outs = jax.eval_shape(one, alone, *ones)
                parts.append(_Part(self.learning, finish, (outs,), one.names))
                shared |= {
                    n: tree
                    for n, tree in parts[1].trees(parts[1].values()).items()
                    if n not in per_sample
                }
            call = self._call(parts, per_sample, shared)
            values = arrays_of({**shared, **per_sample})
            write_for_any_batch(path, call, values, arrays_of(shared), inputs, self.axis)
        return values

    def _apart(self) -> dict[str, Held]:
        """The states of the model that each sample has for itself."""
        met = {id(h.holder) for h in self.compiled.traced.held}
        return {n: h for n, h in self.held.items() if id(h.holder) in met and h.role != PARAM}

    @contextlib.contextmanager
    def _of_one_sample(self, apart: Mapping[str, Held], batch: int) -> Iterator[None]:
        """Inside, the model has one sample."""
        learning = self.learning
        before = {name: h.value for name, h in apart.items()}, learning.memory.value
        try:
            for h in apart.values():
                h.write(jax.tree.map(lambda a: a[:1], h.value))
            example = jax.tree.map(lambda a: _one_of(a, batch), self.example)
            learning.memory.value = nothing_learned(compile_step(learning, example))
            yield
        finally:
            for name, h in apart.items():
                h.write(before[0][name])
            learning.memory.value = before[1]
            learning.remember(self.compiled)

    def _call(
        self, parts: list[_Part], per_sample: dict[str, Any], shared: dict[str, Any]
    ) -> Callable:
        """`(values, *inputs) -> (values, out)` for all samples, from the step of one and, if it is
        graded, what is done with the means."""

        def step(own, shared, *inputs):
            alone = {n: _with_batch(a) if n in self.held else a for n, a in own.items()}
            inputs = jax.tree.map(lambda a: jnp.expand_dims(a, self.axis), inputs)
            new, out = parts[0]({**shared, **alone}, *inputs)
            changed = [n for n in shared if n in new and not _same(new[n], shared[n])]
            if changed:
                raise ValueError(
                    f'`any_batch`: the step changes {changed[0]}, which is not one for each '
                    'sample. Export it for one batch size, without `any_batch`.'
                )
            return {n: first_of(new[n]) if n in self.held else new[n] for n in own}, out

        def call(values, *inputs):
            trees = traced_with({**shared, **per_sample}, values)
            own, common = ({n: trees[n] for n in names} for names in (per_sample, shared))
            over = (0, None, *[self.axis] * len(inputs))
            own, outs = jax.vmap(step, over)(own, common, *inputs)
            out = self._of_all(outs)
            for part in parts[1:]:
                new, out = part({**own, **common}, out)
                common = {n: new.get(n, a) for n, a in common.items()}
            return arrays_of({**common, **own}), out

        return call

    def _of_all(self, outs: Any) -> Any:
        """Means of gradients and losses, or outputs with the samples in the place of a batch axis
        of size one."""
        if self.graded:
            return jax.tree.map(lambda a: a.mean(0), outs)
        return jax.tree.map(
            lambda a: jnp.moveaxis(jnp.squeeze(a, self.axis + 1), 0, self.axis), outs
        )


_OF_LEARNER = tuple(memory_parts({'traces': {'': 0}, '': 0}))  # how its names begin


def _repeated(tree: Any, batch: int) -> Any:
    return jax.tree.map(lambda a: jnp.broadcast_to(a, (batch, *jnp.shape(a))), tree)


def _with_batch(tree: Any) -> Any:
    return jax.tree.map(lambda a: a[None], tree)


def _one_of(a: Any, batch: int) -> jax.ShapeDtypeStruct:
    shape = (1, *a.shape[1:]) if a.shape[:1] == (batch,) else a.shape
    return jax.ShapeDtypeStruct(shape, a.dtype)


def _same(new: Any, old: Any) -> bool:
    pairs = zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True)
    return all(a is b for a, b in pairs)
