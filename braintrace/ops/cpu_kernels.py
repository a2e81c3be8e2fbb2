"""Kernels for the CPU, compiled by numba. Loaded only where numba is installed."""

import os

import numba
import numpy as np

# What was compiled is kept beside this file, if that place can be written to.
KEEP = os.access(os.path.dirname(__file__), os.W_OK)
FEW = 8  # spikes are few if less than one in so many


@numba.njit(fastmath=True, nogil=True, cache=KEEP)
def stored_sums(x, g, out, starts, sums):
    """`sums[l, p] = sum_k x[l % samples, k, i(p)] g[l, k, out[p]]`.

    x is `(samples, steps, inputs)`, g `(lead, steps, outputs)`, sums `(lead, stored)`. The weights
    of input i are those from `starts[i]` to `starts[i + 1]`.
    """
    samples, steps, inputs = x.shape
    sums[:] = 0
    for at in range(g.shape[0]):
        mine, total = x[at % samples], sums[at]
        if np.count_nonzero(mine) * FEW < mine.size:
            for k in range(steps):
                row = g[at, k]
                for i in range(inputs):
                    v = mine[k, i]
                    if v != 0:
                        for p in range(starts[i], starts[i + 1]):
                            total[p] += v * row[out[p]]
        else:
            rows, cols = mine.T.copy(), g[at].T.copy()
            for i in range(inputs):
                for p in range(starts[i], starts[i + 1]):
                    a, b = rows[i], cols[out[p]]
                    for k in range(steps):
                        total[p] += a[k] * b[k]
