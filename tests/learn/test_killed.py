"""A run that is killed again and again ends with the same bits as one that never was."""

import multiprocessing
import os
import pathlib
import random
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import killed_run  # noqa: E402
import killing  # noqa: E402

KILLS = 4  # of each of five learners

assert KILLS * killing.MOST_STEPS < killed_run.STEPS


@pytest.fixture(scope='module')
def lives():
    os.environ['PYTHONPATH'] = os.pathsep.join(sys.path)  # of the process that loads them
    processes = multiprocessing.get_context('forkserver')
    processes.set_forkserver_preload(['killed_run'])
    return killing.Lives(processes)


@pytest.mark.parametrize('kind', [*killed_run.OPTIONS, 'module'])
def test_a_killed_run_ends_with_the_same_bits(kind, lives, tmp_path):
    never, often, draw = tmp_path / 'never', tmp_path / 'often', random.Random(kind)
    true = lives.complete(kind, never, False)
    killing.begin_with_programs_of(never, often)
    for kill in range(KILLS):
        lives.kill_one(kind, often, draw, while_it_begins=kill % 3 == 1)
    killing.assert_same_bits(lives.complete(kind, often), true)
