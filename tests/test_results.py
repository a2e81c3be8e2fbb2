"""The page of published results: it says what was stored, and its programs run. Those of NEST's
tasks are in `rules/test_eprop.py`."""

import json
import pathlib

import matching
import results_page

ROOT = pathlib.Path(__file__).parent.parent


def test_the_page_says_what_was_found():
    figures = json.loads((ROOT / 'results' / 'figures.json').read_text())
    assert (ROOT / 'docs' / 'results.md').read_text() == results_page.text(figures)


def test_matching_learns():
    found = matching.learn(
        'd_rtrl', 5e-3, 0, units=24, delay=10, batch=16, updates=40, every=20, held_out=64
    )
    assert found['validation'][0] < 0.75 and found['test'] > 0.9, 'an untrained network guesses'
