"""The demo: four rules learn the Add task online, one step at a time, and are compared."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from ..rules.registry import find_rule
from ..shells.entry import compile
from ..show import text
from .add_task import LAGS, RECURRENT, adam, cross_entropy, floors, init, step, stretch
from .comparison import compare, needed_options
from .demo_picture import NEAR, Curve, picture

RULES = {'d_rtrl': 'D_RTRL', 'pp_prop': 'pp_prop', 'rtrl': 'RTRL', 'bptt': 'truncated BPTT, 1 step'}


def online(learner: Any, steps: int, rate: float) -> Callable:
    """Learning over a stretch of the stream: the weights change at every step."""

    def one(held, xy):
        params, moments, carry, t = held
        (grads, [loss]), carry = learner.grad(cross_entropy, params, carry, *xy, window=1)
        slower = rate * jnp.minimum(1, 2 * (1 - t / steps))  # over the second half
        params, moments = adam(params, moments, grads, t + 1, slower)
        return (params, moments, carry, t + 1), loss

    @jax.jit
    def run(held, x, y):
        return jax.lax.scan(one, held, (x[:, None], y[:, None]))

    return run


class Result(NamedTuple):
    """What one rule did.

    Its losses along the stream, steps per second, bytes of traces, and the cosine of its gradient
    with BPTT's.
    """

    rule: str
    losses: np.ndarray
    speed: float
    trace_bytes: int
    cosine: float

    @property
    def loss(self) -> float:
        """The mean over the last tenth."""
        return float(self.losses[-max(len(self.losses) // 10, 1) :].mean())

    @property
    def floor(self) -> str:
        """The lowest floor that was reached."""
        reached = [name for name, value in floors().items() if self.loss < value + NEAR]
        return reached[-1] if reached else '-'


def learn(
    rule: str,
    *,
    steps: int,
    units: int,
    streams: int,
    chunk: int,
    rate: float,
    seed: int,
    progress: bool,
) -> Result:
    """One rule on the stream; arguments as in `demo`. The cosine is left open."""
    key, state = jax.random.key(seed), _zero_state(streams, units)
    params = init(key, units)
    options = needed_options(find_rule(rule))
    learner = compile(step, rule, params, state, jnp.zeros((streams, 1)), **options)
    zeros = jax.tree.map(jnp.zeros_like, params)
    held = params, (zeros, zeros), learner.init(params, state), jnp.zeros(())
    run, past = online(learner, steps, rate), jnp.zeros((LAGS[1], streams))
    losses: list[float] = []
    seconds: list[float] = []
    bar = _bar(steps, RULES.get(rule, rule)) if progress else _NoBar()
    for k in range(steps // chunk):
        x, y, past = stretch(jax.random.fold_in(key, k), past, chunk)
        start = time.perf_counter()
        held, loss = jax.block_until_ready(run(held, x, y))
        seconds.append(time.perf_counter() - start)
        losses.append(float(loss.mean()))
        bar.set_postfix(loss=f'{np.mean(losses[-10:]):.4f}', refresh=False)
        bar.update(chunk)
    bar.close()
    usual = seconds[1:] or seconds  # the first one compiles
    speed = chunk * len(usual) / sum(usual)
    return Result(rule, np.array(losses), speed, learner.report.memory['trace_bytes'], float('nan'))


def _zero_state(streams: int, units: int) -> tuple[jax.Array, jax.Array]:
    zero = jnp.zeros((streams, units))
    return zero, zero


def demo(
    rules: Sequence[str] = tuple(RULES),
    *,
    steps: int = 20000,
    units: int = 24,
    streams: int = 16,
    chunk: int = 250,
    rate: float = 0.007,
    seed: int = 0,
    plot: Any = 'add_task.png',
    progress: bool = True,
) -> list[Result]:
    """Learn the Add task online with each rule; print a table, draw the curves.

    Args:
        rules: their names.
        steps, streams: of the stream, and how many of them run beside each other.
        units: of the network.
        chunk: steps between two looks at the loss.
        rate: of learning, for Adam.
        seed: of weights and stream, the same for all rules.
        plot: a file for the curves, or None.
        progress: show a bar for each rule.
    """
    cosines = _cosines_at_the_start(rules, units, streams, seed)
    results = []
    for rule in rules:
        result = learn(
            rule,
            steps=steps,
            units=units,
            streams=streams,
            chunk=chunk,
            rate=rate,
            seed=seed,
            progress=progress,
        )
        results.append(result._replace(cosine=cosines[rule]))
    print(
        f'\nAdd task, lags {LAGS[0]} and {LAGS[1]}: {steps} steps of {streams} streams, '
        f'weights changed at every step, {units} units.'
    )
    print('Floors: ' + ', '.join(f'{v:.4f} {k}' for k, v in floors().items()) + '.\n')
    print(table(results))
    print(
        '\nThe loss is that of the last tenth, to about 0.003. The cosine is of the gradient of '
        'the recurrent weights, at the start, over 100 steps.'
    )
    if plot is not None:
        try:
            curves(results, chunk, plot)
            print(f'The curves are in {plot}.')
        except ImportError as error:
            print(f'No picture: {error}')
    return results


def _cosines_at_the_start(
    rules: Sequence[str], units: int, streams: int, seed: int
) -> dict[str, float]:
    """By rule, the cosine with BPTT of the recurrent weights' gradient over the first 100 steps."""
    x, y, _ = stretch(jax.random.key(seed + 1), jnp.zeros((LAGS[1], streams)), 100)
    comparison = compare(
        step,
        init(jax.random.key(seed), units),
        _zero_state(streams, units),
        x[0],
        rules=rules,
        loss=cross_entropy,
        sequences=(x, y),
        windows=(1,),
        repeats=1,
        only=lambda path: path[0] in RECURRENT,
    )
    return {row.rule: row.cosine.get(1, float('nan')) for row in comparison.rows}


def table(results: Sequence[Result]) -> str:
    """The results as text."""
    head = ['rule', 'loss', 'floor reached', 'steps/s', 'traces', 'cosine with BPTT']
    rows = [
        [
            RULES.get(r.rule, r.rule),
            f'{r.loss:.4f}',
            r.floor,
            f'{r.speed:,.0f}',
            text.bytes_as_text(r.trace_bytes),
            f'{r.cosine:.3f}',
        ]
        for r in results
    ]
    return text.table(head, rows)


def curves(results: Sequence[Result], chunk: int, path: Any) -> Any:
    """The picture of the results: losses over the stream, floors, and when each was reached."""
    drawn = [Curve(RULES.get(r.rule, r.rule), r.losses, chunk) for r in results]
    return picture(drawn, path)


class _Bar(Protocol):
    """What is used of tqdm."""

    def set_postfix(self, *, loss: str, refresh: bool) -> None: ...

    def update(self, n: int) -> None: ...

    def close(self) -> None: ...


class _NoBar:
    """A bar that is not shown."""

    def set_postfix(self, *, loss: str, refresh: bool) -> None: ...

    def update(self, n: int) -> None: ...

    def close(self) -> None: ...


class _Lines:
    """A bar for terminals without tqdm: a line now and then."""

    def __init__(self, total: int, name: str):
        self.total, self.name, self.n, self.loss = total, name, 0, ''

    def set_postfix(self, *, loss: str, refresh: bool) -> None:
        self.loss = loss

    def update(self, n: int) -> None:
        self.n += n
        if self.n * 10 // self.total > (self.n - n) * 10 // self.total:
            print(f'{self.name}: {self.n}/{self.total} steps, loss {self.loss}', file=sys.stderr)

    def close(self) -> None:
        """Nothing is left to write."""


def _bar(total: int, name: str) -> _Bar:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return _Lines(total, name)
    return tqdm(total=total, unit='step', desc=f'{name:>22}')
