"""The rules by name: which carrier, which signal, which kind of credit, which options."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import jax.numpy as jnp

from ..plan.layout import Layout
from .bptt import Nothing
from .carrier import Carrier, Several
from .config import ETraceConfig
from .d_rtrl import PositionWise
from .eprop import Filtered
from .low_rank import LowRank
from .pp_prop import Factorised
from .rtrl import full
from .signals import Guess, Modulator, RandomFeedback, Signal, SquareFeedback
from .snap import SparseInfluence
from .uoro import Kronecker, RankOne, as_key

REQUIRED = object()
TRACE_LIMIT = 2**32  # bytes that the trace of one weight may take


@dataclass(frozen=True)
class Rule:
    """A learning rule.

    Args:
        name: of the rule.
        carrier: `carrier(layout, **options)` makes what takes the influence across the edge of a window.
        vjp_method: the default kind of credit, 'single-step' or 'multi-step'.
        options: with their defaults; `REQUIRED` for those that have none.
        traces: whether it follows the relations that the compiler tells about.
        multi_only: it has no meaning with single-step credit.
        single_only: `single_only(**options)` says whether its signal takes the place of the gradient in each step, which multi-step credit would not see.
        modulated: whether its signal takes a modulator.
        signal: `signal(layout, **options)` makes what the credit of a step comes from; the gradient by default.
        scope: `scope(**options)` says what a unit's transition is, see `D_RTRL`.
    """

    name: str
    carrier: Callable[..., Carrier]
    vjp_method: str
    options: Mapping[str, Any]
    traces: bool = True
    multi_only: bool = False
    single_only: Callable[..., bool] = lambda **_: False
    modulated: bool = False
    signal: Callable[..., Signal] = lambda layout, **_: Signal()
    scope: Callable[..., str] = lambda **options: options.get('scope', 'diagonal')

    def settle(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """All options, as given or by default."""
        missing = [k for k, v in self.options.items() if v is REQUIRED and k not in options]
        if missing:
            raise TypeError(f'Rule {self.name!r} needs the option `{missing[0]}`.')
        return {**self.options, **options}

    def check_modulator(self, modulator: Any) -> None:
        """Refuse a modulator that nothing would use."""
        if modulator is not None and not self.modulated:
            raise TypeError(
                f"Rule {self.name!r} takes no `modulator`: its signal comes from the loss. Use 'three_factor', or a configuration with "
                "learning_signal='modulatory'."
            )


def decays(decay_or_rank: Any) -> tuple[float, float]:
    """Decay of the input and of the output trace: a float in [0, 1), a rank r >= 1 for (r-1)/(r+1), or a pair of these."""
    if isinstance(decay_or_rank, tuple | list):
        if len(decay_or_rank) != 2:
            raise ValueError(
                f'`decay_or_rank`: a pair (input side, output side) has two entries, got {len(decay_or_rank)}.'
            )
        x, f = (decays(d)[0] for d in decay_or_rank)
        return x, f
    if isinstance(decay_or_rank, bool) or not isinstance(decay_or_rank, Real):
        raise ValueError(
            f'`decay_or_rank` must be a float (decay), an int (rank) or a pair, got {decay_or_rank!r}.'
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


def _share(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < 1:
        raise ValueError(f'`{name}` must be a number in [0, 1), got {value!r}.')
    return float(value)


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f'`{name}` must be an int, got {value!r}.')
    if value < 1:
        raise ValueError(f'`{name}` must be at least 1, got {value}.')
    return int(value)


def _everyone(layout: Layout) -> frozenset[int]:
    return frozenset(range(len(layout.relations)))


def _position_wise(
    layout: Layout,
    trace_dtype: Any = None,
    leak: float | None = None,
    embedding_rows: int | None = None,
    **_: Any,
) -> PositionWise:
    return PositionWise(
        layout,
        _everyone(layout),
        None if trace_dtype is None else jnp.dtype(trace_dtype),
        leak,
        embedding_rows,
    )


def _factorised(layout: Layout, decay_or_rank: Any, **_: Any) -> Carrier:
    return Factorised(layout, _everyone(layout), *decays(decay_or_rank))


def _hybrid(layout: Layout, decay_or_rank: Any, prefer: Any, trace_dtype: Any) -> Carrier:
    """Per relation the cheaper of the two by memory, or as `prefer(path)` says: 'full', 'approx' or None."""
    full = set()
    for i, r in enumerate(layout.relations):
        wish = prefer(r.path) if callable(prefer) else prefer
        if wish not in (None, 'full', 'approx', 'adaptive'):
            raise ValueError(
                f"`prefer` must say 'full', 'approx' or 'adaptive', got {wish!r} for {r.path}."
            )
        product = math.prod(r.trace_shape()) if r.axes.x is not None else 0
        factors = (r.x_var.aval.size if r.x_var is not None else 0) + r.y_var.aval.size
        if wish == 'full' or (wish != 'approx' and product <= factors):
            full.add(i)
    rest = _everyone(layout) - full
    return Several(
        (
            PositionWise(layout, frozenset(full), trace_dtype),
            Factorised(layout, rest, *decays(decay_or_rank)),
        )
    )


def _eprop(layout: Layout, kappa_filter_decay: float, trace_dtype: Any, **_: Any) -> Carrier:
    inner = _position_wise(layout, trace_dtype)
    kappa = _share('kappa_filter_decay', kappa_filter_decay)
    return Filtered(inner, kappa) if kappa else inner


def _feedback(
    layout: Layout, feedback: str, random_feedback_key: Any, feedback_scale: float, **_: Any
) -> Signal:
    if feedback not in ('symmetric', 'random', 'adaptive', 'square'):
        raise ValueError(
            f"`feedback` must be 'symmetric', 'random', 'adaptive' or 'square', got {feedback!r}."
        )
    if feedback == 'symmetric':
        return Signal()
    if random_feedback_key is None:
        raise ValueError(f'feedback={feedback!r} needs `random_feedback_key`.')
    key = as_key(random_feedback_key)
    return (
        SquareFeedback(layout, key, feedback_scale)
        if feedback == 'square'
        else RandomFeedback(layout, key, feedback_scale, feedback == 'adaptive')
    )


def _snap(layout: Layout, n: int, **_: Any) -> Carrier:
    return SparseInfluence(layout, _count('n', n))


def of_config(config: ETraceConfig) -> Rule:
    """The rule that a configuration describes."""
    c = config

    def carrier(
        layout: Layout,
        projection_key: Any = 42,
        projection_eps: float = 1e-12,
        trace_dtype: Any = None,
        **_: Any,
    ) -> Carrier:
        if c.trace_factorization == 'random_projection':
            return RankOne(layout, projection_key, projection_eps)
        if c.is_factorized:
            x, f = (
                0.0 if r == 'none' else d
                for r, d in zip(c.temporal_recursion, c.decay, strict=True)
            )
            return Factorised(
                layout, _everyone(layout), x, f, identity=c.recursion_f == 'scalar_leak'
            )
        if c.recurrence_scope == 'sparse_n':
            return SparseInfluence(layout, int(c.sparse_n))  # type: ignore[arg-type]
        inner = _position_wise(
            layout, trace_dtype, None if c.temporal_recursion == 'jacobian' else c.decay
        )
        return Filtered(inner, c.kappa) if c.trace_filter == 'kappa' else inner

    def signal(
        layout: Layout, random_feedback_key: Any = None, guess: Any = None, **_: Any
    ) -> Signal:
        if c.learning_signal == 'random_feedback':
            return _feedback(layout, 'square', random_feedback_key, 0.1)
        return (
            Modulator(layout)
            if c.learning_signal == 'modulatory'
            else Guess(layout, guess)
            if c.learning_signal == 'bootstrapped'
            else Signal()
        )

    leak = (
        not c.is_factorized
        and c.temporal_recursion != 'jacobian'
        or c.is_factorized
        and c.recursion_f == 'scalar_leak'
    )
    scope = (
        'leak'
        if leak
        else 'coupled'
        if c.recurrence_scope == 'coupled' and c.trace_factorization == 'per_param'
        else 'block'
        if (c.recurrence_scope == 'coupled' and c.is_factorized)
        else 'filtered'
        if c.trace_filter == 'kappa'
        else 'diagonal'
    )
    multi = (
        c.trace_factorization == 'random_projection'
        and c.learning_signal == 'symmetric'
        or c.learning_signal == 'bootstrapped'
    )
    options = {
        'trace_dtype': None,
        'random_feedback_key': None,
        'projection_key': 42,
        'projection_eps': 1e-12,
        'guess': None,
    }
    return Rule(
        c.describe(),
        carrier,
        'multi-step' if multi else 'single-step',
        options,
        multi_only=c.learning_signal == 'bootstrapped',
        single_only=lambda **_: c.learning_signal == 'modulatory',
        modulated=c.learning_signal == 'modulatory',
        traces=c.trace_factorization != 'random_projection',
        signal=signal,
        scope=lambda **_: scope,
    )


_STORED = {'trace_dtype': None, 'trace_limit': TRACE_LIMIT}
BY_NAME = {
    r.name: r
    for r in (
        Rule('bptt', Nothing, 'multi-step', {}, traces=False, multi_only=True),
        Rule('rtrl', full, 'multi-step', {}, traces=False, multi_only=True),
        Rule(
            'd_rtrl',
            _position_wise,
            'single-step',
            {**_STORED, 'scope': 'diagonal', 'embedding_rows': 1024},
        ),
        Rule('pp_prop', _factorised, 'single-step', {'decay_or_rank': REQUIRED}),
        Rule(
            'hybrid',
            _hybrid,
            'single-step',
            {'decay_or_rank': REQUIRED, 'prefer': None, 'trace_dtype': None},
        ),
        Rule(
            'eprop',
            _eprop,
            'single-step',
            {
                **_STORED,
                'feedback': 'symmetric',
                'kappa_filter_decay': 0.0,
                'random_feedback_key': None,
                'feedback_scale': 0.1,
            },
            signal=_feedback,
            scope=lambda kappa_filter_decay, **_: 'filtered' if kappa_filter_decay else 'diagonal',
        ),
        Rule('ostl_recurrent', _position_wise, 'single-step', _STORED, scope=lambda **_: 'coupled'),
        Rule('ostl_feedforward', _factorised, 'single-step', {'decay_or_rank': 1e-6}),
        Rule(
            'rflo',
            lambda layout, decay, **o: _position_wise(layout, leak=_share('decay', decay), **o),
            'single-step',
            {**_STORED, 'decay': REQUIRED},
            scope=lambda **_: 'leak',
        ),
        Rule(
            'ottt',
            lambda layout, decay: Factorised(
                layout, _everyone(layout), _share('decay', decay), 0.0
            ),
            'single-step',
            {'decay': REQUIRED},
        ),
        Rule(
            'three_factor',
            _position_wise,
            'single-step',
            _STORED,
            single_only=lambda **_: True,
            modulated=True,
            signal=lambda layout, **_: Modulator(layout),
        ),
        Rule('snap', _snap, 'single-step', {'n': 2}, traces=False),
        Rule(
            'uoro',
            lambda layout, projection_key, projection_eps: RankOne(
                layout, projection_key, projection_eps
            ),
            'multi-step',
            {'projection_key': 42, 'projection_eps': 1e-12},
            traces=False,
        ),
        Rule(
            'kf_rtrl',
            lambda layout, projection_key, projection_eps: Kronecker(
                layout, projection_key, projection_eps
            ),
            'multi-step',
            {'projection_key': 42, 'projection_eps': 1e-12},
            traces=False,
            multi_only=True,
        ),
        Rule(
            'low_rank',
            lambda layout, rank: LowRank(layout, _count('rank', rank)),
            'multi-step',
            {'rank': REQUIRED},
            traces=False,
            multi_only=True,
        ),
        Rule(
            'dni',
            _position_wise,
            'multi-step',
            {**_STORED, 'guess': None},
            multi_only=True,
            signal=lambda layout, guess, **_: Guess(layout, guess),
        ),
    )
}
ALIASES = {'es_d_rtrl': 'pp_prop', 'esd_rtrl': 'pp_prop', 'e_prop': 'eprop'}
LEARNERS: dict[str, Any] = {}  # the class of each rule that has one, for brainstate models


def register_rule(rule: Rule, cls: type | None = None) -> Rule:
    """Make a rule known by its name: `compile` takes it like those of the library, for modules and plain functions, and `compare` tries it too.

    Args:
        rule: the rule.
        cls: its learner class for brainstate models, a subclass of `ETraceVjpAlgorithm`, where the general one does not do.

    Returns:
        The rule.

    Example:
        >>> import braintrace
        >>> from braintrace.rules import Rule
        >>> from braintrace.rules.bptt import Nothing
        >>> braintrace.register_rule(Rule('forget', Nothing, 'multi-step', {}, traces=False, multi_only=True)).name
        'forget'
    """
    if not isinstance(rule, Rule):
        raise TypeError(f'`register_rule` takes a Rule, got {rule!r}.')
    if rule.name in BY_NAME or rule.name in ALIASES or rule.name != rule.name.strip().lower():
        raise ValueError(f'A rule needs a name of its own, in lower case, got {rule.name!r}.')
    if cls is not None:
        if getattr(cls, 'rule', None) is not rule:
            raise TypeError(
                f'`cls` must have the rule {rule.name!r} as its attribute `rule`, got {cls!r}.'
            )
        LEARNERS[rule.name] = cls
    BY_NAME[rule.name] = rule
    return rule


def find_rule(name: str) -> Rule:
    """The rule of this name, whatever its case."""
    key = name.strip().lower()
    key = ALIASES.get(key, key)
    if key not in BY_NAME:
        near = difflib.get_close_matches(key, [*BY_NAME, *ALIASES], 1, 0)
        raise ValueError(
            f'There is no rule {name!r}. Did you mean {near[0]!r}? Known are {", ".join(BY_NAME)}.'
        )
    return BY_NAME[key]
