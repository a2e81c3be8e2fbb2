"""Every rule on one model: how close its gradient is to BPTT, and what it costs."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..frontends.function import paths
from ..learn.core import memory_of
from ..learn.options import BUDGET, executor_of, resolve, sequence_length
from ..rules.registry import BY_NAME, find_rule
from ..shells.entry import compile
from ..show.report import _bytes

DEFAULTS = {
    'decay_or_rank': 0.9,
    'decay': 0.9,
    'rank': 8,
}  # of options that a rule cannot do without


class Row(NamedTuple):
    """One rule: cosine and relative error of its gradient against BPTT, and seconds per step, by window; `note` says why there are none."""

    rule: str
    cosine: dict[int, float] = {}
    error: dict[int, float] = {}
    seconds: dict[int, float] = {}
    trace_bytes: int | None = None
    note: str = ''


class Comparison:
    """The rows of `compare`, as a table or a plot."""

    def __init__(self, rows: Sequence[Row], windows: Sequence[int]):
        self.rows, self.windows = tuple(rows), tuple(windows)

    def __getitem__(self, rule: str) -> Row:
        return next(r for r in self.rows if r.rule == rule)

    def table(self) -> str:
        """The rows as text; a rule that cannot be used stands below with its reason."""
        head = [
            'rule',
            *[f'{what}, window {w}' for w in self.windows for what in ('cosine', 'error')],
            *[f'us/step, window {w}' for w in self.windows],
            'traces',
        ]
        done = [r for r in self.rows if not r.note]
        body = [
            [
                r.rule,
                *[
                    f'{v:.{n}}'
                    for w in self.windows
                    for v, n in ((r.cosine[w], '4f'), (r.error[w], '1e'))
                ],
                *[f'{r.seconds[w] * 1e6:.3g}' for w in self.windows],
                _bytes(r.trace_bytes or 0),
            ]
            for r in done
        ]
        return '\n'.join(
            [text_table(head, body), *[f'{r.rule}: {r.note}' for r in self.rows if r.note]]
        )

    __str__ = table

    def __repr__(self) -> str:
        return f'Comparison({", ".join(r.rule for r in self.rows)})'

    def plot(self, path: Any = None) -> Any:
        """Error, time per step and traces of each rule, the most exact on top: a matplotlib figure, written to `path` if given."""
        from ..show.picture import new_figure

        done = sorted((r for r in self.rows if not r.note), key=lambda r: -r.error[self.windows[0]])
        figure = new_figure(10, 1.6 + 0.3 * len(done))
        panels = figure.subplots(1, 3, sharey=True)
        at, thick = np.arange(len(done)), 0.8 / len(self.windows)
        for k, w in enumerate(self.windows):
            y = at + 0.4 - thick * (k + 0.5)
            panels[0].plot(
                [max(r.error[w], 1e-16) for r in done], y, 'os^Dv'[k % 5], label=f'window {w}'
            )
            panels[1].barh(y, [r.seconds[w] * 1e6 for r in done], thick)
        panels[2].barh(at, [r.trace_bytes or 0 for r in done], 0.6, color='grey')
        for axes, told in zip(
            panels,
            ('relative error of the gradient', 'microseconds per step', 'bytes of traces'),
            strict=True,
        ):
            axes.set_xlabel(told)
            axes.grid(alpha=0.3)
        panels[0].set(xscale='log', yticks=at, yticklabels=[r.rule for r in done])
        panels[2].set_xscale('symlog')
        figure.legend(loc='upper center', ncols=len(self.windows), frameon=False)
        figure.tight_layout(rect=(0, 0, 1, 0.94))
        if path is not None:
            figure.savefig(path, dpi=150)
        return figure


def compare(
    model: Any,
    *example_inputs: Any,
    rules: Iterable[str] | Mapping[str, tuple[str, Mapping]] | None = None,
    loss: Callable | None = None,
    sequences: Sequence[Any] | None = None,
    windows: Sequence[int] = (1, 16),
    length: int = 64,
    batch_size: int | None = None,
    options: Mapping[str, Mapping] | None = None,
    only: Callable[[tuple], bool] = lambda path: True,
    limit: int = BUDGET,
    repeats: int = 3,
    seed: int = 0,
    progress: Callable | None = None,
) -> Comparison:
    """Which rule for this model: gradients against BPTT over a sequence, time per step and memory, for each rule.

    Args:
        model, example_inputs: as for `braintrace.compile`. A module's states are left as they were.
        rules: their names, all by default; or `{label: (name, options)}`.
        loss: `loss(out, *targets)` of one step. By default the squared distance to random targets.
        sequences: the inputs over time, then the targets of `loss`; time is the first axis. By default noise like the example inputs.
        windows: the numbers of steps in a window to try.
        length: steps of the default sequences.
        batch_size: initialise a module's states for a batch; they are left alone if there are any and this is not given.
        options: of the rules, by rule name.
        only: which parameters' gradients to compare, by path; read-outs are exact with every rule.
        limit: bytes of traces beyond which a rule is left out.
        repeats: runs of which the fastest counts.
        seed: of the default sequences.
        progress: called with the name of each rule before it runs.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> leaky = lambda p, h, x: (jnp.tanh(p['a'] * h + x @ p['W']),) * 2
        >>> found = braintrace.compare(leaky, {'a': jnp.ones(2), 'W': jnp.ones((3, 2))}, jnp.zeros(2), jnp.ones(3), rules=['d_rtrl', 'bptt'])
        >>> found['d_rtrl'].error[1] < 1e-5 < found['bptt'].error[1]
        True
    """
    if not windows or any(isinstance(w, bool) or not isinstance(w, int) or w < 1 for w in windows):
        raise ValueError(f'`windows` must be numbers of steps, at least one, got {windows!r}.')
    chosen = (
        rules
        if isinstance(rules, Mapping)
        else {name: (name, {}) for name in (BY_NAME if rules is None else rules)}
    )
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # what the compiler has to say is for the report
        oracle = ready(model, 'bptt', *example_inputs, batch_size=batch_size)
        trial = (_Module if _is_module(model) else _Function)(model, example_inputs)
        data = _complete(trial.inputs, oracle, loss, sequences, length, seed)
        measure = lambda learner, window: _flat(trial.grad(learner, data, window), only)
        true = measure(oracle, 'auto')
        if not np.isfinite(true).all() or not true.any():
            raise ValueError(
                '`compare`: the BPTT gradient is '
                + ('zero' if not true.any() else 'not finite')
                + ' over this sequence, so there is nothing to '
                'compare with. Pass `sequences` and `loss` that make the model work.'
            )
        rows = []
        for label, (name, own) in chosen.items():
            if progress is not None:
                progress(label)
            rule = find_rule(name)
            given = {
                **{k: v for k, v in DEFAULTS.items() if k in rule.options},
                **(options or {}).get(rule.name, {}),
                **own,
            }
            try:
                rows.append(
                    _row(
                        label,
                        rule.name,
                        given,
                        trial,
                        oracle,
                        data,
                        measure,
                        true,
                        windows,
                        limit,
                        repeats,
                    )
                )
            except Exception as error:  # a rule may refuse a model in any way: that is its row
                told = str(error).split('\n')[0]
                rows.append(
                    Row(
                        label,
                        note=told
                        if isinstance(error, TypeError | ValueError | RuntimeError)
                        else f'{type(error).__name__}: {told}',
                    )
                )
        trial.restore()
    return Comparison(rows, windows)


def ready(
    model: Any, rule: Any, *example_inputs: Any, batch_size: int | None = None, **options: Any
) -> Any:
    """A compiled learner; unlike `compile` it leaves the states of a module alone if there are any and no `batch_size` is given."""
    if not _is_module(model):
        return compile(model, rule, *example_inputs, **options)
    from ..shells.algorithms import find_algorithm

    learner = find_algorithm(rule)(model, **options)
    if batch_size is not None or not learner.hidden_states:
        return compile(model, rule, *example_inputs, batch_size=batch_size, **options)
    learner.compile_graph(*example_inputs)
    return learner


def _is_module(model: Any) -> bool:
    brainstate = sys.modules.get('brainstate')
    return brainstate is not None and isinstance(model, brainstate.nn.Module)


def _row(
    label: str,
    name: str,
    options: dict,
    trial: Any,
    oracle: Any,
    data: Any,
    measure: Callable,
    true: np.ndarray,
    windows: Sequence[int],
    limit: int,
    repeats: int,
) -> Row:
    rule, single_step = resolve(name, None, options)
    size = memory_of(executor_of(oracle.graph, rule, single_step, options, None), BUDGET)[
        'trace_bytes'
    ]
    if size > limit:
        return Row(
            label,
            trace_bytes=size,
            note=f'left out, its traces would take {_bytes(size)}; raise `limit` to see it',
        )
    learner = trial.learner(name, options)
    row = Row(label, {}, {}, {}, size)
    for w in windows:
        found = measure(learner, w)
        row.cosine[w] = float(
            found @ true / max(np.linalg.norm(found) * np.linalg.norm(true), 1e-300)
        )
        row.error[w] = float(np.linalg.norm(found - true) / np.linalg.norm(true))
        row.seconds[w] = (
            min(_timed(lambda w=w: trial.grad(learner, data, w)) for _ in range(repeats))
            / data.length
        )
    return row


def _timed(f: Callable) -> float:
    start = time.perf_counter()
    jax.block_until_ready(f())
    return time.perf_counter() - start


def _flat(grads: Any, only: Callable[[tuple], bool]) -> np.ndarray:
    """The chosen gradients as one vector of real numbers."""
    parts = [
        np.asarray(a).ravel()
        for leaf, a in zip(paths(grads, 'params'), jax.tree.leaves(grads), strict=True)
        if jnp.issubdtype(a.dtype, jnp.inexact)
        and only(sum((p if isinstance(p, tuple) else (p,) for p in leaf.path), ()))
    ]
    if not parts:
        raise ValueError('`only` leaves no parameter to compare.')
    return np.concatenate(
        [p for a in parts for p in ((a.real, a.imag) if np.iscomplexobj(a) else (a,))]
    ).astype(np.float64)


class _Data(NamedTuple):
    inputs: tuple
    targets: tuple
    loss: Callable
    length: int


def _complete(
    inputs: tuple,
    oracle: Any,
    loss: Callable | None,
    sequences: Sequence[Any] | None,
    length: int,
    seed: int,
) -> _Data:
    """The user's data, with what is missing made up."""
    rng = np.random.RandomState(seed)
    n = len(inputs)
    if sequences is None:
        sequences = jax.tree.map(lambda a: _noise(rng, a, length), inputs)
    elif not isinstance(sequences, tuple | list) or len(sequences) < n:
        raise ValueError(
            f'`sequences` must be a tuple of at least {n} sequences, one for each input of the step, then the targets of `loss`.'
        )
    length = sequence_length(sequences)
    if loss is not None:
        return _Data(tuple(sequences[:n]), tuple(sequences[n:]), loss, length)
    outs = [v.aval for v in oracle.graph.step.outs if jnp.issubdtype(v.aval.dtype, jnp.inexact)]
    return _Data(
        tuple(sequences[:n]),
        ([jnp.asarray(rng.randn(length, *a.shape), a.dtype) for a in outs],),
        _distance,
        length,
    )


def _noise(rng: np.random.RandomState, example: Any, length: int) -> jax.Array:
    """A sequence like the example: noise about it, or for integers its own entries in another order at each step."""
    a = np.asarray(example)
    if jnp.issubdtype(a.dtype, jnp.inexact):
        return jnp.asarray(a + rng.randn(length, *a.shape), a.dtype)
    return jnp.asarray(
        np.stack([rng.permutation(a.ravel()).reshape(a.shape) for _ in range(length)])
    )


def _distance(out: Any, targets: list) -> Any:
    outs = [a for a in jax.tree.leaves(out) if jnp.issubdtype(a.dtype, jnp.inexact)]
    return sum(jnp.mean(jnp.abs(a - y) ** 2) for a, y in zip(outs, targets, strict=True))


class _Function:
    """How a plain function is differentiated."""

    def __init__(self, model: Any, example: tuple):
        self.model, self.example, self.inputs = model, example, example[2:]

    def learner(self, name: str, options: dict) -> Any:
        return compile(self.model, name, *self.example, **options)

    def grad(self, learner: Any, data: _Data, window: Any) -> Any:
        params, state = self.example[:2]
        xs = data.inputs[0] if len(data.inputs) == 1 else data.inputs
        (grads, _), _ = learner.grad(
            data.loss, params, learner.init(params, state), xs, *data.targets, window=window
        )
        return grads

    def restore(self) -> None:
        pass


class _Module:
    """How a module is differentiated, from the same states each time."""

    def __init__(self, model: Any, example: tuple):
        self.model, self.inputs = model, example
        from ..shells.brainstate import brainstate

        self.before = [(s, s.value) for s in brainstate.graph.states(model).values()]
        self._steps: dict[Any, Callable] = {}

    def learner(self, name: str, options: dict) -> Any:
        self.restore()
        return ready(self.model, name, *self.inputs, **options)

    def grad(self, learner: Any, data: _Data, window: Any) -> Any:
        self.restore()
        learner.reset_state()
        n = len(data.inputs)
        step = self._steps.setdefault(id(learner), lambda *a: data.loss(learner(*a[:n]), *a[n:]))
        return learner.etrace_grad(*data.inputs, *data.targets, step_fn=step, window=window)

    def restore(self) -> None:
        for state, value in self.before:
            state.value = value


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of text: the first to the left, the others to the right."""
    wide = [max(len(str(r[i])) for r in [head, *rows]) for i in range(len(head))]
    line = lambda r: '  '.join(
        f'{c:<{w}}' if i == 0 else f'{c:>{w}}' for i, (c, w) in enumerate(zip(r, wide, strict=True))
    ).rstrip()
    return '\n'.join([line(head), '  '.join('-' * w for w in wide), *map(line, rows)])
