"""The analysis on random programs: sound, and seldom too careful."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from inside import graph_of
from oracle import check_step, position_wise_pairs
from random_programs import OPS, PROGRAMS, build, example, lasting, programs


@lasting
@given(programs(2, 4))
def test_claims_hold_for_short_programs(code):
    check(code)


@lasting
@given(programs(5, 8))
def test_claims_hold_for_long_programs(code):
    check(code)


def check(code):
    return check_step(build(code), *example())


def test_position_wise_paths_are_seldom_called_mixed():
    """To call a path mixed is always sound, and loses its trace. Of 60 programs 16 % of the pairs
    that are position by position are called mixed: nearly all of them sums, means and products of a
    few elements of a state, which count as mixed however few they are, as a mean over all units
    does; the rest are maxima that only some points choose."""
    rng, points = np.random.RandomState(0), [jax.tree.leaves(example(seed)) for seed in range(8)]
    points = [jnp.stack(leaf) for leaf in zip(*points, strict=True)]
    there = overdeclared = 0
    for _ in range(max(50, PROGRAMS // 2)):
        draws = rng.randint(0, [len(OPS), 8, 8], (rng.randint(2, 7), 3))
        graph = graph_of(build(draws.tolist()), *example())
        pairs = position_wise_pairs(graph, points)
        there, overdeclared = there + pairs[0], overdeclared + pairs[1]
    assert there > 100 and overdeclared < 0.18 * there, (overdeclared, there)
