"""A stream writes over its traces, and nobody who holds them is told otherwise."""

import copy
import pickle
import signal
import sys
import threading

import brainstate as bs
import jax
import numpy as np
import pytest
from told import GATE

import braintrace

pytestmark = GATE
X = np.random.RandomState(0).randn(2, 3)


def streaming(look=lambda loss: loss):
    """A learner, and its stream with a step down each gradient; `look` sees the loss."""
    bs.random.seed(0)
    learner = braintrace.compile(bs.nn.GRUCell(3, 4), 'd_rtrl', X, batch_size=2)

    def descend(grads):
        for path, state in learner.param_states.items():
            state.value = jax.tree.map(lambda w, g: w - 0.1 * g, state.value, grads[path])

    def step(x):
        return look((learner(x) ** 2).sum())

    return learner, learner.etrace_stream(step_fn=step, update=descend)


def state_of_traces(learner):
    [state] = [s for s in learner.states().values() if isinstance(s, braintrace.EligibilityTrace)]
    return state


def unseen(learner):
    """The arrays of the traces, got in a way that the learner does not notice."""
    return jax.tree.leaves(vars(state_of_traces(learner))['_value'])


def now(learner):
    return jax.tree.map(np.array, [s.value for s in learner.states().values()])


def through_copy_from(state):
    other = braintrace.EligibilityTrace(None)
    other.copy_from(state)
    return other.value


WAYS = {
    'value': lambda learner: state_of_traces(learner).value,
    'etrace': lambda learner: [part.value for part in learner.etrace.values()],
    'copy': lambda learner: state_of_traces(learner).copy().value,
    'copy_from': lambda learner: through_copy_from(state_of_traces(learner)),
    'replace': lambda learner: state_of_traces(learner).replace().value,
    'deepcopy': lambda learner: state_of_traces(copy.deepcopy(learner)).value,
    'pickle': lambda learner: state_of_traces(pickle.loads(pickle.dumps(learner))).value,
    'treefy_split': lambda learner: jax.tree.leaves(bs.graph.treefy_split(learner)[1]),
    'jit': lambda learner: bs.transform.jit(lambda: state_of_traces(learner).value)(),
}


def test_traces_that_somebody_has_seen_are_kept():
    learner, live = streaming()
    alone, live_alone = streaming()
    seen = []
    for way in WAYS.values():
        live(X)
        live(X)
        held = way(learner)
        seen.append((held, jax.tree.map(np.array, held)))
    for _ in range(2 * len(WAYS)):
        live_alone(X)
    jax.tree.map(np.testing.assert_array_equal, now(learner), now(alone))
    live(X)
    for held, values in seen:
        jax.tree.map(np.testing.assert_array_equal, held, values)

    before = unseen(learner)
    live(X)
    assert all(a.is_deleted() for a in before), 'nobody has seen them: they are written over'


def after(steps):
    """The states after so many steps that nobody looked at."""
    learner, live = streaming()
    for _ in range(steps):
        live(X)
    return now(learner)


class Interrupted(Exception):
    pass


def test_an_interrupt_leaves_a_whole_step_or_none():
    def interrupt(*_):
        raise Interrupted

    learner, live = streaming()
    live(X)
    handler = signal.signal(signal.SIGALRM, interrupt)
    try:
        for i in range(100):
            with pytest.raises(Interrupted):
                signal.setitimer(signal.ITIMER_REAL, 1e-3 + 1e-6 * i)
                while True:
                    live(X)
    finally:
        signal.signal(signal.SIGALRM, handler)
    steps = int(learner.running_index.value)
    assert steps > 20
    jax.tree.map(np.testing.assert_array_equal, now(learner), after(steps))


def test_a_step_that_fails_while_it_runs_changes_nothing():
    def limited(loss):
        if done == 2:
            raise ValueError('too much')
        return loss

    @jax.custom_jvp
    def look(loss):
        return jax.pure_callback(limited, loss, loss)

    look.defjvp(lambda loss, change: (look(*loss), *change))
    learner, live = streaming(look)
    done = 0
    for _ in range(2):
        live(X)
    done = 2
    with pytest.raises(Exception, match='too much'):
        live(X)
    jax.tree.map(np.testing.assert_array_equal, now(learner), after(2))

    learner, live = streaming()
    for _ in range(2):
        live(X)
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        live(np.full_like(X, np.nan))
    jax.tree.map(np.testing.assert_array_equal, now(learner), after(2))


def test_traces_are_read_while_the_stream_goes_on():
    learner, live = streaming()
    live(X)
    read, done = [], threading.Event()

    def watch():
        while not done.is_set():
            read.append(jax.tree.map(np.array, state_of_traces(learner).value))

    watching = threading.Thread(target=watch)
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        watching.start()
        while len(read) < 300 and watching.is_alive():
            live(X)
    finally:
        sys.setswitchinterval(usual)
        done.set()
        watching.join()
    steps = [int(traces['steps']) for traces in read]
    assert len(read) >= 300 and steps == sorted(steps)
