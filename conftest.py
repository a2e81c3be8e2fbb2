"""Tests run in float64, the oracle's precision; doctests as a user would run them."""

import brainstate
import pytest
from _pytest.doctest import DoctestItem

brainstate.environ.set(precision=64)  # for the arrays that test modules make when they are imported


@pytest.fixture(autouse=True)
def _precision(request):
    brainstate.environ.set(precision=32 if isinstance(request.node, DoctestItem) else 64)
