"""Published results at the size of a laptop: `run.py DOCS [PART ...]`.

Each part learns, and what it finds is kept in `figures.json`; the page and its pictures are made
from that. Without names all parts run.
"""

import json
import pathlib
import sys
import time

import charts
import jax
import numpy as np
import page

STORED = pathlib.Path(__file__).parent / 'figures.json'
SEEDS = 3


def matching():
    """Delayed match to sample: learning, and memory over the delay."""
    from matching import RULES, learn, temporary_bytes

    runs = {}
    for rule in RULES:
        tried = {rate: learn(rule, rate, 0) for rate in (3e-4, 1e-3)}
        rate = max(tried, key=lambda rate: np.mean(tried[rate].validation[-5:]))
        chosen = [tried[rate], *(learn(rule, rate, seed) for seed in range(1, SEEDS))]
        runs[rule] = {
            'rate': rate,
            'at': chosen[0].at.tolist(),
            'validation': [run.validation.tolist() for run in chosen],
            'test': [run.test for run in chosen],
            'spikes': chosen[0].spikes,
        }
    delays = [100, 200, 400, 800, 1600]
    memory = {rule: [temporary_bytes(rule, delay) for delay in delays] for rule in RULES}
    return {'runs': runs, 'delays': delays, 'memory': memory}


def nest():
    """NEST's two tasks, in float64."""
    import nest_tasks

    jax.config.update('jax_enable_x64', True)
    try:
        return {
            'pattern': [list(nest_tasks.PATTERN), nest_tasks.pattern_generation()],
            'evidence': [list(nest_tasks.EVIDENCE), nest_tasks.evidence_accumulation()],
        }
    finally:
        jax.config.update('jax_enable_x64', False)


def cosines():
    """Gradients of the rules on four networks."""
    from cosines import cosines

    found, rates = cosines(SEEDS)
    return {'cosines': found, 'rates': rates}


def adding():
    """The Add task and its floors."""
    from adding import CHUNK, RULES, TEST, VALIDATION, learn, loss_on

    runs = {}
    for rule in RULES:
        tried = {rate: learn(rule, rate, 0) for rate in (2e-3, 7e-3)}
        rate = min(tried, key=lambda rate: float(loss_on(tried[rate][1], VALIDATION)))
        chosen = [tried[rate], *(learn(rule, rate, seed) for seed in range(1, SEEDS))]
        runs[rule] = {
            'rate': rate,
            'losses': [losses.tolist() for losses, _ in chosen],
            'test': [float(loss_on(params, TEST)) for _, params in chosen],
        }
    return {'runs': runs, 'chunk': CHUNK}


PARTS = {'matching': matching, 'nest': nest, 'cosines': cosines, 'adding': adding}


def stored():
    """What was found until now."""
    return json.loads(STORED.read_text()) if STORED.exists() else {}


def main(docs, *names):
    docs = pathlib.Path(docs)
    for name in names or PARTS:
        print(f'{name} ...', file=sys.stderr, flush=True)
        start = time.perf_counter()
        found = PARTS[name]() | {'seconds': round(time.perf_counter() - start)}
        STORED.write_text(json.dumps(stored() | {name: found}, indent=1) + '\n')
    figures = stored()
    if set(figures) == set(PARTS):
        charts.draw(figures, docs / 'results')
        (docs / 'results.md').write_text(page.text(figures))


if __name__ == '__main__':
    main(*sys.argv[1:])
