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

KILLS = 20  # of each group of learners

assert KILLS * killing.MOST_STEPS <= killed_run.STEPS


@pytest.mark.long
@pytest.mark.parametrize('names', killed_run.GROUPS, ids=' '.join)
def test_a_killed_run_ends_with_the_same_bits(names, tmp_path):
    os.environ['PYTHONPATH'] = os.pathsep.join(sys.path)  # of the process that loads the libraries
    processes = multiprocessing.get_context('forkserver')
    processes.set_forkserver_preload(['killed_run'])
    lives = killing.Lives(processes, names)
    never, often, draw = tmp_path / 'never', tmp_path / 'often', random.Random(0)
    true = lives.complete(never, False)
    learners = {name.split('[')[0] for name in true.files if '[' in name}
    assert learners == {'optimizer' if name == 'module' else name for name in names}
    killing.begin_with_programs_of(never, often)
    for kill in range(KILLS):
        lives.kill_one(often, draw, while_it_begins=kill % 3 == 1)
    killing.assert_same_bits(lives.complete(often), true)
