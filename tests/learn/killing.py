"""Lives of `killed_run` in processes, killed at random moments."""

import os
import pathlib
import shutil
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import killed_run  # noqa: E402

MOST_STEPS = 3  # of a life that is killed


class Lives:
    """Starts runs of `killed_run` and kills them.

    Args:
        processes: a context of `multiprocessing` whose processes find the libraries loaded.
        names: of the learners that live in each run.
    """

    def __init__(self, processes, names=killed_run.NAMES):
        self.processes, self.names = processes, names
        self.beginning = 0.0  # seconds until a life makes its first step

    def start(self, directory, *options):
        """A life, and the count of its steps, -1 before it begins."""
        progress = self.processes.Value('i', -1)
        args = str(directory), progress, self.names, *options
        process = self.processes.Process(target=killed_run.live, args=args)
        process.start()
        return process, progress

    def complete(self, directory, *options):
        """A life that ends by itself; the arrays of its end."""
        process, _ = self.start(directory, *options)
        process.join()
        assert process.exitcode == 0, f'the run ended with exit code {process.exitcode}'
        return np.load(pathlib.Path(directory) / 'end.npz')

    def kill_one(self, directory, draw, while_it_begins):
        """Start a life and kill it at a random moment: while it begins, or while it learns and
        saves. Gives the steps that it had made."""
        began = time.monotonic()
        process, progress = self.start(directory, True, True)
        if while_it_begins:
            time.sleep(draw.uniform(0, self.beginning))
        else:
            wait_for(process, progress, 0)
            self.beginning = time.monotonic() - began
            wait_for(process, progress, draw.randrange(MOST_STEPS))
            time.sleep(draw.uniform(0, 0.05))
        assert process.is_alive(), f'the run ended with exit code {process.exitcode}'
        process.kill()
        process.join()
        return progress.value


def wait_for(process, progress, steps):
    while process.is_alive() and progress.value < steps:
        time.sleep(0.002)


def begin_with_programs_of(other, directory):
    """Take over what another run has compiled."""
    shutil.copytree(other / 'compiled', directory / 'compiled')


def tear(directory, draw):
    """Cut a random file of the last checkpoint, as a disk that was full would; whether there was
    one."""
    steps = [p for p in (directory / 'saves').glob('*') if p.name.isdigit()]
    last = max(steps, key=lambda p: int(p.name), default=None)
    files = [f for f in last.rglob('*') if f.is_file()] if last else []
    if files:
        file = draw.choice(sorted(files))
        os.truncate(file, draw.randrange(file.stat().st_size or 1))
    return bool(files)


def assert_same_bits(found, true):
    assert true.files == found.files
    for name in true.files:
        np.testing.assert_array_equal(true[name], found[name], err_msg=name)
