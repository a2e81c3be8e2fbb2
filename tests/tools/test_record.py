"""What a learner does over a sequence, recorded: it is what `grad` does step by step."""

import jax
import jax.numpy as jnp
import numpy as np
import people_models
import pytest
from told import GATE

import braintrace

XS = jnp.asarray(np.random.RandomState(0).randn(6, 2, 3), 'float32')
YS = jnp.asarray(np.random.RandomState(1).randn(6, 2, 2), 'float32')


def loss(out, y):
    return ((out - y) ** 2).mean()


def descend(params, grads):
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def norm(a):
    return np.linalg.norm(np.ravel(a))


@pytest.fixture(scope='module')
def plain():
    step, params, state, x = people_models.plain()
    params, state = jax.tree.map(lambda a: a.astype('float32'), (params, state))
    learner = braintrace.compile(step, 'd_rtrl', params, state, XS[0])
    return learner, params, learner.init(params, state)


def test_a_plain_learner_is_recorded_as_it_learns(plain, tmp_path):
    learner, params, carry = plain
    elements = {'W': [(0, 1), (2, 3)], 'R->state': (0, 1, 2, 3), 'state': (1, 2)}
    seen = braintrace.record(
        learner, XS, YS, loss=loss, params=params, carry=carry, update=descend, elements=elements
    )
    now = params
    for t in range(len(XS)):
        (grads, losses), carry = learner.grad(loss, now, carry, XS[t : t + 1], YS[t : t + 1])
        now = descend(now, grads)
        np.testing.assert_allclose(seen.losses[t], losses[0], rtol=1e-5)
        for name in params:
            np.testing.assert_allclose(seen.gradients[name][t], norm(grads[name]), rtol=1e-4)
            moved = norm(now[name] - params[name])
            np.testing.assert_allclose(seen.moved[name][t], moved, rtol=1e-3, atol=1e-7)
        for name, e in carry.traces.items():
            np.testing.assert_allclose(seen.traces[name][t], norm(e), rtol=1e-5)
        np.testing.assert_allclose(seen.elements['W[2, 3]'][t], now['W'][2, 3], rtol=1e-5)
        e = carry.traces['R->state'][0, 1, 2, 3]
        np.testing.assert_allclose(seen.elements['R->state[0, 1, 2, 3]'][t], e, rtol=1e-5)
    assert len(seen.plot(tmp_path / 'seen.png').axes) == 6
    seen.animate().save(tmp_path / 'seen.gif')
    assert (tmp_path / 'seen.gif').read_bytes()[:3] == b'GIF'


def test_credit_is_the_learning_signal(plain):
    learner, params, carry = plain
    seen = braintrace.record(
        learner, XS, YS, loss=loss, params=params, carry=carry, elements={'state': (1, 2)}
    )
    outs, _ = learner.evolve(params, carry, XS)
    for t in range(len(XS)):  # the read-out is linear: its transpose takes credit to the state
        credit = jax.grad(loss)(outs[t], YS[t]) @ params['look'].T
        np.testing.assert_allclose(seen.credit['state'][t], norm(credit), rtol=1e-5)
        np.testing.assert_allclose(seen.elements['state[1, 2]'][t], credit[1, 2], rtol=1e-4)


@GATE
def test_a_learner_of_a_module_is_left_as_it_was():
    optax = pytest.importorskip('optax')
    net, inputs = people_models.gru()
    learner = braintrace.compile(net, 'pp_prop', *inputs, batch_size=2, decay_or_rank=0.9)
    before = jax.tree.map(np.asarray, learner.snapshot().arrays)
    seen = braintrace.record(learner, XS, YS, loss=loss, update=optax.adam(0.1))
    after = jax.tree.map(np.asarray, learner.snapshot().arrays)
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert len(repr(seen)) < 2000 and repr(seen).startswith('Recording(steps=')
    assert seen.losses[-1] != seen.losses[0] and all(m[-1] > 0 for m in seen.moved.values())
    still = braintrace.record(learner, XS, YS, loss=loss)
    assert still.moved['readout.weight.bias'].max() == 0

    def step(x, y):
        return loss(learner(x), y)

    with pytest.raises(TypeError, match=r'`record`: `loss` calls the learner.*`loss\(out, '):
        braintrace.record(learner, XS, YS, loss=step)
    jax.tree.map(np.testing.assert_array_equal, before, learner.snapshot().arrays)
    grads = learner.etrace_grad(XS[:1], YS[:1], step_fn=step)
    expected = norm(grads['rnn', 'Wh', 'weight']['weight'])
    np.testing.assert_allclose(still.gradients['rnn.Wh.weight.weight'][0], expected, rtol=1e-5)


def both(out, y):
    return loss(out, y), out


def test_what_record_refuses(plain):
    learner, params, carry = plain
    given = dict(loss=loss, params=params, carry=carry)
    with pytest.raises(TypeError, match='`params` and `carry`'):
        braintrace.record(learner, XS, YS, loss=loss)
    with pytest.raises(ValueError, match=r'`xs` has the shapes'):
        braintrace.record(learner, XS[0], YS[:2], **given)
    with pytest.raises(ValueError, match="there is no 'V'. Known are state, R, W"):
        braintrace.record(learner, XS, YS, **given, elements={'V': 0})
    with pytest.raises(TypeError, match='`loss` must return the loss alone, got a tuple'):
        braintrace.record(learner, XS, YS, **given | dict(loss=both))
    with pytest.raises(TypeError) as refused:
        braintrace.record(learner, XS, **given)
    assert '`loss(out, *targets)` was given' in refused.value.__notes__[-1]
    with pytest.raises(ValueError, match='no index of W'):
        braintrace.record(learner, XS, YS, **given, elements={'W': (3, 0)})
