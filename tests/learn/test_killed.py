"""A run that is killed again and again ends with the same bits as one that never was."""

import multiprocessing
import os
import pathlib
import random
import shutil
import sys
import time

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import killed_run  # noqa: E402

KILLS = 4  # of each of five learners
MOST_STEPS = 12  # of a life; all of them are fewer than the run has


assert KILLS * MOST_STEPS < killed_run.STEPS


@pytest.fixture(scope='module')
def start():
    """`start(kind, directory, ...)`: a life in a process that has the libraries loaded, and the
    steps it has done, -1 before it begins."""
    os.environ['PYTHONPATH'] = os.pathsep.join(sys.path)  # of the process that loads them
    processes = multiprocessing.get_context('forkserver')
    processes.set_forkserver_preload(['killed_run'])

    def start(kind, directory, *options):
        progress = processes.Value('i', -1)
        args = kind, str(directory), progress, *options
        process = processes.Process(target=killed_run.live, args=args)
        process.start()
        return process, progress

    return start


def wait_for(process, progress, steps):
    while process.is_alive() and progress.value < steps:
        time.sleep(0.002)


def completed(process, _):
    process.join()
    assert process.exitcode == 0


@pytest.mark.parametrize('kind', [*killed_run.OPTIONS, 'module'])
def test_a_killed_run_ends_with_the_same_bits(kind, start, tmp_path):
    never, often = tmp_path / 'never', tmp_path / 'often'
    completed(*start(kind, never, False))
    shutil.copytree(never / 'compiled', often / 'compiled')
    draw, beginning = random.Random(kind), 0.0
    for kill in range(KILLS):
        began = time.monotonic()
        process, progress = start(kind, often, True, True)
        if kill % 3 == 1:  # while it begins
            time.sleep(draw.uniform(0, beginning))
        else:  # while it learns and saves
            wait_for(process, progress, 0)
            beginning = time.monotonic() - began
            wait_for(process, progress, draw.randrange(MOST_STEPS))
            time.sleep(draw.uniform(0, 0.05))
        assert process.is_alive()
        process.kill()
        process.join()
    completed(*start(kind, often))
    true, found = np.load(never / 'end.npz'), np.load(often / 'end.npz')
    assert true.files == found.files
    for name in true.files:
        np.testing.assert_array_equal(true[name], found[name], err_msg=name)
