"""An op that the compiler cannot look into, and its op rule.

It is a circulant layer by fast Fourier transforms.
"""

import jax.numpy as jnp

import braintrace
from braintrace.ops import Axes, Op


def by_fft(x, w):
    """`y[b, j] = sum_k x[b, j - k] w[k]`, indices modulo n."""
    return jnp.fft.irfft(jnp.fft.rfft(x) * jnp.fft.rfft(w), x.shape[-1])


def rule(eqn, i, const):
    """How the axes of x `(b, j)`, w `(k,)` and y `(b, j)` line up if operand `i` is the weight."""
    if i != 1:
        return NotImplemented  # only the second operand may be the weight
    n = eqn.invars[1].aval.shape[0]
    shifted = (jnp.arange(n)[:, None] - jnp.arange(n)) % n  # [j, k] -> j - k
    return Op(
        Axes(x='bjk', w='k', y='bj'),
        w_shape=(n,),
        x=lambda values: values[0],
        line_up_x=lambda x: x[:, shifted],
    )


circulant = braintrace.register_primitive('circulant', by_fft, op_rule=rule).bind
