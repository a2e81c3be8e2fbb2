"""brainstate modules as steps: groups of library models, bad models, models left as they were."""

import brainpy
import brainstate as bs
import braintools
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import saiunit as u
from told import GATE, IN_FRONT

import braintrace

pytestmark = [GATE, IN_FRONT]


def spiking():
    class Net(bs.nn.Module):
        def __init__(self):
            super().__init__()
            self.syn, self.neuron = (
                brainpy.state.Expon(4, tau=5.0 * u.ms),
                brainpy.state.ALIF(4, spk_fun=braintools.surrogate.ReluGrad()),
            )
            self.inp, self.rec = bs.nn.Linear(3, 4), bs.nn.Linear(4, 4)

        def update(self, x):
            g = self.syn((self.inp(x) + self.rec(self.neuron.get_spike())) * u.mS)
            return self.neuron(g * u.volt)

    return Net()


class Stacked(bs.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.one, self.norm, self.two = (
            bs.nn.Embedding(7, 4, padding_idx=0),
            bs.nn.GRUCell(4, 4),
            bs.nn.LayerNorm(4),
            bs.nn.GRUCell(4, 4),
        )

    def update(self, i):
        return self.two(self.norm(self.one(self.embed(i))))


@pytest.mark.parametrize(
    'make, x, groups',
    [
        (spiking, jnp.ones(3), [{('neuron', 'V'), ('neuron', 'a'), ('syn', 'g')}]),
        (Stacked, jnp.int32(3), [{('one', 'h')}, {('two', 'h')}]),
        (
            lambda: bs.nn.Sequential(bs.nn.Dropout(0.5), bs.nn.MGUCell(3, 4)),
            jnp.ones(3),
            [{('layers', 1, 'h')}],
        ),
        (
            lambda: bs.nn.Sequential(
                bs.nn.Conv2d((4, 4, 1), 2, 3), lambda y: y * u.mA, brainpy.state.LIF((4, 4, 2))
            ),
            jnp.ones((4, 4, 1)),
            [{('layers', 2, 'V')}],
        ),
    ],
)
def test_groups_of_library_models(make, x, groups):
    with bs.environ.context(dt=1.0 * u.ms, fit=True):
        graph = braintrace.compile_etrace_graph(bs.nn.init_all_states(make()), x)
    assert [set(g.hidden_paths) for g in graph.hidden_groups] == groups


def test_a_mapped_module_has_no_dead_copies_of_its_weights():
    cell = bs.nn.GRUCell(3, 4)
    bs.nn.vmap_init_all_states(cell, axis_size=5, state_tag='new')
    graph = braintrace.compile_etrace_graph(bs.nn.Vmap(cell, vmap_states='new'), jnp.ones((5, 3)))
    assert [r.primitive.name for r in graph.hidden_param_op_relations] == [
        'dot_general',
        'dot_general',
    ]
    assert graph.hidden_groups[0].varshape == (5, 4)


OUTSIDE = bs.ShortTermState(jnp.ones(3) * u.mV)


class Broken(bs.nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how, self.w = how, bs.ParamState(jnp.ones((3, 4)))

    def init_state(self, *a, **k):
        self.h, self.n = bs.HiddenState(jnp.zeros(4) * u.mV), bs.ShortTermState(jnp.zeros(4))

    def update(self, x):
        self.n.value = self.n.value + x.sum()
        self.h.value = self.h.value + (x @ self.w.value) * u.mV
        if self.how == 'unit':
            self.h.value = self.h.value.mantissa * u.mA
        if self.how == 'shape':
            self.h.value = self.h.value[:2]
        if self.how == 'param':
            self.w.value = self.w.value * 2
        if self.how == 'outside':
            OUTSIDE.value = x * u.volt
        if self.how == 'user':
            raise KeyError('my own mistake')
        return self.h.value


@pytest.mark.parametrize(
    'how, error, message',
    [
        ('unit', ValueError, 'State h changes in the step: .*mA.* does not match'),
        ('shape', ValueError, 'Hidden state h enters the step as'),
        ('param', braintrace.NotSupportedError, 'Parameter w is written inside the step'),
        ('user', KeyError, 'my own mistake'),
        ('outside', ValueError, r'\(a ShortTermState outside the model\) changes in the step'),
    ],
)
def test_bad_models_get_a_clear_error_and_keep_their_states(how, error, message):
    model = bs.nn.init_all_states(Broken(how))
    with pytest.raises(error, match=message):
        braintrace.compile_etrace_graph(model, jnp.ones(3))
    assert (
        u.get_unit(model.h.value) == u.mV
        and np.array_equal(model.h.value.mantissa, np.zeros(4))
        and np.array_equal(model.n.value, np.zeros(4))
    )
    assert all(
        isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)
        for s in model.states().values()
        for leaf in jax.tree.leaves(s.value)
    )


def test_bad_arguments():
    cell = bs.nn.init_all_states(bs.nn.GRUCell(3, 4))

    def graph(**kw):
        return braintrace.compile_etrace_graph(cell, jnp.ones(3), **kw)

    for error, kw, message in [
        (TypeError, dict(sparse_n=True), 'sparse_n'),
        (ValueError, dict(sparse_n=0), 'sparse_n'),
        (braintrace.NotSupportedError, dict(sparse_n=2), 'include_recurrent_mixing'),
        (ValueError, dict(trace='some'), 'trace'),
        (TypeError, dict(control_flow='convert'), 'control_flow'),
    ]:
        with pytest.raises(error, match=message):
            graph(**kw)
    for model, error, message in [
        (bs.nn.GRUCell(3, 4), braintrace.CompilationError, 'init_all_states'),
        (len, TypeError, 'brainstate.nn.Module'),
        (bs.nn.Linear(3, 4), braintrace.CompilationError, 'no hidden'),
    ]:
        with pytest.raises(error, match=message):
            braintrace.compile_etrace_graph(model, jnp.ones(3))
    with pytest.raises(ValueError, match='include_hidden_perturb'):
        graph(include_hidden_perturb=False).call_hidden_perturb([jnp.ones(3)], [])


def test_warnings_are_raised():
    with pytest.warns(
        UserWarning,
        match='Wrz.weight.weight and Wrz.weight.bias also reach group 0 through `dot_general`',
    ):
        braintrace.compile_etrace_graph(bs.nn.init_all_states(bs.nn.GRUCell(3, 4)), jnp.ones(3))
