"""How the influence of the weights is carried from window to window."""

from ..plan.keys import TraceKey
from ..plan.layout import Layout
from .carrier import BlockCarrier, Carrier, Contribution, Credit, Entry
from .options import REQUIRED
from .registry import register_rule
from .rule import Rule
from .signals import Signal

__all__ = [
    'REQUIRED',
    'BlockCarrier',
    'Carrier',
    'Contribution',
    'Credit',
    'Entry',
    'Layout',
    'Rule',
    'Signal',
    'TraceKey',
    'register_rule',
]
