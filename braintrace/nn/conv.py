"""Convolutions."""

from __future__ import annotations

from typing import Any

import brainstate

from ..ops.functions import conv
from .initial import check_input, check_sizes
from .linear import masked_by


class _Conv:
    """`y = conv(x, w_mask * weight) + bias`.

    The input may have a batch axis, none, or several leading axes.

    Args:
        in_size: shape of one input, the channels last, or first with `channel_first`.
        out_channels: number of output channels.
        kernel_size, stride, lhs_dilation, rhs_dilation: one for each spatial axis, or one for all.
        padding: 'SAME', 'VALID', a number, or pairs of numbers.
        groups: of channels, which do not see each other.
        w_init, b_init: initial values, or functions of a shape, with a unit or without;
            `b_init=None` means no bias.
        w_mask: of the kernel.
        channel_first: the layout of the input and the output.
        name: of the module.
        param_type: class of the parameter.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> braintrace.nn.Conv1d((8, 2), 3, kernel_size=3)(jnp.ones((8, 2))).shape
        (8, 3)
    """

    def __init__(
        self,
        in_size: Any,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        *args: Any,
        **kwargs: Any,
    ):
        check_sizes(
            self, in_size=in_size, out_channels=out_channels, kernel_size=kernel_size, stride=stride
        )
        for key, value in ('kernel_size', kernel_size), ('stride', stride):
            if isinstance(value, tuple | list) and len(value) not in (1, len(in_size) - 1):
                raise ValueError(
                    f'`{type(self).__name__}`: `{key}` must have one entry for each spatial axis '
                    f'of `in_size` {in_size}, got {value}.'
                )
        super().__init__(  # type: ignore[call-arg]
            in_size, out_channels, kernel_size, stride, *args, **kwargs
        )

    def update(self: Any, x: Any) -> Any:
        check_input(self, x)
        p = self.weight.value
        return self._convolved(x, p['weight'], p.get('bias'))

    def _conv_op(self: Any, x: Any, params: dict[str, Any]) -> Any:
        """What brainstate evaluates for the shape of the output, where no unit matters."""
        kernel = params['weight']
        return self._convolved(x, getattr(kernel, 'mantissa', kernel), None)

    def _convolved(self: Any, x: Any, kernel: Any, bias: Any) -> Any:
        return conv(
            x,
            kernel,
            bias,
            strides=self.stride,
            padding=self.padding,
            lhs_dilation=self.lhs_dilation,
            rhs_dilation=self.rhs_dilation,
            feature_group_count=self.groups,
            dimension_numbers=self.dimension_numbers,
            kernel_fn=masked_by(self.w_mask),
        )


class Conv1d(_Conv, brainstate.nn.Conv1d):  # type: ignore[misc]
    __doc__ = _Conv.__doc__


class Conv2d(_Conv, brainstate.nn.Conv2d):  # type: ignore[misc]
    __doc__ = _Conv.__doc__


class Conv3d(_Conv, brainstate.nn.Conv3d):  # type: ignore[misc]
    __doc__ = _Conv.__doc__
