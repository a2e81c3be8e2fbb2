"""Every way to write sparse connections gives the gradients of the same network with a dense matrix
and zeros in it."""

import brainevent
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import sparse

import braintrace

N, STORED, STEPS = 6, 14, 5
RNG = np.random.default_rng(0)
FLAT = np.sort(RNG.choice(N * N, STORED, replace=False))
ROWS, COLS = (a.astype(np.int32) for a in np.divmod(FLAT, N))
STARTS = np.searchsorted(ROWS, np.arange(N + 1)).astype(np.int32)
BY_COLUMN = np.argsort(COLS, kind='stable')
COLUMN_STARTS = np.searchsorted(COLS[BY_COLUMN], np.arange(N + 1)).astype(np.int32)
LISTS = np.stack([RNG.choice(N, 2, replace=False) for _ in range(N)]).astype(np.int32)
LINE = np.repeat(np.arange(N), 2).astype(np.int32)
ZEROS = jnp.zeros(STORED)


def _csr(make, starts, indices):
    return make((ZEROS, jnp.asarray(indices), jnp.asarray(starts)), shape=(N, N))


def _lists(make):
    return make((jnp.zeros((N, 2)), jnp.asarray(LISTS)), shape=(N, N))


CSR = _csr(brainevent.CSR, STARTS, COLS)
CSC = _csr(brainevent.CSC, COLUMN_STARTS, ROWS[BY_COLUMN])
PER_PRE, PER_POST = _lists(brainevent.FixedNumPerPre), _lists(brainevent.FixedNumPerPost)
PAIRS = jnp.stack([jnp.asarray(ROWS), jnp.asarray(COLS)], 1)


def _matrix(m):
    return {
        'x @ m': lambda w, x: x @ m.with_data(w),
        'm @ x': lambda w, x: (m.with_data(w) @ x.T).T,
        'spikes @ m': lambda w, x: brainevent.BinaryArray(x) @ m.with_data(w),
        'm @ spikes': lambda w, x: (m.with_data(w) @ brainevent.BinaryArray(x.T)).T,
    }


def _added(w, x):
    return jnp.zeros(x.shape).at[..., COLS].add(w * x[..., ROWS])


def _segments(w, x):
    return jax.ops.segment_sum((w * x[..., ROWS]).T, COLS, num_segments=N).T


def _bcoo(w, x):
    return x @ sparse.BCOO((w, PAIRS), shape=(N, N))


def _bcsr(w, x):
    return (sparse.BCSR((w, jnp.asarray(COLS), jnp.asarray(STARTS)), shape=(N, N)) @ x.T).T


# By name: the product, and the row and column of each weight, of the matrix M of `x @ M`.
PRODUCTS = {
    'scatter': (_added, ROWS, COLS),
    'segment_sum': (_segments, ROWS, COLS),
    'BCOO': (_bcoo, ROWS, COLS),
    'BCSR': (_bcsr, COLS, ROWS),
    'sparse_matmul': (lambda w, x: braintrace.sparse_matmul(x, w, sparse_mat=CSR), ROWS, COLS),
}
for name, matrix, rows, cols in (
    ('CSR', CSR, ROWS, COLS),
    ('CSC', CSC, ROWS[BY_COLUMN], COLS[BY_COLUMN]),
    ('per pre', PER_PRE, LINE, LISTS.ravel()),
    ('per post', PER_POST, LISTS.ravel(), LINE),
):
    for way, product in _matrix(matrix).items():
        ends = (cols, rows) if way.startswith('m') else (rows, cols)
        PRODUCTS[f'{name}: {way}'] = (product, *ends)


@jax.custom_jvp
def spike(v):
    return (v > 0).astype(v.dtype)


@spike.defjvp
def _(primals, tangents):
    [v], [t] = primals, tangents
    return spike(v), t / (1 + v**2)


def _step(product):
    def step(p, v, x):
        v = p['a'] * v + jnp.tanh(x + product(p['w'], spike(v)))
        return v, spike(v) * v

    return step


def _loss(out):
    return jnp.sum(jnp.sin(out))


def _gradient(product, w, rule, options, batch, window):
    shape = (batch, N) if batch else (N,)
    params = dict(w=w, a=jnp.linspace(0.5, 0.9, N))
    xs = jax.random.normal(jax.random.key(1), (STEPS, *shape))
    learner = braintrace.compile(_step(product), rule, params, jnp.zeros(shape), xs[0], **options)
    carry = learner.init(params, jnp.zeros(shape))
    (grads, _), _ = learner.grad(_loss, params, carry, xs, window=window)
    return grads, learner


RULES = {
    'd_rtrl': {},
    'pp_prop': dict(decay_or_rank=0.8),
}


@pytest.mark.filterwarnings('ignore:scatter inputs have incompatible types:FutureWarning')
@pytest.mark.parametrize('batch', [None, 2])
@pytest.mark.parametrize('name', list(PRODUCTS))
def test_sparse_is_dense(name, batch):
    product, rows, cols = PRODUCTS[name]
    shape = (N, 2) if name.startswith('per') else (STORED,)
    w = jax.random.normal(jax.random.key(0), shape)
    rule = 'd_rtrl'
    grads, learner = _gradient(product, w, rule, RULES[rule], batch, 2)
    W = jnp.zeros((N, N)).at[rows, cols].add(w.ravel())
    dense, _ = _gradient(lambda w, x: x @ w, W, rule, RULES[rule], batch, 2)
    assert jnp.abs(grads['w']).max() > 1e-3
    np.testing.assert_allclose(grads['w'].ravel(), dense['w'][rows, cols], atol=1e-10)
    np.testing.assert_allclose(grads['a'], dense['a'], atol=1e-10)
    assert any(r.name == 'w' for r in learner.graph.compiled.relations)
