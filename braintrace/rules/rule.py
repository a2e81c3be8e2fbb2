"""What a learning rule is: a carrier, a signal, and options with their defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..plan.layout import Layout, Scope
from .carrier import SINGLE_STEP, Carrier, check_vjp_method
from .config import ETraceConfig
from .options import MEANING, REQUIRED, checked
from .signals import GRADIENT, Signal


def _gradient(layout: Layout, **options: Any) -> Signal:
    return GRADIENT


def _no_coordinates(**options: Any) -> None:
    return None


def _scope_of_options(**options: Any) -> Scope:
    return options.get('scope', Scope.DIAGONAL)


@dataclass(frozen=True)
class Rule:
    """A learning rule.

    Args:
        name: of the rule.
        carrier: the class of what takes the influence across the edge of a window. It says which
            kinds of credit there are.
        options: with their defaults; `REQUIRED` for those that have none.
        make: `make(layout, **options)` gives the carrier; the class itself by default.
        credit: the kinds of credit, the usual one first, where the signal leaves fewer than the
            carrier has.
        signal: `signal(layout, **options)` makes what the credit comes from; the gradient by
            default.
        scope: `scope(**options)` says what a unit's own transition is.
        modulated: whether the signal takes a modulator.
        config: `config(**options)` says the rule as an `ETraceConfig`, or None where it is none.
    """

    name: str
    carrier: type[Carrier]
    options: Mapping[str, Any] = field(default_factory=dict)
    make: Callable[..., Carrier] | None = None
    credit: tuple[str, ...] | None = None
    signal: Callable[..., Signal] = _gradient
    scope: Callable[..., Scope] = _scope_of_options
    modulated: bool = False
    config: Callable[..., ETraceConfig | None] = _no_coordinates

    def __repr__(self) -> str:
        return f'Rule({self.name!r}, {self.carrier.__name__})'

    @property
    def credits(self) -> tuple[str, ...]:
        """The kinds of credit it has, the usual one first."""
        return self.credit or self.carrier.credit

    def settle(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """All options, as given or by default, each checked and in the form that the rule takes
        it."""
        for name in options:
            if name not in self.options:
                known = ', '.join(self.options) or 'none'
                raise TypeError(f'Rule {self.name!r} has no option `{name}`. It takes {known}.')
        settled = {**self.options, **options}
        for name, value in settled.items():
            if value is REQUIRED:
                said = f', {MEANING[name]}' if name in MEANING else ''
                raise TypeError(f'Rule {self.name!r} needs the option `{name}`{said}.')
            settled[name] = checked(name, value)
        self._check_feedback_key(settled)
        return settled

    def _check_feedback_key(self, settled: Mapping[str, Any]) -> None:
        if 'random_feedback_key' not in settled:
            return
        config = self.coordinates(settled)
        fed_back = config is not None and config.learning_signal == 'random_feedback'
        if fed_back and settled['random_feedback_key'] is None:
            raise ValueError(
                f'Rule {self.name!r} sends credit back through random weights here: it needs '
                '`random_feedback_key`, a random key or a seed.'
            )

    def is_single_step(self, vjp_method: str | None) -> bool:
        """Whether the credit of this kind, or the usual one, is single-step."""
        method = vjp_method or self.credits[0]
        check_vjp_method(method)
        if method not in self.credits and method == SINGLE_STEP:
            raise ValueError(
                f'Rule {self.name!r} takes its credit inside windows: `vjp_method` must be '
                "'multi-step'."
            )
        if method not in self.credits:
            raise ValueError(
                f'Rule {self.name!r} has a signal that replaces the gradient in each step, and '
                "`vjp_method='multi-step'` would take the exact gradient instead. Use "
                "'single-step'."
            )
        return method == SINGLE_STEP

    def coordinates(self, options: Mapping[str, Any]) -> ETraceConfig | None:
        """The rule, with settled options, as a configuration; None where it is none."""
        return self.config(**options)

    def carrier_of(self, layout: Layout, options: Mapping[str, Any]) -> Carrier:
        """The carrier for a layout, with settled options."""
        make: Callable[..., Carrier] = self.make or self.carrier
        return make(layout, **options)

    def __reduce__(self) -> tuple:
        """A rule that has a name is pickled by it."""
        from .registry import BY_NAME, find_rule

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
