"""The rules as learners of brainstate models: names, feedback, modulators, schedules, guesses."""

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from family import C, D, H, Net, P, T, X, Y, grads_of, learner_of, rnn, same
from told import RESET

import braintrace

pytestmark = RESET

CLASSES = {
    'EProp': dict(kappa_filter_decay=0.5),
    'OSTLRecurrent': {},
    'OSTLFeedforward': {},
    'RFLO': dict(decay=0.5),
    'OTTT': dict(decay=0.5),
    'SnAp': dict(n=1),
    'UORO': {},
    'KFRTRL': {},
    'LowRankRTRL': dict(rank=2),
    'ThreeFactor': dict(modulator=0.5),
    'D_RTRL': {},
    'pp_prop': dict(decay_or_rank=0.9),
    'RTRL': {},
    'BPTT': {},
    'HybridDimVjpAlgorithm': dict(decay_or_rank=0.9),
}


@pytest.mark.parametrize(
    'name',
    [c for c in CLASSES if c not in ('D_RTRL', 'pp_prop', 'RTRL', 'BPTT', 'HybridDimVjpAlgorithm')],
)  # test_learner has these
def test_a_loop_of_calls_gives_the_sum_that_the_driver_gives(name):
    learner = learner_of(getattr(braintrace, name), **CLASSES[name])
    whole = grads_of(learner, window=1, reduction='sum')
    assert all(np.abs(g).max() > 0 for g in jax.tree.leaves(whole))
    other = learner_of(getattr(braintrace, name), **CLASSES[name])

    def one(x, y):
        return brainstate.transform.grad(
            lambda: jnp.mean((other(x) - y) ** 2), other.param_states
        )()

    same(jax.tree.map(lambda g: g.sum(0), brainstate.transform.for_loop(one, X, Y)), whole)


def test_every_rule_has_a_class_and_a_row():
    from braintrace.rules.registry import BY_NAME, LEARNERS

    assert LEARNERS.keys() == BY_NAME.keys()
    assert {c.__name__ for c in LEARNERS.values()} == CLASSES.keys() | {'DNI'}


def test_a_rule_of_ones_own_by_name_and_as_it_is():
    from braintrace.rules import Rule
    from braintrace.rules.bptt import Bptt
    from braintrace.rules.registry import BY_NAME

    forget = Rule('forget', Bptt, {'depth': 1}, make=lambda layout, depth: Bptt(layout))
    braintrace.register_rule(forget)
    for rule in ('Forget', forget):
        learner = learner_of(rule, depth=2)
        assert learner.rule is forget and isinstance(learner, braintrace.ETraceVjpAlgorithm)
    assert braintrace.compile(rnn, 'forget', P, jnp.zeros((2, H)), X[0]).rule is forget
    assert type(learner_of(BY_NAME['pp_prop'], decay_or_rank=0.9)) is braintrace.pp_prop
    for error, call in [
        (ValueError, lambda: braintrace.register_rule(forget)),
        (TypeError, lambda: braintrace.register_rule('forget')),
        (TypeError, lambda: braintrace.register_rule(Rule('other', Bptt), braintrace.BPTT)),
        (ValueError, lambda: braintrace.register_rule(Rule('e_prop', Bptt))),
        (TypeError, lambda: learner_of('forget', speed=1)),
    ]:
        with pytest.raises(error):
            call()
    assert 'other' not in BY_NAME


def test_a_signal_that_would_have_no_effect_is_refused():
    Config, start = braintrace.ETraceConfig, (P, jnp.zeros((2, H)), X[0])
    for rule in ('three_factor', Config(learning_signal='modulatory')):
        for build in (
            lambda **o: braintrace.compile(rnn, rule, *start, **o),
            lambda **o: learner_of(rule, **o),
        ):
            with pytest.raises(ValueError, match="signal .* in each step.* Use 'single-step'"):
                build(vjp_method='multi-step')
    for build in (
        lambda **o: braintrace.compile(rnn, 'dni', *start, guess=lambda p, h: h, **o),
        lambda **o: learner_of('dni', **o),
    ):
        with pytest.raises(ValueError, match="must be 'multi-step'"):
            build(vjp_method='single-step')
    learner = braintrace.compile(rnn, 'd_rtrl', *start)
    with pytest.raises(TypeError, match="'d_rtrl' takes no `modulator`"):
        learner.grad(lambda out: out.sum(), P, learner.init(*start[:2]), X, modulator=0.5)


def test_a_modulator_may_change_under_jit():
    learner = learner_of('three_factor')

    @brainstate.transform.jit
    def step(x, m):
        return brainstate.transform.grad(
            lambda: learner(x, modulator=m).sum(), learner.param_states
        )()

    a = step(X[0], 1.0)['cell', 'Wh', 'weight']['weight']
    learner.reset_state()
    brainstate.nn.reset_all_states(learner.model4compile, batch_size=2)
    np.testing.assert_allclose(step(X[0], 2.0)['cell', 'Wh', 'weight']['weight'], 2 * a, atol=1e-12)
    with pytest.raises(RuntimeError, match='modulator'):
        brainstate.transform.grad(lambda: learner(X[0]).sum(), learner.param_states)()


def test_updates_follow_the_schedule():
    for config, count in (
        (braintrace.ETraceConfig(), T),
        (braintrace.ETraceConfig(update_schedule='window', window_size=4), 2),
        (braintrace.ETraceConfig(update_schedule='sequence_end'), 1),
    ):
        learner = learner_of(config)
        done = brainstate.LongTermState(jnp.zeros((), jnp.int32))

        def update(grads):
            done.value += 1
            for k, s in learner.param_states.items():
                s.value = jax.tree.map(lambda w, g: w - 0.1 * g, s.value, grads[k])

        before = jax.tree.leaves([s.value for s in learner.param_states.values()])
        losses = learner.etrace_learn(
            X, Y, step_fn=lambda x, y: jnp.mean((learner(x) - y) ** 2), update=update
        )
        assert losses.shape == (T,) and int(done.value) == count
        assert all(
            (a != b).any()
            for a, b in zip(
                before,
                jax.tree.leaves([s.value for s in learner.param_states.values()]),
                strict=True,
            )
        )


def test_dni_guesses_for_weights_without_a_trace():
    learner = learner_of('dni')
    with pytest.raises(RuntimeError, match='synthesizer'):
        grads_of(learner)
    synth = braintrace.SyntheticGradient(learner.group_signal_shapes())
    learner.attach_synthesizer(synth)
    plain = grads_of(learner, window=2)
    with pytest.raises(TypeError, match='takes no `modulator`'):
        learner(X[0], modulator=0.5)
    again = learner_of('d_rtrl', vjp_method='multi-step')
    same(plain, grads_of(again, window=2))
    errors = braintrace.train_synthetic_gradient(
        learner, X, chunk_size=2, lr=0.05, epochs=8, batch_size=2
    )
    assert errors[-1] < errors[0]
    with pytest.raises(ValueError, match='windows of 2'):
        grads_of(learner, window=3)
    learner.reset_state()
    brainstate.nn.reset_all_states(learner.model4compile, batch_size=2)
    guessed = grads_of(learner, window=2)
    same(guessed['out', 'weight'], plain['out', 'weight'])
    assert not np.allclose(
        guessed['cell', 'Wr', 'weight']['weight'], plain['cell', 'Wr', 'weight']['weight']
    )


def test_a_readout_outside_the_model_has_feedback_weights_of_its_own():
    cell, out = braintrace.nn.GRUCell(D, H), brainstate.nn.Linear(H, C)
    learner = braintrace.compile(
        cell, 'eprop', X[0], batch_size=2, feedback='random', random_feedback_key=0
    )

    def step(x, y):
        return jnp.mean((out(learner(x)) - y) ** 2)

    for _ in range(2):
        assert all(
            np.abs(g).max() > 0
            for g in jax.tree.leaves(learner.etrace_grad(X, Y, step_fn=step, window=3))
        )
        learner(X[0])  # the model alone does not use them, and leaves them as they are
    with pytest.raises(TypeError, match='bogus'):
        braintrace.compile(Net(), braintrace.ETraceConfig(), X[0], batch_size=2, bogus=1)
