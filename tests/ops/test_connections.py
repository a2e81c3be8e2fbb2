"""Every way to write sparse connections gives the gradients of the same network with a dense matrix
and zeros in it."""

import functools

import brainevent
import brainstate as bs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import saiunit as u
from jax.experimental import sparse
from told import LOST

import braintrace
from braintrace.ops import stored_sums

pytestmark = LOST

N, STEPS = 6, 4
# Rows of 4, 0, 1, 3, 0 and 5 weights; two of the last row connect the same pair.
ROWS = np.repeat(np.arange(N), [4, 0, 1, 3, 0, 5]).astype(np.int32)
COLS = np.array([0, 2, 3, 5, 1, 0, 2, 4, 1, 1, 3, 4, 5], np.int32)
STORED = len(ROWS)
STARTS = np.searchsorted(ROWS, np.arange(N + 1)).astype(np.int32)
BY_COLUMN = np.argsort(COLS, kind='stable')
COLUMN_STARTS = np.searchsorted(COLS[BY_COLUMN], np.arange(N + 1)).astype(np.int32)
RNG = np.random.default_rng(0)
LISTS = np.stack([RNG.choice(N, 2, replace=False) for _ in range(N)]).astype(np.int32)
LINE = np.repeat(np.arange(N), 2).astype(np.int32)


@pytest.fixture(autouse=True, scope='module')
def plain_kernels_of_brainevent():
    """Those that need nothing to be compiled by numba; ours are used where numba is there."""
    before = brainevent.config.get_backend('cpu')
    brainevent.config.set_backend('cpu', 'jax_raw')
    yield
    brainevent.config.set_backend('cpu', before)


def _compressed(make, starts, indices, data=None):
    data = jnp.zeros(STORED) if data is None else data
    return make((data, jnp.asarray(indices), jnp.asarray(starts)), shape=(N, N))


def _lists(make):
    return make((jnp.zeros((N, 2)), jnp.asarray(LISTS)), shape=(N, N))


CSR = _compressed(brainevent.CSR, STARTS, COLS)
OF_MILLIVOLT = _compressed(brainevent.CSR, STARTS, COLS, jnp.zeros(STORED) * u.mV)
OF_ONE = _compressed(brainevent.CSR, STARTS, COLS, jnp.zeros(1))
CSC = _compressed(brainevent.CSC, COLUMN_STARTS, ROWS[BY_COLUMN])
PER_PRE, PER_POST = _lists(brainevent.FixedNumPerPre), _lists(brainevent.FixedNumPerPost)
PAIRS = jnp.stack([jnp.asarray(ROWS), jnp.asarray(COLS)], 1)
LORA = jnp.asarray(RNG.normal(size=(2, N)))


def _ways(m):
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


def _in_millivolt(w, x):
    return (brainevent.BinaryArray(x) @ OF_MILLIVOLT.with_data(w * u.mV)) / u.mV


def _of(m):
    return lambda w, x: braintrace.sparse_matmul(x, w, sparse_mat=m)


COO = u.sparse.COO((jnp.zeros(STORED), jnp.asarray(ROWS), jnp.asarray(COLS)), shape=(N, N))
# By name: the product, and the row and column of each weight, of the matrix M of `x @ M`.
PRODUCTS = {
    'scatter': (_added, ROWS, COLS),
    'segment_sum': (_segments, ROWS, COLS),
    'BCOO': (_bcoo, ROWS, COLS),
    'BCSR': (_bcsr, COLS, ROWS),
    'sparse_matmul of CSR': (_of(CSR), ROWS, COLS),
    'sparse_matmul of COO': (_of(COO), ROWS, COLS),
    'CSR with a unit': (_in_millivolt, ROWS, COLS),
}
for name, matrix, rows, cols in (
    ('CSR', CSR, ROWS, COLS),
    ('CSC', CSC, ROWS[BY_COLUMN], COLS[BY_COLUMN]),
    ('per pre', PER_PRE, LINE, LISTS.ravel()),
    ('per post', PER_POST, LISTS.ravel(), LINE),
):
    for way, product in _ways(matrix).items():
        ends = (cols, rows) if way.startswith('m') else (rows, cols)
        PRODUCTS[f'{name}: {way}'] = (product, *ends)


@jax.custom_jvp
def spike(v):
    return (v > 0).astype(v.dtype)


@spike.defjvp
def _(primals, tangents):
    [v], [t] = primals, tangents
    return spike(v), t / (1 + v**2)


def _gradient(product, w, rule='d_rtrl', batch=None, **options):
    """The gradients of a spiking layer with a synapse, in windows of two steps."""

    def step(p, state, x):
        i, v = state
        i = 0.7 * i + jnp.tanh(x + product(p['w'], spike(v)))
        v = p['a'] * v + i
        return (i, v), spike(v) * v

    shape = (batch, N) if batch else (N,)
    params, state = dict(w=w, a=jnp.linspace(0.5, 0.9, N)), (jnp.zeros(shape), jnp.zeros(shape))
    xs = jax.random.normal(jax.random.key(1), (STEPS, *shape))
    learner = braintrace.compile(step, rule, params, state, xs[0], **options)
    carry = learner.init(params, state)
    modulator = jnp.linspace(-1, 1, STEPS) if learner.rule.modulated else None
    (grads, _), _ = learner.grad(_loss, params, carry, xs, window=2, modulator=modulator)
    assert any(r.name == 'w' for r in learner.graph.compiled.relations)
    return grads


def _loss(out):
    return jnp.sum(jnp.sin(out))


@functools.cache
def _dense_gradient(rows, cols, rule, batch, options):
    """Those of the same network with a dense matrix: of the weights, and of the leak."""
    rows, cols = (np.frombuffer(a, np.int32) for a in (rows, cols))
    W = jnp.zeros((N, N)).at[rows, cols].add(_weights(len(rows)))
    mask = jnp.zeros((N, N)).at[rows, cols].set(1.0)

    def masked(w, x):
        return x @ (w * mask)

    grads = _gradient(masked, W, rule, batch, **dict(options))
    return grads['w'][rows, cols], grads['a']


def _weights(stored):
    return jax.random.normal(jax.random.key(0), (stored,))


def _check(name, rule='d_rtrl', batch=None, **options):
    product, rows, cols = PRODUCTS[name]
    shape = (N, 2) if name.startswith('per') else (STORED,)
    grads = _gradient(product, _weights(len(rows)).reshape(shape), rule, batch, **options)
    key = rows.tobytes(), cols.tobytes(), rule, batch, tuple(options.items())
    of_w, of_a = _dense_gradient(*key)
    assert jnp.abs(of_w).max() > 1e-3
    np.testing.assert_allclose(grads['w'].ravel(), of_w, atol=1e-10)
    np.testing.assert_allclose(grads['a'], of_a, atol=1e-10)


@pytest.mark.filterwarnings('ignore:scatter inputs have incompatible types:FutureWarning')
@pytest.mark.parametrize('name', list(PRODUCTS))
def test_every_format_is_dense(name):
    _check(name, batch=None if 'spikes' in name else 2)


def _factors_of_w(path):
    return 'approx' if path == ('w',) else 'full'


RULES = {
    'pp_prop': dict(decay_or_rank=0.8),
    'hybrid': dict(decay_or_rank=0.8, prefer=_factors_of_w),
    'eprop': dict(kappa_filter_decay=0.5),
    'rflo': dict(decay=0.7),
    'ottt': dict(decay=0.7),
    'ostl_recurrent': {},
    'snap': dict(n=2),
    'three_factor': {},
}


@pytest.mark.parametrize('rule', list(RULES))
def test_every_rule_is_dense(rule):
    """Of events or of values, by turns."""
    name = ['CSR: spikes @ m', 'CSR: m @ x'][list(RULES).index(rule) % 2]
    _check(name, rule, **RULES[rule])


@pytest.mark.parametrize(
    'name, rule, batch', [('CSR: spikes @ m', 'pp_prop', None), ('CSR: m @ x', 'd_rtrl', 2)]
)
def test_without_numba(monkeypatch, name, rule, batch):
    monkeypatch.setattr(stored_sums, 'numba_bridge', lambda: None)
    _check(name, rule, batch, **RULES.get(rule, {}))


@pytest.mark.parametrize('share', [0.05, 0.5], ids=['spikes', 'values'])
def test_inputs_in_parts(share):
    """As the cores share them; rows are of all lengths, some empty."""
    kernels = pytest.importorskip('braintrace.ops.cpu_kernels')
    rng = np.random.default_rng(3)
    lengths = rng.integers(0, 40, 300) * (rng.random(300) < 0.8)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    stored, into = starts[-1], np.repeat(np.arange(300), lengths)
    out = rng.integers(0, 50, stored, np.int32)
    x, g = rng.normal(size=(1, 6, 300)), rng.normal(size=(1, 6, 50, 3))
    x[:, 1:] *= rng.random((1, 5, 300)) < share
    sums = (x[0][:, into, None] * g[0][:, out]).sum(0)
    steps = [a.copy() for a in (x[:, 1:], g[:, 1:, :, 0], x[:, :1], g[:, :1, :, 0])]
    made = np.empty((1, stored))
    kernels.stored_sums.all_cores(*steps, out, starts, made)
    np.testing.assert_allclose(made[0], sums[:, 0], atol=1e-12)

    factors, e = rng.normal(size=(1, 50, 6)), rng.normal(size=(2, 1, stored))
    gradient, new = np.empty(stored), np.empty_like(e)
    for part in range(kernels.PARTS):
        inputs = kernels.inputs_of(part, starts)
        kernels.renewed_two.some_inputs(x, g, factors, e, out, starts, gradient, new, *inputs)
    kept = (factors[0][out].reshape(-1, 3, 2) * e[:, 0].T[:, None]).sum(-1)
    made = np.stack([gradient, *new[:, 0]], -1)
    np.testing.assert_allclose(made, sums + kept, atol=1e-12)


def test_one_weight_for_all():
    def dense(w, x):
        return x @ jnp.zeros((N, N)).at[ROWS, COLS].add(w)

    def events(w, x):
        return brainevent.BinaryArray(x) @ OF_ONE.with_data(w)

    w = jnp.array([0.4])
    grads, of_dense = (_gradient(product, w)['w'] for product in (events, dense))
    np.testing.assert_allclose(grads, of_dense, atol=1e-10)


def test_one_weight_as_the_mean_of_all():
    """Connections that are drawn around a mean, in a kernel: the mean alone is learned."""
    spread, there = np.random.default_rng(4).normal(size=(2, N, N))

    @jax.jit
    def sparse_product(x, w):  # the name under which the compiler knows a kernel
        return x @ (w * (there > 0) + spread)

    def kernel(w, x):
        return sparse_product(x, w)

    def dense(w, x):
        return x @ (w * (there > 0) + spread)

    w = jnp.array([0.4])
    grads, of_dense = (_gradient(product, w)['w'] for product in (kernel, dense))
    np.testing.assert_allclose(grads, of_dense, atol=1e-10)


def test_lora_beside_a_fixed_matrix():
    fixed = _weights(STORED)
    W = jnp.zeros((N, N)).at[ROWS, COLS].add(fixed)

    def events(w, x):
        return brainevent.BinaryArray(x) @ CSR.with_data(fixed) + x @ (w @ LORA)

    def dense(w, x):
        return x @ (W + w @ LORA)

    w = _weights(2 * N).reshape(N, 2)
    grads, of_dense = (_gradient(product, w)['w'] for product in (events, dense))
    np.testing.assert_allclose(grads, of_dense, atol=1e-10)


@pytest.mark.parametrize('name', ['scatter', 'BCOO'])
def test_an_index_outside_of_the_matrix_connects_nothing(name):
    """As in JAX, which drops such a product; sparse matrices are filled up with them."""
    cols = np.where(np.arange(STORED) == 3, N + 2, COLS)

    def given(w, x):
        if name == 'BCOO':
            pairs = jnp.stack([jnp.asarray(ROWS), jnp.asarray(cols)], 1)
            return x @ sparse.BCOO((w, pairs), shape=(N, N))
        return jnp.zeros(N).at[cols].add(w * x[ROWS])

    def without(w, x):
        return jnp.zeros(N).at[COLS].add(w.at[3].set(0) * x[ROWS])

    w = _weights(STORED)
    grads, expected = (_gradient(product, w)['w'] for product in (given, without))
    assert grads[3] == 0
    np.testing.assert_allclose(grads, expected, atol=1e-10)


def test_a_matrix_changed_after_compilation_is_seen():
    class Net(bs.nn.Module):
        def __init__(self, matrix):
            super().__init__()
            self.matrix, self.w = matrix, bs.ParamState(_weights(STORED))

        def init_state(self, **_):
            self.h = bs.HiddenState(jnp.linspace(-1, 1, N))

        def update(self, x):
            product = brainevent.BinaryArray(spike(self.h.value)) @ self.matrix.with_data(
                self.w.value
            )
            self.h.value = 0.8 * self.h.value + jnp.tanh(x + product)
            return self.h.value

    def gradient(learner):
        bs.nn.init_all_states(learner.model4compile)
        learner.reset_state()
        return learner.etrace_grad(xs, step_fn=lambda x: _loss(learner(x)), window=2)[('w',)]

    xs = jax.random.normal(jax.random.key(1), (STEPS, N))
    other = _compressed(brainevent.CSR, STARTS, COLS[::-1].copy())
    learner, true = (braintrace.compile(Net(m), 'd_rtrl', xs[0]) for m in (CSR, other))
    before, expected = gradient(learner), gradient(true)
    learner.model4compile.matrix = other
    assert jnp.abs(before - expected).max() > 1e-3
    np.testing.assert_allclose(gradient(learner), expected, atol=1e-12)


@pytest.mark.parametrize('factor', [0.5, -1.0])
def test_what_is_not_one_counts_as_the_kernel_counts_it(factor):
    """A value in the place of a spike: the gradient is that of what the forward pass does."""

    def events(w, x):
        return brainevent.BinaryArray(factor * x) @ CSR.with_data(w)

    def counted(w, x):
        made = brainevent.BinaryArray(factor * jnp.ones(N)) @ CSR.with_data(jnp.ones(STORED))
        counts = jnp.where(jnp.abs(made).max() > 0, 1.0, 0.0)
        return counts * _added(w, x)

    w = _weights(STORED)
    grads, of_dense = (_gradient(product, w)['w'] for product in (events, counted))
    np.testing.assert_allclose(grads, of_dense, atol=1e-10)


@pytest.mark.parametrize('rule, platform', [('d_rtrl', 'cuda'), ('pp_prop', 'tpu')])
def test_other_devices_need_no_kernel_of_the_cpu(rule, platform):
    def step(p, v, x):
        v = 0.9 * v + x + _added(p, spike(v))
        return v, v

    w, v, xs = _weights(STORED), jnp.zeros(N), jnp.ones((4, N))
    learner = braintrace.compile(step, rule, w, v, xs[0], **RULES.get(rule, {}))
    carry = learner.init(w, v)

    def both(w, carry, xs):
        return learner.grad(_loss, w, carry, xs, window=4)

    exported = jax.export.export(jax.jit(both), platforms=[platform])(w, carry, xs)
    assert 'custom_call' not in exported.mlir_module()
