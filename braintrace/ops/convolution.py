"""Convolutions: x lines up as patches, one for each output position, and the kernel is shared by
all positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from string import ascii_letters

import jax
from jax import lax

from .._jax import JaxprEqn, bind
from .axes import Axes, Op


def convolution(eqn: JaxprEqn, i: int, const: Callable) -> Op:
    """`y[n, p, go] = sum patch[n, p, gc, k] w[k, c, go]`, with feature groups (or batch groups)
    g."""
    if i != 1:
        return NotImplemented
    params = eqn.params
    x, w, y = eqn.invars[0].aval, eqn.invars[1].aval, eqn.outvars[0].aval
    lhs, rhs, out = params['dimension_numbers']
    features, batches = params['feature_group_count'], params['batch_group_count']
    g = features * batches  # at most one of them is more than one
    n, c, o = 'a', 'b', 'c'
    space, taps = ascii_letters[4 : 4 + x.ndim - 2], ascii_letters[20 : 20 + x.ndim - 2]
    grouped = g > 1
    outputs = 'd' + o if grouped else o
    of_w, of_y = _in_order(rhs, outputs, c, taps), _in_order(out, n, outputs, space)
    of_x = n + c
    if features > 1:
        of_x = n + 'd' + c
    elif batches > 1:
        of_x = 'd' + n + c

    def patches(x: jax.Array) -> jax.Array:
        x = x.transpose([lhs[0], lhs[1], *lhs[2:]])
        kernel = [w.shape[a] for a in rhs[2:]]
        cut = lax.conv_general_dilated_patches(
            x,
            kernel,
            params['window_strides'],
            params['padding'],
            params['lhs_dilation'],
            params['rhs_dilation'],
        )
        samples, places = cut.shape[0], cut.shape[2:]
        lead: tuple[int, ...] = (samples, x.shape[1])
        if features > 1:
            lead = (samples, features, x.shape[1] // features)
        elif batches > 1:
            lead = (batches, samples // batches, x.shape[1])
        return cut.reshape(*lead, *kernel, *places)

    def split_y(a: jax.Array) -> jax.Array:
        if not grouped:
            return a
        return a.reshape(*a.shape[: a.ndim - y.ndim], *_split(of_y, y.shape, g))

    return Op(
        Axes(of_x + taps + space, ''.join(of_w), ''.join(of_y)),
        w.shape,
        lambda values: values[0],
        kept=[s if len(s) == 1 else '' for s in of_y],
        line_up_x=patches,
        line_up_y=split_y,
        labelled=_split(of_w, w.shape, g),
        apply=lambda x, w: bind(eqn, [x, w])[0],
    )


def _in_order(spec: Sequence[int], first: str, second: str, rest: str) -> list[str]:
    """The label of each axis; `spec` has the axes of the first, the second and the rest."""
    at = dict(zip(spec, (first, second, *rest), strict=True))
    return [at[a] for a in range(len(spec))]


def _split(labels: Sequence[str], shape: Sequence[int], g: int) -> tuple[int, ...]:
    """The shape with an axis that has two labels in two parts: g groups, and the rest."""
    sizes: list[int] = []
    for label, size in zip(labels, shape, strict=True):
        sizes += (g, size // g) if len(label) > 1 else (size,)
    return tuple(sizes)
