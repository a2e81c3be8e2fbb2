"""Recurrent cells: one step from the input and the old state to the new state.

In the equations [x, h] is a concatenation, s the logistic function, f the activation, and W(...) a
linear layer with a bias. Inputs are `(..., in_size)`, states and outputs `(..., out_size)`. All
cells take `in_size`, `out_size`, and most of: `w_init`, `b_init` and `state_init`, values or
functions of a shape (weights start orthogonal, those of LSTM-like cells and `ValinaRNNCell`
Xavier-normal); `activation`, a function or the name of one in `brainstate.nn`; `name`; and
`param_type`, the class of the parameters.

    >>> import brainstate, jax.numpy as jnp, braintrace
    >>> cell = brainstate.nn.init_all_states(braintrace.nn.GRUCell(3, 4), batch_size=2)
    >>> cell(jnp.ones((2, 3))).shape
    (2, 4)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import brainstate
import jax.numpy as jnp
from brainstate.nn import sigmoid

from ..ops.functions import element_wise
from .initial import WithStates, check_sizes, orthogonal, xavier_normal
from .linear import ZERO, Linear


class Cell(WithStates, brainstate.nn.RNNCell):  # type: ignore[misc]
    """What the cells share: their linear layers, their states, and checks of what enters."""

    weights: dict[str, str] = {}  # the linear layers, and what each reads
    gates: ClassVar[int] = 1  # that each layer gives
    memory: ClassVar[tuple[str, ...]] = ('h',)  # the hidden states
    usual: ClassVar[Callable] = orthogonal  # initial weights

    def __init__(
        self,
        in_size: Any,
        out_size: Any,
        w_init: Any = None,
        b_init: Any = ZERO,
        state_init: Any = ZERO,
        activation: Any = 'tanh',
        name: str | None = None,
        param_type: type = brainstate.ParamState,
    ):
        super().__init__(name=name)
        check_sizes(self, in_size=in_size, out_size=out_size)
        self.in_size, self.out_size = in_size, out_size
        self.activation = self._function('activation', activation)
        self._initial = dict.fromkeys(self.memory, state_init)
        size = {'x': self.in_size[-1], 'h': self.out_size[-1]}
        w_init = gate_by_gate(type(self).usual if w_init is None else w_init, self.gates)
        for key, reads in self.weights.items():
            inputs = sum(size[what] for what in reads)
            outputs = self.gates * size['h']
            layer = Linear(inputs, outputs, w_init, b_init, param_type=param_type)
            setattr(self, key, layer)

    def _function(self, key: str, given: Any) -> Callable:
        """The function that was given, or the one of this name in `brainstate.nn`."""
        named = isinstance(given, str)
        function = getattr(brainstate.nn, given, None) if named else given
        if not callable(function):
            raise (ValueError if named else TypeError)(
                f'`{type(self).__name__}`: `{key}` must be a function or the name of one in '
                f'`brainstate.nn`, got {given!r}.'
            )
        return function

    def _with(self, x: Any, h: Any) -> Any:
        """[x, h], of shape `(..., in_size + out_size)`."""
        self._check(x, h)
        return jnp.concatenate([x, h], -1)

    def _check(self, x: Any, h: Any) -> None:
        """Refuse an input that does not fit the state."""
        if x.shape[:-1] != h.shape[:-1] or x.shape[-1] != self.in_size[-1]:
            raise ValueError(
                f'`{type(self).__name__}`: the input, of shape {x.shape}, must fit '
                f'in_size={self.in_size} and the state, of shape {h.shape}. Make the states with '
                '`brainstate.nn.init_all_states(model, batch_size=...)`.'
            )


def gate_by_gate(w_init: Any, gates: int) -> Any:
    """An initialiser that draws the weights `(K, N)` of each gate alone and sets them side by side.

    A value, which is no function of a shape, stays as it is.
    """
    if gates == 1 or not callable(w_init):
        return w_init

    def draw(shape: tuple[int, int]) -> Any:
        inputs, outputs = shape
        return jnp.concatenate([w_init((inputs, outputs // gates)) for _ in range(gates)], -1)

    return draw


class ValinaRNNCell(Cell):
    """`h = f(W[x, h])`, by default with f = relu."""

    weights = {'W': 'xh'}
    usual = xavier_normal

    def __init__(
        self,
        in_size: Any,
        out_size: Any,
        state_init: Any = ZERO,
        w_init: Any = None,
        b_init: Any = ZERO,
        activation: Any = 'relu',
        name: str | None = None,
        param_type: type = brainstate.ParamState,
    ):
        super().__init__(
            in_size, out_size, w_init, b_init, state_init, activation, name, param_type
        )

    def update(self, x: Any) -> Any:
        self.h.value = self.activation(self.W(self._with(x, self.h.value)))
        return self.h.value


class GRUCell(Cell):
    """`z = s(Wz[x, h]), r = s(Wr[x, h]), h = (1 - z) h + z f(Wh[x, r h])`."""

    weights = {'Wz': 'xh', 'Wr': 'xh', 'Wh': 'xh'}

    def update(self, x: Any) -> Any:
        h = self.h.value
        xh = self._with(x, h)
        z, r = sigmoid(self.Wz(xh)), sigmoid(self.Wr(xh))
        self.h.value = (1 - z) * h + z * self.activation(self.Wh(self._with(x, r * h)))
        return self.h.value


class CFNCell(Cell):
    """`h = s(Wf[x, h]) f(h) + s(Wi[x, h]) f(Wh x)`."""

    weights = {'Wf': 'xh', 'Wi': 'xh', 'Wh': 'x'}

    def update(self, x: Any) -> Any:
        h, f = self.h.value, self.activation
        xh = self._with(x, h)
        self.h.value = sigmoid(self.Wf(xh)) * f(h) + sigmoid(self.Wi(xh)) * f(self.Wh(x))
        return self.h.value


class MGUCell(Cell):
    """`z = s(Wf[x, h]), h = (1 - z) h + z f(Wh[x, z h])`."""

    weights = {'Wf': 'xh', 'Wh': 'xh'}

    def update(self, x: Any) -> Any:
        h = self.h.value
        z = sigmoid(self.Wf(self._with(x, h)))
        self.h.value = (1 - z) * h + z * self.activation(self.Wh(self._with(x, z * h)))
        return self.h.value


class LSTMCell(Cell):
    """`c = s(Wf[x, h] + 1) c + s(Wi[x, h]) f(Wg[x, h]), h = s(Wo[x, h]) f(c)`."""

    weights = {'Wi': 'xh', 'Wg': 'xh', 'Wf': 'xh', 'Wo': 'xh'}
    memory = ('c', 'h')
    usual = xavier_normal

    def update(self, x: Any) -> Any:
        xh = self._with(x, self.h.value)
        return self._next(self.Wi(xh), self.Wg(xh), self.Wf(xh), self.Wo(xh))

    def _next(self, i: Any, g: Any, f: Any, o: Any) -> Any:
        self.c.value = sigmoid(f + 1) * self.c.value + sigmoid(i) * self.activation(g)
        self.h.value = sigmoid(o) * self.activation(self.c.value)
        return self.h.value


class URLSTMCell(Cell):
    """`c = g c + (1 - g) f(Wu[x, h]), h = s(Wo[x, h]) f(c)`, with a forget gate g that is refined.

    `g = 2 r p + (1 - 2 r) p^2` with `p = s(Wf[x, h] + bias), r = s(Wr[x, h] - bias)`.
    """

    weights = {'Wu': 'xh', 'Wf': 'xh', 'Wr': 'xh', 'Wo': 'xh'}
    memory = ('c', 'h')
    usual = xavier_normal

    def __init__(
        self,
        in_size: Any,
        out_size: Any,
        w_init: Any = None,
        state_init: Any = ZERO,
        activation: Any = 'tanh',
        name: str | None = None,
        param_type: type = brainstate.ParamState,
    ):
        super().__init__(in_size, out_size, w_init, None, state_init, activation, name, param_type)
        n = self.out_size[-1]
        p = brainstate.random.uniform(1 / n, 1 - 1 / n, (n,))
        self.bias = param_type(-jnp.log(1 / p - 1))

    def update(self, x: Any) -> Any:
        xh = self._with(x, self.h.value)
        p = sigmoid(self.Wf(xh) + element_wise(self.bias.value))
        r = sigmoid(self.Wr(xh) - element_wise(self.bias.value))
        g = 2 * r * p + (1 - 2 * r) * p**2
        self.c.value = g * self.c.value + (1 - g) * self.activation(self.Wu(xh))
        self.h.value = sigmoid(self.Wo(xh)) * self.activation(self.c.value)
        return self.h.value


class MinimalRNNCell(Cell):
    """`z = phi(x), u = s(W_u[z, h]), h = u h + (1 - u) z`.

    phi is a linear layer if no other function is given.
    """

    weights = {'phi': 'x', 'W_u': 'hh'}

    def __init__(
        self,
        in_size: Any,
        out_size: Any,
        w_init: Any = None,
        b_init: Any = ZERO,
        state_init: Any = ZERO,
        phi: Callable | None = None,
        name: str | None = None,
        param_type: type = brainstate.ParamState,
    ):
        if phi is not None:
            self.weights = {'W_u': 'hh'}
            self.phi = self._function('phi', phi)
        super().__init__(
            in_size, out_size, w_init, b_init, state_init, name=name, param_type=param_type
        )

    def update(self, x: Any) -> Any:
        z, h = self.phi(x), self.h.value
        if z.shape != h.shape:
            raise ValueError(
                f'`MinimalRNNCell`: `phi` of the input, of shape {z.shape}, must be like the '
                f'state, of shape {h.shape}.'
            )
        u = sigmoid(self.W_u(jnp.concatenate([z, h], -1)))
        self.h.value = u * h + (1 - u) * z
        return self.h.value


class _Mini(Cell):
    """A cell without an activation."""

    def __init__(
        self,
        in_size: Any,
        out_size: Any,
        w_init: Any = None,
        b_init: Any = ZERO,
        state_init: Any = ZERO,
        name: str | None = None,
        param_type: type = brainstate.ParamState,
    ):
        super().__init__(
            in_size, out_size, w_init, b_init, state_init, name=name, param_type=param_type
        )


class MiniGRU(_Mini):
    """`z = s(W_z[x, h]), h = (1 - z) h + z W_x x`."""

    weights = {'W_x': 'x', 'W_z': 'xh'}

    def update(self, x: Any) -> Any:
        h = self.h.value
        z = sigmoid(self.W_z(self._with(x, h)))
        self.h.value = (1 - z) * h + z * self.W_x(x)
        return self.h.value


class MiniLSTM(_Mini):
    """`h = s(W_f[x, h]) h + s(W_i[x, h]) W_x x`."""

    weights = {'W_x': 'x', 'W_f': 'xh', 'W_i': 'xh'}

    def update(self, x: Any) -> Any:
        h = self.h.value
        xh = self._with(x, h)
        self.h.value = sigmoid(self.W_f(xh)) * h + sigmoid(self.W_i(xh)) * self.W_x(x)
        return self.h.value


class FusedGRUCell(Cell):
    """`z = s(az + bz), r = s(ar + br), h = (1 - z) h + z f(an + r bn)`.

    `(az, ar, an) = W_x x` and `(bz, br, bn) = W_h h`: the reset gate acts after the product, so
    that there is one product of x and one of h in a step.
    """

    weights = {'W_x': 'x', 'W_h': 'h'}
    gates = 3

    def update(self, x: Any) -> Any:
        h = self.h.value
        self._check(x, h)
        az, ar, an = jnp.split(self.W_x(x), 3, -1)
        bz, br, bn = jnp.split(self.W_h(h), 3, -1)
        z = sigmoid(az + bz)
        self.h.value = (1 - z) * h + z * self.activation(an + sigmoid(ar + br) * bn)
        return self.h.value


class FusedLSTMCell(LSTMCell):
    """The equations of `LSTMCell` with one product, `(i, g, f, o) = W[x, h]`."""

    weights = {'W': 'xh'}
    gates = 4

    def update(self, x: Any) -> Any:
        return self._next(*jnp.split(self.W(self._with(x, self.h.value)), 4, -1))
