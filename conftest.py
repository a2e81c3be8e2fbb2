"""Tests run in float64, the oracle's precision; doctests as a user would run them."""

import gc
import os
import pathlib
from importlib.metadata import version

# Nets are tiny: compiling is what takes the time, and these halve it.
if (
    (0, 8) <= tuple(map(int, version('jax').split('.')[:2])) <= (0, 10)
):  # others may not know the flag
    os.environ['XLA_FLAGS'] = (
        os.environ.get('XLA_FLAGS', '')
        + ' --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1'
    )

os.environ['JAX_DISABLE_MOST_OPTIMIZATIONS'] = '1'  # in processes that tests start, too

import brainstate
import jax
import pytest
from _pytest.doctest import DoctestItem
from told import LOST

import braintrace.shells.algorithms  # noqa: F401, it fills LEARNERS
from braintrace.rules.registry import BY_NAME, LEARNERS

jax.config.update('jax_disable_most_optimizations', True)
jax.config.update('jax_traceback_in_locations_limit', 0)
TESTS = pathlib.Path(__file__).parent / 'tests'
gc.freeze()  # what was imported stays
gc.set_threshold(100_000, 50, 10)
brainstate.environ.set(precision=64)  # for the arrays that test modules make when they are imported


def pytest_ignore_collect(collection_path):
    """What tests share has no tests and no examples; it is imported where it is used."""
    shared = collection_path.suffix == '.py' and not collection_path.name.startswith('test_')
    return True if shared and TESTS in collection_path.parents else None


def pytest_collection_modifyitems(items):
    """A page may show a model of which a part is not traced: whoever runs it sees a warning. Long
    tests begin first, so that workers end together."""
    for item in items:
        if isinstance(item, DoctestItem):
            item.add_marker(LOST)
    items.sort(key=lambda item: item.get_closest_marker('long') is None)


@pytest.fixture(autouse=True)
def _rules():
    """What a test registers is forgotten after it."""
    kept = [(table, dict(table)) for table in (BY_NAME, LEARNERS)]
    yield
    for table, before in kept:
        table.clear()
        table.update(before)


@pytest.fixture(autouse=True)
def _precision(request):
    brainstate.environ.set(precision=32 if isinstance(request.node, DoctestItem) else 64)
