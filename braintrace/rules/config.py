"""A learning rule as a point in a small space: how the trace is stored, how it moves in time, what
it sees, what it meets."""

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
    """The axes of a learning rule. Equal rules have equal configurations: what means the same is
    brought to one form.

    Args:
        trace_factorization: 'per_param' (D-RTRL), 'io_factorized' (pp-prop) or 'random_projection'
            (UORO).
        temporal_recursion: 'jacobian', 'scalar_leak' (RFLO) or 'none'; for 'io_factorized' a pair
            (input side, output side).
        recurrence_scope: 'diagonal', 'coupled' (OSTL) or 'sparse_n' (SnAp-n).
        learning_signal: 'symmetric', 'random_feedback', 'modulatory' or 'bootstrapped'.
        trace_filter: 'none' or 'kappa'.
        update_schedule: when gradients are handed out: 'per_step', once a 'window', or at
            'sequence_end'.
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
    _check_neighbours(c.sparse_n)
    if c.kappa is not None:
        new['kappa'] = _number('kappa', c.kappa)
    _check_pairs(c)
    new |= _canonical_sides(c) if c.is_factorized else _canonical_recursion(c)
    if c.recurrence_scope == 'sparse_n' and c.sparse_n == 1:
        new['recurrence_scope'], new['sparse_n'] = 'coupled', None
    if c.trace_filter == 'kappa' and new.get('kappa') == 0:
        new['trace_filter'], new['kappa'] = 'none', None
    return new


def _check_neighbours(n: Any) -> None:
    if n is None:
        return
    if isinstance(n, bool) or not isinstance(n, Integral):
        raise TypeError(f'`sparse_n` must be an int, got {n!r}.')
    if n < 1:
        raise ValueError(f'`sparse_n` must be at least 1, got {n}.')


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list)


def _check_pairs(c: ETraceConfig) -> None:
    pairs = [v for v in (c.temporal_recursion, c.decay) if _is_pair(v)]
    if any(len(v) != 2 for v in pairs):
        raise ValueError('A pair (input side, output side) has two entries.')
    if pairs and not c.is_factorized:
        raise ValueError(
            "A pair (input side, output side) is for trace_factorization='io_factorized' only."
        )


def _canonical_sides(c: ETraceConfig) -> dict[str, Any]:
    """The recursion and the decay of the input and of the output side."""
    recursions: tuple = (c.temporal_recursion, c.temporal_recursion)
    if _is_pair(c.temporal_recursion):
        recursions = tuple(c.temporal_recursion)
    elif c.temporal_recursion == 'jacobian':
        recursions = ('scalar_leak', 'jacobian')
    values = c.decay if _is_pair(c.decay) else (c.decay, c.decay)
    decays = [None if d is None else _number('decay', d) for d in values]
    sides = [_side(r, d) for r, d in zip(recursions, decays, strict=True)]
    settled = tuple(d for _, d in sides)
    return {
        'temporal_recursion': tuple(r for r, _ in sides),
        'decay': None if None in settled else settled,
    }


def _canonical_recursion(c: ETraceConfig) -> dict[str, Any]:
    """The recursion and the decay of a trace that is one."""
    decay = None if c.decay is None else _number('decay', c.decay)
    if c.temporal_recursion == 'jacobian':
        return {'decay': decay}
    recursion, decay = _side(c.temporal_recursion, decay)
    return {'temporal_recursion': recursion, 'decay': decay}


def _side(recursion: str, decay: float | None) -> tuple[str, float | None]:
    if recursion == 'none' and decay:
        raise ValueError(f"`decay`: temporal_recursion='none' has decay 0, got {decay}.")
    if recursion == 'none' or decay == 0:
        return 'none', 0.0
    return recursion, decay


def _check(c: ETraceConfig) -> None:
    """Refuse what does not go together."""
    for is_wrong, why in (*_wrong_recursions(c), *_wrong_choices(c)):
        if is_wrong:
            raise ValueError(f'ETraceConfig: {why}')


Wrong = list[tuple[bool, str]]  # whether it is, and what to say then


def _wrong_recursions(c: ETraceConfig) -> Wrong:
    recursion, scope = c.temporal_recursion, c.recurrence_scope
    of_state = recursion[1] if c.is_factorized else recursion
    leaky_scope = c.include_recurrent_mixing and of_state != 'jacobian'
    input_jacobian = c.is_factorized and recursion[0] == 'jacobian'
    idle_decay = not c.is_factorized and recursion == 'jacobian' and c.decay is not None
    no_decay = not c.is_factorized and recursion == 'scalar_leak' and c.decay is None
    no_decays = c.is_factorized and c.decay is None
    return [
        (leaky_scope, f'recurrence_scope={scope!r} needs a jacobian to act on, not a leak.'),
        (input_jacobian, "the input side has no jacobian: use 'scalar_leak' or 'none'."),
        (idle_decay, "`decay` has no meaning for temporal_recursion='jacobian'."),
        (no_decay, "temporal_recursion='scalar_leak' needs `decay`."),
        (no_decays, "trace_factorization='io_factorized' needs `decay`, one or a pair."),
    ]


def _wrong_choices(c: ETraceConfig) -> Wrong:
    filtered, sparse = c.trace_filter == 'kappa', c.recurrence_scope == 'sparse_n'
    windowed, per_param = c.update_schedule == 'window', c.trace_factorization == 'per_param'
    drawn = c.trace_factorization == 'random_projection'
    return [
        (filtered and not per_param, "trace_filter='kappa' needs trace_factorization='per_param'."),
        (
            filtered != (c.kappa is not None),
            "`kappa` belongs to trace_filter='kappa', which needs it.",
        ),
        (
            sparse != (c.sparse_n is not None),
            "`sparse_n` belongs to recurrence_scope='sparse_n', which needs it.",
        ),
        (
            windowed != (c.window_size is not None),
            "`window_size` belongs to update_schedule='window', which needs it.",
        ),
        (
            drawn and c.recurrence_scope != 'coupled',
            "'random_projection' needs recurrence_scope='coupled'.",
        ),
        (
            sparse and not per_param,
            "recurrence_scope='sparse_n' needs trace_factorization='per_param'.",
        ),
        (_is_wrong_size(c.window_size), '`window_size` must be an int of at least 1.'),
    ]


def _is_wrong_size(size: Any) -> bool:
    if size is None:
        return False
    return isinstance(size, bool) or not isinstance(size, Integral) or size < 1
