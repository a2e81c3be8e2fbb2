"""A weight that is zero at most places for every parameter, as `w * mask`: only the others are kept, in a list for each output."""

from __future__ import annotations

from dataclasses import replace
from string import ascii_letters
from typing import Any

import jax.numpy as jnp
import numpy as np

from .axes import Axes, Op


def compact(op: Op, pattern: np.ndarray) -> Op:
    """The same op on the weights that can be other than zero (`pattern`), where that is less than half of what the longest list would fill."""
    assert op.axes.x is not None
    inner, outer = (
        [c for c in op.axes.w if c not in op.axes.y],
        [c for c in op.axes.w if c in op.axes.y],
    )
    size = dict(zip(op.axes.w, pattern.shape, strict=True))
    flat = (
        pattern.transpose([op.axes.w.index(c) for c in (*outer, *inner)]).reshape(
            -1, int(np.prod([size[c] for c in inner]))
        )
        != 0
    )
    most = max(1, int(flat.sum(1).max(initial=0)))
    if not inner or 2 * most > flat.shape[1]:
        return op
    lists = np.argsort(~flat, axis=1, kind='stable')[
        :, :most
    ]  # the places of each output's weights
    shape = (*[size[c] for c in outer], most)
    kept = np.take_along_axis(flat, lists, 1).reshape(shape)
    place = dict(
        zip(inner, np.unravel_index(lists.reshape(shape), [size[c] for c in inner]), strict=True)
    ) | dict(zip(outer, np.indices(shape), strict=False))
    batch = [c for c in op.axes.x if c not in op.axes.w]
    new = next(c for c in ascii_letters if c not in {*op.axes.x, *op.axes.w, *op.axes.y})

    def line_up_x(x: Any) -> Any:
        rest = [c for c in op.axes.x or '' if c not in batch]
        x = x.transpose([(op.axes.x or '').index(c) for c in (*batch, *rest)])
        return x[(..., *[place[c] for c in rest])] * kept

    def whole(a: Any) -> Any:
        return (
            jnp.zeros(op.w_shape, a.dtype)
            .at[tuple(place[c] for c in op.axes.w)]
            .add(a.reshape(shape) * kept)
        )

    labels = ''.join(outer) + new
    return replace(
        op,
        axes=Axes(''.join(batch) + labels, labels, op.axes.y),
        line_up_x=line_up_x,
        labelled=shape,
        whole=whole,
    )
