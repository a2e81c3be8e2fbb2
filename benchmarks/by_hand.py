"""pp_prop for the one GRU with a read-out of `models.py`, written out in JAX with all gradients.

It is what a compiler for every model is to be measured by.
"""

import jax
import jax.numpy as jnp


def pp_prop(params, carry, xs, ys, decay=0.9):
    """Gradients of the mean squared error, and the carry.

    Args:
        params: weight `(K, N)` and bias `(N,)` of the update gate, the reset gate, the candidate
            and the read-out.
        carry: `(h, (ef of z, of h), (ex of z, of h), steps)`: the state and output traces
            `(batch, units)`, the input traces `(batch, inputs + units)`.
        xs, ys: inputs and targets, `(steps, batch, ...)`.
        decay: of the traces.
    """
    (Wz, bz), (Wr, br), (Wh, bh), (Wo, bo) = params
    h0, ef, ex, steps = carry
    T, n_in = len(xs), xs.shape[-1]
    sig = jax.nn.sigmoid

    def forward(h, x):
        xh = jnp.concatenate([x, h], -1)
        z, r = sig(xh @ Wz + bz), sig(xh @ Wr + br)
        c = jnp.tanh(jnp.concatenate([x, r * h], -1) @ Wh + bh)
        return (1 - z) * h + z * c, (h, z, r, c)

    end, (h, z, r, c) = jax.lax.scan(forward, h0, xs)
    new = (1 - z) * h + z * c
    error = (new @ Wo + bo - ys) * (2 / ys.size)
    dh = error @ Wo.T
    df_z, df_h, D = (c - h) * z * (1 - z), z * (1 - c * c), 1 - z
    dr = (dh * df_h @ Wh[n_in:].T) * h * r * (1 - r)

    def output_traces(old, now):
        D, *df = now
        return tuple(decay * D * e + (1 - decay) * f for e, f in zip(old, df, strict=True)), old

    ef, before = jax.lax.scan(output_traces, ef, (D, df_z, df_h))
    correction = (1 - decay ** (steps + 1.0 + jnp.arange(T)))[:, None, None]
    signals = tuple(
        dh * ((1 - decay) * f + decay * D * e) / correction
        for f, e in zip((df_z, df_h), before, strict=True)
    )

    def later(G, g):
        G = jax.tree.map(lambda a, b: a + decay * b, g, G)
        return G, G

    first, late = jax.lax.scan(later, jax.tree.map(jnp.zeros_like, ef), signals, reverse=True)

    xh, xrh = jnp.concatenate([xs, h], -1), jnp.concatenate([xs, r * h], -1)
    fade = decay ** jnp.arange(T - 1, -1, -1.0)
    gz, gh = (
        outer(x, G) + e.T @ (decay * G0)
        for x, G, e, G0 in zip((xh, xrh), late, ex, first, strict=True)
    )
    ex = tuple(decay**T * e + jnp.tensordot(fade, x, 1) for e, x in zip(ex, (xh, xrh), strict=True))
    grads = (
        (gz, total(signals[0])),
        (outer(xh, dr), total(dr)),
        (gh, total(signals[1])),
        (outer(new, error), total(error)),
    )
    return grads, (end, ef, ex, steps + T)


def outer(x, g):
    """The gradient `(K, N)` of a weight from its inputs `(t, b, K)` and signals `(t, b, N)`."""
    return jnp.einsum('tbi,tbo->io', x, g)


def total(g):
    """The gradient `(N,)` of a bias from its signals `(t, b, N)`."""
    return g.sum((0, 1))
