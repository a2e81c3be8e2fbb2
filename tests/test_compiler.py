"""The compiler on plain functions: what is found in each kind of model, and that it is true."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from oracle import check_step

from braintrace import (
    CompilationError,
    CompilationReport,
    ControlFlowPolicy,
    DiagnosticKind,
    DiagnosticLevel,
    marked,
    untraced,
)
from braintrace._jax import eval_jaxpr
from braintrace.frontends.function import trace
from braintrace.graph.etrace_graph import compile_step

D, H, B = 3, 6, 2
rng = np.random.RandomState(0)
draw = lambda *s: jnp.asarray(rng.randn(*s) * 0.5)
sig, cat = jax.nn.sigmoid, lambda *a: jnp.concatenate(a, -1)
P = dict(
    W=draw(D, H),
    V=draw(D, H),
    R=draw(H, H),
    b=draw(H),
    s=draw(),
    o=draw(H, 2),
    W2=draw(D, 2 * H),
    G=draw(D + H, 2 * H),
    L=draw(D + H, 4 * H),
    N=draw(D + H, H),
    T=draw(5, H),
    A=draw(D, 3),
    Q=draw(3, H),
    S=draw(2, D, H),
    K=draw(H, D, 1),
    Z=draw(2, D, 3),
)
h, pair, x = draw(B, H), (draw(B, H), draw(B, H)), draw(B, D)


@jax.custom_jvp
def heaviside(v):
    return (v > 0).astype(v.dtype)


heaviside.defjvp(lambda p, t: (heaviside(*p), t[0] * jnp.maximum(0, 1 - jnp.abs(p[0]))))


@jax.custom_vjp
def scaled_dot(x, w):
    return x @ w


scaled_dot.defvjp(
    lambda x, w: (x @ w, (x, w)), lambda r, g: (g @ r[1].T, 3 * r[0].T @ g)
)  # not the ordinary derivative


def layer(u, bias=0.0):
    return lambda p, h, x: (jnp.tanh(0.5 * h + u(p, h, x) + bias), h)


def gru(p, h, x):
    u, r = jnp.split(sig(cat(x, h) @ p['G'] + cat(p['b'], p['b'])), 2, -1)
    h = (1 - u) * h + u * jnp.tanh(cat(x, r * h) @ p['N'])
    return h, h @ p['o']


def lstm(p, s, x):
    i, f, o, u = jnp.split(cat(x, s[1]) @ p['L'], 4, -1)
    c = sig(f) * s[0] + sig(i) * jnp.tanh(u)
    return (c, sig(o) * jnp.tanh(c)), c


def fused_minimal_gru(p, h, x):
    u, n = jnp.split(x @ p['W2'], 2, -1)
    return (1 - sig(u)) * h + sig(u) * jnp.tanh(n), h


def synapse_membrane(p, s, x):
    syn = 0.6 * s[0] + x @ p['W'] + heaviside(s[1]) @ p['R']
    return (syn, 0.9 * s[1] - lax.stop_gradient(heaviside(s[1])) + jnp.tanh(syn)), s[1]


def two_in_one_equation(p, s, x):
    d = s[0] - s[1]
    return (jnp.tanh(d + x @ p['W']), 0.3 * d), d


def equal_layers(p, s, x):
    a = jnp.tanh(0.5 * s[0] + x @ p['W'])
    return (a, jnp.tanh(0.5 * s[1] + a @ p['R'])), a


def substeps(length):
    return lambda p, h, x: (
        lax.fori_loop(0, length, lambda i, v: v + 0.1 * (x @ p['W'] - v**3), h),
        h,
    )


def newton(p, h, x):
    """A while loop that solves y + y**3 = h + drive, unit by unit."""
    drive = h + x @ p['W']
    turn = lambda c: (c[0] + 1, c[1] - (c[1] + c[1] ** 3 - drive) / (1 + 3 * c[1] ** 2))
    return lax.while_loop(lambda c: c[0] < 30, turn, (0, jnp.zeros_like(h)))[1], h


KIND = DiagnosticKind
# model, state, {weight: ops it is traced through}, groups as the leaves of their states, kinds that must be told
solve = lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True)
MODELS = {
    'leaky': (layer(lambda p, h, x: x @ p['W']), h, {'W': 'dot_general'}, [[('state',)]], []),
    'weight on the left': (
        layer(lambda p, h, x: (p['W'].T @ x.T).T),
        h,
        {'W': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'three axes': (
        layer(lambda p, h, x: jnp.einsum('bi,hij->bhj', x, p['K'])[..., 0]),
        h,
        {'K': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'grouped product': (
        layer(
            lambda p, h, x: jnp.einsum('gbi,gih->bgh', jnp.stack([x, jnp.sin(x)]), p['Z']).reshape(
                B, H
            )
        ),
        h,
        {'Z': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'bias, gain and scalar': (
        lambda p, h, x: (jnp.tanh(p['s'] * h + p['b'] * x[:, :1] + p['b']), h),
        h,
        {'s': 'mul', 'b': 'mul add'},
        [[('state',)]],
        [],
    ),
    'scaled, masked, transposed': (
        layer(lambda p, h, x: x @ (2 * (p['W'] * (p['W'] > 0)).T).T),
        h,
        {'W': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'sum of weights': (
        layer(lambda p, h, x: x @ (p['W'] + jnp.abs(p['V']))),
        h,
        {'W': 'dot_general', 'V': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'shared weight': (
        layer(lambda p, h, x: x @ p['W'] + jnp.sin(x) @ p['W']),
        h,
        {'W': 'dot_general dot_general'},
        [[('state',)]],
        [],
    ),
    'slices of a weight': (
        layer(lambda p, h, x: x @ p['W2'][:, :H] + jnp.cos(x) @ p['W2'][:, H:]),
        h,
        {'W2': 'dot_general dot_general'},
        [[('state',)]],
        [],
    ),
    'low rank product': (
        layer(lambda p, h, x: x @ (p['A'] @ p['Q'])),
        h,
        {'A': 'dot_general', 'Q': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'normalised weight': (
        layer(lambda p, h, x: x @ (p['W'] / jnp.linalg.norm(p['W'], axis=0))),
        h,
        {'W': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'table look-up': (
        layer(lambda p, h, x: p['T'][jnp.argmax(x, -1)]),
        h,
        {'T': 'gather'},
        [[('state',)]],
        [],
    ),
    'table with clipped index': (
        layer(lambda p, h, x: p['T'].at[jnp.argmax(x, -1) + 4].get(mode='clip')),
        h,
        {'T': 'gather'},
        [[('state',)]],
        [],
    ),
    'rolled and reversed tail': (
        layer(lambda p, h, x: jnp.roll(x @ p['W'], 1, -1)[:, ::-1]),
        h,
        {'W': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'permuted tail': (
        layer(lambda p, h, x: (x @ p['W'])[:, np.array([2, 0, 5, 3, 1, 4])]),
        h,
        {'W': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'padded tail': (
        layer(lambda p, h, x: jnp.pad(x @ p['A'], ((0, 0), (1, 2)))),
        h,
        {'A': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'reshaped tail': (
        layer(lambda p, h, x: (x @ p['W']).reshape(B, 2, 3).swapaxes(1, 2).reshape(B, H)),
        h,
        {'W': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'one output for two units': (
        layer(lambda p, h, x: jnp.repeat(x @ p['A'], 2, -1)),
        h,
        {'A': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'one output for all units': (
        layer(lambda p, h, x: x @ p['A'][:, :1]),
        h,
        {'A': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'one weight for all units': (
        layer(lambda p, h, x: jnp.ones(H) * jnp.tanh(x.sum() * p['s'] + p['b'][0])),
        h,
        {'s': 'mul', 'b': 'add'},
        [[('state',)]],
        [],
    ),
    'one row for all samples': (
        lambda p, h, x: (jnp.tanh(0.5 * h + p['T'][jnp.argmax(x[0])][:, None] * jnp.ones(7)), h),
        draw(H, 7),
        {'T': 'dynamic_slice'},
        [[('state',)]],
        [],
    ),
    'repeated and tiled': (
        lambda p, h, x: (
            jnp.tanh(0.5 * h + jnp.tile(jnp.repeat(x[:, :2] @ p['W'][:2, :2], 5, -1), (3, 1))),
            h,
        ),
        draw(3 * B, 10),
        {'W': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'spread and mixed': (
        layer(lambda p, h, x: jnp.cumsum(jnp.ones(H) * jnp.sum(x * p['s']), -1)),
        h,
        {},
        [[('state',)]],
        [KIND.RELATION_EXCLUDED_MIXED_TAIL],
    ),
    'hand-written product': (
        layer(lambda p, h, x: (x[:, :, None] * p['W']).sum(1)),
        h,
        {'W': 'mul'},
        [[('state',)]],
        [],
    ),
    'hand-written recurrence': (
        layer(lambda p, h, x: (h[:, :, None] * p['R']).sum(1) + p['b']),
        h,
        {'R': 'mul', 'b': 'add'},
        [[('state',)]],
        [KIND.TRANSITION_MIXED],
    ),
    'two factors': (
        layer(lambda p, h, x: jnp.einsum('bhi,i->bh', x[:, None] * p['W'].T, jnp.cos(x[0]))),
        h,
        {'W': 'mul'},
        [[('state',)]],
        [],
    ),
    'mean pool': (
        layer(lambda p, h, x: (x @ p['W2']).reshape(B, H, 2).mean(-1)),
        h,
        {'W2': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'max pool': (
        layer(
            lambda p, h, x: lax.reduce_window(
                x @ p['W2'] + cat(p['b'], p['b']), -jnp.inf, lax.max, (1, 2), (1, 2), 'VALID'
            )
        ),
        h,
        {'W2': 'dot_general', 'b': 'add'},
        [[('state',)]],
        [],
    ),
    'pool that overlaps': (
        layer(lambda p, h, x: lax.reduce_window(x @ p['W'], 0.0, lax.add, (1, 2), (1, 1), 'SAME')),
        h,
        {},
        [[('state',)]],
        [KIND.RELATION_EXCLUDED_MIXED_TAIL],
    ),
    'segments': (
        layer(
            lambda p, h, x: (
                jnp.zeros((B, H)).at[:, np.arange(2 * H) % 5].add(heaviside(x @ p['W2']))
            )
        ),
        h,
        {'W2': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'segments of many slices': (
        layer(lambda p, h, x: cat(sum(jnp.split(x @ p['W2'], 2 * H, -1)), jnp.zeros((B, H - 1)))),
        h,
        {'W2': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'a sum and its parts': (
        layer(lambda p, h, x: (lambda y: cat(y.sum(-1, keepdims=True), y[:, 1:]))(x @ p['W'])),
        h,
        {'W': 'dot_general'},
        [[('state',)]],
        [KIND.RELATION_PARTIAL_PATH],
    ),
    'fused gates': (fused_minimal_gru, h, {'W2': 'dot_general'}, [[('state',)]], []),
    'gru': (
        gru,
        h,
        {'G': 'dot_general', 'b': 'add', 'N': 'dot_general'},
        [[('state',)]],
        [KIND.RELATION_PARTIAL_PATH, KIND.RELATION_EXCLUDED_NON_TEMPORAL],
    ),
    'lstm': (lstm, pair, {'L': 'dot_general'}, [[(0,), (1,)]], [KIND.HIDDEN_GROUP_MERGED]),
    'synapse and membrane': (
        synapse_membrane,
        pair,
        {'W': 'dot_general', 'R': 'dot_general'},
        [[(0,), (1,)]],
        [KIND.TRANSITION_MIXED],
    ),
    'two states in one equation': (
        two_in_one_equation,
        pair,
        {'W': 'dot_general'},
        [[(0,), (1,)]],
        [],
    ),
    'two layers of equal width': (
        equal_layers,
        pair,
        {'W': 'dot_general', 'R': 'dot_general'},
        [[(0,)], [(1,)]],
        [],
    ),
    'weight behind a weight': (
        layer(lambda p, h, x: jnp.tanh(x @ p['A']) @ p['Q']),
        h,
        {'Q': 'dot_general'},
        [[('state',)]],
        [KIND.RELATION_EXCLUDED_WEIGHT_TO_WEIGHT],
    ),
    'mixed tail': (
        layer(lambda p, h, x: jnp.cumsum(x @ p['W'], -1)),
        h,
        {},
        [[('state',)]],
        [KIND.RELATION_EXCLUDED_MIXED_TAIL],
    ),
    'partly mixed tail': (
        layer(lambda p, h, x: jax.nn.softmax(x @ p['W'], -1)),
        h,
        {'W': 'dot_general'},
        [[('state',)]],
        [KIND.RELATION_PARTIAL_PATH],
    ),
    'mixed transition': (
        layer(lambda p, h, x: x @ p['W'] - 0.3 * h.mean(-1, keepdims=True)),
        h,
        {'W': 'dot_general'},
        [[('state',)]],
        [KIND.TRANSITION_MIXED],
    ),
    'rolled transition': (
        layer(lambda p, h, x: x @ p['W'] + 0.3 * jnp.roll(h, 1, -1)),
        h,
        {'W': 'dot_general'},
        [[('state',)]],
        [KIND.TRANSITION_MIXED],
    ),
    'op without a rule': (
        layer(lambda p, h, x: solve(jnp.tril(p['R']) + 3 * jnp.eye(H), jnp.tile(x, 2)[:, :H].T).T),
        h,
        {},
        [[('state',)]],
        [KIND.RELATION_EXCLUDED_NO_RULE],
    ),
    'jit': (
        layer(lambda p, h, x: jax.jit(lambda x, w: jax.jit(jnp.dot)(x, w))(x, p['W'])),
        h,
        {'W': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'checkpoint': (
        layer(lambda p, h, x: jax.checkpoint(lambda x, w: jnp.sin(x @ w))(x, p['W'])),
        h,
        {'W': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'custom_vjp around the op': (
        layer(lambda p, h, x: scaled_dot(x, p['W'])),
        h,
        {'W': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'element-wise custom_jvp': (
        layer(lambda p, h, x: jnp.logaddexp(h, jnp.broadcast_to(p['b'], h.shape))),
        h,
        {'b': 'custom_jvp_call'},
        [[('state',)]],
        [],
    ),
    'broadcasting custom_jvp': (
        layer(lambda p, h, x: jnp.logaddexp(h, p['b'])),
        h,
        {'b': 'mul'},
        [[('state',)]],
        [],
    ),
    'cond': (
        layer(lambda p, h, x: lax.cond(x[0, 0] > 0, lambda: x @ p['W'], lambda: h * p['b'])),
        h,
        {'W': 'dot_general', 'b': 'select_n'},
        [[('state',)]],
        [KIND.COND_IF_CONVERTED],
    ),
    'cond with singular branches': (
        layer(
            lambda p, h, x: lax.switch(
                (x[0, 0] < 9) + 1,
                [
                    lambda: jnp.sqrt(h - h) @ p['R'],
                    lambda: jnp.log(h * 0) * p['b'],
                    lambda: x @ p['W'],
                ],
            )
        ),
        h,
        {'W': 'dot_general', 'b': 'select_n', 'R': 'dot_general'},
        [[('state',)]],
        [KIND.COND_IF_CONVERTED],
    ),
    'cond with a known index': (
        layer(lambda p, h, x: lax.switch(1, [lambda: x @ p['V'], lambda: x @ p['W']])),
        h,
        {'W': 'dot_general'},
        [[('state',)]],
        [],
    ),
    'short scan': (
        substeps(3),
        h,
        {'W': 'dot_general dot_general dot_general'},
        [[('state',)]],
        [KIND.SCAN_UNROLLED],
    ),
    'long scan with a weight': (
        substeps(20),
        h,
        {'W': ' '.join(['dot_general'] * 20)},
        [[('state',)]],
        [KIND.SCAN_DESCENT_APPLIED],
    ),
    'long scan without': (
        layer(lambda p, h, x: x @ p['W'] + lax.fori_loop(0, 20, lambda i, v: v - 0.1 * v**3, h)),
        h,
        {'W': 'dot_general'},
        [[('state',)]],
        [KIND.SCAN_UNROLL_SKIPPED],
    ),
    'scan over stacked weights': (
        lambda p, h, x: (
            lax.scan(lambda h, w: (jnp.tanh(h + x @ w), None), h, p['S'], reverse=True)[0],
            h,
        ),
        h,
        {'S': 'dot_general dot_general'},
        [[('state',)]],
        [],
    ),
}


@pytest.mark.parametrize('name', MODELS)
def test_models(name):
    step, state, traced, groups, kinds = MODELS[name]
    graph = check_step(step, P, state, x)
    found = {}
    for r in graph.hidden_param_op_relations:
        for path in r.trainable_paths.values():
            found.setdefault(path[0], []).append(r.primitive.name)
    assert {k: ' '.join(v) for k, v in found.items()} == traced
    assert [g.hidden_paths for g in graph.hidden_groups] == groups
    told = {r.kind for r in graph.diagnostics}
    assert told >= set(kinds)
    assert all(r.kind in kinds for r in graph.diagnostics if r.level is not DiagnosticLevel.INFO), (
        graph.diagnostics
    )


def grads(program, params, state):
    """Gradient of the sum of the new state, by the flat program."""
    leaves, tree = jax.tree.flatten((params, state, x))
    n = len(jax.tree.leaves(state))
    return jax.grad(
        lambda ps: sum(
            a.sum()
            for a in eval_jaxpr(program.jaxpr, program.consts, *jax.tree.leaves((*ps, x)))[:n]
        )
    )((params, state))


def test_a_while_loop_that_acts_unit_by_unit_has_a_gradient():
    graph = compile_step(trace(newton, P, h, x)[0])
    y = newton(P, h, x)[0]
    dp, dh = grads(graph.step.jaxpr, P, h)
    np.testing.assert_allclose(dh, 1 / (1 + 3 * y**2), rtol=1e-9)  # implicit function theorem
    np.testing.assert_allclose(dp['W'], x.T @ (1 / (1 + 3 * y**2)), rtol=1e-9)
    assert [r.primitive.name for r in graph.hidden_param_op_relations] == ['dot_general']
    assert graph.explain(kind=KIND.CONTROL_FLOW_OPAQUE_FWD)[0].level is DiagnosticLevel.INFO


def test_control_flow_policy():
    mixing = lambda p, h, x: (
        lax.while_loop(lambda c: c.sum() < 0, lambda c: c @ jnp.eye(H), h) + x @ p['W'],
        h,
    )
    graph = compile_step(trace(mixing, P, h, x)[0])
    assert graph.explain(kind=KIND.CONTROL_FLOW_OPAQUE_FWD)[0].level is DiagnosticLevel.WARNING
    weight = lambda p, h, x: (lax.while_loop(lambda c: c.sum() < 0, lambda c: c @ p['R'], h), h)
    with pytest.raises(NotImplementedError, match='weight is used inside `while`'):
        compile_step(trace(weight, P, h, x)[0])
    graph = compile_step(
        trace(weight, P, h, x)[0], policy=ControlFlowPolicy(etp_in_control_flow='exclude')
    )
    assert graph.explain(kind=KIND.WEIGHT_IN_WHILE)
    with pytest.raises(NotImplementedError, match="while_hidden='error'"):
        compile_step(trace(newton, P, h, x)[0], policy=ControlFlowPolicy(while_hidden='error'))
    for model, policy in (
        ('cond', ControlFlowPolicy(cond='opaque')),
        ('long scan with a weight', ControlFlowPolicy(scan_descent='off')),
    ):
        graph = check_step(MODELS[model][0], P, h, x, policy=policy)
        assert not graph.hidden_param_op_relations and graph.explain(
            kind=KIND.WEIGHT_IN_CONTROL_FLOW
        )
    inside = lambda p, h, x: (lax.cond(x[0, 0] > 0, lambda: x @ marked(p['W']), lambda: h), h)
    with pytest.raises(NotImplementedError, match='marked weight'):
        compile_step(trace(inside, P, h, x)[0], policy=ControlFlowPolicy(cond='opaque'))
    for wrong in (
        dict(cond='maybe'),
        dict(scan_descent='on'),
        dict(fixpoint_iteration_limit=0),
        dict(fixpoint_iteration_limit=True),
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            ControlFlowPolicy(**wrong)


def test_choice_of_traced_weights():
    step = lambda p, h, x: (jnp.tanh(h + x @ marked(p['W']) + x @ p['V'] + untraced(p['b'])), h)
    traced = lambda which: [
        r.path for r in compile_step(trace(step, P, h, x)[0], trace=which).hidden_param_op_relations
    ]
    assert traced('all') == [('W',), ('V',)]
    assert traced('marked') == [('W',)]
    assert traced(lambda path: path == ('V',)) == [('V',)]
    step = lambda p, h, x: (
        jnp.tanh(
            h + x @ marked(marked(p['W'])) + x @ marked(untraced(p['V'])) + untraced(marked(p['b']))
        ),
        h,
    )  # once out is out
    assert traced('all') == traced('marked') == [('W',)]


def test_hidden_states_that_are_not_computed():
    step = lambda p, s, x: (
        dict(a=s['b'], b=s['a'], kept=s['kept'], twin=s['b'], zero=jnp.zeros((B, H))),
        s['a'],
    )
    state = dict(a=h, b=h + 1, kept=h, twin=h, zero=h)
    graph = check_step(step, P, state, x)
    outs = graph.step.hidden_outs
    assert len(set(outs)) == 5 and not set(outs) & set(graph.step.hidden_vars)


def test_perturbation_adds_to_the_new_state():
    step, _ = trace(lstm, P, pair, x)
    graph = compile_step(step)
    d = [jnp.full((B, H), 0.1), jnp.full((B, H), 0.2)]
    leaves = jax.tree.leaves((P, pair, x))
    base, moved = (
        graph.hidden_perturb.eval_jaxpr(leaves, e)
        for e in (graph.hidden_perturb.init_perturb_data(), d)
    )
    np.testing.assert_allclose(moved[0], base[0] + 0.1)
    o = sig(jnp.split(cat(x, pair[1]) @ P['L'], 4, -1)[2])
    np.testing.assert_allclose(
        moved[1], o * jnp.tanh(base[0] + 0.1) + 0.2
    )  # c feeds h in the same step, and the loss reads the perturbed c
    for error in (ValueError, AssertionError):
        with pytest.raises(error, match='2 hidden states, got 1'):
            graph.hidden_perturb.eval_jaxpr(leaves, d[:1])


def test_the_report_names_every_leaf_and_its_fate():
    graph = compile_step(trace(gru, P | {'idle': draw(2)}, h, x)[0])
    text = CompilationReport(graph).to_str(2)
    line = {words[0]: text for text in text.splitlines() if (words := text.split())}
    assert (
        'traced into group 0 through `dot_general` at test_compiler.py' in line['G']
        and 'in part' in line['G']
    )
    assert f'{B * (D + H) * 2 * H * 8 / 1000:.3g} kB' in line['G']
    assert 'reaches no hidden state' in line['o'] and 'gradient is zero' in line['idle']
    assert CompilationReport(graph).counts == dict(
        hidden_groups=1, etrace_weights=3, excluded_weights=len(P) - 2, warnings=2, errors=0
    )


def test_the_place_of_an_op_inside_a_library_function_is_the_users_line():
    step = lambda p, s, x: (
        2 * (jnp.tanh(0.5 * s + jnp.fft.irfft(jnp.fft.rfft(x[:, :1]) * jnp.fft.rfft(p['b']), H)),)
    )
    [told] = [r.message for r in compile_step(trace(step, P, h, x)[0]).explain(weight_path=('b',))]
    assert 'through `fft` at test_compiler.py' in told


@pytest.mark.parametrize(
    'step, state, error, message',
    [
        (lambda p, s, x: (s, x), (), CompilationError, 'no hidden state'),
        (
            lambda p, s, x: (s[:, 1:], x),
            h,
            ValueError,
            'enters the step as float64.2,6. and leaves it as float64.2,5.',
        ),
        (lambda p, s, x: (s.astype('float32'), x), h, ValueError, 'must keep its shape and dtype'),
        (lambda p, s, x: ({'a': s}, x), h, ValueError, 'structure'),
        (lambda p, s, x: s, h, TypeError, r'must return \(state, out\)'),
        (lambda p, s, x: 1 / 0, h, ZeroDivisionError, 'division by zero'),
        ('not a function', h, TypeError, 'must be a function'),
    ],
)
def test_bad_steps(step, state, error, message):
    with pytest.raises(error, match=message):
        compile_step(trace(step, P, state, x)[0])


def test_values_of_a_dead_branch_do_not_poison_the_gradient():
    step = MODELS['cond with singular branches'][0]
    graph = compile_step(trace(step, P, h, x)[0])
    assert all(bool(jnp.isfinite(g).all()) for g in jax.tree.leaves(grads(graph.step.jaxpr, P, h)))


def flat(fn, *args):
    """The flat program as a function, and its graph."""
    graph = compile_step(trace(fn, *args)[0])
    return (
        lambda *a: eval_jaxpr(graph.step.jaxpr.jaxpr, graph.step.jaxpr.consts, *jax.tree.leaves(a))
    ), graph


def test_more_dependences_than_maps_are_cut():
    wide = lambda p, s: (sum(0.1 * k * jnp.roll(s, k) for k in range(1, 9)) + 0.5 * s * p, s)
    check_step(wide, jnp.ones(12), draw(12))

    def fan_in(p, s, x):
        y = x @ p
        return 0.5 * s + jnp.concatenate([sum(y[k : k + 1] for k in range(7)), y[1:]]), s

    check_step(fan_in, draw(3, 12), draw(12), draw(3))


@jax.custom_jvp
def root(a, w):
    return jnp.sqrt(a @ w)


root.defjvp(lambda p, t: (root(*p), (t[0] @ p[1] + p[0] @ t[1]) * 0.5 / root(*p)))


def test_a_derivative_put_beside_its_value_leaves_the_value_alone():
    zero, ones = jnp.zeros(3), jnp.ones((3, 4))
    run, _ = flat(lambda p, s, x: (root(x, p) + s, None), ones, jnp.ones(4), zero)
    np.testing.assert_array_equal(run(ones, jnp.ones(4), zero)[0], 1)
    loop = lambda p, s: (
        lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, jnp.minimum(c[1], 1.0)), (0, s))[1]
        * p,
        None,
    )
    run, _ = flat(loop, jnp.ones(2), jnp.ones(2))
    np.testing.assert_array_equal(run(jnp.ones(2), jnp.full(2, jnp.inf))[0], 1)


@pytest.mark.parametrize(
    'dead',
    [
        lambda p, s: s / p,
        lambda p, s: s * 1e200 * 1e200 * p,
        lambda p, s: jnp.arctanh(s) * s * p,
        lambda p, s: (1 / (s - s)) * p,
        lambda p, s: lax.scan(lambda c, _: (jnp.sqrt(c), None), s - s, length=20)[0] * p,
        lambda p, s: jnp.log(s - s) @ jnp.diag(p),
    ],
)
def test_a_branch_not_taken_leaves_the_gradient_alone(dead):
    step = lambda p, s, q: (lax.cond(q > 0, lambda s: dead(p, s), lambda s: s * 0.5 + p, s), None)
    p, s = jnp.zeros(3), jnp.ones(3)
    run, _ = flat(step, p, s, -1.0)
    for mine, true in zip(
        jax.grad(lambda p, s: run(p, s, -1.0)[0].sum(), (0, 1))(p, s),
        (jnp.ones(3), jnp.full(3, 0.5)),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, true)


@jax.custom_vjp
def clipped(a, w):
    return a @ w


clipped.defvjp(
    lambda a, w: (a @ w, (a, w)), lambda r, g: (r[1] @ g, jnp.clip(jnp.outer(r[0], g), -1, 1))
)


def test_odd_programs_compile():
    ones = jnp.ones
    graph = lambda f, *a: flat(f, *a)[1]
    assert graph(lambda p, s, x: (clipped(x, p) + s, None), ones((3, 4)), ones(4), ones(3)).explain(
        kind=KIND.RELATION_EXCLUDED_NO_RULE
    )
    barrier = lambda p, s: ((lambda a, c: (a * p, c * 0.5))(*lax.optimization_barrier(s)), None)
    assert [g.hidden_paths for g in graph(barrier, ones(4), (ones(4), ones(4))).hidden_groups] == [
        [(0,)],
        [(1,)],
    ]
    graph(lambda p, s: ((s[0] * p, s[1] * 2), s[1].sum()), ones(4), (ones(4), jnp.zeros(0)))
    keyed = graph(
        lambda p, s: ((s[0] * p + jax.random.normal(s[1], (4,)), jax.random.split(s[1])[0]), None),
        ones(4),
        (ones(4), jax.random.key(0)),
    )
    assert [leaf.path for leaf in keyed.step.other] == [(1,)]
    graph(lambda p, s: (s.at[0].set(p[0]), None), ones(4, jnp.bfloat16), ones(4, jnp.bfloat16))
    closed_over = jnp.arange(4.0)
    g = graph(lambda p, s: ((closed_over, s[1] * p + s[0]), None), ones(4), (ones(4), ones(4)))
    np.testing.assert_array_equal(
        g.hidden_perturb.eval_jaxpr([ones(4)] * 3, [ones(4)] * 2)[0], closed_over + 1
    )

    def inside(k):
        order = jnp.argsort(k)
        assert compile_step(
            trace(lambda p, s: (s[order] * p, None), ones(4), ones(4))[0]
        ).hidden_groups
        return k

    jax.jit(inside)(ones(4))
    both = check_step(
        lambda p, s: ((p['b'], s[1] * 0.5 + s[0]), None), dict(b=ones(4)), (ones(4), ones(4))
    )
    assert [r.path for r in both.hidden_param_op_relations] == [
        ('b',)
    ]  # a weight that is stored in a state


def test_complex_states():
    unit = lambda p, s, x: (s * jnp.exp(1j * p['a']) + (x @ p['W']).astype(complex), s.real)
    graph = compile_step(trace(unit, dict(a=draw(H), W=draw(D, H)), draw(H) + 0j, x[0])[0])
    g = graph.hidden_groups[0]
    assert (
        g.is_diagonal_recurrence
        and g.full_jacobian(
            [draw(H) + 0j],
            [jnp.ones(v.aval.shape, v.aval.dtype) for v in g.transition_jaxpr_constvars],
        ).shape
    )
    folded = compile_step(trace(lambda p, s: (jnp.conj(s) * p, None), draw(H), draw(H) + 0j)[0])
    assert folded.explain(kind=KIND.TRANSITION_MIXED)[0].level is DiagnosticLevel.WARNING
