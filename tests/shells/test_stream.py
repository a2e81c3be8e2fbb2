"""Learning as the data come: by schedule and by stream."""

import brainstate as bs
import jax
import numpy as np
import pytest
from module_learner import T, X, Y, assert_same, learner_of
from told import GATE

import braintrace

pytestmark = GATE


def test_learning_cuts_the_mask_with_the_sequence(capsys):
    def learned(**options):
        bs.random.seed(0)
        learner, _ = learner_of()
        weights = learner.param_states

        def descend(grads):
            return [
                setattr(
                    weights[k],
                    'value',
                    jax.tree.map(lambda w, g: w - 0.1 * g, weights[k].value, grads[k]),
                )
                for k in grads
            ]

        learner.etrace_learn(
            X, Y, step_fn=lambda x, y: ((learner(x) - y) ** 2).mean(-1), update=descend, **options
        )
        return {k: s.value for k, s in weights.items()}

    bs.random.seed(0)
    by_hand, _ = learner_of()

    def by_sample(x, y):
        return ((by_hand(x) - y) ** 2).mean(-1)

    mask = np.array([[1, 0], [0, 1], [1, 1], [0, 0], [1, 0], [1, 1]])
    for x, y, m in zip(X, Y, mask, strict=True):
        grads = by_hand.etrace_grad(x[None], y[None], step_fn=by_sample, mask=m[None])
        for k, s in by_hand.param_states.items():
            s.value = jax.tree.map(lambda w, g: w - 0.1 * g, s.value, grads[k])
    assert_same(learned(mask=mask), {k: s.value for k, s in by_hand.param_states.items()})
    learned(schedule='window', window_size=4, mask=mask[:, 0], progress=True)
    jax.effects_barrier()
    assert '6/6' in capsys.readouterr().err, 'one bar for all windows'
    with pytest.raises(ValueError, match='the sequence has 6 steps'):
        learned(mask=mask[:3])


def test_a_stream_is_learning_step_by_step():
    def start(rule='d_rtrl', **options):
        bs.random.seed(0)
        learner, _ = learner_of(rule, **options)
        weights = learner.param_states

        def descend(grads):
            return [
                setattr(
                    weights[k],
                    'value',
                    jax.tree.map(lambda w, g: w - 0.1 * g, weights[k].value, grads[k]),
                )
                for k in grads
            ]

        return (
            learner,
            descend,
            lambda x, y: (((learner(x) - y) ** 2).mean() * bs.environ.get('gain', 1.0), x.sum()),
        )

    def values(learner):
        return {k: s.value for k, s in learner.path_to_states.items()}

    learner, descend_too, step_too = start()
    by_step = {'step_fn': lambda x, y: step_too(x, y)[0], 'update': descend_too}
    expected = learner.etrace_learn(X, Y, **by_step)
    live, descend, step = start()
    once = live.etrace_stream(step_fn=step, update=descend, has_aux=True)
    found = [once(x, y) for x, y in zip(X, Y, strict=True)]
    np.testing.assert_allclose([loss for loss, _ in found], expected, atol=1e-12)
    np.testing.assert_allclose([aux for _, aux in found], X.sum((1, 2)), atol=1e-12)
    assert_same(values(live), values(learner))
    assert live.running_index.value == T

    for net in (learner, live):  # what is written between two steps counts
        for held in (*net.path_to_states.values(), *net.etrace.values()):
            held.value = jax.tree.map(lambda a: 0.5 * a, held.value)
    learner.etrace_learn(X[:1], Y[:1], **by_step)
    once(X[0], Y[0])
    assert_same(values(live), values(learner))

    before = values(live)  # whatever fails, nothing is lost
    with pytest.raises(TypeError):
        once(X[0], Y[0, :, :1].repeat(3, 1))
    assert_same(values(live), before, 0)

    for net in (learner, live):  # new states, another batch, another setting
        net.model4compile.init_state(1)
        bs.nn.init_all_states(net.model4compile, batch_size=1)
        net.reset_state()
    with bs.environ.context(gain=2.0):
        again = learner.etrace_grad(
            X[:1, :1], Y[:1, :1], step_fn=lambda x, y: ((learner(x) - y) ** 2).mean() * 2
        )
        weights = {k: s.value for k, s in learner.param_states.items()}
        once(X[0, :1], Y[0, :1])
    assert_same(
        {k: s.value for k, s in live.param_states.items()},
        jax.tree.map(lambda w, g: w - 0.1 * g, weights, dict(again)),
    )

    reward, descend, step = start('three_factor')
    twice, descend2, step2 = start('three_factor')
    reward.etrace_stream(step_fn=step, update=descend, has_aux=True)(X[0], Y[0], modulator=2.0)
    twice.etrace_learn(
        X[:1], Y[:1], step_fn=lambda x, y: step2(x, y)[0], update=descend2, modulator=2.0
    )
    assert_same(values(reward), values(twice))


def test_who_looks_on_sees_what_a_stream_reads_and_writes():
    """Hooks, transformations of brainstate, and a transformation that cannot keep states."""
    cell = bs.nn.ValinaRNNCell(X.shape[-1], 3)
    learner = braintrace.compile(cell, 'd_rtrl', X[0][:1], batch_size=1)
    [hidden] = cell.states(bs.HiddenState).values()
    live = learner.etrace_stream(step_fn=lambda x: learner(x).sum(), update=lambda grads: None)
    live(X[0][:1])
    first = hidden.value

    seen = []
    handle = hidden.register_hook('write_after', lambda context: seen.append(context.value))
    live(X[1][:1])
    assert len(seen) == 1 and (seen[0] == hidden.value).all()
    hidden.unregister_hook(handle)
    seen.clear()
    live(X[2][:1])
    assert not seen and not (hidden.value == first).all()

    with bs.StateTraceStack() as trace:
        live(X[3][:1])
    written = dict(zip(map(id, trace.states), trace.been_writen, strict=True))
    assert written[id(hidden)]

    before = hidden.value
    with pytest.raises(Exception, match='tracer'):
        jax.jit(live)(X[4][:1])
    assert (hidden.value == before).all()
    step = bs.transform.jit(lambda x: live(x))
    step(X[4][:1])
    assert not (hidden.value == before).all()


def test_a_sequence_that_stands_alone_leaves_the_traces_alone():
    """What is written inside `jit` is copied: a fresh gradient writes no trace there."""
    learner = braintrace.compile(
        bs.nn.GRUCell(X.shape[-1], 3), 'd_rtrl', X[0], batch_size=len(X[0])
    )
    [memory] = [
        s
        for s in bs.graph.states(learner).values()
        if isinstance(s, braintrace.EligibilityTrace) and 'traces' in s.value
    ]

    def grad(fresh):
        return learner.etrace_grad(X, step_fn=lambda x: learner(x).sum(), fresh=fresh)

    for fresh in (True, False):
        run = bs.transform.StatefulFunction(lambda fresh=fresh: grad(fresh))
        assert (memory in run.get_write_states()) is not fresh
