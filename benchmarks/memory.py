"""The memory of this process, and what a report promises of it."""

import ctypes
import gc
import pathlib
import resource
import statistics

import jax


def promised_bytes(memory, steps, fresh=False):
    """What a report says that a gradient takes, for a block of so many steps: with the traces
    before and after it, or of a sequence that stands alone."""
    block = memory['block_bytes']
    rest = memory['peak_bytes'] - block
    if fresh:
        rest -= 2 * memory['trace_bytes']
        block = memory['alone_bytes'] - rest
    return rest + block * steps // memory['block_steps']


def of_arrays():
    """The memory of all arrays that are there now, in GB."""
    gc.collect()
    return sum(a.nbytes for a in jax.live_arrays()) / 1e9


def growth(run, times=1):
    """What the memory of this process grows by in a call of what is compiled already, in GB: the
    middle one of some calls."""
    return statistics.median(_growth(run) for _ in range(times))


def _growth(run):
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed before shall not serve unseen
    pathlib.Path('/proc/self/clear_refs').write_text('5')  # the peak is counted from here
    before = peak()
    jax.block_until_ready(run())
    return peak() - before


def peak():
    """The most memory that this process has had, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
