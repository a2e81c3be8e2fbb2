"""Sparse matrices of saiunit: their products are ordinary operations of JAX."""

from __future__ import annotations

from typing import Any

import saiunit

from .._jax import JaxprEqn


def calls_kernel(eqn: JaxprEqn) -> bool:
    """Whether an equation calls a kernel of the library: it has none."""
    return False


def by_columns(matrix: Any) -> bool:
    """Whether this is a matrix of the library in which columns are compressed, not rows."""
    return isinstance(matrix, saiunit.sparse.CSC)


def runnable(matrix: Any) -> Any:
    """A matrix as it is: no kernels, none that could be missing."""
    return matrix
