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

SIZES = dict(b=3, S=4, Z=4, i=2, k=3, j=5, Y=6)
LABELS = Labels('b', 'bS', 'SbZ', 'YSbj', ('bSij', 'bSkj'), ('Ybi', 'Ybk'))
linear = model(lambda p, h, x: x @ p['W'] + 0.3 * (h @ p['R']))


def test_it_reads_and_renews():
    rng = np.random.RandomState(0)
    lam, Phi, q, *rest = (rng.randn(*[SIZES[c] for c in of]) for of in LABELS.of_operands)
    given = lam, Phi, q, rest[:2], rest[2:]
    more = [rng.randn(2, *e.shape) for e in rest[:2]]

    def by_einsum(lam, Phi, q, es, xs, labels):
        read = [jnp.einsum('bS,bSij->ij', lam, e) for e in es]
        moved = [jnp.einsum('SbZ,bZij->bSij', Phi, e) for e in es]
        added = [jnp.einsum('YSbj,Ybi->bSij', q, x) for x in xs]
        return read, [a + b for a, b in zip(moved, added, strict=True)]

    def all_of_it(f):
        def here(*values):
            return f(*values, LABELS)

        def square(*values):
            return sum((a**2).sum() for a in jax.tree.leaves(here(*values)))

        def with_others(es):
            return here(lam, Phi, q, es, rest[2:])

        slopes = jax.grad(square, range(5))(*given)
        return here(*given), jax.jit(here)(*given), jax.vmap(with_others)(more), slopes

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
