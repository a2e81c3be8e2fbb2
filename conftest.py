"""Tests run in float64, the oracle's precision; doctests as a user would run them."""

import brainstate
import jax
import pytest
from _pytest.doctest import DoctestItem

jax.config.update('jax_disable_most_optimizations', True)  # tiny nets: compiling is what takes time
brainstate.environ.set(precision=64)  # for the arrays that test modules make when they are imported


@pytest.fixture(autouse=True)
def _precision(request):
    brainstate.environ.set(precision=32 if isinstance(request.node, DoctestItem) else 64)
