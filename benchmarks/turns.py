"""One case in a process that waits for its turn: `turns.py ours | reference CASE`.

For each line it reads it runs the case for a while, and it answers with milliseconds: of the first
call of a new learner for `first`, of the fastest call otherwise. `in_turns.py` holds two of these.
"""

import sys
from functools import partial

import jax
from lockstep import fastest, milliseconds
from own_loops import LOOPS, own_loop
from rules import BEYOND, HEAVY, RULES, SIZES, bptt, grad_of
from streams import own_streamed, streamed
from worker import CASES, OURS, driver

LARGEST = SIZES[-1]


def by_driver(cell, rule, shape, options, same_work=False):
    return lambda: driver(cell, rule, shape, options, same_work)[1]


def by_rule(cell, rule, shape):
    def make():
        _, run = grad_of(cell, rule, {**RULES, **BEYOND}[rule], shape)
        return lambda: jax.tree.leaves(run())

    return make


def by_bptt(cell, shape):
    def make():
        run = bptt(cell, shape)
        return lambda: jax.tree.leaves(run())

    return make


def in_own_loop(cell, rule, shape, same_work=False):
    return lambda: own_loop(cell, rule, shape, same_work)


def named(cell, rule, shape):
    return f'{rule}, {cell} {"-".join(map(str, shape))}'


EVERY_RULE = [
    (cell, rule, shape)
    for cell in ('gru', 'lstm', 'lif', 'alif')
    for shape in SIZES
    for rule in {**RULES, **BEYOND}
    if not (rule in HEAVY and shape == LARGEST)
]
# By name, what makes a learner and gives its run.
ALL = {
    **{
        f'{name}, {cell} {shape}': by_driver(cell, r, shape, o) for name, cell, r, shape, o in CASES
    },
    **{
        f'{name}, same work, {cell} {shape}': by_driver(cell, r, shape, o, same_work=True)
        for name, cell, r, shape, o in CASES
        if not o
    },
    **{f'one gradient: {named(*c)}': by_rule(*c) for c in EVERY_RULE},
    **{f'own loop: {named(*c)}': in_own_loop(*c) for c in LOOPS},
    **{f'own loop, same work: {named(*c)}': in_own_loop(*c, same_work=True) for c in LOOPS},
    'stream in brainstate jit': partial(streamed, 200),
    'etrace_stream': partial(own_streamed, 200),
    **{f'BPTT, {cell}': by_bptt(cell, LARGEST) for cell in ('gru', 'lstm', 'lif')},
}


def main(case):
    run = None
    for line in sys.stdin:
        if run is None or line.strip() == 'first':
            run = ALL[case]()
            first = milliseconds(run)
        print(first if line.strip() == 'first' else fastest(run), flush=True)


if __name__ == '__main__':
    assert OURS or not sys.argv[2].startswith('etrace_stream'), 'the reference has none'
    main(sys.argv[2])
