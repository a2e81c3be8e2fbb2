"""Learners whose weights remember the unit they feed."""

from __future__ import annotations

from typing import Any

from ..compat.version_0_1 import ETraceParam
from ..frontends.brainstate import all_states, check_module
from ..plan.keys import INPUT, OUTPUT
from ..rules.config import ETraceConfig
from ..rules.options import decays
from ..rules.registry import BY_NAME
from .vjp_algorithm import ETraceVjpAlgorithm, check_factorization


class ParamDimVjpAlgorithm(ETraceVjpAlgorithm):
    """D-RTRL: each weight remembers the unit it feeds, `e <- D e + x (x) df`. Exact where the
    recurrence is position-wise in one layer.

    Args:
        trace_dtype: the precision the traces are stored in, at least float32 by default. A half
            type takes three bytes a number: what rounding leaves over is kept in one more.
        trace_limit: bytes that the trace of one weight may take; beyond, it gets its in-window
            gradient and a warning says so.
        embedding_rows: of a larger table, a trace holds so many rows for each sample, the last that
            were read (exact until more are).
        scope: 'diagonal' leaves recurrent weights out of D, 'block' keeps the weight from each unit
            to itself, 'coupled' the unit's block of the Jacobian.
        fast_solve, chunked_trace, snap_max_jacobian_elements: accepted for old code; there is one
            way, and it is the fast one.
    """

    rule = BY_NAME['d_rtrl']

    def __init__(
        self,
        model: Any,
        name: str | None = None,
        vjp_method: str = 'single-step',
        fast_solve: bool = True,
        trace_dtype: Any = None,
        chunked_trace: bool = True,
        control_flow: Any = None,
        config: ETraceConfig | None = None,
        **more: Any,
    ):
        check_factorization(config, 'per_param')
        if trace_dtype is not None:
            more['trace_dtype'] = trace_dtype
        kept: dict[str, Any] = dict(fast_solve=fast_solve, chunked_trace=chunked_trace)
        super().__init__(model, name, vjp_method, control_flow, config, **kept, **more)

    @property
    def etrace_bwg(self) -> dict:
        """The traces by name, under the name of braintrace 0.2."""
        return self.etrace


class IODimVjpAlgorithm(ETraceVjpAlgorithm):
    """pp-prop (ES-D-RTRL): an input trace times an output trace, memory in + out instead of in x
    out.

    Args:
        decay_or_rank: a decay in [0, 1), a rank r >= 1 for the decay (r-1)/(r+1), or a pair (input
            side, output side).
    """

    rule = BY_NAME['pp_prop']

    def __init__(
        self,
        model: Any,
        decay_or_rank: Any = None,
        name: str | None = None,
        vjp_method: str = 'single-step',
        fast_solve: bool = True,
        control_flow: Any = None,
        config: ETraceConfig | None = None,
        **more: Any,
    ):
        check_factorization(config, 'io_factorized')
        if config is None and decay_or_rank is None:
            raise TypeError('`decay_or_rank` is missing: a decay in [0, 1), a rank, or a pair.')
        own = {} if config is not None else {'decay_or_rank': decay_or_rank}
        kept: dict[str, Any] = dict(fast_solve=fast_solve)
        super().__init__(model, name, vjp_method, control_flow, config, **kept, **own, **more)
        sides: tuple[float, float] = decays(decay_or_rank) if config is None else config.decay
        self.decay_x, self.decay_f = sides

    @property
    def decay(self) -> float:
        """The decay, where both sides have the same."""
        if self.decay_x != self.decay_f:
            raise AttributeError('`decay`: the two sides differ, see `decay_x` and `decay_f`.')
        return self.decay_x

    def _of_kind(self, kind: str) -> dict:
        keys = [str(key) for key in self._core.shapes if key.kind == kind]
        return {name: part for name, part in self.etrace.items() if name in keys}

    @property
    def etrace_xs(self) -> dict:
        """The input traces by name."""
        return self._of_kind(INPUT)

    @property
    def etrace_dfs(self) -> dict:
        """The output traces by name."""
        return self._of_kind(OUTPUT)

    def get_etrace_of(self, weight: Any) -> Any:
        """The input and the output traces of a parameter, `(xs, dfs)`, each by name."""
        traces = self._traces_of(weight)
        return tuple(
            {str(key): a for key, a in traces.items() if key.kind == kind}
            for kind in (INPUT, OUTPUT)
        )


class HybridDimVjpAlgorithm(ETraceVjpAlgorithm):
    """For each weight the cheaper of D-RTRL and pp-prop by memory.

    Args:
        decay_or_rank: of the factorised weights, as for `pp_prop`.
        prefer: 'full' (D-RTRL), 'approx' (pp-prop), 'adaptive' (by size), or a function of the
            parameter's path that says one of these. By default as a parameter itself says, where
            it is an `ETraceParam`, and by size.
    """

    rule = BY_NAME['hybrid']

    def __init__(
        self,
        model: Any,
        decay_or_rank: Any,
        name: str | None = None,
        vjp_method: str = 'single-step',
        control_flow: Any = None,
        prefer: Any = None,
        **more: Any,
    ):
        super().__init__(
            model,
            name,
            vjp_method,
            control_flow,
            decay_or_rank=decay_or_rank,
            prefer=_as_parameters_say(model) if prefer is None else prefer,
            **more,
        )
        self.decay_x, self.decay_f = decays(decay_or_rank)


def _as_parameters_say(model: Any) -> Any:
    """What the parameters of a model prefer, by path; None where none of them says anything."""
    check_module(model)
    said = {
        path: state.gradient.value
        for path, state in all_states(model).items()
        if isinstance(state, ETraceParam)
    }
    return said.get if said else None


class D_RTRL(ParamDimVjpAlgorithm):
    __doc__ = ParamDimVjpAlgorithm.__doc__


class pp_prop(IODimVjpAlgorithm):
    __doc__ = IODimVjpAlgorithm.__doc__


ES_D_RTRL = pp_prop


class EProp(ParamDimVjpAlgorithm):
    """e-prop: the trace of D-RTRL, `m <- kappa m + e` as a stand-in for the leak of the read-out,
    and a learning signal that need not be the gradient.

    Args:
        feedback: 'symmetric', the gradient; 'random', through fixed random weights in place of the
            read-out's; 'adaptive', through random weights that receive the changes of the
            read-out's; 'square', each group's own signal through a random matrix from units to
            units, which is also what the others are where the loss reads the hidden state itself.
        kappa_filter_decay: kappa, 0 for none. At kappa = 0 with symmetric feedback it is D-RTRL.
        random_feedback_key: the random key (or seed) of the feedback weights, which are kept beside
            the traces as `feedback:<weight>`.
    """

    rule = BY_NAME['eprop']

    def __init__(
        self,
        model: Any,
        feedback: str = 'symmetric',
        kappa_filter_decay: float = 0.0,
        random_feedback_key: Any = None,
        name: str | None = None,
        vjp_method: str = 'single-step',
        fast_solve: bool = True,
        **more: Any,
    ):
        super().__init__(
            model,
            name,
            vjp_method,
            fast_solve,
            feedback=feedback,
            kappa_filter_decay=kappa_filter_decay,
            random_feedback_key=random_feedback_key,
            **more,
        )
        self.feedback, self.kappa_filter_decay = feedback, kappa_filter_decay


class OSTLRecurrent(ParamDimVjpAlgorithm):
    """OSTL with recurrence: D-RTRL whose D is the unit's own block of the whole Jacobian, recurrent
    weights included.

    Args:
        trace_dtype, trace_limit: as for `D_RTRL`.
    """

    rule = BY_NAME['ostl_recurrent']
    regime = 'with-H'


class OSTLFeedforward(pp_prop):
    """OSTL without recurrence: pp-prop with (almost) no memory in its averages.

    Args:
        decay_or_rank: as for `pp_prop`.
    """

    rule = BY_NAME['ostl_feedforward']
    regime = 'without-H'

    def __init__(self, model: Any, decay_or_rank: Any = 1e-6, name: str | None = None, **more: Any):
        super().__init__(model, decay_or_rank, name, **more)


class RFLO(ParamDimVjpAlgorithm):
    """Random-feedback local online learning's trace: a leak instead of the Jacobian,
    `e <- decay e + x (x) df`.

    Args:
        decay: the leak: a number in [0, 1), an array with one for each unit, `'model'` for what
            each state keeps of itself position by position, or a function from a hidden state's
            path to one of these.
        trace_dtype, trace_limit: as for `D_RTRL`.
    """

    rule = BY_NAME['rflo']


class OTTT(ETraceVjpAlgorithm):
    """Online training through time: a leaky input trace times the instantaneous derivative,
    `dw = (decay x^ + x) (x) s df`.

    Args:
        decay: the leak, in [0, 1).
    """

    rule = BY_NAME['ottt']


class ThreeFactor(ParamDimVjpAlgorithm):
    """Trace times modulator: the third factor is a number, or one for each group, unit or sample,
    given with each call or as `learner.modulator`.

    Args:
        modulator: the standing modulator, for calls that bring none.
        trace_dtype, trace_limit: as for `D_RTRL`.
    """

    rule = BY_NAME['three_factor']

    def __init__(
        self,
        model: Any,
        name: str | None = None,
        vjp_method: str = 'single-step',
        modulator: Any = None,
        **more: Any,
    ):
        super().__init__(model, name, vjp_method, **more)
        self.modulator = modulator
