"""Every op rule: a leaky layer behind the op learns online exactly what BPTT says, whatever the
format of the weight."""

import itertools

import brainevent
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import saiunit as u
from jax import lax
from jax.experimental import sparse
from told import LOST

import braintrace
from braintrace.ops import Axes, Op
from braintrace.ops.families import Family, members
from braintrace.ops.op_rules import RULES

brainevent.config.set_backend('cpu', 'jax_raw')
T, B, D, H = 6, 2, 5, 4
rng = np.random.RandomState(0)


def draw(*s):
    return jnp.asarray(rng.randn(*s) * 0.5)


PATTERN = np.asarray(rng.rand(D, H) < 0.5)
PATTERN[0], PATTERN[:, 0] = True, True
X, V, E = draw(T, B, D), draw(T, D), jnp.asarray(rng.randint(0, 7, (T, B)))
IMAGE, SIGNAL, CUBE = draw(T, B, 4, 5, 2), draw(T, B, 6, 3), draw(T, B, 2, 3, 2, 2)
bcoo, csr = (
    sparse.BCOO.fromdense(draw(D, H) * PATTERN),
    u.sparse.CSR.fromdense(draw(D, H) * PATTERN),
)
coo, event = (
    u.sparse.COO.fromdense(draw(D, H) * PATTERN),
    brainevent.CSR.fromdense(draw(D, H) * PATTERN),
)
bcsr = sparse.BCSR.fromdense((draw(D, H) * PATTERN).T)
nnz = int(PATTERN.sum())
fixed = brainevent.FixedNumPerPre(
    (draw(D, 2), jnp.asarray(rng.randint(0, H, (D, 2)), jnp.int32)), shape=(D, H)
)
shared = brainevent.FixedNumPerPre((draw(1), fixed.indices), shape=(D, H))
scaled = braintrace.register_primitive('scaled_product', lambda x, w, *, by: by * (x @ w))


def spikes(x):
    return brainevent.BinaryArray((x > 0).astype(float))


def conv(shape, spec, **options):
    return (
        'conv_general_dilated',
        lambda w, x: lax.conv_general_dilated(
            x,
            w,
            **{'window_strides': (1,) * (len(shape) - 2), 'padding': 'SAME', **options},
            dimension_numbers=spec,
        ),
        draw(*shape),
    )


rows, cols = PATTERN.nonzero()


def dense(w, x):
    return x @ jnp.zeros((D, H)).at[rows, cols].set(
        w
    )  # JAX's own derivative of a transposed CSR or COO product is wrong


# name: rule, op(w, x), weight, inputs
OPS = {
    'matrix': ('dot_general', lambda w, x: x @ w, draw(D, H), X),
    'op of our own': ('dot_general', lambda w, x: scaled.bind(x, w, by=2.0), draw(D, H), X),
    'matrix on the left': ('dot_general', lambda w, x: w @ x, draw(H, D), V),
    'grouped': (
        'dot_general',
        lambda w, x: jnp.einsum('bgk,gkn->bgn', x.reshape(B, 1, D), w),
        draw(1, D, H),
        X,
    ),
    'einsum': (
        'dot_general',
        lambda w, x: jnp.einsum('bsi,iso->bso', x[:, None] * jnp.ones((2, 1)), w),
        draw(D, 2, H),
        X,
    ),
    'embedding': ('gather', lambda w, x: w[x], draw(7, H), E),
    'embedding of a pair': (
        'gather',
        lambda w, x: w[x[:, None] % jnp.array([2, 3])],
        draw(3, H),
        E,
    ),
    'embedding, two indices': ('gather', lambda w, x: w[x % 2, x % 3], draw(2, 3, H), E),
    'embedding of one token': ('dynamic_slice', lambda w, x: w[x[0]], draw(7, H), E),
    'part of a table': (
        'dynamic_slice',
        lambda w, x: lax.dynamic_slice(w, (x[0], 1), (2, 3)),
        draw(7, H),
        E,
    ),
    'conv 1d': (*conv((3, 3, 4), ('NHC', 'HIO', 'NHC')), SIGNAL),
    'conv 1d, strided and dilated': (
        *conv(
            (2, 3, 4),
            ('NHC', 'HIO', 'NHC'),
            window_strides=(2,),
            rhs_dilation=(2,),
            padding='VALID',
        ),
        SIGNAL,
    ),
    'conv 1d, transposed': (
        *conv((2, 3, 2), ('NHC', 'HIO', 'NHC'), lhs_dilation=(2,), padding=((1, 1),)),
        SIGNAL,
    ),
    'conv 2d': (*conv((2, 3, 2, 3), ('NHWC', 'HWIO', 'NHWC'), padding=((1, 0), (0, 2))), IMAGE),
    'conv 2d, odd layout': (
        *conv((3, 2, 2, 3), ('HNWC', 'OIHW', 'CHNW')),
        IMAGE.transpose(0, 2, 1, 3, 4),
    ),
    'conv 2d, feature groups': (
        *conv((2, 2, 1, 4), ('NHWC', 'HWIO', 'NHWC'), feature_group_count=2),
        IMAGE,
    ),
    'conv 2d, batch groups': (
        *conv((2, 2, 2, 4), ('NHWC', 'HWIO', 'NHWC'), batch_group_count=2),
        IMAGE,
    ),
    'conv 3d': (*conv((2, 2, 1, 2, 2), ('NDHWC', 'DHWIO', 'NDHWC')), CUBE),
    'BCOO': (
        'jit',
        lambda w, x: x @ sparse.BCOO((w, bcoo.indices), shape=bcoo.shape),
        bcoo.data,
        X,
    ),
    'BCSR': (
        'jit',
        lambda w, x: sparse.BCSR((w, bcsr.indices, bcsr.indptr), shape=bcsr.shape) @ x,
        bcsr.data,
        V,
    ),
    'saiunit CSR': ('jit', lambda w, x: x @ csr.with_data(w), csr.data, X, dense),
    'saiunit COO, one sample': ('jit', lambda w, x: x @ coo.with_data(w), coo.data, V, dense),
    'brainevent CSR': ('jit', lambda w, x: x @ event.with_data(w), event.data, X),
    'brainevent CSR, one sample': ('jit', lambda w, x: x @ event.with_data(w), event.data, V),
    'brainevent CSR, events': ('jit', lambda w, x: spikes(x) @ event.with_data(w), event.data, X),
    'brainevent fixed number': ('jit', lambda w, x: x @ fixed.with_data(w), draw(D, 2), X),
    'brainevent fixed number, events': (
        'jit',
        lambda w, x: spikes(x) @ fixed.with_data(w),
        draw(D, 2),
        V,
    ),
    'brainevent, one weight for all': (
        'jit',
        lambda w, x: spikes(x) @ shared.with_data(w),
        draw(1),
        X,
    ),
    'brainevent dense, events': ('jit', lambda w, x: spikes(x) @ w, draw(D, H), X),
}


def layer(op):
    def step(p, h, x):
        h = jnp.tanh(0.7 * h + 0.3 * h * h + op(p, x))
        return h, h

    return step


def bptt(op, w, h, xs):
    step = layer(op)
    return jax.jit(
        jax.grad(lambda p: jnp.mean(lax.scan(lambda h, x: step(p, h, x), h, xs)[1] ** 2))
    )(w)


@pytest.mark.parametrize('name', OPS)
def test_op(name):
    """D-RTRL is exact; so is RTRL, and averages do not depend on windows: each for every other
    op."""
    rule, op, w, xs, *reference = OPS[name]
    h = jnp.zeros(jax.eval_shape(op, w, xs[0]).shape)
    turn = list(OPS).index(name) % 2

    def compiled(algorithm, **options):
        learner = braintrace.compile(layer(op), algorithm, w, h, xs[0], **options)
        assert [r.use.eqn.primitive.name for r in learner.graph.hidden_param_op_relations] == [rule]
        return learner

    exact = [compiled(algorithm) for algorithm in (['d_rtrl', 'rtrl'] if turn else ['d_rtrl'])]
    averaging = None if turn else compiled('pp_prop', decay_or_rank=0.8)

    def online(learner, window, w):
        carry = learner.init(w, h)
        return learner.grad(lambda out: jnp.mean(out**2), w, carry, xs, window=window)[0][0]

    @jax.jit  # one program: compiling is what takes the time
    def gradients(w):
        found = [online(learner, 3, w) for learner in exact]
        averages = [online(averaging, k, w) for k in (T, 2)] if averaging else []
        return bptt(*reference or [op], w, h, xs), found, averages

    true, found, averages = gradients(w)
    assert np.abs(true).max() > 1e-4
    for gradient in found:
        np.testing.assert_allclose(gradient, true, atol=1e-9)
    for whole, parts in itertools.pairwise(averages):
        np.testing.assert_allclose(whole, parts, atol=1e-10)


def test_every_rule_has_a_row():
    assert {rule for rule, *_ in OPS.values()} == RULES.keys() - members(Family.SPARSE)


@LOST
def test_an_op_with_a_rule_stays_closed():
    """What it computes would mix units. With trace='marked' its weight counts as marked."""

    def rule(eqn, i, const):
        return (
            NotImplemented
            if i != 1
            else Op(Axes('bi', 'io', 'bo'), eqn.invars[1].aval.shape, lambda values: values[0])
        )

    _, op, w, xs = OPS['matrix']
    h = jnp.zeros((B, H))
    true = bptt(op, w, h, xs)
    for op_rule, traced in ((rule, 1), (lambda eqn, i, const: NotImplemented, 0)):
        closed = braintrace.register_primitive(
            'closed', lambda x, w: jnp.fft.ifft(jnp.fft.fft(x @ w)).real, op_rule=op_rule
        )
        learner = braintrace.compile(
            layer(lambda w, x: closed.bind(x, w)), 'd_rtrl', w, h, xs[0], trace='marked'
        )
        assert [r.primitive.name for r in learner.graph.hidden_param_op_relations] == [
            'closed'
        ] * traced
        if traced:
            np.testing.assert_allclose(
                learner.grad(lambda out: jnp.mean(out**2), w, learner.init(w, h), xs, window=3)[0][
                    0
                ],
                true,
                atol=1e-9,
            )


@LOST
def test_a_trace_over_the_limit_is_told_and_left_out():
    _, op, w, xs = OPS['conv 2d']
    h = jnp.zeros(jax.eval_shape(op, w, xs[0]).shape)
    learner = braintrace.compile(layer(op), 'd_rtrl', w, h, xs[0], trace_limit=1000)
    assert not learner.init(w, h).traces and 'trace_limit' in learner.report.to_str(2)
    grads = learner.grad(lambda out: jnp.mean(out**2), w, learner.init(w, h), xs, window=1)[0][0]
    assert np.abs(grads).max() > 0


def test_a_large_table_keeps_the_rows_that_were_read():
    _, op, w, xs = OPS['embedding']
    h = jnp.zeros((B, H))
    true = bptt(op, w, h, xs)
    learner = braintrace.compile(layer(op), 'd_rtrl', w, h, xs[0], embedding_rows=5)
    most = max(len(set(np.asarray(xs[:, b]).tolist())) for b in range(B))
    assert {k: v.shape for k, v in learner.init(w, h).traces.items() if ':' not in k} == {
        'params->state': (1, B, 5, H)
    } and most <= 5
    for window in (2, T):
        np.testing.assert_allclose(
            learner.grad(lambda out: jnp.mean(out**2), w, learner.init(w, h), xs, window=window)[0][
                0
            ],
            true,
            atol=1e-10,
        )
    few = braintrace.compile(layer(op), 'd_rtrl', w, h, xs[0], embedding_rows=2)
    rough = few.grad(lambda out: jnp.mean(out**2), w, few.init(w, h), xs, window=1)[0][0]
    assert 0 < np.abs(rough - true).max() < 0.5 * np.abs(true).max()


@pytest.mark.parametrize('name', ['embedding', 'conv 2d', 'BCOO'])
def test_every_rule_takes_every_op(name):
    """Where there is one layer of units on their own, all position-wise rules but the averaging
    ones are exact, and so are RTRL's kin."""
    _, op, w, xs = OPS[name]
    h = jnp.zeros(jax.eval_shape(op, w, xs[0]).shape)
    true = bptt(op, w, h, xs)
    exact = dict(snap=dict(n=2), ostl_recurrent={}, eprop={}, low_rank=dict(rank=1000))
    others = dict(
        uoro={},
        kf_rtrl={},
        rflo=dict(decay=0.5),
        ottt=dict(decay=0.5),
        hybrid=dict(decay_or_rank=0.5),
    )
    for rule, options in {**exact, **others}.items():
        if h.size > 40 and rule == 'low_rank':
            continue
        if name == 'BCOO' and rule not in ('low_rank', 'uoro', 'kf_rtrl'):
            continue  # `test_connections.py` has the other rules of sparse products
        learner = braintrace.compile(layer(op), rule, w, h, xs[0], **options)
        carry = learner.init(w, h)
        grads = learner.grad(lambda out: jnp.mean(out**2), w, carry, xs, window=3)[0][0]
        assert np.isfinite(grads).all() and np.abs(grads).max() > 1e-5, rule
        if rule in exact:
            np.testing.assert_allclose(grads, true, atol=1e-9, err_msg=rule)
