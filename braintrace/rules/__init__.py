"""How the influence of the weights is carried from window to window."""

from ..plan.layout import Layout
from .carrier import Carrier, Contribution, Credit, Entry
from .registry import REQUIRED, Rule, register_rule

__all__ = [
    'REQUIRED',
    'Carrier',
    'Contribution',
    'Credit',
    'Entry',
    'Layout',
    'Rule',
    'register_rule',
]
