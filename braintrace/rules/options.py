"""The options of the rules: what each of them must be, said once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..plan.layout import Scope

REQUIRED = object()
TRACE_LIMIT = 2**32  # bytes that the trace of one weight may take

MEANING = {  # of options without a default
    'decay_or_rank': 'a decay in [0, 1), for instance 0.9, or a rank, a whole number',
    'decay': 'a number in [0, 1), for instance 0.9',
    'rank': 'a whole number, for instance 8',
}

OWN_LEAK = 'model'  # asks for the leak that the model has
FEEDBACKS = ('symmetric', 'random', 'adaptive', 'square')


def decays(decay_or_rank: Any) -> tuple[float, float]:
    """Decay of the input and of the output trace: a float in [0, 1), a rank r >= 1 for (r-1)/(r+1),
    or a pair of these."""
    if isinstance(decay_or_rank, tuple | list):
        if len(decay_or_rank) != 2:
            raise ValueError(
                '`decay_or_rank`: a pair (input side, output side) has two entries, '
                f'got {len(decay_or_rank)}.'
            )
        x, f = (decays(d)[0] for d in decay_or_rank)
        return x, f
    if isinstance(decay_or_rank, bool) or not isinstance(decay_or_rank, Real):
        raise ValueError(
            '`decay_or_rank` must be a float (decay), an int (rank) or a pair, got '
            f'{decay_or_rank!r}.'
        )
    if isinstance(decay_or_rank, Integral):
        if decay_or_rank < 1:
            raise AssertionError(
                f'`decay_or_rank`: a rank must be at least 1, got {decay_or_rank}.'
            )
        decay = (int(decay_or_rank) - 1) / (int(decay_or_rank) + 1)
    else:
        decay = float(decay_or_rank)
        if not 0 <= decay < 1:
            raise AssertionError(f'`decay_or_rank`: a decay must be in [0, 1), got {decay}.')
    return decay, decay


def share(name: str, value: Any) -> float:
    """A number in [0, 1)."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    if not real or not 0 <= float(value) < 1:
        raise ValueError(f'`{name}` must be a number in [0, 1), got {value!r}.')
    return float(value)


def leaks(name: str, value: Any) -> Any:
    """A number in [0, 1), an array of such, 'model', or a function from the path of a hidden state
    to one of these."""
    if isinstance(value, str) and value == OWN_LEAK:
        return value
    if isinstance(value, Real):
        return share(name, value)
    if callable(value):
        return value
    if not isinstance(value, list | tuple) and not hasattr(value, '__array__'):
        raise ValueError(
            f'`{name}` must be a number in [0, 1), an array of such with one for each unit, '
            f"'{OWN_LEAK}' for the model's own leak, or a function of a hidden state's path, "
            f'got {value!r}.'
        )
    try:
        leak = np.asarray(value)
    except jax.errors.TracerArrayConversionError as error:
        raise TypeError(
            f'`{name}` must be known when the learner is made, got a traced array. Pass a concrete '
            "one, or 'model' for the leak that the model has at each step."
        ) from error
    real = np.issubdtype(leak.dtype, np.floating) or np.issubdtype(leak.dtype, np.integer)
    if not real or not ((leak >= 0) & (leak < 1)).all():
        raise ValueError(f'`{name}` must have numbers in [0, 1), got {value!r}.')
    return leak


def count(name: str, value: Any) -> int:
    """A whole number of at least one."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f'`{name}` must be an int, got {value!r}.')
    if value < 1:
        raise ValueError(f'`{name}` must be at least 1, got {value}.')
    return int(value)


def _optional_count(name: str, value: Any) -> int | None:
    return None if value is None else count(name, value)


def _pair(name: str, value: Any) -> Any:
    decays(value)
    return value


def _precision(name: str, value: Any) -> np.dtype | None:
    if value is None:
        return None
    dtype = jnp.dtype(value)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f'`{name}` must be a float type, got {value!r}.')
    return dtype


def _scope(name: str, value: Any) -> Scope:
    return value if isinstance(value, Scope) else Scope.named(value)


def _feedback(name: str, value: Any) -> str:
    if value not in FEEDBACKS:
        known = ', '.join(map(repr, FEEDBACKS[:-1])) + f' or {FEEDBACKS[-1]!r}'
        raise ValueError(f'`{name}` must be {known}, got {value!r}.')
    return value


def _yes_or_no(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f'`{name}` must be True or False, got {value!r}.')
    return value


def _positive(name: str, value: Any) -> float:
    if not np.float32(value) > 0:
        raise ValueError(f'`{name}` must be positive in float32, got {value}.')
    return float(value)


def preference(wish: Any, path: tuple) -> str | None:
    """What a user prefers for one weight of the hybrid rule."""
    if wish not in (None, 'full', 'approx', 'adaptive'):
        raise ValueError(
            f"`prefer` must say 'full', 'approx' or 'adaptive', got {wish!r} for {path}."
        )
    return wish


CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    'decay_or_rank': _pair,
    'decay': leaks,
    'kappa_filter_decay': share,
    'n': count,
    'far_reach': _yes_or_no,
    'rank': count,
    'embedding_rows': _optional_count,
    'trace_limit': count,
    'trace_dtype': _precision,
    'scope': _scope,
    'feedback': _feedback,
    'projection_eps': _positive,
}


def checked(name: str, value: Any) -> Any:
    """The value of an option, in the form that rules take it; other options are taken as they
    are."""
    return CHECKS[name](name, value) if name in CHECKS else value
