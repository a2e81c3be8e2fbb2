"""Learning from a sequence that outlasts the process: saved on the way, resumed where it was."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .checkpoints import Checkpoints
from .drivers import Asked, learn, loss_type
from .options import per_step, sequence_length
from .stateful import Learning


def learn_and_save(
    learner: Any,
    learning: Learning,
    sequences: tuple,
    weights: Mapping,
    asked: Asked,
    update_weights: Callable,
    steps: int,
    checkpoints: Checkpoints,
    kept: Sequence[Any],
) -> jax.Array:
    """`learn` in pieces, with a checkpoint after each, from the last checkpoint on; the loss of
    each step.

    `kept` are the holders of values that `learner.snapshot()` has; all others that a piece reads or
    writes are saved beside it.
    """
    length = sequence_length(sequences)
    piece = max(checkpoints.every // steps, 1) * steps
    data = sequences, asked.mask, per_step(asked.modulator, length)

    def one(sequences, mask, modulator):
        here = asked._replace(mask=mask, modulator=modulator)
        return learn(learning, sequences, weights, here, update_weights, steps)

    def cut(start):
        return jax.tree.map(lambda a: jnp.asarray(a)[start : start + piece], data)

    run = learning.framework.compiled(one, learning.watch())
    run_last = learning.framework.compiled(one, learning.watch())  # of another length, if any
    known = {id(holder) for holder in kept}
    others = [s for s in run.states(*cut(0)) if id(s) not in known]
    more: dict[str, Any] = {f'met_{i}': s for i, s in enumerate(others)}
    like = loss_type(learning, sequences, asked)
    losses = jnp.full((length, *like.shape), jnp.nan, like.dtype)
    so_far: dict[str, Any] = {'losses': losses, f'sequences with checksum {_checksum(data)}': 0}
    done = checkpoints.restore(learner, **more, so_far=so_far) or 0
    for start in range(done, length, piece):
        end = min(start + piece, length)
        run_here = run if end == start + piece else run_last
        new = run_here(*cut(start))
        so_far['losses'] = so_far['losses'].at[start:end].set(new)
        checkpoints.save(end, learner, **more, so_far=so_far)
    checkpoints.wait()
    return so_far['losses']


def _checksum(data: Any) -> str:
    """Of all arrays, so that a run does not go on with other data."""
    total = 0
    for leaf in jax.tree.leaves(data):
        total = zlib.crc32(np.asarray(leaf).tobytes(), total)
    return f'{total:08x}'
