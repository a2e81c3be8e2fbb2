"""Published results at the size of a laptop: `run.py DOCS [PART ...]`.

Each part learns, and what it finds is stored in `figures.json`; the page and its pictures are made
from that. Without names all parts run. A run that was stopped goes on where it was: what one piece
of a part found is kept in `.kept` until the part is done.
"""

import json
import pathlib
import shutil
import sys

import jax
import numpy as np
import results_charts
import results_page

HERE = pathlib.Path(__file__).parent
STORED, KEPT = HERE / 'figures.json', HERE / '.kept'
SEEDS = 3


def piece(part, function, *args):
    """What `function(*args)` finds, computed once."""
    file = KEPT / part / f'{"-".join(map(str, (function.__name__, *args)))}.json'
    if not file.exists():
        found = function(*args)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found))
    return json.loads(file.read_text())


def matching():
    """Delayed match to sample: learning, and memory over the delay."""
    from matching import RULES, learn, temporary_bytes

    def run(rule, rate, seed):
        return piece('matching', learn, rule, rate, seed)

    runs = {}
    for rule in RULES:
        tried = {rate: run(rule, rate, 0) for rate in (3e-4, 1e-3)}
        rate = max(tried, key=lambda rate: np.mean(tried[rate]['validation'][-5:]))
        chosen = [tried[rate], *(run(rule, rate, seed) for seed in range(1, SEEDS))]
        runs[rule] = {
            'rate': rate,
            'at': chosen[0]['at'],
            **{name: [run[name] for run in chosen] for name in ('validation', 'test', 'spikes')},
        }
    delays = [100, 200, 400, 800, 1600]
    memory = {
        rule: [piece('matching', temporary_bytes, rule, delay) for delay in delays]
        for rule in RULES
    }
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
    from cosines import NETWORKS, RULES, cosine_with_bptt, firing_rate

    def over_seeds(function, *args):
        return [piece('cosines', function, *args, seed) for seed in range(SEEDS)]

    return {
        'cosines': {
            network: {rule: over_seeds(cosine_with_bptt, network, rule) for rule in RULES}
            for network in NETWORKS
        },
        'rates': {network: np.mean(over_seeds(firing_rate, network)) for network in NETWORKS},
    }


def adding():
    """The Add task and its floors."""
    from adding import CHUNK, RULES, learn

    def run(rule, rate, seed):
        return piece('adding', learn, rule, rate, seed)

    runs = {}
    for rule in RULES:
        tried = {rate: run(rule, rate, 0) for rate in (2e-3, 7e-3)}
        rate = min(tried, key=lambda rate: tried[rate]['validation'])
        chosen = [tried[rate], *(run(rule, rate, seed) for seed in range(1, SEEDS))]
        runs[rule] = {
            'rate': rate,
            **{name: [run[name] for run in chosen] for name in ('losses', 'test')},
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
        found = PARTS[name]()
        STORED.write_text(json.dumps(stored() | {name: found}, indent=1) + '\n')
        shutil.rmtree(KEPT / name, ignore_errors=True)
    results_charts.draw(stored(), docs / 'results')
    (docs / 'results.md').write_text(results_page.text(stored()))


if __name__ == '__main__':
    main(*sys.argv[1:])
