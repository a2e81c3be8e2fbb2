"""Kernels for the CPU, compiled by numba. Loaded only where numba is installed.

The weights of input i are those from `starts[i]` to `starts[i + 1]`; weight p adds to output
`out[p]`. Where few of the x are other than zero, only those are walked over: input by input and
some steps at a time, so that what is summed up stays near while g does not grow out of the cache.
"""

import os

import numba
import numpy as np

# What was compiled is kept beside this file, if that place can be written to.
KEEP = os.access(os.path.dirname(__file__), os.W_OK)
FEW = 8  # spikes are few if less than one in so many
NEAR = 1 << 20  # numbers of g that may be in use at a time
CHUNK = 1 << 12  # weights whose traces are in use at a time

compiled = numba.njit(fastmath=True, nogil=True, cache=KEEP)


@compiled
def _add_scaled(factor, e, out, sums):
    """Add `factor[out[p]] e[p]`."""
    for p in range(len(out)):
        sums[p] += factor[out[p]] * e[p]


@compiled
def _add(x, g, out, starts, sums):
    """Add `sum_k x[k, i(p)] g[k, out[p]]`, from x of `(steps, inputs)` and g of
    `(steps, outputs)`."""
    if np.count_nonzero(x) * FEW < x.size:
        _add_spikes(x, g, out, starts, sums)
    else:
        _add_values(x.T.copy(), g.T.copy(), out, starts, sums)


@compiled
def _add_spikes(x, g, out, starts, sums):
    steps, inputs = x.shape
    some = max(1, NEAR // max(1, g.shape[1]))
    for first in range(0, steps, some):
        for i in range(inputs):
            for k in range(first, min(first + some, steps)):
                v, row = x[k, i], g[k]
                if v != 0:
                    for p in range(starts[i], starts[i + 1]):
                        sums[p] += v * row[out[p]]


@compiled
def _add_values(x, g, out, starts, sums):
    """As `_add_spikes`, for any values, with the units first."""
    inputs, steps = x.shape
    for i in range(inputs):
        for p in range(starts[i], starts[i + 1]):
            row, total = g[out[p]], sums[p]
            for k in range(steps):
                total += x[i, k] * row[k]
            sums[p] = total


@compiled
def _add_spikes_to_three(x, g, out, starts, sums0, sums1, sums2):
    """`_add_spikes` for three sums, from g of `(steps, outputs, 3)`."""
    steps, inputs = x.shape
    some = max(1, NEAR // max(1, 3 * g.shape[1]))
    for first in range(0, steps, some):
        for i in range(inputs):
            for k in range(first, min(first + some, steps)):
                v, row = x[k, i], g[k]
                if v != 0:
                    for p in range(starts[i], starts[i + 1]):
                        o = out[p]
                        sums0[p] += v * row[o, 0]
                        sums1[p] += v * row[o, 1]
                        sums2[p] += v * row[o, 2]


@compiled
def stored_sums(x, g, out, starts, sums):
    """`sums[l, p] = sum_k x[l % samples, k, i(p)] g[l, k, out[p]]`.

    x is `(samples, steps, inputs)`, g `(lead, steps, outputs)`, sums `(lead, stored)`.
    """
    sums[:] = 0
    for at in range(g.shape[0]):
        _add(x[at % x.shape[0]], g[at], out, starts, sums[at])


@compiled
def renewed(x, g, factors, e, out, starts, gradient, new):
    """What credit gives with a trace and with the steps of a block, and the trace after it.

        gradient[p] = sum_s lam_s . e_s + sum_k x_k dy_k        new_s = Q_s e_s + sum_k x_k q_k

    x is `(samples, steps, inputs)`. g has dy and q beside each other, `(samples, 1 + states, steps,
    outputs)`; factors has lam and Q, `(samples, states + states * states, outputs)`; the traces e
    and new are `(states, samples, stored)`, the gradient `(stored,)`.
    """
    states = e.shape[0]
    gradient[:] = 0
    new[:] = 0
    for s in range(x.shape[0]):
        for first in range(0, len(out), CHUNK):
            some = slice(first, first + CHUNK)
            for b in range(states):
                _add_scaled(factors[s, b], e[b, s, some], out[some], gradient[some])
                for a in range(states):
                    Q = factors[s, states + a * states + b]
                    _add_scaled(Q, e[b, s, some], out[some], new[a, s, some])
        _add(x[s], g[s, 0], out, starts, gradient)
        for a in range(states):
            _add(x[s], g[s, 1 + a], out, starts, new[a, s])


@compiled
def renewed_two(x, g, factors, e, out, starts, gradient, new):
    """`renewed` for units of two states, as most neurons with synapses have. All that a weight
    needs of its unit lies beside each other: g is `(samples, steps, outputs, 3)`, factors
    `(samples, outputs, 6)`."""
    gradient[:] = 0
    for s in range(x.shape[0]):
        at, (e0, e1), (new0, new1) = factors[s], (e[0, s], e[1, s]), (new[0, s], new[1, s])
        for p in range(len(out)):
            o, a, b = out[p], e0[p], e1[p]
            gradient[p] += at[o, 0] * a + at[o, 1] * b
            new0[p] = at[o, 2] * a + at[o, 3] * b
            new1[p] = at[o, 4] * a + at[o, 5] * b
        if np.count_nonzero(x[s]) * FEW < x[s].size:
            _add_spikes_to_three(x[s], g[s], out, starts, gradient, new0, new1)
        else:
            by_input = x[s].T.copy()
            _add_values(by_input, g[s, :, :, 0].T.copy(), out, starts, gradient)
            _add_values(by_input, g[s, :, :, 1].T.copy(), out, starts, new0)
            _add_values(by_input, g[s, :, :, 2].T.copy(), out, starts, new1)
