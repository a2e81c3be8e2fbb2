"""Names of version 0.1.1: operators and parameters as objects.

New code uses `brainstate.ParamState` and plain functions; any weight is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import jax
import jax.numpy as jnp

from ..frontends import brainstate as frontend
from ..ops.functions import conv, lora_matmul, matmul, sparse_matmul
from ..ops.marker import marked, stopped, untraced
from ..ops.marker import stop_param_gradients as stop_param_gradients

brainstate: Any = frontend.brainstate

ETraceState = brainstate.HiddenState
ETraceGroupState = brainstate.HiddenGroupState
ETraceTreeState = brainstate.HiddenTreeState


def identity(w: Any) -> Any:
    """The weight as it is."""
    return w


class ETraceGrad(str, Enum):
    """How a parameter of 0.1.1 asks for its gradient, where `HybridDimVjpAlgorithm` has a choice:
    by the trace of D-RTRL, by that of pp-prop, or by size."""

    full = 'full'
    approx = 'approx'
    adaptive = 'adaptive'


class ETraceOp:
    """An operator `y = op(x, weights)`: override `xw_to_y`.

    Trace rules such as `yw_to_w` are not used any more, the compiler finds them.

    Args:
        is_diagonal: whether the operator works element by element.
        name: of the operator.
    """

    def __init__(self, is_diagonal: bool = False, name: str | None = None):
        self.is_diagonal, self.name = is_diagonal, name

    def __call__(self, inputs: Any, weights: Any) -> Any:
        y = self.xw_to_y(inputs, marked(weights))
        return y if self.is_diagonal else stopped(y)

    def xw_to_y(self, inputs: Any, weights: Any) -> Any:
        """The output, from the inputs and the weights."""
        raise NotImplementedError(
            f'`{type(self).__name__}` must define `xw_to_y(inputs, weights)`.'
        )

    def xy_to_dw(self, x: Any, hidden: Any, w: Any) -> Any:
        """The gradient of `(hidden * y).sum()` by the weights."""
        y, pull = jax.vjp(lambda w: self.xw_to_y(x, w), w)
        if jnp.shape(y) != jnp.shape(hidden):
            raise ValueError(
                f'`{type(self).__name__}.xy_to_dw`: `hidden` must have the shape {jnp.shape(y)} of '
                f'the output, got {jnp.shape(hidden)}.'
            )
        return pull(hidden)[0]


class _DictOp(ETraceOp):
    """An operator on a dict of arrays; the function it calls marks the weight."""

    keys: tuple[str, ...] = ('weight',)

    def __call__(self, inputs: Any, weights: Any) -> Any:
        name = type(self).__name__
        if not isinstance(weights, dict):
            raise TypeError(
                f'`{name}`: the weights must be a dict with {self.keys}, got '
                f'{type(weights).__name__}.'
            )
        missing = [k for k in self.keys if k not in weights]
        if missing:
            raise ValueError(
                f'`{name}`: the dict of weights must contain {missing[0]!r}, got {sorted(weights)}.'
            )
        return self.xw_to_y(inputs, weights)

    def _masked(self, mask: Any, fn: Callable, fn_first: bool = False) -> Callable:
        """`fn(w * mask)`, or `fn(w) * mask` with `fn_first`, as a function of the weight."""
        name = type(self).__name__
        if mask is not None and not hasattr(mask, 'shape'):
            raise TypeError(f'`{name}`: `weight_mask` must be an array, got {type(mask).__name__}.')
        if not callable(fn):
            raise TypeError(f'`{name}`: `weight_fn` must be a function, got {type(fn).__name__}.')
        if mask is None:
            return fn
        if fn_first:
            return lambda w: fn(w) * mask
        return lambda w: fn(w * mask)


def general_y2w(xw2y: Callable, x: Any, y: Any, w: Any) -> Any:
    """The pull of `y` to the weights through `xw2y(x, w)`, with ones in the place of x."""
    ones = jax.tree.map(jnp.ones_like, x)
    return jax.vjp(lambda w: xw2y(ones, w), w)[1](y)[0]


class MatMulOp(_DictOp):
    """`x @ weight_fn(weight_mask * weight) + bias`.

    With `apply_weight_fn_before_mask` the weight is `weight_mask * weight_fn(weight)`.

    Example:
        >>> import jax.numpy as jnp
        >>> from braintrace.compat.version_0_1 import MatMulOp
        >>> MatMulOp(weight_fn=jnp.square)(jnp.ones(2), {'weight': 2 * jnp.ones((2, 1))})
        Array([8.], dtype=float32)
    """

    def __init__(
        self,
        weight_mask: Any = None,
        weight_fn: Callable = identity,
        apply_weight_fn_before_mask: bool = False,
    ):
        super().__init__()
        self.weight_mask, self.weight_fn = weight_mask, weight_fn
        self.apply_weight_fn_before_mask = apply_weight_fn_before_mask
        self._fn = self._masked(weight_mask, weight_fn, apply_weight_fn_before_mask)

    def xw_to_y(self, inputs: Any, weights: Any) -> Any:
        return matmul(inputs, weights['weight'], weights.get('bias'), weight_fn=self._fn)


class ElemWiseOp(ETraceOp):
    """`fn(weights)`, for an array or a tree of them."""

    def __init__(self, fn: Callable = identity):
        super().__init__(is_diagonal=True)
        if not callable(fn):
            raise TypeError(f'`ElemWiseOp`: `fn` must be a function, got {type(fn).__name__}.')
        self.fn = fn

    def __call__(self, weights: Any) -> Any:  # type: ignore[override]
        return marked(self.fn(weights))

    def xw_to_y(self, inputs: Any, weights: Any) -> Any:
        return self.fn(weights)


class ConvOp(_DictOp):
    """`conv(x, weight_fn(weight_mask * weight)) + bias`, with or without a batch axis."""

    def __init__(
        self,
        xinfo: jax.ShapeDtypeStruct,
        window_strides: Sequence[int],
        padding: Any,
        lhs_dilation: Sequence[int] | None = None,
        rhs_dilation: Sequence[int] | None = None,
        feature_group_count: int = 1,
        batch_group_count: int = 1,
        dimension_numbers: Any = None,
        weight_mask: Any = None,
        weight_fn: Callable = identity,
    ):
        super().__init__()
        self.xinfo, self.weight_mask, self.weight_fn = xinfo, weight_mask, weight_fn
        self._options = dict(
            strides=window_strides,
            padding=padding,
            lhs_dilation=lhs_dilation,
            rhs_dilation=rhs_dilation,
            feature_group_count=feature_group_count,
            batch_group_count=batch_group_count,
            dimension_numbers=dimension_numbers,
            kernel_fn=self._masked(weight_mask, weight_fn),
        )

    def xw_to_y(self, inputs: Any, weights: Any) -> Any:
        return conv(inputs, weights['weight'], weights.get('bias'), **self._options)


class SpMatMulOp(_DictOp):
    """`x @ sparse_mat + bias`, where `weight_fn(weight)` are the stored values of the matrix."""

    def __init__(self, sparse_mat: Any, weight_fn: Callable = identity):
        super().__init__()
        if not hasattr(sparse_mat, 'with_data'):
            raise TypeError(
                '`SpMatMulOp`: `sparse_mat` must be a sparse matrix of brainevent or '
                f'saiunit.sparse, got {type(sparse_mat).__name__}.'
            )
        self.sparse_mat, self.weight_fn = sparse_mat, self._masked(None, weight_fn)

    def xw_to_y(self, inputs: Any, weights: Any) -> Any:
        return sparse_matmul(
            inputs,
            weights['weight'],
            sparse_mat=self.sparse_mat,
            bias=weights.get('bias'),
            weight_fn=self.weight_fn,
        )


class LoraOp(_DictOp):
    """`alpha * x @ B @ A + bias`."""

    keys = ('B', 'A')

    def __init__(self, alpha: Any = None):
        super().__init__()
        self.alpha = alpha

    def xw_to_y(self, inputs: Any, weights: Any) -> Any:
        return lora_matmul(
            inputs,
            weights['B'],
            weights['A'],
            alpha=1.0 if self.alpha is None else self.alpha,
            bias=weights.get('bias'),
        )


class ETraceParam(brainstate.ParamState):  # type: ignore[misc]
    """A parameter with its operator.

    Args:
        weight: the value.
        op: an `ETraceOp`; None for the parameter of a layer, which knows what to do with it.
        grad: 'full', 'approx' or 'adaptive'.
        name: of the parameter.

    Example:
        >>> import jax.numpy as jnp
        >>> from braintrace.compat.version_0_1 import ETraceParam, MatMulOp
        >>> ETraceParam({'weight': jnp.ones((2, 1))}, MatMulOp()).execute(jnp.ones(2))
        Array([2.], dtype=float32)
    """

    is_etrace = True

    def __init__(
        self,
        weight: Any,
        op: ETraceOp | None = None,
        grad: str | None = None,
        name: str | None = None,
    ):
        super().__init__(weight, name=name)
        if op is not None and not isinstance(op, ETraceOp):
            raise TypeError(
                f'`{type(self).__name__}`: `op` must be an ETraceOp, got {type(op).__name__}.'
            )
        self.op, self.gradient = op, ETraceGrad(grad or 'adaptive')

    def execute(self, x: Any) -> Any:
        """The output of the operator."""
        return _operator(self)(x, self.value)


class ElemWiseParam(ETraceParam):
    """A parameter that is used element by element."""

    def __init__(self, weight: Any, op: ElemWiseOp | Callable = identity, name: str | None = None):
        super().__init__(weight, op if isinstance(op, ElemWiseOp) else ElemWiseOp(op), 'full', name)

    def execute(self) -> Any:  # type: ignore[override]
        return _operator(self)(self.value)


class NonTempParam(brainstate.ParamState):  # type: ignore[misc]
    """A parameter without a trace, wherever it is used: its gradient is that of the present step or
    window."""

    is_etrace = False

    def __init__(
        self, value: Any, op: Callable | None = None, name: str | None = None, **kwargs: Any
    ):
        super().__init__(value, name=name, **kwargs)
        self.op = op

    def execute(self, x: Any) -> Any:
        return _operator(self)(x, untraced(self.value))


class FakeETraceParam:
    """A constant with the interface of a parameter."""

    def __init__(self, value: Any, op: Callable | None = None):
        self.value, self.op = value, op

    def execute(self, x: Any) -> Any:
        return _operator(self)(x, self.value)


def _operator(param: Any) -> Callable:
    """The operator of a parameter."""
    if param.op is None:
        raise TypeError(
            f'This {type(param).__name__} has no `op` to execute: it is the parameter of a layer. '
            'Call the layer instead.'
        )
    return param.op


class FakeElemWiseParam:
    """A constant with the interface of an element-wise parameter."""

    def __init__(self, weight: Any, op: Callable = identity, name: str | None = None):
        self.value, self.op, self.name = weight, op, name

    def execute(self) -> Any:
        return self.op(self.value)
