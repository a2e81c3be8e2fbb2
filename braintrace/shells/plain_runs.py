"""Learners of plain functions: their carries checked, taken elsewhere, and placed on devices."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import export
from jax.sharding import Mesh

from ..learn.cache import Cache
from ..learn.core import Core
from ..learn.exporting import (
    Plain,
    check_for_any_batch,
    check_modulator,
    export_for_any_batch,
    export_plain,
    finish_of,
    finish_of_samples,
    step_of,
    unwrapped,
)
from ..learn.how import How
from ..learn.options import check_loss
from ..learn.placing import BATCH, UNITS, place
from ..learn.saving import Snapshot, check_about, check_carry, describe


class Carry(NamedTuple):
    """What goes on from call to call: the model's state, the traces by name, the number of steps
    done, and with `nonfinite='skip'` how many steps of samples were left out."""

    state: Any
    traces: dict[str, Any]
    steps: Any
    skipped: Any = None


# so that programs of the user's own that take and give a carry can be written to files
export.register_namedtuple_serialization(Carry, serialized_name='braintrace.Carry')


def check_carry_type(carry: Any, call: str) -> None:
    """Refuse what is no carry; `call` is how arguments are written in this place."""
    if not isinstance(carry, Carry):
        raise TypeError(
            f'`{call}`: `carry` must be what `init` or the last call has given, '
            f'got {type(carry).__name__}.'
        )


def check_for_grad(loss_fn: Any, carry: Any) -> None:
    """Refuse a loss that is no function and what is no carry, for `grad`."""
    call = 'grad(loss_fn, params, carry, xs, *targets)'
    if not callable(loss_fn):
        raise TypeError(f'`{call}`: `loss_fn` must be a function, got {type(loss_fn).__name__}.')
    check_carry_type(carry, call)


def only_loss(core: Core) -> Any:
    """The type of the one loss that the user's function gives."""
    outs = core.program.step.outs
    if len(outs) != 1 or outs[0].aval.ndim > 1:
        got = f'shape {outs[0].aval.shape}.' if len(outs) == 1 else f'{len(outs)} arrays.'
        raise ValueError(
            f'`loss_fn` must return one loss, a scalar or one for each sample, got {got} What else '
            'you want to see at each step `evolve` gives as the outputs of the step.'
        )
    check_loss('loss_fn', outs[0].aval)
    return outs[0].aval


class PlainRunMixin:
    """What learners of plain functions have for long runs: `check`, `snapshot`, `restore`,
    `export`, `shardings`."""

    _step: Callable
    _how: How
    _example: Any
    _cache: Cache

    def __repr__(self) -> str:
        name = getattr(self._step, '__name__', type(self._step).__name__)
        return f'{type(self).__name__}({name}, {self._how.rule.name!r}, report={self.report!r})'

    @property
    @abstractmethod
    def report(self) -> Any:
        """What the compiler decided for each parameter."""

    @abstractmethod
    def init(self, params: Any, state: Any) -> Carry:
        """The carry at the beginning."""

    @abstractmethod
    def compiled_step(self) -> Any:
        """The step as a program and the core that learns it."""

    @property
    def how(self) -> How:
        """What the user has said about the learner."""
        return self._how

    @property
    def example(self) -> tuple[Any, Any, tuple]:
        """The shapes of `(params, state, inputs)` that it was compiled for."""
        skeleton, params, state, inputs = self._example
        return skeleton.with_params(params), state, inputs

    def first_carry(self) -> Carry:
        """The shapes of the carry."""
        skeleton, params, state, _ = self._example

        def begin(leaves: list[Any], state: Any) -> Carry:
            return self.init(skeleton.with_params(leaves), state)

        return jax.eval_shape(begin, params, state)

    def for_values_like(self, state: Any, inputs: tuple) -> Any:
        """The same learner, compiled for a state and inputs like these."""
        other = copy.copy(self)
        other._cache = Cache()
        other._example = self._example._replace(state=state, inputs=inputs)
        return other

    def check(self, carry: Carry) -> None:
        """Refuse a carry that is not one of this learner, naming the first difference.

        Args:
            carry: from `init` or a call, possibly through a file.
        """
        check_carry_type(carry, 'check(carry)')
        check_carry(self.first_carry(), carry)

    def snapshot(self) -> Snapshot:
        """What the learner is, as a text, and no arrays: a learner of a plain function holds
        nothing. Parameters and carry are the user's, and are plain trees of arrays already."""
        return Snapshot({}, describe(self.how, {}))

    def check_snapshot(self, about: str) -> None:
        """Refuse a snapshot with this text if it is of a learner with another rule or options.

        Args:
            about: of the snapshot.
        """
        check_about('snapshot', self.snapshot().about, about, self.how)

    def restore(self, snapshot: Snapshot) -> None:
        """Refuse a snapshot of another learner; there is nothing to restore.

        Args:
            snapshot: what `snapshot()` gave.
        """
        self.check_snapshot(snapshot[1])

    def export(
        self,
        path: Any,
        params: Any,
        carry: Carry,
        *example_inputs: Any,
        loss_fn: Callable | None = None,
        update: Callable | None = None,
        more: Any = None,
        any_batch: bool = False,
        modulator: Any = None,
    ) -> dict[str, Any]:
        """Write one step of a stream, or a block of steps, as a file of `jax.export` for cpu, cuda
        and tpu, which a process with jax alone can run: `values, out = call(values, *inputs)`.

        Args:
            path: of the file.
            params: the parameters to begin with.
            carry: the carry to begin with.
            example_inputs: of the step and after them those of `loss_fn`; wrapped in
                `MultiStepData` for a block.
            loss_fn: as for `grad`. Without, `out` is what the step gives.
            update: `update(params, grads) -> params`, and `out` is the loss; without, it is
                `(grads, loss)`.
            more: a tree that `update(params, grads, more) -> (params, more)` keeps, such as the
                state of an optimiser.
            any_batch: for any number of samples, where the first axis of all states, inputs and
                outputs is the batch and no sample touches another. All values but parameters and
                `more` have the samples first; gradient and loss are means over samples.
            modulator: for the rules that take one, an example of that of a step, with time as
                first axis for a block. It is the last input then.

        Returns:
            The values to begin with, a flat dict of arrays.
        """
        self.check(carry)
        inputs, several = unwrapped(example_inputs)
        finish = finish_of(loss_fn, update, more is not None)
        check_modulator(self._how.rule, modulator, loss_fn, any_batch)
        if not any_batch:
            step = step_of(self, loss_fn, several, modulator is not None)
            inputs = inputs if modulator is None else (*inputs, modulator)
            return export_plain(path, Plain(params, carry, more), step, finish, inputs)
        alone, carries = self._for_each_sample(params, carry)
        step = step_of(alone, loss_fn, several)
        axis = 1 if several else 0
        finish = finish_of_samples(loss_fn, finish, axis)
        plain = Plain(params, carries, more)
        return export_for_any_batch(path, plain, step, finish, inputs, axis)

    def _for_each_sample(self, params: Any, carry: Carry) -> tuple[Any, Carry]:
        """A learner of a batch of one, and the carries of all samples at the beginning, each state
        without its batch axis."""
        graph = self.compiled_step().core.graph
        check_for_any_batch(graph.analysis, carry.state, carry.steps)
        _, state, inputs = self.example
        one, ones = jax.tree.map(
            lambda a: jax.ShapeDtypeStruct((1, *a.shape[1:]), a.dtype), (state, inputs)
        )
        alone = self.for_values_like(one, ones)

        def begin(state: Any) -> Carry:
            made = alone.init(params, jax.tree.map(lambda a: a[None], state))
            return made._replace(state=state)

        return alone, jax.vmap(begin)(carry.state)

    # ---- many devices ----

    def shardings(
        self, mesh: Mesh, batch: str | None = BATCH, units: str | None = UNITS
    ) -> tuple[Any, Carry, tuple]:
        """Where parameters, carry and inputs lie on a mesh of devices: samples follow one axis of
        it, units another. An array that such an axis does not divide lies whole along it.

        Args:
            mesh: the devices.
            batch: the axis of the mesh for samples, the first axis of states and inputs; None for
                none.
            units: the axis of the mesh for units, the last axis of hidden states; None for
                none. By default none on a mesh without such an axis.

        Returns:
            `(params, carry, inputs)`: trees of shardings, for `jax.device_put`, for
            `init(params, state, shardings=carry)`, and for the sequences of inputs, which have time
            as first axis.
        """
        compiled, (params, _, inputs) = self.compiled_step(), self.example
        placed = place(compiled.core, mesh, batch, units)
        state = compiled.traced.state(placed.hidden, placed.other)
        traces = {str(key): sharding for key, sharding in placed.traces.items()}
        skipped = None if self.first_carry().skipped is None else placed.whole
        return (
            jax.tree.unflatten(jax.tree.structure(params), placed.params),
            Carry(state, traces, placed.whole, skipped),
            jax.tree.unflatten(jax.tree.structure(inputs), placed.inputs),
        )
