"""What a window pulls back."""

from hypothesis import given, settings
from oracle import check_factors, check_step
from random_programs import PROGRAMS, build, example, lasting, programs


@settings(lasting, max_examples=max(1, PROGRAMS // 10))
@given(programs(3, 5))
def test_factors_are_true(code):
    check_factors(check_step(build(code), *example()), *example())
