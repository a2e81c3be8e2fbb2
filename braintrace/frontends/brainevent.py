"""Matrices and kernels of brainevent, and kernels of ours that it lets XLA call."""

from __future__ import annotations

import atexit
import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import jax

from .._jax import JaxprEqn

_KERNELS = 'brainevent.'  # how the names of its compiled functions begin


def calls_kernel(eqn: JaxprEqn) -> bool:
    """Whether an equation calls a kernel of the library. From then on the process waits for what is
    in flight before it ends."""
    its_own = eqn.primitive.name == 'jit' and eqn.params['name'].startswith(_KERNELS)
    if its_own:
        _wait_at_exit()
    return its_own


@functools.cache
def _wait_at_exit() -> None:
    """Let the process wait for what is in flight before it ends. Kernels that call back into
    Python want the interpreter, which would wait for them forever."""
    atexit.register(_wait)


def _wait() -> None:
    for a in jax.live_arrays():
        if not a.is_deleted():
            a.block_until_ready()


def numba_call(kernel: Callable, outs: list[jax.ShapeDtypeStruct]) -> Callable[..., Any]:
    """A kernel `(*operands, *outs)` that numba has compiled, as a function of JAX that gives a
    sequence of arrays."""
    import brainevent

    _wait_at_exit()
    return brainevent.numba_kernel(kernel, outs=outs, vmap_method='sequential')


def by_columns(matrix: Any) -> bool:
    """Whether this is a matrix of the library in which columns are compressed, not rows."""
    import brainevent

    return isinstance(matrix, brainevent.CSC)


def runnable(matrix: Any) -> Any:
    """A matrix, with kernels in plain JAX where those of its choice need what is not installed."""
    if getattr(matrix, 'backend', '') is None and _numba_is_missing():
        matrix.backend = _PLAIN
    return matrix


def choose_plain_kernels() -> None:
    """Let kernels run in plain JAX instead of not at all, where nobody has chosen others."""
    import brainevent

    if _numba_is_missing():
        brainevent.config.set_backend('cpu', _PLAIN)


_PLAIN = 'jax_raw'


def _numba_is_missing() -> bool:
    """Whether the library would choose numba, as on a CPU unless its global setting says otherwise,
    and it is not installed."""
    import brainevent

    return (
        jax.default_backend() == 'cpu'
        and importlib.util.find_spec('numba') is None
        and brainevent.config.get_backend('cpu') is None
    )
