"""A weight that is zero at most places for every parameter, as `w * mask`: only the others are
kept, in a list for each output."""

from __future__ import annotations

from dataclasses import replace
from string import ascii_letters

import jax
import jax.numpy as jnp
import numpy as np

from .axes import Axes, Op


def compact(op: Op, pattern: np.ndarray) -> Op:
    """An equal op on the weights that can be other than zero (`pattern`, of the weight's shape),
    where the longest list of an output has less than half of its weights; else the op itself."""
    of_x, of_w, of_y = op.axes
    assert of_x is not None
    inner, outer = [c for c in of_w if c not in of_y], [c for c in of_w if c in of_y]
    size = dict(zip(of_w, pattern.shape, strict=True))
    inner_shape = [size[c] for c in inner]
    by_output = pattern.transpose([of_w.index(c) for c in (*outer, *inner)])
    flat = by_output.reshape(int(np.prod([size[c] for c in outer])), int(np.prod(inner_shape))) != 0
    most = max(1, int(flat.sum(1).max(initial=0)))
    if not inner or 2 * most > flat.shape[1]:
        return op
    lists = np.argsort(~flat, axis=1, kind='stable')[:, :most]  # the places of an output's weights
    shape = (*[size[c] for c in outer], most)
    kept = np.take_along_axis(flat, lists, 1).reshape(shape)
    place = dict(zip(inner, np.unravel_index(lists.reshape(shape), inner_shape), strict=True))
    place.update(zip(outer, np.indices(shape), strict=False))
    batch = [c for c in of_x if c not in of_w]
    rest = [c for c in of_x if c in of_w]
    new = next(c for c in ascii_letters if c not in {*of_x, *of_w, *of_y})

    def line_up_x(x: jax.Array) -> jax.Array:
        x = x.transpose([of_x.index(c) for c in (*batch, *rest)])
        return x[(..., *[place[c] for c in rest])] * kept

    def whole(a: jax.Array) -> jax.Array:
        at = tuple(place[c] for c in of_w)
        return jnp.zeros(op.w_shape, a.dtype).at[at].add(a.reshape(shape) * kept)

    labels = ''.join(outer) + new
    return replace(
        op,
        axes=Axes(''.join(batch) + labels, labels, of_y),
        line_up_x=line_up_x,
        labelled=shape,
        whole=whole,
    )
