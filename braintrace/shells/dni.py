"""Decoupled neural interfaces as a learner of brainstate models."""

from __future__ import annotations

from typing import Any

import jax

from ..rules.registry import BY_NAME
from ..rules.signals import Extra
from .unit_rules import ParamDimVjpAlgorithm


class DNI(ParamDimVjpAlgorithm):
    """Decoupled neural interfaces: traces, and for the weights that have none a learned guess of
    the credit from beyond the window.

    Args:
        synthesizer: a `SyntheticGradient`, or anything with `param_values()` and
            `apply(values, {group: hidden})`; may be attached later.
    """

    rule = BY_NAME['dni']

    def __init__(
        self,
        model: Any,
        synthesizer: Any = None,
        name: str | None = None,
        vjp_method: str = 'multi-step',
        **more: Any,
    ):
        super().__init__(model, name, vjp_method, guess=_guess, **more)
        self.synthesizer = None
        if synthesizer is not None:
            self.attach_synthesizer(synthesizer)

    def attach_synthesizer(self, synthesizer: Any) -> None:
        """Guess with this one from now on."""
        if not all(hasattr(synthesizer, name) for name in ('param_values', 'apply')):
            raise TypeError(
                '`synthesizer` must be a `SyntheticGradient`, or have `param_values()` and '
                f'`apply(values, hidden)` like one, got {type(synthesizer).__name__}.'
            )
        self.synthesizer = synthesizer

    def group_signal_shapes(self) -> dict[int, tuple[int, ...]]:
        """The shape of each hidden group's values and credit, `(*units, states)`."""
        return {g.index: (*g.varshape, g.num_state) for g in self._core.graph.groups}

    def signal_input(self, modulator: Any, length: int, window: int) -> Extra:
        """What the signal takes from outside: the synthesizer and its parameters."""
        if self.synthesizer is None:
            raise RuntimeError(
                'DNI needs a synthesizer: '
                '`learner.attach_synthesizer(SyntheticGradient(learner.group_signal_shapes()))`.'
            )
        fitted = getattr(self.synthesizer, 'window', None)
        if fitted is not None and fitted != window:
            raise ValueError(
                f'The synthesizer was fitted for windows of {fitted} steps, this call has '
                f'{window}: pass window={fitted}, or fit it again with `train_synthetic_gradient`.'
            )
        guess = Synthesis(self.synthesizer, self.synthesizer.param_values())
        return super().signal_input(modulator, length, window)._replace(fixed=guess)


@jax.tree_util.register_pytree_node_class
class Synthesis:
    """A synthesizer and the values of its parameters: the values move, the synthesizer stays."""

    def __init__(self, synthesizer: Any, values: Any):
        self.synthesizer, self.values = synthesizer, values

    def tree_flatten(self) -> tuple[tuple, Any]:
        return (self.values,), self.synthesizer

    @classmethod
    def tree_unflatten(cls, synthesizer: Any, children: tuple) -> Synthesis:
        return cls(synthesizer, *children)


def _guess(synthesis: Synthesis, hidden: dict[int, Any]) -> dict[int, Any]:
    """The credit that the future is guessed to send, by group."""
    return synthesis.synthesizer.apply(synthesis.values, hidden)
