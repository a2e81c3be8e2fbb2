"""The learning rules as learners of brainstate models."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp

from ..plan.keys import INPUT, OUTPUT
from ..rules.config import ETraceConfig
from ..rules.low_rank import BOUND
from ..rules.options import decays
from ..rules.registry import BY_NAME, LEARNERS, Rule, find_rule
from ..rules.signals import Extra
from .brainstate import ETraceAlgorithm, ETraceVmap, brainstate

# accepted for old code: there is one way, and it is the fast one
_OLD = ('fast_solve', 'chunked_trace', 'snap_max_jacobian_elements')


class ETraceVjpAlgorithm(ETraceAlgorithm):
    """A learner whose `update` can be differentiated; the base of all rules here."""

    def __init__(
        self,
        model: Any,
        name: str | None = None,
        vjp_method: str | None = None,
        control_flow: Any = None,
        config: ETraceConfig | None = None,
        random_feedback_key: Any = None,
        **more: Any,
    ):
        options = {k: v for k, v in more.items() if k not in _OLD}
        if random_feedback_key is not None:
            options['random_feedback_key'] = random_feedback_key
        fed_back = config is not None and config.learning_signal == 'random_feedback'
        if fed_back and random_feedback_key is None:
            raise ValueError(
                "A configuration with learning_signal='random_feedback' needs `random_feedback_key`."
            )
        super().__init__(model, name, vjp_method, control_flow, config=config, **options)


def _check_factorization(config: ETraceConfig | None, wanted: str) -> None:
    if config is not None and config.trace_factorization != wanted:
        raise ValueError(
            f'`config`: this engine is for trace_factorization={wanted!r}, '
            f'got {config.trace_factorization!r}.'
        )


class BPTT(ETraceVjpAlgorithm):
    """Backpropagation through time inside each window, and nothing across its edge: BPTT when the window is the
    sequence, truncated otherwise."""

    rule = BY_NAME['bptt']


class RTRL(ETraceVjpAlgorithm):
    """Real-time recurrent learning: the whole influence `J_b = Phi J_a + M`. Exact for any model and any window; memory
    states x parameters."""

    rule = BY_NAME['rtrl']


class ParamDimVjpAlgorithm(ETraceVjpAlgorithm):
    """D-RTRL: each weight remembers the unit it feeds, `e <- D e + x (x) df`. Exact where the recurrence is
    position-wise in one layer.

    Args:
        trace_dtype: the precision the traces are stored in.
        trace_limit: bytes that the trace of one weight may take; beyond, it gets its in-window gradient and a warning
            says so.
        embedding_rows: of a larger table, a trace holds so many rows for each sample, the last that were read (exact
            until more are).
        scope: 'diagonal' leaves recurrent weights out of D, 'block' keeps the weight from each unit to itself,
            'coupled' the unit's block of the Jacobian.
        fast_solve, chunked_trace, snap_max_jacobian_elements: accepted for old code; there is one way, and it is the
            fast one.
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
        _check_factorization(config, 'per_param')
        super().__init__(
            model, name, vjp_method, control_flow, config, trace_dtype=trace_dtype, **more
        )

    @property
    def etrace_bwg(self) -> dict:
        """The traces by name, under the name of braintrace 0.2."""
        return self.etrace


class IODimVjpAlgorithm(ETraceVjpAlgorithm):
    """pp-prop (ES-D-RTRL): an input trace times an output trace, memory in + out instead of in x out.

    Args:
        decay_or_rank: a decay in [0, 1), a rank r >= 1 for the decay (r-1)/(r+1), or a pair (input side, output side).
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
        _check_factorization(config, 'io_factorized')
        if config is None and decay_or_rank is None:
            raise TypeError('`decay_or_rank` is missing: a decay in [0, 1), a rank, or a pair.')
        own = {} if config is not None else {'decay_or_rank': decay_or_rank}
        super().__init__(model, name, vjp_method, control_flow, config, **own, **more)
        sides = config.decay if config is not None else decays(decay_or_rank)
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
        prefer: 'full' (D-RTRL), 'approx' (pp-prop), 'adaptive' or None (by size), or a function of the parameter's path
            that says one of these.
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
            prefer=prefer,
            **more,
        )


class D_RTRL(ParamDimVjpAlgorithm):
    __doc__ = ParamDimVjpAlgorithm.__doc__


class pp_prop(IODimVjpAlgorithm):
    __doc__ = IODimVjpAlgorithm.__doc__


ES_D_RTRL = pp_prop


class EProp(ETraceVjpAlgorithm):
    """e-prop: the trace of D-RTRL, `m <- kappa m + e` as a stand-in for the leak of the read-out, and a learning signal
    that need not be the gradient.

    Args:
        feedback: 'symmetric', the gradient; 'random', through fixed random weights in place of the read-out's;
            'adaptive', through random weights that receive the changes of the read-out's; 'square', each group's own
            signal through a random matrix from units to units.
        kappa_filter_decay: kappa, 0 for none. At kappa = 0 with symmetric feedback it is D-RTRL.
        random_feedback_key: the random key (or seed) of the feedback weights, which are kept beside the traces as
            `feedback:<weight>`.
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
            feedback=feedback,
            kappa_filter_decay=kappa_filter_decay,
            random_feedback_key=random_feedback_key,
            **more,
        )


class OSTLRecurrent(ETraceVjpAlgorithm):
    """OSTL with recurrence: D-RTRL whose D is the unit's own block of the whole Jacobian, recurrent weights included.

    Args:
        trace_dtype, trace_limit: as for `D_RTRL`.
    """

    rule = BY_NAME['ostl_recurrent']
    regime = 'with-H'


class OSTLFeedforward(IODimVjpAlgorithm):
    """OSTL without recurrence: pp-prop with (almost) no memory in its averages.

    Args:
        decay_or_rank: as for `pp_prop`.
    """

    rule = BY_NAME['ostl_feedforward']
    regime = 'without-H'

    def __init__(self, model: Any, decay_or_rank: Any = 1e-6, name: str | None = None, **more: Any):
        super().__init__(model, decay_or_rank, name, **more)


class RFLO(ETraceVjpAlgorithm):
    """Random-feedback local online learning's trace: a fixed leak instead of the Jacobian, `e <- decay e + x (x) df`.

    Args:
        decay: the leak, in [0, 1).
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


class SnAp(ETraceVjpAlgorithm):
    """SnAp-n: each weight remembers what it reaches within n steps. With an n that reaches everything it is RTRL.

    Args:
        n: the number of steps, at least 1.
    """

    rule = BY_NAME['snap']

    def __init__(
        self,
        model: Any,
        n: int = 2,
        name: str | None = None,
        vjp_method: str = 'single-step',
        **more: Any,
    ):
        if 'config' in more:
            raise TypeError(
                '`config`: SnAp is a configuration of its own; use compile(model, ETraceConfig(...)).'
            )
        self.n = n
        super().__init__(model, name, vjp_method, n=n, **more)


class RandomProjectionVjpAlgorithm(ETraceVjpAlgorithm):
    """UORO: one random rank-one product for the whole influence. Unbiased, and noisy; memory states + parameters.

    Args:
        projection_key: the key (or seed) of its random stream.
        projection_eps: keeps the balance of the two factors finite.
    """

    rule = BY_NAME['uoro']

    def __init__(
        self,
        model: Any,
        name: str | None = None,
        vjp_method: str | None = None,
        fast_solve: bool = True,
        control_flow: Any = None,
        config: ETraceConfig | None = None,
        projection_key: Any = 42,
        projection_eps: float = 1e-12,
        **more: Any,
    ):
        _check_factorization(config, 'random_projection')
        super().__init__(
            model,
            name,
            vjp_method,
            control_flow,
            config,
            projection_key=projection_key,
            projection_eps=projection_eps,
            **more,
        )


class UORO(RandomProjectionVjpAlgorithm):
    __doc__ = RandomProjectionVjpAlgorithm.__doc__


class KFRTRL(ETraceVjpAlgorithm):
    """KF-RTRL: for each weight a random Kronecker product for its influence. Unbiased, with less noise than UORO;
    memory states x outputs.

    Args:
        projection_key, projection_eps: as for `UORO`.
    """

    rule = BY_NAME['kf_rtrl']


class LowRankRTRL(ETraceVjpAlgorithm):
    """RTRL with the influence kept in `rank` columns, compressed once a window; `error_bound` says what that has cost.

    Args:
        rank: the number of columns, at least 1.
    """

    rule = BY_NAME['low_rank']

    @property
    def error_bound(self) -> jax.Array:
        """A bound of the Frobenius norm of the error of the influence."""
        return self.etrace[str(BOUND)].value


class ThreeFactor(ETraceVjpAlgorithm):
    """Trace times modulator: the third factor is a number, or one for each group, unit or sample, given with each call
    or as `learner.modulator`.

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


class DNI(ETraceVjpAlgorithm):
    """Decoupled neural interfaces: traces, and for the weights that have none a learned guess of the credit from beyond
    the window.

    Args:
        synthesizer: a `SyntheticGradient`, or anything with `param_values()` and `apply(values, {group: hidden})`; may
            be attached later.
    """

    rule = BY_NAME['dni']

    def __init__(
        self,
        model: Any,
        synthesizer: Any = None,
        name: str | None = None,
        vjp_method: str = 'multi-step',
        **more: Any,
    ):
        super().__init__(model, name, vjp_method, guess=_guess, **more)
        self.synthesizer = synthesizer

    def attach_synthesizer(self, synthesizer: Any) -> None:
        """Guess with this one from now on."""
        self.synthesizer = synthesizer

    def group_signal_shapes(self) -> dict[int, tuple[int, ...]]:
        """The shape of each hidden group's values and credit, `(*units, states)`."""
        return {g.index: (*g.varshape, g.num_state) for g in self._core.graph.groups}

    def _signal_input(self, modulator: Any, length: int, window: int) -> Extra:
        if self.synthesizer is None:
            raise RuntimeError(
                'DNI needs a synthesizer: '
                '`learner.attach_synthesizer(SyntheticGradient(learner.group_signal_shapes()))`.'
            )
        fitted = getattr(self.synthesizer, 'window', None)
        if fitted is not None and fitted != window:
            raise ValueError(
                f'The synthesizer was fitted for windows of {fitted} steps, this call has {window}: pass '
                f'window={fitted}, or fit it again with `train_synthetic_gradient`.'
            )
        guess = Synthesis(self.synthesizer, self.synthesizer.param_values())
        return super()._signal_input(modulator, length, window)._replace(fixed=guess)


@jax.tree_util.register_pytree_node_class
class Synthesis:
    """A synthesizer and the values of its parameters: the values move, the synthesizer stays."""

    def __init__(self, synthesizer: Any, values: Any):
        self.synthesizer, self.values = synthesizer, values

    def tree_flatten(self) -> tuple[tuple, Any]:
        return (self.values,), self.synthesizer

    @classmethod
    def tree_unflatten(cls, synthesizer: Any, children: tuple) -> Synthesis:
        return cls(synthesizer, *children)


def _guess(synthesis: Synthesis, hidden: dict[int, Any]) -> dict[int, Any]:
    """The credit that the future is guessed to send, by group."""
    return synthesis.synthesizer.apply(synthesis.values, hidden)


CLASSES: tuple[type[ETraceVjpAlgorithm], ...] = (
    BPTT,
    RTRL,
    D_RTRL,
    pp_prop,
    HybridDimVjpAlgorithm,
    EProp,
    OSTLRecurrent,
    OSTLFeedforward,
    RFLO,
    OTTT,
    SnAp,
    UORO,
    KFRTRL,
    LowRankRTRL,
    ThreeFactor,
    DNI,
)
LEARNERS.update({c.rule.name: c for c in CLASSES})
_ENGINES: dict[str, type[ETraceVjpAlgorithm]] = {
    'per_param': ParamDimVjpAlgorithm,
    'io_factorized': IODimVjpAlgorithm,
    'random_projection': RandomProjectionVjpAlgorithm,
}


def find_algorithm(algorithm: Any) -> type[ETraceAlgorithm]:
    """The learner class behind a name, a class, a configuration or a rule."""
    if isinstance(algorithm, str):
        algorithm = find_rule(algorithm)
    if isinstance(algorithm, Rule):
        known = LEARNERS.get(algorithm.name)
        if known is not None and known.rule is algorithm:
            return known
        return type(algorithm.name, (ETraceVjpAlgorithm,), {'rule': algorithm})
    if isinstance(algorithm, ETraceConfig):
        return _ENGINES[algorithm.trace_factorization]
    if isinstance(algorithm, type) and issubclass(algorithm, ETraceAlgorithm):
        return algorithm
    raise TypeError(
        '`algorithm` must be a name, a subclass of ETraceAlgorithm, an ETraceConfig or a Rule, '
        f'got {algorithm!r}.'
    )


def compile_module(
    model: Any,
    algorithm: Any,
    *example_inputs: Any,
    batch_size: int | None = None,
    seed: int | None = None,
    verbose: int = 0,
    vmap: bool = False,
    **options: Any,
) -> ETraceAlgorithm | ETraceVmap:
    """A compiled learner of a brainstate model, its states initialised."""
    learner_class = find_algorithm(algorithm)
    if isinstance(algorithm, ETraceConfig):
        if 'config' in options:
            raise TypeError('`config` is given twice: as the algorithm and as an option.')
        options['config'] = algorithm
    if not example_inputs:
        raise ValueError('`compile` needs example inputs of one step.')
    if verbose not in (0, 1, 2):
        raise ValueError(f'`verbose` must be 0, 1 or 2, got {verbose!r}.')
    if vmap:
        _check_batch(example_inputs, batch_size)
    with brainstate.random.seed_context(seed) if seed is not None else nullcontext():
        if vmap:
            brainstate.nn.vmap_init_all_states(model, axis_size=batch_size, state_tag='new')
        else:
            sizes = {} if batch_size is None else {'batch_size': batch_size}
            brainstate.nn.init_all_states(model, **sizes)
    learner: Any = learner_class(model, **options)
    if vmap:
        learner = ETraceVmap(learner)
    learner.compile_graph(*example_inputs)
    if verbose:
        learner.report.show(verbose)
    return learner


def _check_batch(inputs: tuple, batch_size: int | None) -> None:
    if batch_size is None:
        raise ValueError('`vmap=True` needs `batch_size`.')
    for leaf in jax.tree.leaves(inputs):
        if jnp.ndim(leaf) == 0 or jnp.shape(leaf)[0] != batch_size:
            raise ValueError(
                f'With vmap=True every example input has the batch of {batch_size} as its first axis, '
                f'got shape {jnp.shape(leaf)}.'
            )
