"""Ops of one's own as JAX primitives. The compiler opens such an op and finds the structure of its
weights inside, unless an op rule tells it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .._jax import JaxprEqn
from ..primitives import FunctionPrimitive
from .axes import Op

OpRule = Callable[[JaxprEqn, int, Callable], Op]


class ETPPrimitive(FunctionPrimitive):
    """A primitive made by `register_primitive`. With an `op_rule` the compiler takes it as it is.
    `rules` are those of old code, which it does not need."""

    trainable: Callable[[Mapping[str, Any]], Mapping[str, int]]
    op_rule: OpRule | None
    rules: dict[str, Callable]

    def register_etp_rules(
        self,
        *,
        dt_to_t: Callable | None = None,
        xy_to_dw: Callable | None = None,
        init_drtrl: Callable | None = None,
        init_pp: Callable | None = None,
        fast_path: Any = None,
        pp_x_repr: Callable | None = None,
        snap_anchor: Callable | None = None,
        snap_adjacency: Callable | None = None,
    ) -> None:
        """Keep these rules. They are accepted for old code: what they would say is found in the op
        itself."""
        given = dict(
            dt_to_t=dt_to_t,
            xy_to_dw=xy_to_dw,
            init_drtrl=init_drtrl,
            init_pp=init_pp,
            fast_path=fast_path,
            pp_x_repr=pp_x_repr,
            snap_anchor=snap_anchor,
            snap_adjacency=snap_adjacency,
        )
        self.rules.update({k: v for k, v in given.items() if v is not None})

    def register_dt_to_t(self, fn: Callable) -> None:
        """Keep a rule of old code, see `register_etp_rules`."""
        self.register_etp_rules(dt_to_t=fn)

    def register_xy_to_dw(self, fn: Callable) -> None:
        """Keep a rule of old code, see `register_etp_rules`."""
        self.register_etp_rules(xy_to_dw=fn)

    def register_init_drtrl(self, fn: Callable) -> None:
        """Keep a rule of old code, see `register_etp_rules`."""
        self.register_etp_rules(init_drtrl=fn)

    def register_init_pp(self, fn: Callable) -> None:
        """Keep a rule of old code, see `register_etp_rules`."""
        self.register_etp_rules(init_pp=fn)


def _second_operand(params: Mapping[str, Any]) -> Mapping[str, int]:
    return {'weight': 1}


def register_primitive(
    name: str,
    impl_fn: Callable,
    *,
    batched: bool = False,
    gradient_enabled: bool = False,
    trainable_invars_fn: Callable[[Mapping[str, Any]], Mapping[str, int]] | None = None,
    x_invar_index: int = 0,
    y_outvar_index: int = 0,
    op_rule: OpRule | None = None,
) -> ETPPrimitive:
    """A primitive `p.bind(*operands, **params)` that computes `impl_fn(*operands, **params)`, with
    derivatives, batching and lowering derived from it.

    Args:
        name: of the primitive.
        impl_fn: the op in JAX.
        trainable_invars_fn: from the parameters to `{name: operand number}` of the weights;
            `{'weight': 1}` by default. With `trace='marked'` these are traced.
        op_rule: `(eqn, i, const) -> Op`, how the axes line up when operand `i` is a weight, or
            `NotImplemented`; `const(atom)` is the value of an operand that is known at compile
            time, or None. The op then stays closed. Without it the compiler looks inside.
        batched, gradient_enabled, x_invar_index, y_outvar_index: accepted for old code; the
            compiler sees for itself.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> scaled = braintrace.register_primitive('scaled', lambda x, w, *, by: by * (x @ w))
        >>> scaled.bind(jnp.ones(2), jnp.ones((2, 1)), by=3.)
        Array([6.], dtype=float32)
    """
    if not callable(impl_fn):
        raise TypeError(
            f'`impl_fn` must be a function of the operands, got {type(impl_fn).__name__}.'
        )
    primitive = ETPPrimitive(name, impl_fn)
    primitive.trainable = trainable_invars_fn or _second_operand
    primitive.op_rule = op_rule
    primitive.rules = {}
    return primitive
