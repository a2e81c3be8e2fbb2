"""What the compiler is expected to tell about a model; any other warning fails a test."""

import pytest


def expected(*messages):
    """Marks a test, or a file of tests, in which the compiler says no more than this."""
    marks = [pytest.mark.filterwarnings(f'ignore:.*{message}') for message in messages]
    return marks[0] if len(marks) == 1 else marks
