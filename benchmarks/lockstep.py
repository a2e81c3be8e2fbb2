"""Two workers that take turns of a fraction of a second: what the machine does meanwhile happens to
both.

A worker pauses between its turns. It asks for the next with a line that has the number of the
measurement, and waits for the answer; who holds the workers lets one of them go on at a time, and
one that is ahead waits. So each case is measured on both sides at the same time, however many turns
it takes on each; what one of them measures alone it measures without a pause.
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time

import jax

TURNS, WHILE = 8, 0.25  # of a measurement, and the seconds of each
SLOW = 3000  # milliseconds of a call that is measured once
ASKS = 'my turn?'
HELD = 'BENCHMARK_IN_LOCKSTEP'
_numbers = itertools.count()


def pauses():
    """What a measurement calls between its turns, to let the other worker have its own."""
    number = next(_numbers)

    def pause():
        if HELD in os.environ:
            print(ASKS, number, flush=True)
            sys.stdin.readline()

    return pause


def milliseconds(run):
    """Of one call."""
    start = time.perf_counter()
    jax.block_until_ready(run())
    return (time.perf_counter() - start) * 1e3


def fastest(run):
    """Milliseconds of the fastest call in a while."""
    times, end = [], time.perf_counter() + WHILE
    while not times or time.perf_counter() < end:
        times.append(milliseconds(run))
    return min(times)


def best(*runs, alone=False):
    """Milliseconds of the fastest call of each, see `in_turns`."""
    return [min(times) for times in in_turns(*runs, alone=alone)]


def in_turns(*runs, alone=False):
    """Milliseconds of the fastest call of each run in each turn, after its first call; `alone` for
    what the other worker does not measure, which waits meanwhile."""
    for run in runs:
        milliseconds(run)
    found, pause = [], _go_on if alone else pauses()
    for _ in range(TURNS):
        pause()
        found.append([fastest(run) for run in runs])
        if min(found[-1]) > SLOW:
            break
    return [list(times) for times in zip(*found, strict=True)]


def _go_on():
    """No pause."""


class Worker:
    """A process that measures while it has its turn, and the rows it has printed."""

    def __init__(self, python, library, script, *more):
        self.command, self.name = [python, script, library, *more], library
        self.process, self.rows, self.errors = None, [], tempfile.TemporaryFile('w+')
        self.number = -1  # of the measurement that it is at

    def go_on(self):
        """Let it run to its next pause; whether it came to one."""
        if self.process is None:
            self.process = self._start()
        else:
            self.process.stdin.write('\n')
            self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith('{'):
                self.rows.append(json.loads(line))
            elif line.startswith(ASKS):
                self.number = int(line.removeprefix(ASKS))
                return True
        if self.process.wait():
            self.errors.seek(0)
            raise SystemExit(f'The worker for {self.name} failed:\n{self.errors.read()[-2000:]}')
        return False

    def _start(self):
        # Each library from its own environment, whatever is around.
        clean = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
        return subprocess.Popen(
            self.command,
            cwd=os.path.dirname(os.path.abspath(__file__)),
            env={**clean, HELD: 'yes'},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
        )


def measured(*workers):
    """The rows of each, measured in turns."""
    going = list(workers)
    while going:
        behind = min(w.number for w in going)
        going = [w for w in going if w.number > behind or w.go_on()]
    return [w.rows for w in workers]
