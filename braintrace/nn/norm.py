"""Normalisations of brainstate, with a trainable gain and bias."""

from __future__ import annotations

from typing import Any

import brainstate

from .initial import check_input


class _Checked:
    """A check that the input ends in the axes of `in_size`."""

    def update(self: Any, x: Any) -> Any:
        check_input(self, x)
        return super().update(x)  # type: ignore[misc]


class LayerNorm(_Checked, brainstate.nn.LayerNorm):  # type: ignore[misc]
    """`gain * (x - mean) / deviation + bias` over the features of each sample.

    The arguments are those of brainstate.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> braintrace.nn.LayerNorm(2)(jnp.array([1., 3.])).round(3)
        Array([-1.,  1.], dtype=float32)
    """


class RMSNorm(_Checked, brainstate.nn.RMSNorm):  # type: ignore[misc]
    """`gain * x / root mean square` over the features of each sample.

    The arguments are those of brainstate.
    """


class GroupNorm(brainstate.nn.GroupNorm):  # type: ignore[misc]
    """Layer normalisation in each group of channels, with or without a batch axis.

    The arguments are those of brainstate.
    """

    def update(self, x: Any) -> Any:
        check_input(self, x)
        if x.ndim > len(self.in_size):
            return super().update(x)
        return super().update(x[None])[0]


class BatchNorm0d(_Checked, brainstate.nn.BatchNorm0d):  # type: ignore[misc]
    """Normalisation of each feature over the batch.

    Inputs are `(batch, features)`, the arguments those of brainstate.
    """


class BatchNorm1d(_Checked, brainstate.nn.BatchNorm1d):  # type: ignore[misc]
    """Normalisation of each channel over the batch and space.

    Inputs are `(batch, length, channels)`, the arguments those of brainstate.
    """


class BatchNorm2d(_Checked, brainstate.nn.BatchNorm2d):  # type: ignore[misc]
    """Normalisation of each channel over the batch and space.

    Inputs are `(batch, height, width, channels)`, the arguments those of brainstate.
    """


class BatchNorm3d(_Checked, brainstate.nn.BatchNorm3d):  # type: ignore[misc]
    """Normalisation of each channel over the batch and space.

    Inputs are `(batch, depth, height, width, channels)`, the arguments those of brainstate.
    """
