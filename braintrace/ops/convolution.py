"""Convolutions: x lines up as patches, one for each output position, and the kernel is shared by all positions."""

from __future__ import annotations

from collections.abc import Callable
from string import ascii_letters
from typing import Any

from jax import lax

from .._jax import JaxprEqn, bind
from .axes import Axes, Op


def convolution(eqn: JaxprEqn, i: int, const: Callable) -> Op:
    """`y[n, p, go] = sum patch[n, p, gc, k] w[k, c, go]`, with feature groups (or batch groups) g."""
    if i != 1:
        return NotImplemented
    p = eqn.params
    x, w, y = eqn.invars[0].aval, eqn.invars[1].aval, eqn.outvars[0].aval
    lhs, rhs, out = p['dimension_numbers']
    groups, batches = p['feature_group_count'], p['batch_group_count']
    g = groups * batches  # at most one of them is more than one
    n, c, o, h = tuple('abcd')
    space, taps = ascii_letters[4 : 4 + x.ndim - 2], ascii_letters[20 : 20 + x.ndim - 2]
    label = lambda spec, first, second, rest: [
        dict(zip(spec, (first, second, *rest), strict=True))[a] for a in range(len(spec))
    ]
    grouped = g > 1
    of_w, of_y = (
        label(rhs, h + o if grouped else o, c, taps),
        label(out, n, h + o if grouped else o, space),
    )
    split = lambda labels, shape: tuple(
        m
        for s, size in zip(labels, shape, strict=True)
        for m in ((g, size // g) if len(s) > 1 else (size,))
    )

    def patches(x: Any) -> Any:
        x = x.transpose([lhs[0], lhs[1], *lhs[2:]])
        found = lax.conv_general_dilated_patches(
            x,
            [w.shape[a] for a in rhs[2:]],
            p['window_strides'],
            p['padding'],
            p['lhs_dilation'],
            p['rhs_dilation'],
        )
        kernel, places = [w.shape[a] for a in rhs[2:]], found.shape[2:]
        # n and channels are split in g parts where there are groups: (batch groups, n, feature groups, c, taps, places)
        found = found.reshape(
            batches, found.shape[0] // batches, groups, x.shape[1] // groups, *kernel, *places
        )
        return found.reshape(
            [
                m
                for k, m in enumerate(found.shape)
                if k not in ((0,) if groups > 1 else (2,) if batches > 1 else (0, 2))
            ]
        )

    of_x = (h + n + c if batches > 1 else n + h + c if groups > 1 else n + c) + taps + space
    axes = Axes(of_x, ''.join(of_w), ''.join(of_y))
    return Op(
        axes,
        w.shape,
        lambda values: values[0],
        kept=[s if len(s) == 1 else '' for s in of_y],
        line_up_x=patches,
        line_up_y=lambda a: (
            a.reshape(*a.shape[: a.ndim - y.ndim], *split(of_y, y.shape)) if grouped else a
        ),
        labelled=split(of_w, w.shape),
        apply=lambda x, w: bind(eqn, [x, w])[0],
    )
