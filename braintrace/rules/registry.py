"""The rules by name: which carrier, which signal, which options."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from ..plan.layout import Layout, Scope
from .bptt import Bptt
from .carrier import MULTI_STEP, SINGLE_STEP, BlockCarrier, Carrier, Several
from .config import ETraceConfig
from .d_rtrl import PositionWise
from .eprop import Filtered
from .kf_rtrl import Kronecker
from .low_rank import LowRank
from .options import REQUIRED, TRACE_LIMIT, checked, decays, preference
from .pp_prop import Factorised
from .random_bits import as_key
from .rtrl import Rtrl, rtrl
from .signals import (
    GRADIENT,
    Signal,
    guessed_future,
    modulator,
    random_feedback,
    square_feedback,
)
from .snap import SparseInfluence
from .uoro import RankOne


def _gradient(layout: Layout, **options: Any) -> Signal:
    return GRADIENT


def _scope_of_options(**options: Any) -> Scope:
    return options.get('scope', Scope.DIAGONAL)


@dataclass(frozen=True)
class Rule:
    """A learning rule.

    Args:
        name: of the rule.
        carrier: the class of what takes the influence across the edge of a window. It says which kinds of credit
            there are.
        options: with their defaults; `REQUIRED` for those that have none.
        make: `make(layout, **options)` gives the carrier; the class itself by default.
        credit: the kinds of credit, the usual one first, where the signal leaves fewer than the carrier has.
        signal: `signal(layout, **options)` makes what the credit comes from; the gradient by default.
        scope: `scope(**options)` says what a unit's own transition is.
        modulated: whether the signal takes a modulator.
    """

    name: str
    carrier: type[Carrier]
    options: Mapping[str, Any] = field(default_factory=dict)
    make: Callable[..., Carrier] | None = None
    credit: tuple[str, ...] | None = None
    signal: Callable[..., Signal] = _gradient
    scope: Callable[..., Scope] = _scope_of_options
    modulated: bool = False

    @property
    def credits(self) -> tuple[str, ...]:
        """The kinds of credit it has, the usual one first."""
        return self.credit or self.carrier.credit

    def settle(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """All options, as given or by default, each checked and in the form that the rule takes it."""
        for name in options:
            if name not in self.options:
                known = ', '.join(self.options) or 'none'
                raise TypeError(f'Rule {self.name!r} has no option `{name}`. It takes {known}.')
        settled = {**self.options, **options}
        for name, value in settled.items():
            if value is REQUIRED:
                raise TypeError(f'Rule {self.name!r} needs the option `{name}`.')
            settled[name] = checked(name, value)
        if settled.get('feedback', 'symmetric') != 'symmetric':
            _need_feedback_key(settled)
        return settled

    def is_single_step(self, vjp_method: str | None) -> bool:
        """Whether the credit of this kind, or the usual one, is single-step."""
        method = vjp_method or self.credits[0]
        if method not in (SINGLE_STEP, MULTI_STEP):
            raise AssertionError(
                f"`vjp_method` must be 'single-step' or 'multi-step', got {method!r}."
            )
        if method not in self.credits and method == SINGLE_STEP:
            raise ValueError(
                f"Rule {self.name!r} takes its credit inside windows: `vjp_method` must be 'multi-step'."
            )
        if method not in self.credits:
            raise ValueError(
                f'Rule {self.name!r} has a signal that replaces the gradient in each step, and '
                "`vjp_method='multi-step'` would take the exact gradient instead. Use 'single-step'."
            )
        return method == SINGLE_STEP

    def carrier_of(self, layout: Layout, options: Mapping[str, Any]) -> Carrier:
        """The carrier for a layout, with settled options."""
        return (self.make or self.carrier)(layout, **options)

    def __reduce__(self) -> tuple:
        """A rule that has a name is pickled by it."""
        if BY_NAME.get(self.name) is self:
            return find_rule, (self.name,)
        return Rule, tuple(getattr(self, f.name) for f in fields(self))

    def check_modulator(self, modulator: Any) -> None:
        """Refuse a modulator that nothing would use."""
        if modulator is not None and not self.modulated:
            raise TypeError(
                f'Rule {self.name!r} takes no `modulator`: its signal comes from the loss. Use '
                "'three_factor', or a configuration with learning_signal='modulatory'."
            )


def _need_feedback_key(options: Mapping[str, Any]) -> None:
    if options['random_feedback_key'] is None:
        raise ValueError(f'feedback={options["feedback"]!r} needs `random_feedback_key`.')


# ---- carriers from options ----


def _everyone(layout: Layout) -> frozenset[int]:
    return frozenset(range(len(layout.relations)))


def _position_wise(
    layout: Layout,
    trace_dtype: Any = None,
    embedding_rows: int | None = None,
    decay: float | None = None,
    **_: Any,
) -> PositionWise:
    return PositionWise(layout, _everyone(layout), trace_dtype, decay, embedding_rows)


def _factorised(layout: Layout, decay_or_rank: Any) -> Factorised:
    return Factorised(layout, _everyone(layout), *decays(decay_or_rank))


def _ottt(layout: Layout, decay: float) -> Factorised:
    return Factorised(layout, _everyone(layout), decay, 0.0)


def _hybrid(layout: Layout, decay_or_rank: Any, prefer: Any, trace_dtype: Any) -> Several:
    """Per relation the cheaper of the two by memory, or as `prefer(path)` says."""
    full = set()
    for i, r in enumerate(layout.relations):
        wish = preference(prefer(r.path) if callable(prefer) else prefer, r.path)
        product = _size(r.trace_shape()) if r.axes.x is not None else 0
        factors = (r.x_var.aval.size if r.x_var is not None else 0) + r.y_var.aval.size
        if wish == 'full' or (wish != 'approx' and product <= factors):
            full.add(i)
    by_product = PositionWise(layout, frozenset(full), trace_dtype)
    by_factors = Factorised(layout, _everyone(layout) - full, *decays(decay_or_rank))
    return Several(layout, (by_product, by_factors))


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size


def _eprop(layout: Layout, kappa_filter_decay: float, trace_dtype: Any, **_: Any) -> BlockCarrier:
    inner = _position_wise(layout, trace_dtype)
    return Filtered(inner, kappa_filter_decay) if kappa_filter_decay else inner


def _uoro(layout: Layout, projection_key: Any, projection_eps: float) -> RankOne:
    return RankOne(layout, projection_key, projection_eps)


def _kf_rtrl(layout: Layout, projection_key: Any, projection_eps: float) -> Kronecker:
    return Kronecker(layout, projection_key, projection_eps)


def _feedback(
    layout: Layout, feedback: str, random_feedback_key: Any, feedback_scale: float, **_: Any
) -> Signal:
    if feedback == 'symmetric':
        return GRADIENT
    key = as_key(random_feedback_key)
    if feedback == 'square':
        return square_feedback(layout, key, feedback_scale)
    return random_feedback(layout, key, feedback_scale, feedback == 'adaptive')


def _modulator(layout: Layout, **options: Any) -> Signal:
    return modulator(layout)


def _guess(layout: Layout, guess: Any, **options: Any) -> Signal:
    return guessed_future(layout, guess)


def _coupled(**options: Any) -> Scope:
    return Scope.COUPLED


def _leak(**options: Any) -> Scope:
    return Scope.LEAK


def _filtered_if_kappa(kappa_filter_decay: float, **_: Any) -> Scope:
    return Scope.FILTERED if kappa_filter_decay else Scope.DIAGONAL


# ---- configurations ----


def of_config(config: ETraceConfig) -> Rule:
    """The rule that a configuration describes."""
    bootstrapped = config.learning_signal == 'bootstrapped'
    modulated = config.learning_signal == 'modulatory'
    credit = None
    if bootstrapped:
        credit = (MULTI_STEP,)
    elif modulated:
        credit = (SINGLE_STEP,)
    elif (
        config.trace_factorization == 'random_projection' and config.learning_signal != 'symmetric'
    ):
        credit = (SINGLE_STEP, MULTI_STEP)
    return Rule(
        config.describe(),
        _carrier_class(config),
        {
            'trace_dtype': None,
            'random_feedback_key': None,
            'projection_key': 42,
            'projection_eps': 1e-12,
            'guess': None,
        },
        make=partial(_carrier_of_config, config),
        credit=credit,
        signal=partial(_signal_of_config, config),
        scope=partial(_scope_of_config, config),
        modulated=modulated,
    )


def _carrier_class(config: ETraceConfig) -> type[Carrier]:
    if config.trace_factorization == 'random_projection':
        return RankOne
    if config.is_factorized:
        return Factorised
    if config.recurrence_scope == 'sparse_n':
        return SparseInfluence
    return Filtered if config.trace_filter == 'kappa' else PositionWise


def _carrier_of_config(
    config: ETraceConfig,
    layout: Layout,
    projection_key: Any,
    projection_eps: float,
    trace_dtype: Any,
    **_: Any,
) -> Carrier:
    kind = _carrier_class(config)
    if kind is RankOne:
        return RankOne(layout, projection_key, projection_eps)
    if kind is Factorised:
        decay_x = 0.0 if config.recursion_x == 'none' else config.decay_x
        decay_f = 0.0 if config.recursion_f == 'none' else config.decay_f
        identity = config.recursion_f == 'scalar_leak'
        return Factorised(layout, _everyone(layout), decay_x, decay_f, identity)
    if kind is SparseInfluence:
        assert config.sparse_n is not None
        return SparseInfluence(layout, int(config.sparse_n))
    leak = None if config.temporal_recursion == 'jacobian' else config.decay
    inner = _position_wise(layout, trace_dtype, decay=leak)
    return Filtered(inner, config.kappa) if kind is Filtered else inner


def _signal_of_config(
    config: ETraceConfig, layout: Layout, random_feedback_key: Any, guess: Any, **_: Any
) -> Signal:
    kind = config.learning_signal
    if kind == 'modulatory':
        return modulator(layout)
    if kind == 'bootstrapped':
        return guessed_future(layout, guess)
    if kind == 'symmetric':
        return GRADIENT
    options = {'feedback': 'square', 'random_feedback_key': random_feedback_key}
    _need_feedback_key(options)
    return _feedback(layout, feedback_scale=0.1, **options)


def _scope_of_config(config: ETraceConfig, **options: Any) -> Scope:
    own_recursion = config.recursion_f if config.is_factorized else config.temporal_recursion
    if config.is_factorized and own_recursion == 'scalar_leak':
        return Scope.LEAK
    if not config.is_factorized and own_recursion != 'jacobian':
        return Scope.LEAK
    if config.recurrence_scope == 'coupled' and config.is_factorized:
        return Scope.BLOCK
    if config.recurrence_scope == 'coupled' and config.trace_factorization == 'per_param':
        return Scope.COUPLED
    return Scope.FILTERED if config.trace_filter == 'kappa' else Scope.DIAGONAL


# ---- the table ----

_STORED = {'trace_dtype': None, 'trace_limit': TRACE_LIMIT}
_DRAWN = {'projection_key': 42, 'projection_eps': 1e-12}
_FED_BACK = {'feedback': 'symmetric', 'random_feedback_key': None, 'feedback_scale': 0.1}
_OF_D_RTRL = {**_STORED, 'scope': Scope.DIAGONAL, 'embedding_rows': 1024}
_OF_HYBRID = {'decay_or_rank': REQUIRED, 'prefer': None, 'trace_dtype': None}

RULES = (
    Rule('bptt', Bptt),
    Rule('rtrl', Rtrl, make=rtrl),
    Rule('d_rtrl', PositionWise, _OF_D_RTRL, _position_wise),
    Rule('pp_prop', Factorised, {'decay_or_rank': REQUIRED}, _factorised),
    Rule('hybrid', Several, _OF_HYBRID, _hybrid),
    Rule(
        'eprop',
        Filtered,
        {**_STORED, **_FED_BACK, 'kappa_filter_decay': 0.0},
        _eprop,
        signal=_feedback,
        scope=_filtered_if_kappa,
    ),
    Rule('ostl_recurrent', PositionWise, _STORED, _position_wise, scope=_coupled),
    Rule('ostl_feedforward', Factorised, {'decay_or_rank': 1e-6}, _factorised),
    Rule('rflo', PositionWise, {**_STORED, 'decay': REQUIRED}, _position_wise, scope=_leak),
    Rule('ottt', Factorised, {'decay': REQUIRED}, _ottt),
    Rule(
        'three_factor',
        PositionWise,
        _STORED,
        _position_wise,
        credit=(SINGLE_STEP,),
        signal=_modulator,
        modulated=True,
    ),
    Rule('snap', SparseInfluence, {'n': 2}),
    Rule('uoro', RankOne, _DRAWN, _uoro),
    Rule('kf_rtrl', Kronecker, _DRAWN, _kf_rtrl),
    Rule('low_rank', LowRank, {'rank': REQUIRED}),
    Rule(
        'dni',
        PositionWise,
        {**_STORED, 'guess': None},
        _position_wise,
        credit=(MULTI_STEP,),
        signal=_guess,
    ),
)
BY_NAME = {rule.name: rule for rule in RULES}
ALIASES = {'es_d_rtrl': 'pp_prop', 'esd_rtrl': 'pp_prop', 'e_prop': 'eprop'}
LEARNERS: dict[str, Any] = {}  # the class of each rule that has one, for modules


def register_rule(rule: Rule, cls: type | None = None) -> Rule:
    """Make a rule known by its name: `compile` takes it like those of the library, for modules and plain functions,
    and `compare` tries it too.

    Args:
        rule: the rule.
        cls: its learner class for brainstate models, a subclass of `ETraceVjpAlgorithm`, where the general one does
            not do.

    Returns:
        The rule.

    Example:
        >>> import braintrace
        >>> from braintrace.rules import Rule
        >>> from braintrace.rules.bptt import Bptt
        >>> braintrace.register_rule(Rule('forget', Bptt)).name
        'forget'
    """
    if not isinstance(rule, Rule):
        raise TypeError(f'`register_rule` takes a Rule, got {rule!r}.')
    taken = rule.name in BY_NAME or rule.name in ALIASES
    if taken or rule.name != rule.name.strip().lower():
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


def rule_of(given: Any) -> Rule:
    """The rule behind a name, a class of learners, a configuration or a rule."""
    if isinstance(given, str):
        return find_rule(given)
    if isinstance(given, ETraceConfig):
        return of_config(given)
    rule = getattr(given, 'rule', given)
    if not isinstance(rule, Rule):
        raise TypeError(f'`algorithm` must be a name, a class of rules or a Rule, got {given!r}.')
    return rule
