"""Two trees, or two libraries, in turns: `in_turns.py BEFORE AFTER [TEXT ...]`.

Each of the two is a directory with a `braintrace` of ours, or the interpreter of an environment
with the reference. For each case whose name contains a TEXT a process of each is kept, and they run
by turns of a fraction of a second: what the machine does meanwhile happens to both. A line has the
median of the ratios of neighbouring turns, after to before, and the least time of each.
"""

import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
TURNS, FIRSTS = 9, 3
SLOWER = 1.05


class Side:
    """A process that runs one case when it is told to."""

    def __init__(self, where, case):
        tree = pathlib.Path(where)
        ours = tree.is_dir()
        env = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
        if ours:
            env['PYTHONPATH'] = str(tree.resolve())
        python, library = (sys.executable, 'ours') if ours else (where, 'reference')
        command = [python, '-W', 'ignore', 'turns.py', library, case]
        self.process = subprocess.Popen(
            command, cwd=HERE, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def ask(self, what):
        """Milliseconds of a turn, or of a first call; not a number where the case fails."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(what + '\n')
        self.process.stdin.flush()
        return float(self.process.stdout.readline() or 'nan')

    def end(self):
        self.process.communicate()


def compare(before, after, case):
    """Ratios of a turn and of a first call, and the least milliseconds of a turn on both sides."""
    sides = Side(before, case), Side(after, case)
    firsts = [[side.ask('first') for side in sides] for _ in range(FIRSTS)]
    turns = [[side.ask('turn') for side in sides] for _ in range(TURNS)]
    for side in sides:
        side.end()
    return ratio(turns), ratio(firsts), *[min(t) for t in zip(*turns, strict=True)]


def ratio(pairs):
    return statistics.median(b / a for a, b in pairs)


def main(before, after, *texts):
    from turns import ALL

    print('ratio, of first calls, ms before, ms after, case')
    for case in ALL:
        if not texts or any(text in case for text in texts):
            turn, first, *times = compare(before, after, case)
            mark = '  <' if turn > SLOWER else ''
            print(
                f'{turn:5.2f} {first:5.2f} {times[0]:9.3f} {times[1]:9.3f}  {case}{mark}',
                flush=True,
            )


if __name__ == '__main__':
    main(*sys.argv[1:])
