"""The sequence on which rules are compared: the user's, with what is missing made up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..learn.options import sequence_length
from ..show.published import compiled_of
from .trial import Data


def completed(
    inputs: tuple,
    oracle: Any,
    loss: Callable | None,
    sequences: Sequence[Any] | None,
    length: int,
    seed: int,
) -> Data:
    """The user's data; where there are none, noise like the inputs of one step, and random targets
    for the outputs of the compiled learner `oracle`."""
    rng = np.random.RandomState(seed)
    n = len(inputs)
    if sequences is None:
        sequences = jax.tree.map(lambda a: _noise_like(a, length, rng), inputs)
    elif not isinstance(sequences, tuple | list) or len(sequences) < n:
        raise ValueError(
            f'`sequences` must be a tuple of at least {n} sequences, one for each input of the '
            'step, then the targets of `loss`.'
        )
    length = sequence_length(sequences)
    if loss is not None:
        return Data(tuple(sequences[:n]), tuple(sequences[n:]), loss, length)
    outputs = [v.aval for v in compiled_of(oracle.graph).step.outs]
    targets = [
        jnp.asarray(rng.randn(length, *a.shape), a.dtype)
        for a in outputs
        if jnp.issubdtype(a.dtype, jnp.inexact)
    ]
    return Data(tuple(sequences[:n]), (targets,), _distance, length)


def _noise_like(example: Any, length: int, rng: np.random.RandomState) -> jax.Array:
    """A sequence `(length, *shape)` like the example: noise about it.

    For integers it is their own entries, in another order at each step.
    """
    a = np.asarray(example)
    if jnp.issubdtype(a.dtype, jnp.inexact):
        return jnp.asarray(a + rng.randn(length, *a.shape), a.dtype)
    steps = [rng.permutation(a.ravel()).reshape(a.shape) for _ in range(length)]
    return jnp.asarray(np.stack(steps))


def _distance(out: Any, targets: list) -> Any:
    """The squared distance of the outputs to their targets, the mean of each summed."""
    outs = [a for a in jax.tree.leaves(out) if jnp.issubdtype(a.dtype, jnp.inexact)]
    return sum(jnp.mean(jnp.abs(a - y) ** 2) for a, y in zip(outs, targets, strict=True))
