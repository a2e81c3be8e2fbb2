"""Operators on a weight: plain JAX, with hooks on the weight, units and any leading axes. The compiler finds the weight by itself."""

from __future__ import annotations

import functools
import importlib.util
import math
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .marker import marked

__all__ = [
    'conv',
    'einsum',
    'element_wise',
    'embedding',
    'grouped_matmul',
    'lora_matmul',
    'matmul',
    'sparse_matmul',
]

Hook = Callable[[jax.Array], jax.Array] | None


def matmul(
    x: Any, weight: Any, bias: Any = None, *, weight_fn: Hook = None, bias_fn: Hook = None
) -> Any:
    """`x @ weight_fn(weight) + bias_fn(bias)`.

    Args:
        x: `(..., K)`.
        weight: `(K, N)`.
        bias: that broadcasts to the product, in a unit that converts to the product's.
        weight_fn, bias_fn: applied to the mantissas first.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> braintrace.matmul(jnp.ones(2), jnp.ones((2, 3)), weight_fn=lambda w: 2 * w)
        Array([4., 4., 4.], dtype=float32)
    """
    (x, x_unit), (w, unit) = (
        _split('matmul', 'x', x),
        _weight('matmul', 'weight', weight, weight_fn),
    )
    _fits(
        'matmul',
        w.ndim in (1, 2) and x.ndim >= 1 and x.shape[-1] == w.shape[0],
        '`x` (..., K) and `weight` (K, N)',
        x,
        w,
    )
    return _finish('matmul', x @ w, (x_unit, unit), bias, bias_fn)


def grouped_matmul(
    x: Any, weight: Any, bias: Any = None, *, weight_fn: Hook = None, bias_fn: Hook = None
) -> Any:
    """One matrix product for each group, `y[..., g, :] = x[..., g, :] @ weight[g]`.

    Args:
        x: `(..., G, K)`.
        weight: `(G, K, N)`.
        bias, weight_fn, bias_fn: as in `matmul`.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> braintrace.grouped_matmul(jnp.ones((2, 3)), jnp.ones((2, 3, 1)))
        Array([[3.],
               [3.]], dtype=float32)
    """
    (x, x_unit), (w, unit) = (
        _split('grouped_matmul', 'x', x),
        _weight('grouped_matmul', 'weight', weight, weight_fn),
    )
    _fits(
        'grouped_matmul',
        w.ndim == 3 and x.ndim >= 2 and x.shape[-2:] == w.shape[:2],
        '`x` (..., G, K) and `weight` (G, K, N)',
        x,
        w,
    )
    return _finish(
        'grouped_matmul', jnp.einsum('...gk,gkn->...gn', x, w), (x_unit, unit), bias, bias_fn
    )


def embedding(indices: Any, weight: Any, *, weight_fn: Hook = None) -> Any:
    """Rows of a table, `weight_fn(weight)[indices]`; an index outside the table gives NaN.

    Args:
        indices: integers of any shape.
        weight: `(number of rows, features)`.
        weight_fn: applied to the mantissa first.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> braintrace.embedding(jnp.array([1, 1]), jnp.array([[1., 2.], [3., 4.]]))
        Array([[3., 4.],
               [3., 4.]], dtype=float32)
    """
    (indices, index_unit), (w, unit) = (
        _split('embedding', 'indices', indices),
        _weight('embedding', 'weight', weight, weight_fn),
    )
    if index_unit is not None or not jnp.issubdtype(indices.dtype, jnp.integer):
        raise TypeError(f'`embedding`: `indices` must be integers, got {indices.dtype}.')
    if w.ndim != 2:
        raise ValueError(
            f'`embedding`: `weight` must be a table (rows, features), got shape {w.shape}.'
        )
    return _finish('embedding', jnp.take(w, indices, axis=0), (unit,))


def einsum(equation: str, x: Any, weight: Any, *, weight_fn: Hook = None) -> Any:
    """`jnp.einsum(equation, x, weight_fn(weight))`.

    Args:
        equation: of two operands, with its output.
        x, weight: the operands.
        weight_fn: applied to the mantissa first.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> braintrace.einsum('bi,io->bo', jnp.ones((1, 2)), jnp.ones((2, 3)))
        Array([[2., 2., 2.]], dtype=float32)
    """
    (x, x_unit), (w, unit) = (
        _split('einsum', 'x', x),
        _weight('einsum', 'weight', weight, weight_fn),
    )
    if (
        not isinstance(equation, str)
        or equation.count('->') != 1
        or equation.split('->')[0].count(',') != 1
    ):
        raise ValueError(
            f"`einsum`: `equation` must have two operands and an output, like 'bi,io->bo', got {equation!r}."
        )
    try:
        y = jnp.einsum(equation, x, w)
    except (TypeError, ValueError) as e:
        raise ValueError(
            f'`einsum`: {equation!r} does not fit shapes {x.shape} and {w.shape}: {e}'
        ) from None
    return _finish('einsum', y, (x_unit, unit))


def element_wise(weight: Any, *, weight_fn: Hook = None) -> Any:
    """`weight_fn(weight)`, a weight that is used element by element.

    Args:
        weight: of any shape.
        weight_fn: applied to the mantissa.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> braintrace.element_wise(jnp.array([-1., 2.]), weight_fn=jnp.abs)
        Array([1., 2.], dtype=float32)
    """
    w, unit = _weight('element_wise', 'weight', weight, weight_fn)
    return _finish('element_wise', w, (unit,))


def conv(
    x: Any,
    kernel: Any,
    bias: Any = None,
    *,
    strides: Sequence[int] = (1,),
    padding: Any = 'SAME',
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    dimension_numbers: Any = None,
    kernel_fn: Hook = None,
    bias_fn: Hook = None,
) -> Any:
    """`lax.conv_general_dilated(x, kernel_fn(kernel)) + bias_fn(bias)`.

    Args:
        x: with a batch axis, with none, or with several leading axes.
        kernel: in the layout of `dimension_numbers`.
        bias: one-dimensional, added to the channels, or one that broadcasts to the output with its batch axis.
        strides: one for each spatial axis, or one for all.
        padding, lhs_dilation, rhs_dilation, feature_group_count, batch_group_count, dimension_numbers: as in `lax.conv_general_dilated`.
        kernel_fn, bias_fn: applied to the mantissas first.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> braintrace.conv(jnp.ones((1, 4)), jnp.ones((1, 1, 2)), padding='VALID')
        Array([[2., 2., 2.]], dtype=float32)
    """
    (x, x_unit), (k, unit) = _split('conv', 'x', x), _weight('conv', 'kernel', kernel, kernel_fn)
    _fits(
        'conv',
        k.ndim >= 3 and x.ndim >= k.ndim - 1,
        '`x` (batch, channels and space) and `kernel` (channels in and out, and space)',
        x,
        k,
    )
    dn = jax.lax.conv_dimension_numbers((1,) * k.ndim, k.shape, dimension_numbers)
    lead = x.shape[: x.ndim - k.ndim + 1]
    if len(lead) != 1:
        if dn.lhs_spec[0] != 0 or dn.out_spec[0] != 0:
            raise ValueError(
                f'`conv`: `x` of shape {x.shape} needs one batch axis, as it is not the first one in {dimension_numbers}.'
            )
        x = x.reshape(math.prod(lead), *x.shape[len(lead) :])
    _fits(
        'conv',
        x.shape[dn.lhs_spec[1]] == feature_group_count * k.shape[dn.rhs_spec[1]],
        '`x` and `kernel` with equal channels in a group',
        x,
        k,
    )
    strides = tuple(strides) * (k.ndim - 2) if len(strides) == 1 else tuple(strides)
    if len(strides) != k.ndim - 2:
        raise ValueError(
            f'`conv`: `strides` must have one entry for each of {k.ndim - 2} spatial axes, got {strides}.'
        )
    if isinstance(padding, str) and padding.upper() not in ('SAME', 'VALID', 'SAME_LOWER'):
        raise ValueError(
            f"`conv`: `padding` must be 'SAME', 'VALID', 'SAME_LOWER' or pairs of numbers, got {padding!r}."
        )
    y = jax.lax.conv_general_dilated(
        x,
        k,
        strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        dn,
        feature_group_count,
        batch_group_count,
    )
    if bias is not None and jnp.ndim(bias) == 1:
        bias = bias.reshape([-1 if a == dn.out_spec[1] else 1 for a in range(y.ndim)])
    y = _finish('conv', y, (x_unit, unit), bias, bias_fn)
    return y if len(lead) == 1 else y.reshape((*lead, *y.shape[1:]))


def sparse_matmul(
    x: Any,
    weight: Any,
    *,
    sparse_mat: Any,
    bias: Any = None,
    weight_fn: Hook = None,
    bias_fn: Hook = None,
) -> Any:
    """`x @ sparse_mat + bias_fn(bias)`, where `weight_fn(weight)` are the stored values of the sparse matrix.

    Args:
        x: `(..., K)`.
        weight: of the shape of `sparse_mat.data`.
        sparse_mat: `(K, N)`, of brainevent, saiunit.sparse or jax.experimental.sparse.
        bias, weight_fn, bias_fn: as in `matmul`.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> from jax.experimental.sparse import BCOO
        >>> eye = BCOO.fromdense(jnp.eye(2))
        >>> braintrace.sparse_matmul(jnp.ones(2), jnp.array([3., 4.]), sparse_mat=eye)
        Array([3., 4.], dtype=float32)
    """
    (x, x_unit), (w, unit) = (
        _split('sparse_matmul', 'x', x),
        _weight('sparse_matmul', 'weight', weight, weight_fn),
    )
    indices, data = (
        _indices(sparse_mat),
        _split('sparse_matmul', 'sparse_mat.data', sparse_mat.data)[0],
    )
    _fits(
        'sparse_matmul',
        x.ndim >= 1 and x.shape[-1] == sparse_mat.shape[0],
        '`x` (..., K) and `sparse_mat` (K, N)',
        x,
        sparse_mat,
    )
    if w.shape != data.shape or (w.dtype != data.dtype and indices is None):
        raise ValueError(
            f'`sparse_matmul`: `weight` must be like `sparse_mat.data`, {data.dtype}{list(data.shape)}, got {w.dtype}{list(w.shape)}.'
        )
    if indices is None:
        y, _ = _split(
            'sparse_matmul',
            'x',
            (x if x.ndim <= 2 else x.reshape(-1, x.shape[-1])) @ _with_data(sparse_mat, w),
        )
        y = y.reshape(*x.shape[:-1], sparse_mat.shape[1])
    else:
        y = sparse_product(x, w, *indices, sparse_mat.shape[1])
    return _finish('sparse_matmul', y, (x_unit, unit), bias, bias_fn)


def lora_matmul(
    x: Any,
    B: Any,
    A: Any,
    *,
    alpha: Any = 1.0,
    bias: Any = None,
    b_fn: Hook = None,
    a_fn: Hook = None,
    bias_fn: Hook = None,
) -> Any:
    """`x @ (alpha * b_fn(B) @ a_fn(A)) + bias_fn(bias)`: the two factors act as one weight of low rank.

    Args:
        x: `(..., K)`.
        B, A: `(K, R)` and `(R, N)`.
        alpha: a scale.
        bias, bias_fn: as in `matmul`.
        b_fn, a_fn: applied to the mantissas of the factors.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> braintrace.lora_matmul(jnp.ones(2), jnp.ones((2, 1)), jnp.ones((1, 3)), alpha=.5)
        Array([1., 1., 1.], dtype=float32)
    """
    (x, x_unit), (b, b_unit), (a, a_unit) = (
        _split('lora_matmul', *named) for named in (('x', x), ('B', B), ('A', A))
    )
    b, a = _hook('lora_matmul', 'b_fn', b_fn)(b), _hook('lora_matmul', 'a_fn', a_fn)(a)
    _fits(
        'lora_matmul',
        b.ndim == a.ndim == 2 and b.shape[1] == a.shape[0],
        '`B` (K, R) and `A` (R, N)',
        b,
        a,
    )
    _fits(
        'lora_matmul',
        x.ndim >= 1 and x.shape[-1] == b.shape[0],
        '`x` (..., K) and `B` (K, R)',
        x,
        b,
    )
    return _finish(
        'lora_matmul', x @ marked(alpha * (b @ a)), (x_unit, b_unit, a_unit), bias, bias_fn
    )


# ---- what they share ----


def _split(op: str, name: str, a: Any) -> tuple[jax.Array, Any]:
    """The mantissa and the unit, None for a plain array."""
    if hasattr(a, 'mantissa'):
        return jnp.asarray(a.mantissa), a.unit
    try:
        return jnp.asarray(a), None
    except (TypeError, ValueError):
        raise TypeError(f'`{op}`: `{name}` must be an array, got {type(a).__name__}.') from None


def _weight(op: str, name: str, w: Any, fn: Hook) -> tuple[jax.Array, Any]:
    m, unit = _split(op, name, w)
    return marked(_hook(op, f'{name}_fn', fn)(m)), unit


def _hook(op: str, name: str, fn: Hook) -> Callable:
    if fn is not None and not callable(fn):
        raise TypeError(f'`{op}`: `{name}` must be a function, got {type(fn).__name__}.')
    return fn or (lambda a: a)


def _fits(op: str, ok: bool, wanted: str, a: Any, b: Any) -> None:
    if not ok:
        raise ValueError(f'`{op}` needs {wanted}, got shapes {a.shape} and {b.shape}.')


def _finish(op: str, y: jax.Array, units: tuple, bias: Any = None, bias_fn: Hook = None) -> Any:
    """Add the bias and attach the unit of the product."""
    present = [a for a in units if a is not None]
    unit = functools.reduce(operator.mul, present) if present else None
    if bias is not None:
        b = _hook(op, 'bias_fn', bias_fn)(_decimal(op, bias, unit))
        if b.ndim > y.ndim or any(
            n not in (1, m) for n, m in zip(b.shape[::-1], y.shape[::-1], strict=False)
        ):
            raise ValueError(
                f'`{op}`: `bias` of shape {b.shape} does not broadcast to the product, of shape {y.shape}.'
            )
        y = y + marked(b)
    if unit is None:
        return y
    saiunit = sys.modules['saiunit']  # it is there: someone made the unit
    return saiunit.maybe_decimal(saiunit.Quantity(y, unit=unit))


def _decimal(op: str, bias: Any, unit: Any) -> jax.Array:
    if unit is None and not hasattr(bias, 'mantissa'):
        return _split(op, 'bias', bias)[0]
    saiunit = sys.modules['saiunit']
    unit, own = unit or saiunit.UNITLESS, getattr(bias, 'unit', saiunit.UNITLESS)
    if not own.has_same_dim(unit):
        raise saiunit.UnitMismatchError(
            f'`{op}`: `bias` has unit {own}, the product has {unit}. Give the bias a unit that converts to it.'
        )
    return jnp.asarray(saiunit.Quantity(bias).to_decimal(unit))


@functools.partial(jax.jit, static_argnums=4)
def sparse_product(
    x: jax.Array, w: jax.Array, rows: jax.Array, cols: jax.Array, n: int
) -> jax.Array:
    """`y[..., cols[p]] += x[..., rows[p]] w[p]`; the compiler knows it by its name, as one product."""
    return jnp.zeros((*x.shape[:-1], n), jnp.result_type(x, w)).at[..., cols].add(x[..., rows] * w)


def _indices(m: Any) -> tuple[jax.Array, jax.Array] | None:
    """Row and column of each stored value, for the formats of JAX and saiunit: the gradient of their own `x @ m` is wrong or missing for some of them. None for
    others."""
    saiunit: Any = sys.modules.get('saiunit')
    jax_sparse: Any = sys.modules.get('jax.experimental.sparse')
    if jax_sparse is not None and isinstance(m, jax_sparse.BCOO | jax_sparse.BCSR):
        if m.n_batch or m.n_dense or m.ndim != 2:
            raise ValueError(
                '`sparse_matmul`: `sparse_mat` must be a matrix without batch or dense axes.'
            )
    elif not hasattr(m, 'with_data'):
        raise TypeError(
            f'`sparse_matmul`: `sparse_mat` must be a sparse matrix of brainevent, saiunit.sparse or jax.experimental.sparse (BCOO, BCSR), '
            f'got {type(m).__name__}.'
        )
    elif saiunit is None or not isinstance(
        m, saiunit.sparse.CSR | saiunit.sparse.CSC | saiunit.sparse.COO
    ):
        return None
    with jax.ensure_compile_time_eval():  # the compiler looks at the indices
        if hasattr(m, 'row'):
            return m.row, m.col
        if not hasattr(m, 'indptr'):
            return m.indices[:, 0], m.indices[:, 1]
        line = jnp.searchsorted(m.indptr, jnp.arange(len(m.indices)), side='right') - 1
        return (
            (m.indices, line)
            if saiunit is not None and isinstance(m, saiunit.sparse.CSC)
            else (line, m.indices)
        )


def _with_data(m: Any, data: jax.Array) -> Any:
    """The matrix of brainevent with other stored values, in the unit it has."""
    unit = _split('sparse_matmul', 'sparse_mat.data', m.data)[1]
    new = m.with_data(data if unit is None else sys.modules['saiunit'].Quantity(data, unit=unit))
    brainevent = sys.modules.get('brainevent')
    if (
        brainevent is not None
        and getattr(new, 'backend', '') is None
        and _cpu_without_numba()
        and brainevent.config.get_backend('cpu') is None
    ):
        new.backend = 'jax_raw'  # brainevent's own choice on a CPU, numba, is not installed
    return new


def _cpu_without_numba() -> bool:
    return jax.default_backend() == 'cpu' and importlib.util.find_spec('numba') is None
