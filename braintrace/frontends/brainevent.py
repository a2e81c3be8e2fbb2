"""Kernels of brainevent, and of ours that it lets XLA call."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import jax

from .._jax import JaxprEqn

_KERNELS = ('brainevent.',)  # how the compiled functions of libraries of kernels begin


def calls_library_kernel(eqn: JaxprEqn) -> bool:
    """Whether an equation calls a kernel that a library has written for some device."""
    found = eqn.primitive.name == 'jit' and eqn.params['name'].startswith(_KERNELS)
    if found:
        _wait_at_exit()
    return found


@functools.cache
def _wait_at_exit() -> None:
    """Let the process wait for what is in flight before it ends. Kernels that call back into
    Python want the interpreter, which would wait for them forever."""
    atexit.register(_wait)


def _wait() -> None:
    for a in jax.live_arrays():
        if not a.is_deleted():
            a.block_until_ready()


@functools.cache
def has_numba() -> bool:
    """Whether numba is there to compile a kernel for the CPU, and brainevent to let XLA call it."""
    return all(importlib.util.find_spec(name) is not None for name in ('numba', 'brainevent'))


def numba_call(kernel: Callable, outs: list[jax.ShapeDtypeStruct]) -> Callable[..., Any]:
    """A kernel `(*operands, *outs)` that numba has compiled, as a function of JAX that gives a
    sequence of arrays."""
    import brainevent

    _wait_at_exit()
    return brainevent.numba_kernel(kernel, outs=outs, vmap_method='sequential')


def numba_is_missing() -> bool:
    """Whether brainevent would choose numba here, its choice on a CPU, and it is not installed."""
    brainevent = sys.modules.get('brainevent')  # a global setting of it: no matrix carries it
    return (
        brainevent is not None
        and jax.default_backend() == 'cpu'
        and importlib.util.find_spec('numba') is None
        and brainevent.config.get_backend('cpu') is None
    )
