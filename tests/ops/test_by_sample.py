"""Traces of all elements of the state, read and renewed sample by sample."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_models import OTHERS, P, X, assert_close, bptt, in_windows, model, one
from told import LOST

import braintrace
from braintrace.ops.by_sample import RENEWED, Labels, read_and_renewed
from braintrace.rules import list_trace

SIZES = dict(b=3, S=4, Z=4, i=2, j=5, Y=6)
LABELS = Labels('b', 'bS', 'SbZ', 'bSij', 'YSbj', 'Ybi')
linear = model(lambda p, h, x: x @ p['W'] + 0.3 * (h @ p['R']))


def test_it_reads_and_renews():
    rng = np.random.RandomState(0)
    given = [rng.randn(*[SIZES[c] for c in of]) for of in LABELS[1:]]
    more = rng.randn(2, *given[2].shape)

    def by_einsum(lam, Phi, e, q, x, labels):
        moved = jnp.einsum('SbZ,bZij->bSij', Phi, e)
        return jnp.einsum('bS,bSij->ij', lam, e), moved + jnp.einsum('YSbj,Ybi->bSij', q, x)

    def all_of_it(f):
        def here(*values):
            return f(*values, LABELS)

        def square(*values):
            return sum((a**2).sum() for a in here(*values))

        def with_another(e):
            return here(*given[:2], e, *given[3:])

        slopes = jax.grad(square, range(5))(*given)
        return here(*given), jax.jit(here)(*given), jax.vmap(with_another)(more), slopes

    pairs = zip(*map(jax.tree.leaves, map(all_of_it, (read_and_renewed, by_einsum))), strict=True)
    for found, expected in pairs:
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize('name', ['linear', 'tanh rnn', 'lstm', 'three layers'])
@LOST
def test_rtrl_is_exact_with_large_traces(name, monkeypatch):
    monkeypatch.setattr(list_trace, 'LARGE', 0)
    monkeypatch.setattr(list_trace, 'FEW_STATES', 0)
    step, state = (OTHERS | {'linear': (linear, one)})[name]
    learner = braintrace.compile(step, 'rtrl', P, state, X[0])
    carry = learner.init(P, state)
    program = jax.make_jaxpr(lambda c: learner.grad(jnp.mean, P, c, X, window=3))(carry)
    assert f' {RENEWED.name}[' in str(program)
    for grads, _ in in_windows(step, state, 'rtrl', (1, 3)):
        assert_close(grads, bptt(step, state))
