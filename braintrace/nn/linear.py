"""Layers that are one product with a weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import brainstate
import jax.numpy as jnp
from brainstate.nn import init

from ..ops.functions import grouped_matmul, lora_matmul, matmul, sparse_matmul
from .initial import check_sizes, kaiming_normal, lecun_normal

ZERO = init.ZeroInit()


class _Sized:
    """Checks of the sizes: they agree in all axes but the last."""

    def __init__(self, in_size: Any, out_size: Any, *args: Any, **kwargs: Any):
        check_sizes(self, in_size=in_size, out_size=out_size)
        lead = [tuple(s)[:-1] if isinstance(s, tuple | list) else () for s in (in_size, out_size)]
        if lead[0] != lead[1]:
            raise ValueError(
                f'`{type(self).__name__}`: `in_size` {in_size} and `out_size` {out_size} must '
                'agree in all axes but the last.'
            )
        super().__init__(in_size, out_size, *args, **kwargs)  # type: ignore[call-arg]


class Linear(_Sized, brainstate.nn.Linear):  # type: ignore[misc]
    """`y = x @ (w_mask * weight) + bias`.

    Args:
        in_size, out_size: of the input and the output, equal but for the last axis.
        w_init, b_init: initial values, or functions of a shape; `b_init=None` means no bias.
        w_mask: of the weight.
        name: of the module.
        param_type: class of the parameter.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> braintrace.nn.Linear(2, 3, w_init=jnp.ones((2, 3)))(jnp.ones((4, 2))).shape
        (4, 3)
    """

    def update(self, x: Any) -> Any:
        p = self.weight.value
        return matmul(x, p['weight'], p.get('bias'), weight_fn=masked_by(self.w_mask))


def masked_by(mask: Any) -> Callable | None:
    """The function that multiplies a weight by the mask; None where there is no mask."""
    if mask is None:
        return None
    return lambda w: w * mask


class GroupedLinear(brainstate.nn.Module):  # type: ignore[misc]
    """A linear layer for each group, `y[..., g, :] = x[..., g, :] @ weight[g] + bias[g]`.

    Args:
        num_groups, in_features, out_features: sizes.
        w_init, b_init, name, param_type: as in `Linear`.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> braintrace.nn.GroupedLinear(2, 3, 4)(jnp.ones((5, 2, 3))).shape
        (5, 2, 4)
    """

    def __init__(
        self,
        num_groups: int,
        in_features: int,
        out_features: int,
        w_init: Any = kaiming_normal,
        b_init: Any = ZERO,
        name: str | None = None,
        param_type: type = brainstate.ParamState,
    ):
        super().__init__(name=name)
        check_sizes(self, num_groups=num_groups, in_features=in_features, out_features=out_features)
        self.num_groups, self.in_features, self.out_features = num_groups, in_features, out_features
        self.in_size, self.out_size = (num_groups, in_features), (num_groups, out_features)
        bias = {} if b_init is None else {'bias': init.param(b_init, self.out_size)}
        shape = num_groups, in_features, out_features
        weight = init.param(w_init, shape, allow_none=False)
        self.weight = param_type({'weight': weight, **bias})

    def update(self, x: Any) -> Any:
        p = self.weight.value
        return grouped_matmul(x, p['weight'], p.get('bias'))


class SignedWLinear(_Sized, brainstate.nn.SignedWLinear):  # type: ignore[misc]
    """`y = x @ (w_sign * abs(weight))`: the sign of each connection is fixed.

    Args:
        in_size, out_size, w_init, name, param_type: as in `Linear`.
        w_sign: of the weight, all positive by default.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> braintrace.nn.SignedWLinear(1, 2, w_init=-jnp.ones((1, 2)))(jnp.ones(1))
        Array([1., 1.], dtype=float32)
    """

    def __init__(self, in_size: Any, out_size: Any, *args: Any, **kwargs: Any):
        super().__init__(in_size, out_size, *args, **kwargs)
        wanted = jnp.shape(self.weight.value)
        got = () if self.w_sign is None else jnp.shape(self.w_sign)
        if got not in ((), wanted):
            raise ValueError(
                f'`SignedWLinear`: `w_sign` must have the shape {wanted} of the weight, got {got}.'
            )

    def update(self, x: Any) -> Any:
        def signed(w: Any) -> Any:
            return jnp.abs(w) if self.w_sign is None else jnp.abs(w) * self.w_sign

        return matmul(x, self.weight.value, weight_fn=signed)


class ScaledWSLinear(_Sized, brainstate.nn.ScaledWSLinear):  # type: ignore[misc]
    """`y = x @ (w_mask * gain * standardised(weight)) + bias`.

    The weights into a unit have mean 0 and variance 1 / in_size, times the gain.

    Args:
        in_size, out_size, w_init, b_init, w_mask, name, param_type: as in `Linear`.
        ws_gain: whether there is a trainable gain.
        eps: least variance.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> braintrace.nn.ScaledWSLinear(2, 3)(jnp.ones((4, 2))).shape
        (4, 3)
    """

    def update(self, x: Any) -> Any:
        p = self.weight.value

        def standardised(w: Any) -> Any:
            w = brainstate.nn.weight_standardization(w, self.eps, p.get('gain'))
            return w if self.w_mask is None else w * self.w_mask

        return matmul(x, p['weight'], p.get('bias'), weight_fn=standardised)


class SparseLinear(brainstate.nn.SparseLinear):  # type: ignore[misc]
    """`y = x @ sparse matrix + bias`, where the stored values of the matrix are the weight.

    Args:
        spar_mat: `(K, N)`, of brainevent or saiunit.sparse; its values are the initial ones.
        b_init, in_size, name, param_type: as in `Linear`; no bias by default.

    Example:
        >>> import brainevent, jax.numpy as jnp, braintrace
        >>> layer = braintrace.nn.SparseLinear(brainevent.CSR.fromdense(jnp.eye(2)))
        >>> layer(jnp.ones((4, 2))).shape
        (4, 2)
    """

    def __init__(self, spar_mat: Any, *args: Any, **kwargs: Any):
        if not hasattr(spar_mat, 'with_data'):
            raise TypeError(
                '`SparseLinear`: `spar_mat` must be a sparse matrix of brainevent or '
                f'saiunit.sparse, got {type(spar_mat).__name__}.'
            )
        super().__init__(spar_mat, *args, **kwargs)

    def update(self, x: Any) -> Any:
        p = self.weight.value
        return sparse_matmul(x, p['weight'], sparse_mat=self.spar_mat, bias=p.get('bias'))


class LoRA(brainstate.nn.LoRA):  # type: ignore[misc]
    """`y = alpha * x @ lora_a @ lora_b / lora_rank + base_module(x)`.

    Args:
        in_features, lora_rank, out_features: sizes.
        base_module: what the product is added to.
        kernel_init: of both factors.
        B_init: of the factor at the input, `lora_a`, where it differs from the other.
        A_init: of the factor at the output, `lora_b`. With one of the two the other starts as in
            0.1: that at the input zero, that at the output with variance 1 / lora_rank.
        alpha: a scale of the product.
        param_type, in_size: as in `Linear`.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> layer = braintrace.nn.LoRA(3, 1, 2, base_module=braintrace.nn.Linear(3, 2))
        >>> layer(jnp.ones((4, 3))).shape
        (4, 2)
    """

    def __init__(
        self,
        in_features: int,
        lora_rank: int,
        out_features: int,
        *,
        base_module: Any = None,
        B_init: Any = None,
        A_init: Any = None,
        alpha: float = 1.0,
        **kwargs: Any,
    ):
        check_sizes(self, in_features=in_features, lora_rank=lora_rank, out_features=out_features)
        if base_module is not None and not callable(base_module):
            raise ValueError(
                '`LoRA`: `base_module` must be a module or a function, got '
                f'{type(base_module).__name__}.'
            )
        if B_init is not None or A_init is not None:
            if 'kernel_init' in kwargs:
                raise TypeError('`LoRA`: give `kernel_init`, or `A_init` and `B_init`, not both.')
            kwargs['kernel_init'] = _one_after_another(
                ZERO if B_init is None else B_init, lecun_normal if A_init is None else A_init
            )
        self.alpha = alpha
        super().__init__(in_features, lora_rank, out_features, base_module=base_module, **kwargs)

    __call__ = brainstate.nn.Module.__call__

    def update(self, x: Any) -> Any:
        p = self.weight.value
        y = lora_matmul(x, p['lora_a'], p['lora_b'], alpha=self.alpha / p['lora_a'].shape[1])
        return y if self.base_module is None else y + self.base_module(x)


def _one_after_another(*inits: Any) -> Callable:
    """An initialiser that starts the first array in one way, the next in another."""
    rest = iter(inits)

    def draw(shape: tuple[int, ...]) -> Any:
        return init.param(next(rest), shape)

    return draw
