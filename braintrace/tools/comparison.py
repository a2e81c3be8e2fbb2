"""Every rule on one model: how close its gradient is to BPTT, and what it costs."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..frontends.forms import names_of
from ..learn.core import BUDGET, core_of
from ..learn.how import how_to_learn
from ..learn.sizes import number_of_bytes
from ..rules.registry import BY_NAME, find_rule
from ..rules.rule import Rule
from ..show.exact import in_one_word
from ..show.figure import new_figure
from ..show.text import bytes_as_text, table
from .sequences import completed
from .trial import Data, Trial, ready, trial_of

DEFAULTS = {'decay_or_rank': 0.9, 'decay': 0.9, 'rank': 8}  # options that a rule needs


def needed_options(rule: Rule) -> dict[str, Any]:
    """Values for the options without which a rule cannot run."""
    return {name: value for name, value in DEFAULTS.items() if name in rule.options}


class MeasuredRule(NamedTuple):
    """One rule, measured; the numbers are by window.

    `cosine` and relative `error` are of its gradient against BPTT, `seconds` are per step. `exact`
    says for how many parameters the rule is exact by the structure of the model: 'yes' for all,
    'no' for none. `note` says why there are none of these.
    """

    rule: str
    cosine: dict[int, float] = {}
    error: dict[int, float] = {}
    seconds: dict[int, float] = {}
    trace_bytes: int | None = None
    note: str = ''
    exact: str = ''

    def line(self) -> str:
        """The row by itself, as text."""
        if self.note:
            return f'{self.rule}: {self.note}'
        by_window = [
            f'window {w} cosine {self.cosine[w]:.4f} error {self.error[w]:.1e} '
            f'{self.seconds[w] * 1e6:.3g} us/step'
            for w in self.cosine
        ]
        told = [*by_window, f'traces {bytes_as_text(self.trace_bytes or 0)}', f'exact {self.exact}']
        return f'{self.rule}: {", ".join(told)}'


class Comparison:
    """The rows of `compare`, as a table or a plot: the smallest error in the first window comes
    first, rules that were not measured last."""

    def __init__(self, rows: Sequence[MeasuredRule], windows: Sequence[int]):
        first = windows[0]
        self.rows = tuple(sorted(rows, key=lambda r: r.error.get(first, math.inf)))
        self.windows = tuple(windows)

    def __getitem__(self, rule: str) -> MeasuredRule:
        return next(r for r in self.rows if r.rule == rule)

    def table(self) -> str:
        """The rows as text; a rule that cannot be used stands below with its reason."""
        accuracy = [f'{what}, window {w}' for w in self.windows for what in ('cosine', 'error')]
        speed = [f'us/step, window {w}' for w in self.windows]
        measured = [self._cells(r) for r in self.rows if not r.note]
        notes = [f'{r.rule}: {r.note}' for r in self.rows if r.note]
        return '\n'.join([table(['rule', *accuracy, *speed, 'traces', 'exact'], measured), *notes])

    __str__ = table

    def _cells(self, row: MeasuredRule) -> list[str]:
        accuracy = []
        for w in self.windows:
            accuracy += [f'{row.cosine[w]:.4f}', f'{row.error[w]:.1e}']
        speed = [f'{row.seconds[w] * 1e6:.3g}' for w in self.windows]
        return [row.rule, *accuracy, *speed, bytes_as_text(row.trace_bytes or 0), row.exact]

    def __repr__(self) -> str:
        return f'Comparison({", ".join(r.rule for r in self.rows)})'

    def plot(self, path: Any = None) -> Any:
        """Error, time per step and traces of each rule, the most exact on top.

        Args:
            path: a file to write.

        Returns:
            The matplotlib figure.
        """
        rows = [r for r in self.rows if not r.note]
        rows.sort(key=lambda r: -r.error[self.windows[0]])
        figure = new_figure(10, 1.6 + 0.3 * len(rows))
        errors, times, traces = panels = figure.subplots(1, 3, sharey=True)
        at, thickness = np.arange(len(rows)), 0.8 / len(self.windows)
        for k, w in enumerate(self.windows):
            y = at + 0.4 - thickness * (k + 0.5)
            visible = [max(r.error[w], 1e-16) for r in rows]  # on a logarithmic axis
            errors.plot(visible, y, 'os^Dv'[k % 5], label=f'window {w}')
            times.barh(y, [r.seconds[w] * 1e6 for r in rows], thickness)
        traces.barh(at, [r.trace_bytes or 0 for r in rows], 0.6, color='grey')
        labels = 'relative error of the gradient', 'microseconds per step', 'bytes of traces'
        for axes, label in zip(panels, labels, strict=True):
            axes.set_xlabel(label)
            axes.grid(alpha=0.3)
        errors.set(xscale='log', yticks=at, yticklabels=[r.rule for r in rows])
        traces.set_xscale('symlog')
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
    limit: float | str = BUDGET,
    repeats: int = 3,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
    on_row: Callable[[MeasuredRule], None] | None = None,
) -> Comparison:
    """Which rule for this model: for each rule the gradient against BPTT, time and memory.

    Args:
        model, example_inputs: as for `braintrace.compile`. A module's states are left as they were.
        rules: their names, all by default; or `{label: (name, options)}`.
        loss: `loss(out, *targets)` of one step. By default the squared distance to random targets.
        sequences: the inputs over time, then the targets of `loss`; time is the first axis. By
            default noise like the example inputs.
        windows: the numbers of steps in a window to try.
        length: steps of the default sequences.
        batch_size: initialise a module's states for a batch; they are left alone if there are any
            and this is not given.
        options: of the rules, by rule name.
        only: which parameters' gradients to compare, by path; read-outs are exact with every rule.
        limit: bytes of traces, as a number or as text ('10MB'), beyond which a rule is left out;
            its row says what it would need.
        repeats: runs of which the fastest counts.
        seed: of the default sequences.
        progress: called with the name of each rule before it runs.
        on_row: called with each row as soon as it is measured.

    Returns:
        The rows, ranked by their error in the first window.

    Example:
        >>> import jax.numpy as jnp, braintrace
        >>> leaky = lambda p, h, x: (jnp.tanh(p['a'] * h + x @ p['W']),) * 2
        >>> params = {'a': jnp.ones(2), 'W': jnp.ones((3, 2))}
        >>> rows = braintrace.compare(
        ...     leaky, params, jnp.zeros(2), jnp.ones(3), rules=['d_rtrl', 'bptt']
        ... )
        >>> rows['d_rtrl'].error[1] < 1e-5 < rows['bptt'].error[1]
        True
    """
    if not np.iterable(windows) or not windows or any(not _is_window(w) for w in windows):
        raise ValueError(f'`windows` must be numbers of steps, such as (1, 16), got {windows!r}.')
    if not _is_window(repeats):
        raise ValueError(f'`repeats` must be a number of runs, at least 1, got {repeats!r}.')
    most = number_of_bytes('limit', limit, 0)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # what the compiler has to say is for the report
        oracle = ready(model, 'bptt', *example_inputs, batch_size=batch_size)
        trial = trial_of(model, example_inputs)
        data = completed(trial.inputs, oracle, loss, sequences, length, seed)
        true = _as_vector(trial.grad(oracle, data, 'auto'), only)
        _check_true_gradient(true)
        bench = _Bench(trial, oracle, data, only, true, tuple(windows), most, repeats)
        rows = []
        for label, (name, own) in _labelled(rules).items():
            if progress is not None:
                progress(label)
            rule = find_rule(name)
            given = {**needed_options(rule), **(options or {}).get(rule.name, {}), **own}
            try:
                row = bench.row(label, rule.name, given)
            except Exception as error:  # a rule may refuse a model in any way: that is its row
                row = MeasuredRule(label, note=_reason(error))
            rows.append(row)
            if on_row is not None:
                on_row(row)
        trial.restore()
    return Comparison(rows, windows)


def planned_trace_bytes(oracle: Any, rule: str, options: dict[str, Any]) -> int:
    """The bytes of all traces that a rule would carry for the model of a compiled learner."""
    how = how_to_learn(rule, options)
    core = core_of(oracle.graph.compiled, how.rule, how.options, how.single_step)
    return core.sizes.memory()['trace_bytes']


@dataclass(frozen=True)
class _Bench:
    """One model on one sequence, on which rule after rule is measured; `true` is BPTT's vector."""

    trial: Trial
    oracle: Any
    data: Data
    only: Callable[[tuple], bool]
    true: np.ndarray
    windows: tuple[int, ...]
    limit: int
    repeats: int

    def row(self, label: str, rule: str, options: dict[str, Any]) -> MeasuredRule:
        size = planned_trace_bytes(self.oracle, rule, options)
        if size > self.limit:
            needed = bytes_as_text(size)
            note = f'left out, its traces would take {needed}; raise `limit` to see it'
            return MeasuredRule(label, trace_bytes=size, note=note)
        learner = self.trial.learner(rule, options)
        row = MeasuredRule(label, {}, {}, {}, size, exact=in_one_word(learner.report.exactness))
        for w in self.windows:
            gradient = _as_vector(self.trial.grad(learner, self.data, w), self.only)
            row.cosine[w] = _cosine(gradient, self.true)
            row.error[w] = _relative_error(gradient, self.true)
            row.seconds[w] = min(self._seconds(learner, w) for _ in range(self.repeats))
        return row

    def _seconds(self, learner: Any, window: int) -> float:
        """Of one step, in one run over the sequence."""
        start = time.perf_counter()
        jax.block_until_ready(self.trial.grad(learner, self.data, window))
        return (time.perf_counter() - start) / self.data.length


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / max(np.linalg.norm(a) * np.linalg.norm(b), 1e-300))


def _relative_error(a: np.ndarray, true: np.ndarray) -> float:
    return float(np.linalg.norm(a - true) / np.linalg.norm(true))


def _is_window(w: Any) -> bool:
    return isinstance(w, int) and not isinstance(w, bool) and w >= 1


def _labelled(
    rules: Iterable[str] | Mapping[str, tuple[str, Mapping]] | None,
) -> Mapping[str, tuple[str, Mapping]]:
    """`{label: (name, options)}`, for names their own label; all rules by default."""
    if isinstance(rules, str):
        rules = [rules]
    if isinstance(rules, Mapping):
        return rules
    return {name: (name, {}) for name in (BY_NAME if rules is None else rules)}


def _reason(error: Exception) -> str:
    """The first line of what went wrong, with the kind of error if it is not a usual refusal."""
    first = str(error).split('\n')[0]
    if isinstance(error, TypeError | ValueError | RuntimeError):
        return first
    return f'{type(error).__name__}: {first}'


def _check_true_gradient(true: np.ndarray) -> None:
    wrong = None
    if not true.any():
        wrong = 'zero'
    elif not np.isfinite(true).all():
        wrong = 'not finite'
    if wrong is not None:
        raise ValueError(
            f'`compare`: the BPTT gradient is {wrong} over this sequence, so there is nothing to '
            'compare with. Pass `sequences` and `loss` that make the model work.'
        )


def _as_vector(grads: Any, only: Callable[[tuple], bool]) -> np.ndarray:
    """The chosen gradients as one vector of real numbers, complex ones as their two parts."""
    parts: list[np.ndarray] = []
    for leaf, array in zip(names_of(grads, 'params'), jax.tree.leaves(grads), strict=True):
        if not jnp.issubdtype(array.dtype, jnp.inexact) or not only(_flat_path(leaf.path)):
            continue
        entries = np.asarray(array).ravel()
        parts += [entries.real, entries.imag] if np.iscomplexobj(entries) else [entries]
    if not parts:
        raise ValueError('`only` leaves no parameter to compare.')
    return np.concatenate(parts).astype(np.float64)


def _flat_path(path: tuple) -> tuple:
    """A path whose keys may be paths themselves, as one path."""
    flat: list[Any] = []
    for key in path:
        flat += key if isinstance(key, tuple) else (key,)
    return tuple(flat)
