"""Learners of models whose states are mapped over a batch."""

import brainstate as bs
import jax
import jax.numpy as jnp
import pytest
from module_learner import B, X, Y, assert_same, learner_of
from told import GATE

import braintrace

pytestmark = GATE


def test_mapped_models():
    learner, step = learner_of()
    expected = learner.etrace_grad(X, Y, step_fn=step)
    lanes = braintrace.compile(
        bs.nn.Sequential(bs.nn.GRUCell(3, 4), bs.nn.Linear(4, 2)),
        'd_rtrl',
        X[0],
        batch_size=B,
        vmap=True,
    )

    def by_shape(tree):
        return {jnp.shape(v['weight']): v for v in tree}

    values = by_shape(s.value for s in learner.param_states.values())
    for s in lanes.param_states.values():
        s.value = values[jnp.shape(s.value['weight'])]

    def update(grads):
        for k, s in lanes.param_states.items():
            s.value = jax.tree.map(lambda w, g: w + g, s.value, grads[k])

    lanes.etrace_learn(
        X,
        Y,
        step_fn=lambda x, y: ((lanes(x) - y) ** 2).mean(),
        update=update,
        schedule='sequence_end',
        window=4,
    )
    changed = by_shape(s.value for s in lanes.param_states.values())
    assert_same(jax.tree.map(jnp.subtract, changed, values), by_shape(expected.values()))
    assert isinstance(lanes, braintrace.SequenceDriverMixin)


MAPPED = {
    'd_rtrl': {},
    'pp_prop': {'decay_or_rank': 0.9},
    'rtrl': {},
    'ottt': {'decay': 0.8},
    'bptt': {},
}


@pytest.mark.parametrize('rule', MAPPED)
def test_the_loop_with_states_mapped_by_hand(rule):
    """A learner made inside `jit`, compiled for one sample inside `vmap_new_states`, mapped by
    `nn.Vmap`, warmed up and driven by `scan`."""
    bs.random.seed(0)
    net = bs.nn.Sequential(bs.nn.GRUCell(3, 4), bs.nn.Linear(4, 2))
    weights = net.states(bs.ParamState)

    def mapped(size):
        learner = braintrace.shells.algorithms.find_algorithm(rule)(net, **MAPPED[rule])

        @bs.transform.vmap_new_states(state_tag='new', axis_size=size)
        def init():
            bs.nn.init_all_states(net)
            learner.compile_graph(X[0, 0])

        init()
        return learner

    @bs.transform.jit
    def gradient(xs, ys):
        lanes = bs.nn.Vmap(mapped(xs.shape[1]), vmap_states='new')
        bs.transform.for_loop(lanes, xs[:2])

        def step(total, data):
            grads = bs.transform.grad(lambda x, y: ((lanes(x) - y) ** 2).mean(), weights)(*data)
            return jax.tree.map(jnp.add, total, grads), None

        return bs.transform.scan(
            step,
            {k: jax.tree.map(jnp.zeros_like, s.value) for k, s in weights.items()},
            (xs[2:], ys[2:]),
        )[0]

    # The model's states are new ones each time.
    for size in (B, 1, B) if rule == 'd_rtrl' else (B,):
        learner = braintrace.compile(net, rule, X[0, :size], batch_size=size, **MAPPED[rule])
        learner.etrace_evolve(X[:2, :size])
        expected = learner.etrace_grad(
            X[2:, :size],
            Y[2:, :size],
            step_fn=lambda x, y: ((learner(x) - y) ** 2).mean(),
            reduction='sum',
            window=1,
        )
        assert_same(gradient(X[:, :size], Y[:, :size]), expected)
    if rule not in ('d_rtrl', 'pp_prop'):
        return
    lanes = braintrace.ETraceVmap(mapped(B), vmap_states='new')
    lanes.etrace_evolve(X[:2])
    assert_same(
        lanes.etrace_grad(
            X[2:],
            Y[2:],
            step_fn=lambda x, y: ((lanes(x) - y) ** 2).mean(),
            reduction='sum',
            window=1,
        ),
        expected,
    )
    with pytest.raises(TypeError, match='must be a learner'):
        braintrace.ETraceVmap(net)
    with pytest.raises(ValueError, match='compiled for whole batches'):
        braintrace.ETraceVmap(learner)
