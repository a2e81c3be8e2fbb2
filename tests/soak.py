"""A long test, run by hand: `make soak`, or `python tests/soak.py --minutes 60`.

Random programs against BPTT, runs that are killed and resumed, numbers that are not finite, and a
stream of a million steps. Every part runs in processes of its own, trial after trial; the seed of a
trial that fails is told, and `python tests/soak.py --part programs --seed 7 --trials 1` repeats it.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import gc
import io
import json
import multiprocessing
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import traceback
import warnings

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE), str(HERE / 'learn')]
STREAMED = 1_000_000  # steps
SHARES = {'programs': 0.5, 'kills': 0.25, 'numbers': 0.25}  # of the time; beside them the stream
SLICE = 300  # seconds after which a part begins again in a new process


class Tally:
    """What was done: counts, and the largest of each measured number."""

    def __init__(self):
        self.counts, self.worst = collections.Counter(), {}
        self.failures = []

    def measure(self, name, value):
        self.worst[name] = max(self.worst.get(name, 0.0), float(value))

    def add(self, told):
        self.counts.update(told['counts'])
        self.failures += told['failures']
        for name, value in told['worst'].items():
            self.measure(name, value)


# ---- random programs against BPTT ----


class Programs:
    """A random step under a random rule: every parameter that the report calls exact has the
    gradient of BPTT. In float32 it must be as near to the truth as BPTT is in float32."""

    STEPS = 5

    def __init__(self, seed):
        import jax

        # Half of the processes compute in float64, and half optimise as little as the tests do.
        self.double = seed % 2 == 0
        jax.config.update('jax_enable_x64', self.double)
        jax.config.update('jax_disable_most_optimizations', bool(seed // 2 % 2))
        processes = multiprocessing.get_context('spawn')
        self.truth, other = processes.Pipe()
        processes.Process(target=tell_truth, args=(other,), daemon=True).start()

    def trial(self, seed, tally):
        import jax
        import numpy as np
        import test_exactness as exactness

        import braintrace

        draw = random.Random(seed)
        step, data = program(draw.random(), self.STEPS)
        self.truth.send((random.Random(seed).random(), self.STEPS))
        rule, options = draw.choice([('rtrl', {}), draw.choice(exactness.RULES)])
        window = draw.randint(1, self.STEPS - 1)
        true, refused = self.truth.recv(), False
        try:
            with warnings.catch_warnings(action='ignore'):
                claimed, found = claimed_gradients(step, data, rule, window, options)
        except braintrace.NotSupportedError:
            refused = True
        except TypeError as error:
            assert 'custom_vjp' in str(error), error  # no derivative that goes forward
            refused = True
        if refused:
            tally.counts['programs refused'] += 1
            return
        near = jax.tree.map(np.asarray, exactness.true_gradient(step, *data))
        compare_gradients(tally, self.double, claimed, found, near, true)
        jax.clear_caches()


def program(seed, steps):
    """A random step, and its parameters, state, inputs and targets: numbers of float32, in the
    precision of the process."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import random_programs as of
    import test_exactness as exactness

    draw = random.Random(seed)
    code = [
        (draw.randrange(len(of.OPS)), draw.randrange(8), draw.randrange(8))
        for _ in range(draw.randint(2, 6))
    ]
    rng = np.random.RandomState(draw.randrange(2**32))
    params, state, _ = of.example(draw.randrange(2**32))
    data = params, state, *rng.randn(2, steps, of.R, of.C)
    rounded = jax.tree.map(lambda a: jnp.asarray(np.asarray(a, 'float32').astype(float)), data)
    return exactness.read_out(of.build(code)), rounded


def tell_truth(connection):
    """BPTT in float64 of the programs that are asked for."""
    import jax
    import numpy as np
    import test_exactness as exactness

    jax.config.update('jax_enable_x64', True)
    jax.config.update('jax_disable_most_optimizations', True)
    with contextlib.suppress(EOFError):  # nobody asks any more
        while True:
            step, data = program(*connection.recv())
            connection.send(jax.tree.map(np.asarray, exactness.true_gradient(step, *data)))
            jax.clear_caches()


def claimed_gradients(step, data, rule, window, options):
    """The parameters that are called exact, and all gradients."""
    import test_exactness as exactness

    import braintrace

    params, state, xs, ys = data
    learner = braintrace.compile(step, rule, params, state, xs[0], **options)
    claimed = [name for name, told in learner.report.exactness.items() if told.exact]
    carry = learner.init(params, state)
    (grads, _), _ = learner.grad(
        exactness.loss, params, carry, xs, ys, window=window, reduction='sum'
    )
    return claimed, grads


def compare_gradients(tally, double, claimed, found, near, true):
    """Errors are relative to the largest gradient. `near` is BPTT in the program's own precision,
    `true` in float64."""
    import numpy as np

    def distance(a, name):
        return np.abs(np.asarray(a[name], float) - np.asarray(true[name])).max() / size

    size = max(np.abs(a).max() for a in true.values())
    alive = [name for name in claimed if np.abs(true[name]).max() > 1e-9 * size]
    if not (np.isfinite(size) and 1e-12 < size < 1e12) or not alive:
        tally.counts['programs without a gradient to compare'] += 1
        return
    if double:
        kind, allowed = 'float64', dict.fromkeys(alive, 1e-9)
    else:
        kind = 'float32'
        allowed = {name: 1e-4 + 30 * distance(near, name) for name in alive}
    for name in alive:
        error = distance(found, name)
        assert error <= allowed[name], f'{name}: {error:.1e} > {allowed[name]:.1e}'
        if double or distance(near, name) < 1e-4:
            tally.measure(f'{kind} error', error)
    tally.counts[f'programs in {kind}'] += 1
    tally.counts[f'gradients in {kind}'] += len(alive)


# ---- kills ----


class Kills:
    """A run of five learners is killed several times, sometimes with its last checkpoint cut, and
    goes on each time; it ends with the bits of the run that was never killed."""

    def __init__(self, seed):
        import killing

        # What is forked has the libraries, and nothing of JAX has run here.
        self.lives = killing.Lives(multiprocessing.get_context('fork'))
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix='soak'))
        self.never = None

    def trial(self, seed, tally):
        import killing

        draw = random.Random(seed)
        never, often = self.directory / 'never', self.directory / f'{seed}'
        if self.never is None:
            self.never = self.lives.complete(never, False)
        killing.begin_with_programs_of(never, often)
        for _ in range(draw.randint(1, 6)):
            early = self.lives.beginning > 0 and draw.random() < 0.3
            self.lives.kill_one(often, draw, early)
            tally.counts['kills'] += 1
            if draw.random() < 0.2:
                tally.counts['checkpoints cut'] += killing.tear(often, draw)
        killing.assert_same_bits(self.lives.complete(often), self.never)
        tally.counts['runs killed'] += 1


# ---- numbers that are not finite ----


class Numbers:
    """Inputs and targets that are not finite at random samples and steps: with 'skip' all is as if
    these steps of these samples had not been, and where a mask is zero nothing is read."""

    RULES = (
        ('d_rtrl', {}),
        ('d_rtrl', {'vjp_method': 'multi-step'}),
        ('d_rtrl', {'trace_dtype': 'float32'}),
        ('ostl_recurrent', {}),
        ('eprop', {'kappa_filter_decay': 0.5}),
        ('rflo', {'decay': 0.7}),
        ('snap', {'n': 2}),
        ('rtrl', {}),
    )
    PATTERNS = 20  # of bad numbers in a trial, which is compiled once

    def __init__(self, seed):
        import jax

        jax.config.update('jax_enable_x64', True)
        jax.config.update('jax_disable_most_optimizations', True)

    def trial(self, seed, tally):
        import jax
        import jax.numpy as jnp
        import numpy as np

        import braintrace

        draw, rng = random.Random(seed), np.random.RandomState(seed % 2**32)
        rule, options = draw.choice(self.RULES)
        T, B, H = draw.randint(3, 8), draw.randint(1, 4), draw.randint(1, 4)
        given = dict(window=draw.randint(1, T), reduction=draw.choice(['sum', 'mean']))
        params = {'W': rng.randn(2, H), 'R': rng.randn(H, H) / 2, 'a': rng.randn(H)}
        state = rng.randn(B, H)
        gates = draw.random() < 0.5
        if gates and 'vjp_method' in options:
            given['window'] = T  # elsewhere the gradient depends on where a window ends
        allowed = 1e-6 if 'trace_dtype' in options else 1e-9

        def step(p, h, x):
            new = jnp.tanh(x @ p['W'] + (h @ p['R'] if gates else 0))
            z = jax.nn.sigmoid(p['a'])
            h = z * h + (1 - z) * new
            return h, h

        def loss(out, y):
            return ((out - y) ** 2).sum(-1)

        def compiled(nonfinite):
            with warnings.catch_warnings(action='ignore'):
                return braintrace.compile(
                    step, rule, params, state, rng.randn(B, 2), nonfinite=nonfinite, **options
                )

        def run(learner, xs, ys, **more):
            return learner.grad(loss, params, learner.init(params, state), xs, ys, **given, **more)

        skipping, plain, raising = map(compiled, ('skip', 'keep', 'raise'))
        for _ in range(self.PATTERNS):
            xs, ys = rng.randn(T, B, 2), rng.randn(T, B, H)
            bad = rng.rand(T, B) < draw.choice([0.05, 0.3])
            bad[:, 0] &= rng.rand() < 0.5  # the first sample is often good
            spoil = rng.choice([np.nan, np.inf, -np.inf])
            of_inputs = spoil if np.isnan(spoil) else np.nan  # tanh makes infinity finite
            spoilt, targets = xs.copy(), ys.copy()
            in_target = rng.rand(T, B) < 0.5
            spoilt[bad & ~in_target] = of_inputs
            targets[bad & in_target] = spoil
            (found, losses), carry = run(skipping, spoilt, targets)
            moved, its_targets, mask = without(bad, xs, ys)
            (true, _), after = run(plain, moved, its_targets, mask=mask)
            share = 1.0
            if given['reduction'] == 'mean':
                share = mask.mean()  # a step that is left out counts among the steps
            for name in true:
                size = max(np.abs(a).max() for a in true.values()) * share
                error = np.abs(found[name] - share * true[name]).max() / max(size, 1e-3)
                assert error < allowed, f'{name}: {error:.1e}'
                if 'trace_dtype' not in options:
                    tally.measure('error beside bad numbers', error)
            assert int(carry.skipped) == bad.sum() and np.isfinite(losses).all()
            assert np.isfinite(carry.state).all()
            self.masked(tally, run, plain, spoilt, targets, bad)
            self.told(run, raising, spoilt, targets, bad)
            tally.counts['sequences with bad numbers'] += 1
            tally.counts['bad numbers'] += int(bad.sum())
        jax.clear_caches()

    def masked(self, tally, run, plain, xs, ys, bad):
        """Where the mask is zero, a number that is not finite counts as zero."""
        import jax
        import numpy as np

        zero = [np.where(np.isfinite(a), a, 0) for a in (xs, ys)]
        if bad.all():
            return
        found, true = (run(plain, *data, mask=~bad * 1.0) for data in ((xs, ys), zero))
        for a, b in zip(*map(jax.tree.leaves, (found, true)), strict=True):
            assert np.isfinite(b).all() and np.array_equal(a, b), 'a masked step was read'
        tally.counts['masked steps'] += int(bad.sum())

    def told(self, run, raising, xs, ys, bad):
        """The step that is told is the first bad one, and a sample of it."""
        import numpy as np

        if not bad.any():
            return run(raising, xs, ys)
        step = int(bad.any(1).argmax())
        try:
            run(raising, xs, ys)
        except FloatingPointError as error:
            samples = [f'sample {b},' for b in np.flatnonzero(bad[step])]
            assert f'step {step} of this call' in str(error), error
            assert any(sample in str(error) for sample in samples), error
        else:
            raise AssertionError('a bad number was not told')


def without(bad, xs, ys):
    """The sequences of each sample without its bad steps; what fills the end is masked."""
    import numpy as np

    xs, ys, mask = xs.copy(), ys.copy(), np.ones(bad.shape)
    for b in range(bad.shape[1]):
        good = np.flatnonzero(~bad[:, b])
        rest = np.flatnonzero(bad[:, b])
        order = [*good, *rest]
        xs[:, b], ys[:, b] = xs[order, b], ys[order, b]
        mask[len(good) :, b] = 0
    return xs, ys, mask


# ---- a stream ----


class Stream:
    """Two streams in turns, of a module and of a plain function, with a bad number now and then;
    the memory of the process stays the same."""

    STEPS = 10_000  # in a trial
    WARM = 5  # trials before memory is looked at
    ALLOWED = 8e6  # bytes that it may grow by

    def __init__(self, seed):
        import jax
        import jax.numpy as jnp
        import numpy as np
        from killed_run import BATCH, Net, error, gated

        import braintrace

        self.rng, self.done, self.bad, self.first = np.random.RandomState(seed % 2**32), 0, 0, None
        x = np.zeros((BATCH, 3), 'float32')
        net = braintrace.compile(Net(), 'd_rtrl', x, nonfinite='skip', trace_dtype='bfloat16')
        weights = net.param_states

        def update(grads):
            for key, state in weights.items():
                state.value = jax.tree.map(lambda w, g: w - 1e-3 * g, state.value, grads[key])

        self.net = net
        self.live = net.etrace_stream(step_fn=lambda x, y: error(net(x), y), update=update)
        params = {'W': jnp.ones((3, 3)) / 3, 'R': jnp.eye(3) / 2, 'a': jnp.zeros(3)}
        state = jnp.zeros((BATCH, 3))
        plain = braintrace.compile(
            gated, 'pp_prop', params, state, x, decay_or_rank=0.9, nonfinite='skip'
        )
        self.run = {'params': params, 'carry': plain.init(params, state)}

        @jax.jit
        def step(params, carry, x, y):
            (grads, _), carry = plain.grad(error, params, carry, x[None], y[None])
            return {
                'params': jax.tree.map(lambda w, g: w - 1e-3 * g, params, grads),
                'carry': carry,
            }

        self.step = step

    def trial(self, seed, tally):
        import jax
        import numpy as np

        xs = self.rng.randn(self.STEPS // 2, 2, 3).astype('float32')
        ys = 0.1 * self.rng.randn(self.STEPS // 2, 2, 3).astype('float32')
        bad = self.rng.rand(self.STEPS // 2) < 1e-3
        xs[bad, 0, 0] = np.nan
        for x, y in zip(xs, ys, strict=True):
            self.live(x, y)
            self.run = self.step(**self.run, x=x, y=y)
        self.bad += int(bad.sum())
        self.done += self.STEPS
        carry = self.run['carry']
        assert int(carry.steps) == int(self.net.running_index.value) == self.done // 2
        assert int(carry.skipped) == int(self.net.skipped) == self.bad, 'a bad number was missed'
        values = [*jax.tree.leaves(self.run), *self.net.snapshot().arrays.values()]
        assert all(np.isfinite(np.asarray(a, 'float32')).all() for a in values), 'not finite'
        tally.counts['streamed steps'] += self.STEPS
        tally.counts['bad numbers in the stream'] = 2 * self.bad
        now = resident()
        if tally.counts['streamed steps'] == self.STEPS * self.WARM:
            self.first = now
            tally.measure('MB at first', now / 1e6)
        tally.worst['MB at last'] = now / 1e6
        if self.first is not None:
            grown = now - self.first
            assert grown < self.ALLOWED, f'memory has grown by {grown / 1e6:.1f} MB'


def resident():
    """The bytes of this process that are in memory."""
    gc.collect()
    pages = pathlib.Path('/proc/self/statm').read_text().split()[1]
    return int(pages) * os.sysconf('SC_PAGE_SIZE')


PARTS = {'stream': Stream, 'programs': Programs, 'kills': Kills, 'numbers': Numbers}


# ---- trial after trial ----


def work(name, seed, seconds, trials):
    """Trials of one part, with seeds from `seed` on, until the time is over; the tally."""
    tally, end = Tally(), time.monotonic() + seconds
    part = PARTS[name](seed)
    for k in range(trials):
        if time.monotonic() > end or tally.counts['streamed steps'] >= STREAMED:
            break
        try:
            part.trial(seed + k, tally)
        except Exception as error:
            told = ' '.join(str(error).split())[:300]
            tally.failures.append(f'{name}, seed {seed + k}: {type(error).__name__}: {told}')
            traceback.print_exc()
        tally.counts[f'trials of {name}'] += 1
    return tally


def start(name, seed, seconds):
    """`work` in a process of its own."""
    command = [sys.executable, __file__, '--part', name, '--seed', f'{seed}']
    command += ['--seconds', f'{seconds}']
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def told_by(process):
    """What a process of `start` tells; one that dies is a failure."""
    lines = process.communicate()[0].strip().splitlines()
    if process.returncode < 0 or not lines:
        died = f'{process.args}: died with code {process.returncode}'
        return {'counts': {}, 'worst': {}, 'failures': [died]}
    return json.loads(lines[-1])


def soak(minutes, seed):
    """The stream, and beside it the other parts in turns; the tally."""
    tally, seconds = Tally(), 60 * minutes
    stream = start('stream', seed, seconds)
    turns = max(1, round(seconds * max(SHARES.values()) / SLICE))
    for turn in range(turns):
        for name, share in SHARES.items():
            told = told_by(start(name, seed + 1_000_003 * turn, seconds * share / turns))
            tally.add(told)
            print(f'{name}, turn {turn + 1} of {turns}:', json.dumps(told), flush=True)
    tally.add(told_by(stream))
    return tally


def summary(tally, minutes, seed):
    """One line of all that was done."""
    n, worst = tally.counts, collections.defaultdict(float, tally.worst)
    verdict = f'{len(tally.failures)} FAILURES' if tally.failures else 'no failure'
    return (
        f'soak of {minutes:.0f} minutes, seed {seed}: {verdict}. '
        f'{n["programs in float64"]} random programs in float64 ({n["gradients in float64"]} '
        f'gradients, worst error {worst["float64 error"]:.1e}) and {n["programs in float32"]} in '
        f'float32 ({n["gradients in float32"]}, {worst["float32 error"]:.1e}), '
        f'{n["programs refused"]} refused by name, '
        f'{n["programs without a gradient to compare"]} without a gradient; '
        f'{n["runs killed"]} runs killed {n["kills"]} times, {n["checkpoints cut"]} checkpoints '
        f'cut, the same bits; {n["bad numbers"]} bad numbers in '
        f'{n["sequences with bad numbers"]} sequences, worst error '
        f'{worst["error beside bad numbers"]:.1e}, {n["masked steps"]} masked steps not read; '
        f'{n["streamed steps"]:,} streamed steps with {n["bad numbers in the stream"]} bad ones, '
        f'{worst["MB at first"]:.1f} MB after {Stream.STEPS * Stream.WARM:,} and '
        f'{worst["MB at last"]:.1f} MB at the end.'
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--minutes', type=float, default=60)
    parser.add_argument('--seed', type=int, default=int(time.time()))
    parser.add_argument('--part', choices=PARTS, help='only trials of this part')
    parser.add_argument('--trials', type=int, default=10**9)
    parser.add_argument('--seconds', type=float, help='of the part')
    asked = parser.parse_args()
    if asked.part:
        seconds = 60 * asked.minutes if asked.seconds is None else asked.seconds
        with contextlib.redirect_stdout(io.StringIO()):  # the last line is the tally
            tally = work(asked.part, asked.seed, seconds, asked.trials)
        print(json.dumps(vars(tally)))
    else:
        tally = soak(asked.minutes, asked.seed)
        for failure in tally.failures:
            print('FAILED', failure)
        print(summary(tally, asked.minutes, asked.seed))
    sys.exit(bool(tally.failures))


if __name__ == '__main__':
    main()
