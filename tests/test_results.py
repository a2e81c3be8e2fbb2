"""The programs of the published results run. Those of NEST's tasks are in
`rules/test_eprop.py`."""

import matching


def test_matching_learns():
    found = matching.learn(
        'd_rtrl', 5e-3, 0, units=24, delay=10, batch=16, updates=40, every=20, held_out=64
    )
    assert found['validation'][0] < 0.75 and found['test'] > 0.9, 'an untrained network guesses'
