"""A learning rule as a point in a small space: how the trace is stored, how it moves in time, what it sees, what it meets."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any

AXES = {
    'trace_factorization': ('per_param', 'io_factorized', 'random_projection'),
    'temporal_recursion': ('jacobian', 'scalar_leak', 'none'),
    'recurrence_scope': ('diagonal', 'coupled', 'sparse_n'),
    'learning_signal': ('symmetric', 'random_feedback', 'modulatory', 'bootstrapped'),
    'trace_filter': ('none', 'kappa'),
    'update_schedule': ('per_step', 'window', 'sequence_end'),
}


@dataclass(frozen=True)
class ETraceConfig:
    """The axes of a learning rule. Equal rules have equal configurations: what means the same is brought to one form.

    Args:
        trace_factorization: 'per_param' (D-RTRL), 'io_factorized' (pp-prop) or 'random_projection' (UORO).
        temporal_recursion: 'jacobian', 'scalar_leak' (RFLO) or 'none'; for 'io_factorized' a pair (input side, output side).
        recurrence_scope: 'diagonal', 'coupled' (OSTL) or 'sparse_n' (SnAp-n).
        learning_signal: 'symmetric', 'random_feedback', 'modulatory' or 'bootstrapped'.
        trace_filter: 'none' or 'kappa'.
        update_schedule: when gradients are handed out: 'per_step', once a 'window', or at 'sequence_end'.
        decay, kappa, sparse_n, window_size: the coefficients of these choices.

    Example:
        >>> import braintrace
        >>> braintrace.ETraceConfig('io_factorized', decay=.9).temporal_recursion
        ('scalar_leak', 'jacobian')
    """

    trace_factorization: str = 'per_param'
    temporal_recursion: Any = 'jacobian'
    recurrence_scope: str = 'diagonal'
    learning_signal: str = 'symmetric'
    trace_filter: str = 'none'
    update_schedule: str = 'per_step'
    decay: Any = None
    kappa: Any = None
    sparse_n: int | None = None
    window_size: int | None = None

    def __post_init__(self) -> None:
        for axis, words in AXES.items():
            value = getattr(self, axis)
            for v in (
                value
                if axis == 'temporal_recursion' and isinstance(value, tuple | list)
                else [value]
            ):
                if v not in words:
                    raise ValueError(f'`{axis}` must be one of {", ".join(words)}, got {v!r}.')
        for name, change in _canonical(self).items():
            object.__setattr__(self, name, change)
        _check(self)

    @property
    def is_factorized(self) -> bool:
        """Whether the trace is an input trace times an output trace."""
        return self.trace_factorization == 'io_factorized'

    @property
    def include_recurrent_mixing(self) -> bool:
        """Whether units see more than their own past."""
        return self.recurrence_scope != 'diagonal'

    def _side(self, name: str, side: int) -> Any:
        if not self.is_factorized:
            raise AttributeError(
                f'Only an io_factorized configuration has two sides; this one has `{name}`.'
            )
        return getattr(self, name)[side]

    @property
    def recursion_x(self) -> str:
        """The temporal recursion of the input trace."""
        return self._side('temporal_recursion', 0)

    @property
    def recursion_f(self) -> str:
        """The temporal recursion of the output trace."""
        return self._side('temporal_recursion', 1)

    @property
    def decay_x(self) -> float:
        """The decay of the input trace."""
        return self._side('decay', 0)

    @property
    def decay_f(self) -> float:
        """The decay of the output trace."""
        return self._side('decay', 1)

    def replace(self, **changes: Any) -> ETraceConfig:
        """A configuration with some fields changed."""
        return replace(self, **changes)

    def describe(self) -> str:
        """The factorization, and everything that is not as by default."""
        plain = {f.name: f.default for f in fields(self)}
        told = [
            f'{k}={v}'
            for k, v in ((f.name, getattr(self, f.name)) for f in fields(self))
            if k == 'trace_factorization' or v != plain[k]
        ]
        return ', '.join(told)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f'`{name}` must be a number, got {value!r}.')
    if not 0 <= float(value) < 1:
        raise ValueError(f'`{name}` must be in [0, 1), got {value}.')
    return float(value)


def _canonical(c: ETraceConfig) -> dict[str, Any]:
    """The changes that bring a configuration to its one form."""
    new: dict[str, Any] = {}
    recursion, decay, kappa, n = c.temporal_recursion, c.decay, c.kappa, c.sparse_n
    if n is not None:
        if isinstance(n, bool) or not isinstance(n, Integral):
            raise TypeError(f'`sparse_n` must be an int, got {n!r}.')
        if n < 1:
            raise ValueError(f'`sparse_n` must be at least 1, got {n}.')
    if kappa is not None:
        new['kappa'] = kappa = _number('kappa', kappa)
    pairs = [v for v in (recursion, decay) if isinstance(v, tuple | list)]
    if any(len(v) != 2 for v in pairs):
        raise ValueError('A pair (input side, output side) has two entries.')
    if pairs and not c.is_factorized:
        raise ValueError(
            "A pair (input side, output side) is for trace_factorization='io_factorized' only."
        )
    if c.is_factorized:
        sides = (
            tuple(recursion)
            if isinstance(recursion, tuple | list)
            else ('scalar_leak', 'jacobian')
            if recursion == 'jacobian'
            else (recursion,) * 2
        )
        values = list(decay) if isinstance(decay, tuple | list) else [decay] * 2
        done = [
            _side(s, None if d is None else _number('decay', d))
            for s, d in zip(sides, values, strict=True)
        ]
        new['temporal_recursion'], new['decay'] = (
            tuple(s for s, _ in done),
            None if any(d is None for _, d in done) else tuple(d for _, d in done),
        )
    else:
        decay = None if decay is None else _number('decay', decay)
        if recursion != 'jacobian':
            new['temporal_recursion'], decay = _side(recursion, decay)
        new['decay'] = decay
    if c.recurrence_scope == 'sparse_n' and n == 1:
        new['recurrence_scope'], new['sparse_n'] = 'coupled', None
    if c.trace_filter == 'kappa' and kappa == 0:
        new['trace_filter'], new['kappa'] = 'none', None
    return new


def _side(recursion: str, decay: float | None) -> tuple[str, float | None]:
    if recursion == 'none':
        if decay:
            raise ValueError(f"`decay`: temporal_recursion='none' has decay 0, got {decay}.")
        return 'none', 0.0
    return ('none', 0.0) if decay == 0 else (recursion, decay)


def _check(c: ETraceConfig) -> None:
    jacobian = (c.temporal_recursion[1] if c.is_factorized else c.temporal_recursion) == 'jacobian'
    one_sided = not c.is_factorized
    wrong = [
        (
            c.trace_filter == 'kappa' and c.trace_factorization != 'per_param',
            "trace_filter='kappa' needs trace_factorization='per_param'.",
        ),
        (
            c.include_recurrent_mixing and not jacobian,
            f'recurrence_scope={c.recurrence_scope!r} needs a jacobian to act on, not a leak.',
        ),
        (
            c.is_factorized and c.temporal_recursion[0] == 'jacobian',
            "the input side has no jacobian: use 'scalar_leak' or 'none'.",
        ),
        (
            one_sided and c.temporal_recursion == 'jacobian' and c.decay is not None,
            "`decay` has no meaning for temporal_recursion='jacobian'.",
        ),
        (
            one_sided and c.temporal_recursion == 'scalar_leak' and c.decay is None,
            "temporal_recursion='scalar_leak' needs `decay`.",
        ),
        (
            c.is_factorized and c.decay is None,
            "trace_factorization='io_factorized' needs `decay`, one or a pair.",
        ),
        (
            (c.trace_filter == 'kappa') != (c.kappa is not None),
            "`kappa` belongs to trace_filter='kappa', which needs it.",
        ),
        (
            (c.recurrence_scope == 'sparse_n') != (c.sparse_n is not None),
            "`sparse_n` belongs to recurrence_scope='sparse_n', which needs it.",
        ),
        (
            (c.update_schedule == 'window') != (c.window_size is not None),
            "`window_size` belongs to update_schedule='window', which needs it.",
        ),
        (
            c.trace_factorization == 'random_projection' and c.recurrence_scope != 'coupled',
            "'random_projection' needs recurrence_scope='coupled'.",
        ),
        (
            c.recurrence_scope == 'sparse_n' and c.trace_factorization != 'per_param',
            "recurrence_scope='sparse_n' needs trace_factorization='per_param'.",
        ),
        (
            c.window_size is not None
            and (
                isinstance(c.window_size, bool)
                or not isinstance(c.window_size, Integral)
                or c.window_size < 1
            ),
            '`window_size` must be an int of at least 1.',
        ),
    ]
    for is_wrong, why in wrong:
        if is_wrong:
            raise ValueError(f'ETraceConfig: {why}')
