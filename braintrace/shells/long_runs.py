"""Learners of models that hold their states: saved, restored, and taken elsewhere."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from jax.sharding import Mesh

from ..frontends.base import holders_of
from ..learn.exporting import unwrapped
from ..learn.exporting_modules import ForEachSample, export_module, finish_of, streamed
from ..learn.placing import BATCH, UNITS, automatic, place, put_on_devices
from ..learn.saving import Snapshot, check_about, holders, restore_snapshot, take_snapshot
from ..learn.stateful import CompiledModel, Example, Learning


class LongRunMixin:
    """`snapshot`, `restore` and `export` for a learner of a model that holds its states.

    Example:
        >>> import brainstate, jax.numpy as jnp, braintrace
        >>> net = brainstate.nn.ValinaRNNCell(2, 4)
        >>> learner = braintrace.compile(net, 'd_rtrl', jnp.ones((1, 2)), batch_size=1)
        >>> before = learner.snapshot()
        >>> first = learner(jnp.ones((1, 2)))
        >>> learner.restore(before)
        >>> bool((learner(jnp.ones((1, 2))) == first).all())
        True
    """

    _example: Example | None

    @abstractmethod
    def _learning(self) -> Learning:
        """The learner, ready to run; an error if it is not compiled."""

    @abstractmethod
    def compiled_step(self) -> CompiledModel:
        """The step as a program and the core that learns it."""

    def _held_besides(self) -> dict[tuple, Any]:
        """Holders of values that are the learner's own, and not its model's, by path."""
        learning = self._learning()
        of_model = {id(s) for s in learning.framework.states_of(learning.model).values()}
        own = {path: held.holder for path, held in (holders_of(self) or {}).items()}
        memory = type(learning.memory)
        return {p: s for p, s in own.items() if id(s) not in of_model and type(s) is not memory}

    def _kept(self) -> list[Any]:
        learning = self._learning()
        held = holders(learning, self.compiled_step(), self._held_besides())
        return [*[h.holder for h in held.values()], learning.memory]

    def snapshot(self) -> Snapshot:
        """All that the learner and its model keep: parameters, hidden and other states, traces,
        feedback weights, counters, random bits.

        What `step_fn` or an optimiser hold besides is not the learner's: save it beside.

        Returns:
            `(arrays, about)`: a dict of arrays by name, and a text that says what they belong to.
        """
        return take_snapshot(self._learning(), self.compiled_step(), self._held_besides())[0]

    def restore(self, snapshot: Snapshot) -> None:
        """Be as at a snapshot, to the bit. One that does not fit is refused with the first
        difference, and changes nothing.

        Args:
            snapshot: what `snapshot()` gave, of this learner or one made alike; the arrays may have
                become arrays of numpy meanwhile.
        """
        restore_snapshot(self._learning(), self.compiled_step(), self._held_besides(), snapshot)

    def check_snapshot(self, about: str) -> None:
        """Refuse a snapshot with this text if it does not fit, naming the first difference.

        Args:
            about: of the snapshot.
        """
        check_about('snapshot', self.snapshot().about, about, self._learning().how)

    # ---- elsewhere ----

    def export(
        self,
        path: Any,
        *example_inputs: Any,
        step_fn: Callable | None = None,
        update: Callable | None = None,
        any_batch: bool = False,
    ) -> dict[str, Any]:
        """Write one step of a stream as a file of `jax.export` for cpu, cuda and tpu, which a
        process with jax alone can run: `values, out = call(values, *inputs)`.

        Args:
            path: of the file.
            example_inputs: of one step, or wrapped in `MultiStepData` of a block.
            step_fn: `step_fn(*inputs) -> loss`, which calls the learner once. Without, the model
                runs on, and `out` is its output.
            update: writes the weights, for instance `optimizer.update`, and `out` is the loss;
                without, it is `(grads, loss)`.
            any_batch: for any number of samples, of a learner that has made no step, where the
                first axis of all states, inputs and outputs is the batch and no sample touches
                another. All values but parameters and what `update` keeps have the samples first;
                gradient and loss are means over samples.

        Returns:
            The present values, a flat dict of arrays. Those of the learner have the names of a
            snapshot, and without `any_batch` can be restored as one.
        """
        learning, (inputs, several) = self._learning(), unwrapped(example_inputs)
        f, finish = streamed(self, step_fn, several), finish_of(step_fn, update)
        compiled = self.compiled_step()
        held = holders(learning, compiled, self._held_besides())
        if any_batch:
            assert self._example is not None
            shapes, graded = self._example.inputs, step_fn is not None
            each = ForEachSample(learning, compiled, shapes, held, graded, int(several))
            return each.export(path, f, finish, inputs)
        names = {id(h.holder): name for name, h in held.items()}
        return export_module(path, learning, f, finish, inputs, names)

    # ---- many devices ----

    def place(self, mesh: Mesh, batch: str | None = BATCH, units: str | None = UNITS) -> None:
        """Put parameters, states and traces on a mesh of devices: samples follow one axis of it,
        units another. An array that such an axis does not divide lies whole along it.

        Args:
            mesh: the devices; axes that are explicit are taken as automatic.
            batch: the axis of the mesh for samples, the first axis of states; None for none.
            units: the axis of the mesh for units, the last axis of hidden states; None for
                none. By default none on a mesh without such an axis.
        """
        learning, compiled = self._learning(), self.compiled_step()
        put_on_devices(learning, compiled, place(compiled.core, automatic(mesh), batch, units))
