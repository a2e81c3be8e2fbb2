"""What the parts of a rule are in its letters: lines above the functions, names of traces."""

from __future__ import annotations

from typing import NamedTuple

from ...learn.core import Core
from ...plan.keys import INPUT, OUTPUT, TRACE
from ...rules.d_rtrl import PositionWise
from ...rules.eprop import KAPPA, Filtered
from ...rules.pp_prop import Factorised
from ...rules.rtrl import Rtrl, RtrlOfSamples
from ...rules.signals import FEEDBACK

LETTERS_OF_KINDS = {
    TRACE: 'e',
    INPUT: 'ex',
    OUTPUT: 'ef',
    KAPPA: 'm',
    FEEDBACK: 'B',
    f'last {INPUT}': 'ex',
    f'last {OUTPUT}': 'ef',
}


class Letters(NamedTuple):
    """Lines about a rule: what the factors are, how its traces move, what the gradient is made
    of."""

    factors: str
    update: str
    gradient: str

    @property
    def without(self) -> str:
        """What the gradient is made of where there are no traces."""
        return (
            'dw = x (x) dy: no unit has a way of its own into the next step, so there is no trace.'
        )


def letter_of(core: Core, kind: str) -> str | None:
    """The letter of a kind of trace."""
    if kind == TRACE and isinstance(core.carrier, Rtrl | RtrlOfSamples):
        return 'J'
    return LETTERS_OF_KINDS.get(kind)


def letters_of(core: Core) -> Letters:
    """The equations of a learner, for one step."""
    carrier = core.carrier
    if isinstance(carrier, Filtered):
        return _of_filtered(carrier, core.single_step)
    if isinstance(carrier, PositionWise):
        return _of_position_wise(carrier, core.single_step)
    if isinstance(carrier, Factorised):
        return _of_factorised(carrier, core.single_step)
    if isinstance(carrier, Rtrl | RtrlOfSamples):
        return Letters(
            'Phi = dh[t]/dh[t-1] and M = dh[t]/dw at fixed h[t-1], through the whole step.',
            'J[t] = Phi J[t-1] + M, the influence of every weight on every state.',
            'dw = lam . J[t-1] + g: the credit lam of h[t-1] meets J, g is the gradient inside the '
            'step.',
        )
    return Letters(
        'What the rule needs of the step.',
        'The traces at the end of the step.',
        'What credit gives with the traces, and the gradient inside the step.',
    )


def _factors(leaks: bool = False) -> str:
    transition = 'D, the leak,' if leaks else 'D = dh[t]/dh[t-1]'
    return f'{transition} and df = dh[t]/dy of each unit; y is the output of a product.'


def _gradient(single_step: bool, trace: str) -> str:
    if single_step:
        return (
            f'dw = c . {trace} + x (x) dy: c is the credit of h[t-1] along D, dy that of y in this '
            'step.'
        )
    return f'dw = lam . {trace} + g: lam is the credit of h[t-1], g the gradient inside the step.'


def _of_position_wise(carrier: PositionWise, single_step: bool) -> Letters:
    return Letters(
        _factors(carrier.leak is not None),
        'e[t] = D e[t-1] + x (x) df: each weight remembers the unit it feeds.',
        _gradient(single_step, 'e[t-1]'),
    )


def _of_filtered(carrier: Filtered, single_step: bool) -> Letters:
    plain = _of_position_wise(carrier.inner, single_step)
    return plain._replace(
        update='e[t] = D e[t-1] + x (x) df, and the low-pass of what is read, '
        f'm[t] = {carrier.kappa:g} m[t-1] + e[t].',
        gradient='dw = s . m[t]: the learning signal s meets the low-pass.'
        if single_step
        else f'{plain.gradient} Credit of a leaky read-out meets m[t-1].',
    )


def _of_factorised(carrier: Factorised, single_step: bool) -> Letters:
    a, b = f'{carrier.decay_x:g}', f'{carrier.decay_f:g}'
    moved = '' if carrier.identity else ' D'
    update = (
        f'ex[t] = {a} ex[t-1] + x and ef[t] = {b}{moved} ef[t-1] + (1 - {b}) df: an input and an '
        'output trace.'
    )
    if not single_step:
        return Letters(_factors(), update, _gradient(False, '(ex (x) ef)[t-1]'))
    if not carrier.decay_f:
        update = f'ex[t] = {a} ex[t-1] + x, an input trace, and the slope of the step, ef[t] = df.'
        return Letters(
            _factors(), update, 'dw = ex[t] (x) dy, with the credit dy of y in this step.'
        )
    if carrier.signalled:
        gradient = f'dw = ex[t] (x) s . ef[t] / (1 - {b}**(t + 1)): s is the credit of h[t].'
        return Letters(_factors(), update, gradient)
    gradient = (
        f'dw = ex[t] (x) ({b} c . ef[t-1] + (1 - {b}) dy) / (1 - {b}**(t + 1)): c is the credit of '
        'h[t-1], dy that of y.'
    )
    return Letters(_factors(), update, gradient)
