"""Kernels for the CPU, compiled by numba. Loaded only where numba is installed.

The weights of input i are those from `starts[i]` to `starts[i + 1]`; weight p adds to output
`out[p]`. Where few of the x are other than zero, only those are walked over: input by input and
some steps at a time, so that what is summed up stays near while g does not grow out of the cache.

Every kernel works on the weights of some inputs, from `first` to `last`. What is summed up for one
weight concerns no other, so with many weights each core has some of the inputs.
"""

import importlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np

# What was compiled is kept beside this file, if that place can be written to.
KEEP = os.access(os.path.dirname(__file__), os.W_OK)
FEW = 8  # spikes are few if less than one in so many
NEAR = 1 << 20  # numbers of g that may be in use at a time
CHUNK = 1 << 12  # weights whose traces are in use at a time
MANY = 1 << 19  # weights from which on more than one core is worth it
PARTS = 8  # of the inputs, and so many cores at most

compiled = numba.njit(fastmath=True, nogil=True, cache=KEEP)
on_all_cores = numba.njit(fastmath=True, nogil=True, cache=KEEP, parallel=True)


def _threads_can_be_shared() -> bool:
    """Whether kernels that run at the same time may all use threads: those that numba itself brings
    end the process then."""
    if numba.config.THREADING_LAYER == 'workqueue':
        return False
    for pool in ('tbbpool', 'omppool'):
        try:
            importlib.import_module(f'numba.np.ufunc.{pool}')
        except ImportError:
            continue
        return True
    return False


class Kernel(NamedTuple):
    """A kernel for one core, the same for all of them, and what both do for some inputs."""

    one_core: Callable
    all_cores: Callable
    some_inputs: Callable

    def for_weights(self, stored: int) -> Any:
        """The one that is faster for so many weights."""
        worth_it = stored >= MANY and numba.get_num_threads() > 1
        return self.all_cores if worth_it and _threads_can_be_shared() else self.one_core


@compiled
def inputs_of(part, starts):
    """The first input of a part, and the first of the next: all parts have about as many
    weights."""
    stored = np.int64(starts[-1])
    first = np.searchsorted(starts, stored * part // PARTS)
    return first, np.searchsorted(starts, stored * (part + 1) // PARTS)


@compiled
def _add_scaled(factor, e, out, sums):
    """Add `factor[out[p]] e[p]`."""
    for p in range(len(out)):
        sums[p] += factor[out[p]] * e[p]


@compiled
def _are_few(x, first, last):
    """Whether few of the x of these inputs are other than zero."""
    count = 0
    for k in range(x.shape[0]):
        for i in range(first, last):
            count += x[k, i] != 0
    return count * FEW < x.shape[0] * (last - first)


@compiled
def _add(x, g, out, starts, sums, first, last):
    """Add `sum_k x[k, i(p)] g[k, out[p]]`, from x of `(steps, inputs)` and g of
    `(steps, outputs)`."""
    if _are_few(x, first, last):
        _add_spikes(x, g, out, starts, sums, first, last)
    else:
        _add_values(x[:, first:last].T.copy(), g.T.copy(), out, starts[first:], sums)


@compiled
def _add_spikes(x, g, out, starts, sums, first, last):
    steps = x.shape[0]
    some = max(1, NEAR // max(1, g.shape[1]))
    for begin in range(0, steps, some):
        for i in range(first, last):
            for k in range(begin, min(begin + some, steps)):
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
def _add_spikes_to_three(x, g, out, starts, sums0, sums1, sums2, first, last):
    """`_add_spikes` for three sums, from g of `(steps, outputs, 3)`."""
    steps = x.shape[0]
    some = max(1, NEAR // max(1, 3 * g.shape[1]))
    for begin in range(0, steps, some):
        for i in range(first, last):
            for k in range(begin, min(begin + some, steps)):
                v, row = x[k, i], g[k]
                if v != 0:
                    for p in range(starts[i], starts[i + 1]):
                        o = out[p]
                        sums0[p] += v * row[o, 0]
                        sums1[p] += v * row[o, 1]
                        sums2[p] += v * row[o, 2]


@compiled
def _let_sums_be(x, g, out, starts, sums, first, last):
    """`sums[p] = sum_k x[k, i(p)] g[k, out[p]]`, for few steps, or none, of any values."""
    sums[starts[first] : starts[last]] = 0
    for k in range(x.shape[0]):
        row = g[k]
        for i in range(first, last):
            v = x[k, i]
            for p in range(starts[i], starts[i + 1]):
                sums[p] += v * row[out[p]]


# ---- sums ----------------------------------------------------------------------------------------


@compiled
def _sums_of(x, g, x_before, g_before, out, starts, sums, first, last):
    for at in range(g.shape[0]):
        s = at % x.shape[0]
        _let_sums_be(x_before[s], g_before[at], out, starts, sums[at], first, last)
        _add(x[s], g[at], out, starts, sums[at], first, last)


@compiled
def _sums(x, g, x_before, g_before, out, starts, sums):
    """`sums[l, p] = sum_k x[l % samples, k, i(p)] g[l, k, out[p]]`, over all steps and those before
    them.

    x is `(samples, steps, inputs)`, g `(lead, steps, outputs)`, sums `(lead, stored)`.
    """
    _sums_of(x, g, x_before, g_before, out, starts, sums, 0, len(starts) - 1)


@on_all_cores
def _sums_on_all_cores(x, g, x_before, g_before, out, starts, sums):
    for part in numba.prange(PARTS):
        first, last = inputs_of(np.int64(part), starts)
        _sums_of(x, g, x_before, g_before, out, starts, sums, first, last)


stored_sums = Kernel(_sums, _sums_on_all_cores, _sums_of)


# ---- a block with traces -------------------------------------------------------------------------


@compiled
def _renewed_of(x, g, factors, e, out, starts, gradient, new, first, last):
    states, begin, end = e.shape[0], starts[first], starts[last]
    gradient[begin:end] = 0
    new[:, :, begin:end] = 0
    for s in range(x.shape[0]):
        for at in range(begin, end, CHUNK):
            some = slice(at, min(at + CHUNK, end))
            for b in range(states):
                _add_scaled(factors[s, b], e[b, s, some], out[some], gradient[some])
                for a in range(states):
                    Q = factors[s, states + a * states + b]
                    _add_scaled(Q, e[b, s, some], out[some], new[a, s, some])
        _add(x[s], g[s, 0], out, starts, gradient, first, last)
        for a in range(states):
            _add(x[s], g[s, 1 + a], out, starts, new[a, s], first, last)


@compiled
def _renewed(x, g, factors, e, out, starts, gradient, new):
    """What credit gives with a trace and with the steps of a block, and the trace after it.

        gradient[p] = sum_s lam_s . e_s + sum_k x_k dy_k        new_s = Q_s e_s + sum_k x_k q_k

    x is `(samples, steps, inputs)`. g has dy and q beside each other, `(samples, 1 + states, steps,
    outputs)`; factors has lam and Q, `(samples, states + states * states, outputs)`; the traces e
    and new are `(states, samples, stored)`, the gradient `(stored,)`.
    """
    _renewed_of(x, g, factors, e, out, starts, gradient, new, 0, len(starts) - 1)


@on_all_cores
def _renewed_on_all_cores(x, g, factors, e, out, starts, gradient, new):
    for part in numba.prange(PARTS):
        first, last = inputs_of(np.int64(part), starts)
        _renewed_of(x, g, factors, e, out, starts, gradient, new, first, last)


renewed = Kernel(_renewed, _renewed_on_all_cores, _renewed_of)


@compiled
def _renewed_two_of(x, g, factors, e, out, starts, gradient, new, first, last):
    gradient[starts[first] : starts[last]] = 0
    for s in range(x.shape[0]):
        at, (e0, e1), (new0, new1) = factors[s], (e[0, s], e[1, s]), (new[0, s], new[1, s])
        for p in range(starts[first], starts[last]):
            o, a, b = out[p], e0[p], e1[p]
            gradient[p] += at[o, 0] * a + at[o, 1] * b
            new0[p] = at[o, 2] * a + at[o, 3] * b
            new1[p] = at[o, 4] * a + at[o, 5] * b
        if _are_few(x[s], first, last):
            _add_spikes_to_three(x[s], g[s], out, starts, gradient, new0, new1, first, last)
        else:
            by_input, begins = x[s][:, first:last].T.copy(), starts[first:]
            _add_values(by_input, g[s, :, :, 0].T.copy(), out, begins, gradient)
            _add_values(by_input, g[s, :, :, 1].T.copy(), out, begins, new0)
            _add_values(by_input, g[s, :, :, 2].T.copy(), out, begins, new1)


@compiled
def _renewed_two(x, g, factors, e, out, starts, gradient, new):
    """As `_renewed` for units of two states, as most neurons with synapses have. All that a weight
    needs of its unit lies beside each other: g is `(samples, steps, outputs, 3)`, factors
    `(samples, outputs, 6)`."""
    _renewed_two_of(x, g, factors, e, out, starts, gradient, new, 0, len(starts) - 1)


@on_all_cores
def _renewed_two_on_all_cores(x, g, factors, e, out, starts, gradient, new):
    for part in numba.prange(PARTS):
        first, last = inputs_of(np.int64(part), starts)
        _renewed_two_of(x, g, factors, e, out, starts, gradient, new, first, last)


renewed_two = Kernel(_renewed_two, _renewed_two_on_all_cores, _renewed_two_of)
