"""Operators on a weight: plain JAX, with hooks on the weight, units and any leading axes.

The compiler finds the weight by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .formats import indices_of, sparse_product, with_data
from .marker import marked, stopped
from .units import Operand, in_unit, operand, unit_of_product, with_unit

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
    given = operand('matmul', 'x', x), _weight('matmul', 'weight', weight, weight_fn)
    x, w = _values(given)
    _fits(
        'matmul',
        w.ndim in (1, 2) and x.ndim >= 1 and x.shape[-1] == w.shape[0],
        '`x` (..., K) and `weight` (K, N)',
        x,
        w,
    )
    return _finish('matmul', x @ w, given, bias, bias_fn)


def grouped_matmul(
    x: Any, weight: Any, bias: Any = None, *, weight_fn: Hook = None, bias_fn: Hook = None
) -> Any:
    """One product for each group, `y[..., g, :] = x[..., g, :] @ weight_fn(weight)[g]`, and a bias.

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
    given = (
        operand('grouped_matmul', 'x', x),
        _weight('grouped_matmul', 'weight', weight, weight_fn),
    )
    x, w = _values(given)
    _fits(
        'grouped_matmul',
        w.ndim == 3 and x.ndim >= 2 and x.shape[-2:] == w.shape[:2],
        '`x` (..., G, K) and `weight` (G, K, N)',
        x,
        w,
    )
    y = jnp.einsum('...gk,gkn->...gn', x, w)
    return _finish('grouped_matmul', y, given, bias, bias_fn)


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
    indices, index_quantity = operand('embedding', 'indices', indices)
    table = _weight('embedding', 'weight', weight, weight_fn)
    if index_quantity is not None or not jnp.issubdtype(indices.dtype, jnp.integer):
        raise TypeError(f'`embedding`: `indices` must be integers, got {indices.dtype}.')
    if table.value.ndim != 2:
        raise ValueError(
            '`embedding`: `weight` must be a table (rows, features), got shape '
            f'{table.value.shape}.'
        )
    return _finish('embedding', jnp.take(table.value, indices, axis=0), [table])


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
    given = operand('einsum', 'x', x), _weight('einsum', 'weight', weight, weight_fn)
    x, w = _values(given)
    if not _of_two_operands(equation):
        raise ValueError(
            "`einsum`: `equation` must have two operands and an output, like 'bi,io->bo', "
            f'got {equation!r}.'
        )
    try:
        y = jnp.einsum(equation, x, w)
    except (TypeError, ValueError) as e:
        raise ValueError(
            f'`einsum`: {equation!r} does not fit shapes {x.shape} and {w.shape}: {e}'
        ) from None
    return _finish('einsum', y, given)


def _of_two_operands(equation: Any) -> bool:
    if not isinstance(equation, str) or equation.count('->') != 1:
        return False
    return equation.split('->')[0].count(',') == 1


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
    w = _weight('element_wise', 'weight', weight, weight_fn)
    return _finish('element_wise', w.value, [w])


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
        bias: one-dimensional, added to the channels, or one that broadcasts to the output with its
            batch axis.
        strides: one for each spatial axis, or one for all.
        padding, lhs_dilation, rhs_dilation: as in `lax.conv_general_dilated`.
        feature_group_count, batch_group_count, dimension_numbers: as there.
        kernel_fn, bias_fn: applied to the mantissas first.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> braintrace.conv(jnp.ones((1, 4)), jnp.ones((1, 1, 2)), padding='VALID')
        Array([[2., 2., 2.]], dtype=float32)
    """
    given = operand('conv', 'x', x), _weight('conv', 'kernel', kernel, kernel_fn)
    x, k = _values(given)
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
                f'`conv`: `x` of shape {x.shape} needs one batch axis, as it is not the first one '
                f'in {dimension_numbers}.'
            )
        x = x.reshape(math.prod(lead), *x.shape[len(lead) :])
    _fits(
        'conv',
        x.shape[dn.lhs_spec[1]] == feature_group_count * k.shape[dn.rhs_spec[1]],
        '`x` and `kernel` with equal channels in a group',
        x,
        k,
    )
    _check_padding(padding)
    y = jax.lax.conv_general_dilated(
        x,
        k,
        _for_each_axis(strides, k.ndim - 2),
        padding,
        lhs_dilation,
        rhs_dilation,
        dn,
        feature_group_count,
        batch_group_count,
    )
    if bias is not None and jnp.ndim(bias) == 1:
        bias = bias.reshape([-1 if a == dn.out_spec[1] else 1 for a in range(y.ndim)])
    y = _finish('conv', y, given, bias, bias_fn)
    return y if len(lead) == 1 else y.reshape((*lead, *y.shape[1:]))


def _for_each_axis(strides: Sequence[int], axes: int) -> tuple[int, ...]:
    strides = tuple(strides) * axes if len(strides) == 1 else tuple(strides)
    if len(strides) != axes:
        raise ValueError(
            f'`conv`: `strides` must have one entry for each of {axes} spatial axes, got {strides}.'
        )
    return strides


def _check_padding(padding: Any) -> None:
    if isinstance(padding, str) and padding.upper() not in ('SAME', 'VALID', 'SAME_LOWER'):
        raise ValueError(
            "`conv`: `padding` must be 'SAME', 'VALID', 'SAME_LOWER' or pairs of numbers, "
            f'got {padding!r}.'
        )


def sparse_matmul(
    x: Any,
    weight: Any,
    *,
    sparse_mat: Any,
    bias: Any = None,
    weight_fn: Hook = None,
    bias_fn: Hook = None,
) -> Any:
    """`x @ sparse_mat + bias_fn(bias)`, where `weight_fn(weight)` are the stored values.

    Args:
        x: `(..., K)`.
        weight: of the shape of `sparse_mat.data`.
        sparse_mat: `(K, N)`, a BCOO or BCSR of jax.experimental.sparse, or a matrix of a library
            that has `data` and `with_data`.
        bias, weight_fn, bias_fn: as in `matmul`.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> from jax.experimental.sparse import BCOO
        >>> eye = BCOO.fromdense(jnp.eye(2))
        >>> braintrace.sparse_matmul(jnp.ones(2), jnp.array([3., 4.]), sparse_mat=eye)
        Array([3., 4.], dtype=float32)
    """
    given = (
        operand('sparse_matmul', 'x', x),
        _weight('sparse_matmul', 'weight', weight, weight_fn),
    )
    x, w = _values(given)
    indices = indices_of(sparse_mat)
    data = operand('sparse_matmul', 'sparse_mat.data', sparse_mat.data).value
    _fits(
        'sparse_matmul',
        x.ndim >= 1 and x.shape[-1] == sparse_mat.shape[0],
        '`x` (..., K) and `sparse_mat` (K, N)',
        x,
        sparse_mat,
    )
    if w.shape != data.shape or (w.dtype != data.dtype and indices is None):
        raise ValueError(
            '`sparse_matmul`: `weight` must be like `sparse_mat.data`, '
            f'{data.dtype}{list(data.shape)}, got {w.dtype}{list(w.shape)}.'
        )
    if indices is None:
        matrix = x if x.ndim <= 2 else x.reshape(-1, x.shape[-1])
        product = operand('sparse_matmul', 'x', matrix @ with_data(sparse_mat, w))
        y = product.value.reshape(*x.shape[:-1], sparse_mat.shape[1])
    else:
        y = sparse_product(x, w, *indices, sparse_mat.shape[1])
    return _finish('sparse_matmul', y, given, bias, bias_fn)


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
    """`x @ (alpha * b_fn(B) @ a_fn(A)) + bias_fn(bias)`.

    The two factors act as one weight of low rank.

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
    named = ('x', x), ('B', B), ('A', A)
    given = [operand('lora_matmul', name, value) for name, value in named]
    x, b, a = _values(given)
    b = _hook('lora_matmul', 'b_fn', b_fn)(b)
    a = _hook('lora_matmul', 'a_fn', a_fn)(a)
    factors = b.ndim == a.ndim == 2 and b.shape[1] == a.shape[0]
    _fits('lora_matmul', factors, '`B` (K, R) and `A` (R, N)', b, a)
    product = x.ndim >= 1 and x.shape[-1] == b.shape[0]
    _fits('lora_matmul', product, '`x` (..., K) and `B` (K, R)', x, b)
    return _finish('lora_matmul', x @ marked(alpha * (b @ a)), given, bias, bias_fn)


# ---- what they share ----


def _weight(op: str, name: str, w: Any, fn: Hook) -> Operand:
    """A weight after its hook, marked as one for the compiler."""
    value, quantity = operand(op, name, w)
    return Operand(marked(_hook(op, f'{name}_fn', fn)(value)), quantity)


def _values(operands: Sequence[Operand]) -> list[jax.Array]:
    return [a.value for a in operands]


def _hook(op: str, name: str, fn: Hook) -> Callable:
    if fn is not None and not callable(fn):
        raise TypeError(f'`{op}`: `{name}` must be a function, got {type(fn).__name__}.')
    return fn or (lambda a: a)


def _fits(op: str, ok: bool, wanted: str, a: Any, b: Any) -> None:
    if not ok:
        raise ValueError(f'`{op}` needs {wanted}, got shapes {a.shape} and {b.shape}.')


def _finish(
    op: str, y: jax.Array, operands: Sequence[Operand], bias: Any = None, bias_fn: Hook = None
) -> Any:
    """Add the bias and attach the unit of the product."""
    unit = unit_of_product(operands)
    if bias is not None:
        b = _hook(op, 'bias_fn', bias_fn)(in_unit(op, 'bias', bias, unit))
        if not _broadcasts(b.shape, y.shape):
            raise ValueError(
                f'`{op}`: `bias` of shape {b.shape} does not broadcast to the product, '
                f'of shape {y.shape}.'
            )
        y = y + marked(b)
    return with_unit(stopped(y), unit)


def _broadcasts(small: tuple[int, ...], large: tuple[int, ...]) -> bool:
    """Whether the one shape broadcasts to the other."""
    if len(small) > len(large):
        return False
    trailing = zip(small[::-1], large[::-1], strict=False)
    return all(n in (1, m) for n, m in trailing)
