"""The published records of 0.2 on brainstate modules: states of every kind, units, fields."""

import brainstate as bs
import jax.numpy as jnp
import numpy as np
import pytest
import saiunit as u

import braintrace
from braintrace import DiagnosticKind


class Zoo(bs.nn.Module):
    """A unit with hidden states of all kinds, a state that is not hidden, noise and a keyword
    argument."""

    def __init__(self):
        super().__init__()
        self.lin = bs.nn.Linear(3, 4)
        self.idle = bs.ParamState(jnp.ones(2))

    def init_state(self, batch_size=None, **kw):
        self.V = bs.HiddenState(jnp.zeros(4) * u.mV)
        self.pair = bs.HiddenGroupState(jnp.zeros((4, 2)))
        self.tree = bs.HiddenTreeState({'a': jnp.zeros(4) * u.mV, 'b': jnp.zeros(4) * u.mA})
        self.count = bs.ShortTermState(0)

    def update(self, x, gain=1.0):
        self.count.value += 1
        noise = bs.random.normal(size=4) * u.mV
        self.V.value = 0.9 * self.V.value + gain * self.lin(x) * u.mV + noise
        self.pair.value = 0.5 * self.pair.value[:, ::-1] + self.V.value.to_decimal(u.mV)[:, None]
        self.tree.set_value({'a': 0.5 * self.tree.get_value('a') + self.V.value})
        return self.V.value


@pytest.fixture(scope='module')
def zoo():
    model = bs.nn.init_all_states(Zoo())
    return model, braintrace.compile_etrace_graph(model, jnp.ones(3), gain=2.0)


def test_states_of_every_kind(zoo):
    model, graph = zoo
    [group] = graph.hidden_groups
    assert (
        group.hidden_paths == [('V',), ('pair',), ('tree',)]
        and group.num_state == 5
        and group.varshape == (4,)
    )
    assert group.hidden_states == [model.V, model.pair, model.tree]
    assert [(r.path, list(r.trainable_paths)) for r in graph.hidden_param_op_relations] == [
        (('lin', 'weight'), ['weight', 'bias']),
    ]
    report = braintrace.CompilationReport(graph)
    assert ('count',) in report.dynamic_states and (('idle',), None) in report.excluded_weights
    assert graph.explain(kind=DiagnosticKind.STATE_MISMATCH)[0].message.startswith(
        'The step uses a RandomState'
    )
    values = [model.V.value.mantissa, model.pair.value, model.tree.value]
    whole = group.concat_hidden(values)
    assert whole.shape == (4, 5) and all(
        np.array_equal(a, b) for a, b in zip(group.split_hidden(whole), values, strict=True)
    )
    for wrong in (
        lambda: group.concat_hidden(values[:2]),
        lambda: group.split_hidden(whole[:, :3]),
    ):
        with pytest.raises(ValueError, match='takes'):
            wrong()


def test_the_records_run(zoo):
    model, graph = zoo
    info = graph.module_info
    bs.random.seed(0)
    out, hidden, other, temps = info.jaxpr_call(jnp.ones(3), gain=2.0)
    bs.random.seed(0)
    expected = bs.transform.jit(model)(jnp.ones(3), gain=2.0)
    assert u.get_unit(out) == u.mV and u.math.allclose(out, expected) and not temps
    assert np.allclose(hidden[('V',)], model.V.value.mantissa) and other[('count',)] == 1
    bs.nn.init_all_states(model)
    graph = braintrace.compile_etrace_graph(model, jnp.ones(3))
    more = graph.module_info.add_jaxpr_outs([graph.hidden_param_op_relations[0].y_var])
    assert list(more.jaxpr_call(jnp.ones(3))[3]) == [graph.hidden_param_op_relations[0].y_var]
    perturb = [jnp.ones(4), jnp.zeros((4, 2)), jnp.zeros((4, 2))]
    bs.random.seed(0)
    base = graph.call_hidden_perturb([jnp.ones(3)], graph.hidden_perturb.init_perturb_data())[1]
    bs.random.seed(0)
    moved = graph.call_hidden_perturb([jnp.ones(3)], perturb)[1]
    assert np.allclose(moved[('V',)] - base[('V',)], 1) and np.allclose(
        moved[('pair',)] - base[('pair',)], 1
    )
    assert graph.hidden_perturb.perturb_data_to_hidden_group_data(perturb, graph.hidden_groups)[
        0
    ].shape == (4, 5)
    weights, hidden_vars, other_vars = graph.module_info.split_state_outvars()
    assert (
        set(weights) == {('lin', 'weight'), ('idle',)}
        and set(hidden_vars) == {('V',), ('pair',), ('tree',)}
        and ('count',) in other_vars
    )


def test_finders_agree_with_the_compiler():
    model = bs.nn.init_all_states(bs.nn.LSTMCell(3, 4), batch_size=2)
    x = jnp.ones((2, 3))
    graph = braintrace.compile_etrace_graph(model, x)
    info = braintrace.extract_module_info(model, x)
    groups, by_path = braintrace.find_hidden_groups_from_minfo(info)
    assert (
        [g.hidden_paths for g in groups]
        == [g.hidden_paths for g in graph.hidden_groups]
        == [[('h',), ('c',)]]
    )
    names = [r.name for r in graph.hidden_param_op_relations]
    assert [
        r.name for r in braintrace.find_hidden_param_op_relations_from_minfo(info, by_path)
    ] == names
    assert [
        r.name for r in braintrace.find_hidden_param_op_relations_from_module(model, x)
    ] == names
    assert braintrace.add_hidden_perturbation_from_minfo(info).perturb_hidden_paths == [
        ('h',),
        ('c',),
    ]
    assert (
        braintrace.add_hidden_perturbation_in_module(model, x).perturb_hidden_paths
        == graph.hidden_perturb.perturb_hidden_paths
    )
    mixing, _ = braintrace.find_hidden_groups_from_module(model, x, include_recurrent_mixing=True)
    hidden = [model.c.value, model.h.value]
    out = graph.module_info.add_jaxpr_outs(graph.hidden_groups[0].transition_jaxpr_constvars)
    consts = list(out.jaxpr_call(x)[3].values())
    _, new, _, _ = info.jaxpr_call(x)
    for value, path in zip(
        graph.hidden_groups[0].transition(hidden, consts),
        graph.hidden_groups[0].hidden_paths,
        strict=True,
    ):
        assert np.allclose(value, new[path])
    assert mixing[0].transition_jaxpr.eqns != graph.hidden_groups[0].transition_jaxpr.eqns


def test_field_order():
    """User code builds and unpacks these records by position."""
    fields = {
        'HiddenPerturbation': 'perturb_vars perturb_hidden_paths perturb_hidden_states '
        'perturb_jaxpr',
        'HiddenGroup': 'index hidden_paths hidden_states hidden_invars hidden_outvars '
        'transition_jaxpr transition_jaxpr_constvars is_diagonal_recurrence snap descent',
        'ETraceGraph': 'module_info hidden_groups hid_path_to_group hidden_param_op_relations '
        'hidden_perturb diagnostics',
        'HiddenParamOpRelation': 'primitive x_var y_var hidden_groups y_to_hidden_group_jaxprs '
        'connected_hidden_paths eqn_params path_classification trainable_vars trainable_paths '
        'trainable_leaf_indices trainable_param_states trainable_processing_chains '
        'control_flow_context',
        'ModuleInfo': 'stateful_model closed_jaxpr retrieved_model_states compiled_model_states '
        'state_id_to_path state_tree_invars state_tree_outvars hidden_path_to_invar '
        'hidden_path_to_outvar invar_to_hidden_path outvar_to_hidden_path hidden_outvar_to_invar '
        'weight_invars weight_path_to_invars invar_to_weight_path num_var_out num_var_state '
        'control_flow',
    }
    for name, order in fields.items():
        assert getattr(braintrace, name)._fields[: len(order.split())] == tuple(order.split())
