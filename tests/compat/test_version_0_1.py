"""The names of 0.1.1."""

import brainevent
import brainstate as bs
import jax.numpy as jnp
import numpy as np
import pytest

import braintrace
from braintrace import nn
from braintrace.compat import version_0_1 as legacy

T, B = 4, 2
rng = np.random.RandomState(0)
MASK = rng.rand(3, 2) < 0.7
DENSE = rng.randn(3, 2) * MASK


def normal(shape):
    return jnp.asarray(rng.randn(*shape))


def test_marked_weights_only():
    class Net(bs.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 2), bs.nn.Linear(3, 2)
            self.c = legacy.NonTempParam({'weight': normal((3, 2))}, legacy.MatMulOp())

        def init_state(self, batch_size=None, **kwargs):
            self.h = bs.HiddenState(jnp.zeros((batch_size, 2)))

        def update(self, x):
            self.h.value = 0.7 * self.h.value + self.a(x) + self.b(x) + self.c.execute(x)
            return self.h.value

    xs = rng.randn(T, B, 3)
    for trace, exact in ('all', 'ab'), ('marked', 'a'):
        learner = braintrace.compile(Net(), 'd_rtrl', xs[0], batch_size=B, trace=trace, seed=0)
        found = learner.etrace_grad(
            xs, step_fn=lambda x, f=learner: f(x).sum(), window=1, reduction='sum'
        )
        weight = {p[0]: g['weight'] for p, g in found.items()}
        assert all((np.abs(weight[k] - weight['a']).max() < 1e-12) == (k in exact) for k in 'abc')
        np.testing.assert_allclose(
            weight['c'], np.tile(xs.sum((0, 1))[:, None], 2)
        )  # the same step's gradient


def test_old_and_borrowed_names():
    x, w, m = (
        rng.randn(2, 3),
        {'weight': normal((3, 2)), 'bias': normal((2,))},
        brainevent.CSR.fromdense(jnp.asarray(DENSE)),
    )

    def same(a, b):
        return np.testing.assert_allclose(a, b, atol=1e-12)

    same(
        legacy.MatMulOp(1.0 * MASK, jnp.exp, True)(x, w),
        x @ (np.exp(w['weight']) * MASK) + w['bias'],
    )
    same(
        legacy.SpMatMulOp(m, jnp.exp)(x, {'weight': jnp.log(2 * jnp.ones(m.data.shape))}),
        2 * x @ MASK,
    )
    same(legacy.LoraOp(2.0)(x, {'B': x.T, 'A': x, 'bias': 1.0}), 2 * x @ x.T @ x + 1)
    op = legacy.ConvOp(
        None,
        (1,),
        'SAME',
        dimension_numbers=('NWC', 'WIO', 'NWC'),
        weight_mask=2 * jnp.ones(()),
        weight_fn=jnp.square,
    )
    same(op(x, {'weight': w['weight'][None]}), 4 * x @ w['weight'] ** 2)
    same(legacy.FakeETraceParam(w, legacy.MatMulOp()).execute(x), x @ w['weight'] + w['bias'])
    same(legacy.FakeElemWiseParam(x, jnp.exp).execute(), np.exp(x))
    same(legacy.MatMulOp().xy_to_dw(x, x[:, :2], w)['weight'], x.T @ x[:, :2])
    assert not any(
        isinstance(p, bs.State)
        for p in (legacy.FakeETraceParam(w, None), legacy.FakeElemWiseParam(w))
    )
    for module, name, told in [
        (braintrace, 'ETraceParam', 'ETraceParam'),
        (braintrace, 'ETraceState', 'ETraceState'),
        (nn, 'ReLU', r'Use brainstate\.nn\.ReLU instead\.$'),
        (nn, 'LIF', r'Use brainpy\.state\.LIF instead\.$'),
    ]:
        assert name in dir(module)
        with pytest.warns(DeprecationWarning, match=told):
            assert getattr(module, name) is not None
    for module in (braintrace, nn):
        with pytest.raises(AttributeError, match='no_such_name'):
            module.no_such_name  # noqa: B018


ONE, TWO = jnp.ones(3), jnp.ones((3, 2))


@pytest.mark.parametrize(
    'error, message, call',
    [
        (TypeError, '`op` must be an ETraceOp', lambda: legacy.ETraceParam(TWO, jnp.dot)),
        (TypeError, 'must be a dict', lambda: legacy.MatMulOp()(ONE, TWO)),
        (ValueError, "must contain 'weight'", lambda: legacy.MatMulOp()(ONE, {'w': TWO})),
        (TypeError, '`weight_mask`', lambda: legacy.MatMulOp(3)),
        (
            ValueError,
            "'half' is not a valid",
            lambda: legacy.ETraceParam({'weight': TWO}, legacy.MatMulOp(), 'half'),
        ),
    ],
)
def test_errors(error, message, call):
    with pytest.raises(error, match=message):
        call()
