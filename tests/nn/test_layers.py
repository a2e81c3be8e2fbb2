"""Every layer against BPTT, in float64; and the errors."""

import brainevent
import brainstate as bs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import saiunit as u

import braintrace
from braintrace import nn
from braintrace.compat import version_0_1 as legacy

T, B = 4, 2
rng = np.random.RandomState(0)
MASK = rng.rand(3, 2) < 0.7
DENSE = rng.randn(3, 2) * MASK


def normal(shape):
    return jnp.asarray(rng.randn(*shape))


class Leaky(bs.nn.Module):
    """A layer into leaky units."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def init_state(self, batch_size=None, **kwargs):
        self.h = bs.HiddenState(jnp.zeros_like(self.layer(self.example)))

    def update(self, x):
        self.h.value = 0.7 * self.h.value + self.layer(x)
        return jnp.sin(self.h.value)


class Old(bs.nn.Module):
    """A parameter of 0.1.1 as a layer."""

    def __init__(self, param):
        super().__init__()
        self.p = param

    def update(self, x):
        return (
            x * self.p.execute() if isinstance(self.p, legacy.ElemWiseParam) else self.p.execute(x)
        )


INDICES = np.array([[[0, 3], [3, 1]], [[2, 2], [0, 1]], [[1, 1], [3, 3]], [[0, 2], [1, 3]]])
# The layer, and the shape of one input or the inputs; the state is position-wise in these.
LAYERS = {
    'Linear': (lambda: nn.Linear((2, 3), (2, 2)), (2, 3)),
    'Linear mask': (lambda: nn.Linear(3, 2, w_mask=MASK), (3,)),
    'GroupedLinear': (lambda: nn.GroupedLinear(2, 3, 2), (2, 3)),
    'SignedWLinear': (lambda: nn.SignedWLinear(3, 2, w_sign=2.0 * MASK - 1), (3,)),
    'ScaledWSLinear': (lambda: nn.ScaledWSLinear(3, 2, w_mask=MASK), (3,)),
    'SparseLinear': (
        lambda: nn.SparseLinear(brainevent.CSR.fromdense(jnp.asarray(DENSE)), b_init=normal),
        (3,),
    ),
    'SparseLinear saiunit': (
        lambda: nn.SparseLinear(u.sparse.CSR.fromdense(jnp.asarray(DENSE))),
        (3,),
    ),
    'LoRA': (lambda: nn.LoRA(3, 1, 2, base_module=nn.Linear(3, 2)), (3,)),
    'Embedding': (lambda: nn.Embedding(4, 3), INDICES[:, 0]),
    'Embedding all': (
        lambda: nn.Embedding(
            4, (1, 3), padding_idx=0, max_norm=0.5, norm_type=1.0, scale_grad_by_freq=True
        ),
        INDICES,
    ),
    'Conv1d': (lambda: nn.Conv1d((4, 2), 2, 3, stride=2, b_init=normal), (4, 2)),
    'Conv1d channel first': (
        lambda: nn.Conv1d((2, 3), 2, 2, rhs_dilation=2, b_init=normal, channel_first=True),
        (2, 3),
    ),
    'Conv2d': (
        lambda: nn.Conv2d((3, 2, 2), 2, (2, 1), groups=2, w_mask=rng.rand(2, 1, 1, 2) < 0.7),
        (3, 2, 2),
    ),
    'Conv3d': (lambda: nn.Conv3d((2, 2, 1, 1), 2, 2, lhs_dilation=2, padding=1), (2, 2, 1, 1)),
    'LayerNorm': (lambda: nn.LayerNorm(3), (3,)),
    'RMSNorm': (lambda: nn.RMSNorm(3), (3,)),
    'GroupNorm': (lambda: nn.GroupNorm(4, num_groups=2), (4,)),
    'BatchNorm0d': (lambda: nn.BatchNorm0d(3), (3,)),
    'BatchNorm1d': (lambda: nn.BatchNorm1d((2, 2)), (2, 2)),
    'BatchNorm2d': (lambda: nn.BatchNorm2d((2, 1, 2)), (2, 1, 2)),
    'BatchNorm3d': (lambda: nn.BatchNorm3d((2, 1, 1, 2)), (2, 1, 1, 2)),
    'Stack': (lambda: nn.Stack(nn.Linear(3, 2, w_mask=MASK), jnp.tanh), (3,)),
    'MatMulOp': (
        lambda: Old(
            legacy.ETraceParam(
                {'weight': normal((3, 2)), 'bias': normal((2,))},
                legacy.MatMulOp(1.0 * MASK, jnp.square),
            )
        ),
        (3,),
    ),
    'ElemWiseParam': (lambda: Old(legacy.ElemWiseParam(normal((3,)), jnp.exp)), (3,)),
}
CELLS = {  # these are recurrent themselves
    'LRUCell': (lambda: nn.LRUCell(2, 3), (2,)),
    'LeakyRateReadout': (lambda: nn.LeakyRateReadout(3, 2, tau=2.0 * u.ms), (3,)),
    'LeakySpikeReadout': (lambda: nn.LeakySpikeReadout(3, 2, tau=2.0 * u.ms), (3,)),
    'LeakySpikeReadout hard': (
        lambda: nn.LeakySpikeReadout(3, 2, tau=2.0 * u.ms, spk_reset='hard'),
        (3,),
    ),
    'stack': (lambda: nn.stack(nn.GRUCell(2, 2), nn.Linear(2, 2)), (2,)),
    'ValinaRNNCell': (lambda: nn.ValinaRNNCell(2, 3, activation='tanh'), (2,)),
    'MinimalRNNCell phi': (lambda: nn.MinimalRNNCell(2, 2, phi=jnp.tanh), (2,)),
    **{
        name: (lambda name=name: getattr(nn, name)(2, 3), (2,))
        for name in (
            'GRUCell CFNCell MGUCell LSTMCell URLSTMCell MinimalRNNCell MiniGRU MiniLSTM '
            'FusedGRUCell FusedLSTMCell'.split()
        )
    },
}
POSITIONWISE = ['LRUCell', 'LeakyRateReadout', 'LeakySpikeReadout', 'LeakySpikeReadout hard']


def model_of(name):
    """The net with that layer, and a sequence of inputs for a batch."""
    make, shape = {**LAYERS, **CELLS}[name]
    xs = shape if isinstance(shape, np.ndarray) else np.random.RandomState(1).randn(T, B, *shape)
    model = Leaky(make()) if name in LAYERS else make()
    model.example = xs[0]
    return model, xs


@pytest.mark.parametrize(
    'rule, name',
    [('rtrl', name) for name in CELLS if name not in POSITIONWISE]
    + [('d_rtrl', name) for name in [*LAYERS, *POSITIONWISE]],
)
def test_gradient(rule, name):
    bs.random.seed(1)
    with bs.environ.context(dt=1.0 * u.ms, fit=True):
        model, xs = model_of(name)
        learner = braintrace.compile(model, rule, xs[0], batch_size=B)
        start = {p: s.value for p, s in model.states().items()}

        def loss(f):
            return lambda x: sum(
                jnp.sum(jnp.cos(jnp.arange(a.size)).reshape(a.shape) * a)
                for a in jax.tree.leaves(f(x))
            )

        found = learner.etrace_grad(xs, step_fn=loss(learner), window=2, reduction='sum')
        for p, s in model.states().items():
            s.value = start[p]
        expected = bs.transform.jit(
            bs.transform.grad(
                lambda: bs.transform.for_loop(loss(model), xs).sum(), learner.param_states
            )
        )()
    assert found.keys() == expected.keys() and len(found) > 0
    for a, b in zip(jax.tree.leaves(dict(found)), jax.tree.leaves(dict(expected)), strict=True):
        assert np.abs(b).max() > 1e-4
        np.testing.assert_allclose(a, b, atol=1e-9)


def test_every_layer_has_a_row():
    assert {name.split()[0] for name in [*LAYERS, *CELLS]} >= set(nn.__all__)


def test_fused_cells():
    bs.random.seed(3)
    plain = bs.nn.init_all_states(nn.LSTMCell(2, 3))
    bs.random.seed(3)
    fused = bs.nn.init_all_states(nn.FusedLSTMCell(2, 3))
    for x in rng.randn(3, 2):
        np.testing.assert_allclose(plain(x), fused(x), atol=1e-12)
    gru = bs.nn.init_all_states(nn.FusedGRUCell(2, 3, state_init=normal))
    h, (wx, wh), x = (
        gru.h.value,
        (p.weight.value['weight'] for p in (gru.W_x, gru.W_h)),
        rng.randn(2),
    )
    z, r = (jax.nn.sigmoid(x @ wx[:, k : k + 3] + h @ wh[:, k : k + 3]) for k in (0, 3))
    np.testing.assert_allclose(
        gru(x), (1 - z) * h + z * jnp.tanh(x @ wx[:, 6:] + r * (h @ wh[:, 6:])), atol=1e-12
    )


def test_embedding_options():
    i = jnp.array([0, 1, 2, 0])

    def gradient(e):
        return bs.transform.grad(lambda: (e(i) * jnp.arange(1.0, 5.0)[:, None]).sum(), e.weight)()

    e = nn.Embedding(
        4,
        2,
        embedding_init=lambda s: jnp.ones(s),
        padding_idx=1,
        max_norm=1.0,
        scale_grad_by_freq=True,
    )
    np.testing.assert_allclose(gradient(e)[:, 0], [2.5, 0, 3, 0])
    np.testing.assert_allclose(jnp.linalg.norm(e(i), axis=-1), [1, 0, 1, 1])
    assert (np.abs(gradient(nn.Embedding(4, 2, freeze=True))) == 0).all() and gradient(
        nn.Embedding(4, 2)
    )[:, 0].tolist() == [5, 2, 3, 0]


ONE, TWO = jnp.ones(3), jnp.ones((3, 2))


@pytest.mark.parametrize(
    'error, message, call',
    [
        (ValueError, '`Linear`: `in_size` must be a positive integer', lambda: nn.Linear('3', 2)),
        (ValueError, 'all axes but the last', lambda: nn.Linear((2, 3), (3, 2))),
        (ValueError, '`num_groups`', lambda: nn.GroupedLinear(0, 3, 2)),
        (ValueError, '`w_sign` must have', lambda: nn.SignedWLinear(3, 2, w_sign=ONE)),
        (TypeError, '`spar_mat`', lambda: nn.SparseLinear(TWO)),
        (ValueError, '`base_module`', lambda: nn.LoRA(3, 1, 2, base_module=3)),
        (ValueError, 'padding_idx', lambda: nn.Embedding(3, 2, padding_idx=3)),
        (ValueError, '`norm_type`', lambda: nn.Embedding(3, 2, norm_type=0)),
        (
            ValueError,
            '`kernel_size` must have one entry',
            lambda: nn.Conv2d((3, 3, 1), 2, (3, 3, 3)),
        ),
        (ValueError, '`stride` must be a positive', lambda: nn.Conv1d((3, 1), 2, 3, stride=0)),
        (ValueError, '`Conv1d`: the input must end in', lambda: nn.Conv1d((3, 1), 2, 3)(TWO)),
        (ValueError, '`LayerNorm`: the input must end in', lambda: nn.LayerNorm(4)(ONE)),
        (ValueError, '`activation` must be', lambda: nn.GRUCell(2, 3, activation='tan')),
        (TypeError, '`phi` must be', lambda: nn.MinimalRNNCell(2, 3, phi=3)),
        (
            ValueError,
            'Make the states',
            lambda: bs.nn.init_all_states(nn.GRUCell(3, 2), batch_size=2)(ONE),
        ),
        (
            ValueError,
            'must be like the state',
            lambda: bs.nn.init_all_states(nn.MinimalRNNCell(3, 2), batch_size=2)(ONE),
        ),
        (ValueError, 'r_min < r_max', lambda: nn.LRUCell(2, 3, r_min=1.0)),
        (ValueError, '`spk_reset`', lambda: nn.LeakySpikeReadout(2, 3, spk_reset='none')),
        (TypeError, 'layer 1 must be', lambda: nn.stack(jnp.tanh, 3)),
    ],
)
def test_errors(error, message, call):
    with bs.environ.context(dt=1.0 * u.ms), pytest.raises(error, match=message):
        call()
