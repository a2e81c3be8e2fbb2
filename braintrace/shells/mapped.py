"""Learners of models whose states are mapped over a batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..learn.how import How
from ..rules.config import ETraceConfig
from ..rules.rule import Rule
from ..rules.signals import Extra
from .brainstate import ETraceAlgorithm, Learner, brainstate


class ETraceVmap(Learner):
    """A learner of a model whose states are mapped over a batch: the model sees one sample, the
    learner the whole batch.

    Args:
        module: a learner. If it is compiled already, for one sample inside `vmap_new_states`, it is
            compiled again for all of them.
        in_axes, out_axes, vmap_states, vmap_out_states, axis_name, axis_size: as in
            `brainstate.nn.Vmap`.
    """

    def __init__(
        self,
        module: ETraceAlgorithm,
        in_axes: Any = 0,
        out_axes: Any = 0,
        vmap_states: Any = 'new',
        vmap_out_states: Any = None,
        axis_name: Any = None,
        axis_size: int | None = None,
    ):
        super().__init__()
        if not isinstance(module, ETraceAlgorithm):
            raise TypeError(
                f'`module` must be a learner, got {type(module).__name__}. Other modules are '
                'mapped by `brainstate.nn.Vmap`.'
            )
        self.module = module
        self._axes = in_axes, out_axes, vmap_states, vmap_out_states, axis_name, axis_size
        if module.is_compiled:
            self.compile_graph(*_mapped_like(module, in_axes, axis_size))

    @property
    def rule(self) -> Rule:  # type: ignore[override]
        """The learning rule."""
        return self.module.rule

    @property
    def config(self) -> ETraceConfig | None:  # type: ignore[override]
        """The configuration of the rule, if it was given as one."""
        return self.module.config

    @property
    def _model(self) -> Any:
        return self.module.model4compile

    @property
    def how(self) -> How:
        """What the user has said about the learner."""
        return self.module.how

    def signal_input(self, modulator: Any, length: int, window: int) -> Extra:
        """What the signal takes from outside, as the learner of one sample has it."""
        return self.module.signal_input(modulator, length, window)

    def _run_model(self, *args: Any) -> Any:
        return brainstate.nn.Vmap(self.module.model4compile, *self._axes)(*args)


def _mapped_like(learner: ETraceAlgorithm, in_axes: Any, size: int | None) -> list[Any]:
    """Example inputs for all samples, for a learner that was compiled for one."""
    steps, inputs = learner.running_index.value, learner.example
    assert inputs is not None
    if jnp.ndim(steps) != 1 and size is None:
        raise ValueError(
            '`module` is compiled for whole batches. Compile it after it is mapped, or for one '
            'sample inside `vmap_new_states`.'
        )
    samples = size or len(steps)
    axes = list(in_axes) if isinstance(in_axes, list | tuple) else [in_axes] * len(inputs)

    def with_samples(a: jax.ShapeDtypeStruct, axis: int | None) -> jax.Array:
        if axis is None:
            return jnp.zeros(a.shape, a.dtype)
        return jnp.zeros(np.insert(a.shape, axis % (len(a.shape) + 1), samples), a.dtype)

    return [
        jax.tree.map(lambda a, axis=axis: with_samples(a, axis), x)
        for x, axis in zip(inputs, axes, strict=True)
    ]
