"""Normalisations of brainstate, with a trainable gain and bias."""

from __future__ import annotations

from typing import Any

import brainstate

from .initial import check_input


class _Checked:
    def update(self: Any, x: Any) -> Any:
        check_input(self, x)
        return super().update(x)  # type: ignore[misc]


class LayerNorm(_Checked, brainstate.nn.LayerNorm):  # type: ignore[misc]
    """`gain * (x - mean) / deviation + bias` over the features of each sample; arguments as in brainstate.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> braintrace.nn.LayerNorm(2)(jnp.array([1., 3.]))
        Array([-0.9999995,  0.9999995], dtype=float32)
    """


class RMSNorm(_Checked, brainstate.nn.RMSNorm):  # type: ignore[misc]
    """`gain * x / root mean square` over the features of each sample; arguments as in brainstate."""


class GroupNorm(brainstate.nn.GroupNorm):  # type: ignore[misc]
    """Layer normalisation in each group of channels, with or without a batch axis; arguments as in brainstate."""

    def update(self, x: Any) -> Any:
        check_input(self, x)
        return super().update(x) if x.ndim > len(self.in_size) else super().update(x[None])[0]


class BatchNorm0d(_Checked, brainstate.nn.BatchNorm0d):  # type: ignore[misc]
    """Normalisation of each feature over the batch, `(features,)`; arguments as in brainstate."""


class BatchNorm1d(_Checked, brainstate.nn.BatchNorm1d):  # type: ignore[misc]
    """Normalisation of each channel over the batch and space, `(length, channels)`; arguments as in brainstate."""


class BatchNorm2d(_Checked, brainstate.nn.BatchNorm2d):  # type: ignore[misc]
    """Normalisation of each channel over the batch and space, `(height, width, channels)`; arguments as in brainstate."""


class BatchNorm3d(_Checked, brainstate.nn.BatchNorm3d):  # type: ignore[misc]
    """Normalisation of each channel over the batch and space, `(depth, height, width, channels)`; arguments as in brainstate."""
