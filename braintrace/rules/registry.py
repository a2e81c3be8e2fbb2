"""The rules by name."""

from __future__ import annotations

import difflib
from typing import Any

from ..plan.layout import Scope
from . import coordinates, making
from .bptt import Bptt
from .carrier import MULTI_STEP, SINGLE_STEP, Several
from .config import ETraceConfig
from .configured import of_config
from .d_rtrl import PositionWise
from .eprop import Filtered
from .kf_rtrl import Kronecker
from .low_rank import LowRank
from .options import REQUIRED, TRACE_LIMIT
from .pp_prop import Factorised
from .rtrl import Rtrl, rtrl
from .rule import Rule
from .snap import SparseInfluence
from .uoro import RankOne

_STORED = {'trace_dtype': None, 'trace_limit': TRACE_LIMIT}
_DRAWN = {'projection_key': 42, 'projection_eps': 1e-12}
_FED_BACK = {'feedback': 'symmetric', 'random_feedback_key': None, 'feedback_scale': 0.1}
_OF_D_RTRL = {**_STORED, 'scope': Scope.DIAGONAL, 'embedding_rows': 1024}
_OF_HYBRID = {'decay_or_rank': REQUIRED, 'prefer': None, 'trace_dtype': None}

RULES = (
    Rule('bptt', Bptt),
    Rule('rtrl', Rtrl, make=rtrl),
    Rule('d_rtrl', PositionWise, _OF_D_RTRL, making.position_wise, config=coordinates.d_rtrl),
    Rule(
        'pp_prop',
        Factorised,
        {'decay_or_rank': REQUIRED},
        making.factorised,
        config=coordinates.pp_prop,
    ),
    Rule('hybrid', Several, _OF_HYBRID, making.hybrid),
    Rule(
        'eprop',
        Filtered,
        {**_STORED, **_FED_BACK, 'kappa_filter_decay': 0.0},
        making.eprop,
        signal=making.fed_back,
        scope=making.filtered_if_kappa,
        config=coordinates.eprop,
    ),
    Rule(
        'ostl_recurrent',
        PositionWise,
        _STORED,
        making.position_wise,
        scope=making.coupled,
        config=coordinates.ostl_recurrent,
    ),
    Rule(
        'ostl_feedforward',
        Factorised,
        {'decay_or_rank': 1e-6},
        making.factorised,
        config=coordinates.pp_prop,
    ),
    Rule(
        'rflo',
        PositionWise,
        {**_STORED, 'decay': REQUIRED},
        making.position_wise,
        scope=making.leaky,
        config=coordinates.rflo,
    ),
    Rule('ottt', Factorised, {'decay': REQUIRED}, making.ottt, config=coordinates.ottt),
    Rule(
        'three_factor',
        PositionWise,
        _STORED,
        making.position_wise,
        credit=(SINGLE_STEP,),
        signal=making.modulated,
        modulated=True,
        config=coordinates.three_factor,
    ),
    Rule('snap', SparseInfluence, {'n': 2, 'far_reach': True}, config=coordinates.snap),
    Rule('uoro', RankOne, _DRAWN, making.uoro, config=coordinates.uoro),
    Rule('kf_rtrl', Kronecker, _DRAWN, making.kf_rtrl),
    Rule('low_rank', LowRank, {'rank': REQUIRED}),
    Rule(
        'dni',
        PositionWise,
        {**_STORED, 'guess': None},
        making.position_wise,
        credit=(MULTI_STEP,),
        signal=making.bootstrapped,
        config=coordinates.dni,
    ),
)
BY_NAME = {rule.name: rule for rule in RULES}
ALIASES = {'es_d_rtrl': 'pp_prop', 'esd_rtrl': 'pp_prop', 'e_prop': 'eprop'}
LEARNERS: dict[str, Any] = {}  # the class of each rule that has one, for modules


def register_rule(rule: Rule, cls: type | None = None) -> Rule:
    """Make a rule known by its name: `compile` takes it like those of the library, for modules and
    plain functions, and `compare` tries it too.

    Args:
        rule: the rule.
        cls: its learner class for modules, a subclass of `ETraceVjpAlgorithm`, where the general
            one does not do.

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
        near = difflib.get_close_matches(key, [*BY_NAME, *ALIASES], 1, 0.65)
        hint = f'Did you mean {near[0]!r}? ' if near else ''
        raise ValueError(f'There is no rule {name!r}. {hint}Known are {", ".join(BY_NAME)}.')
    return BY_NAME[key]


def rule_of(given: Any) -> Rule:
    """The rule behind a name, a class of learners, a configuration or a rule."""
    if isinstance(given, str):
        return find_rule(given)
    if isinstance(given, ETraceConfig):
        return of_config(given)
    rule = getattr(given, 'rule', given)
    if not isinstance(rule, Rule):
        raise TypeError(
            f'`algorithm` must be a name, a class of rules or a Rule, got {type(given).__name__}. '
            'It comes after the model: `compile(model, rule, ...)`.'
        )
    return rule
