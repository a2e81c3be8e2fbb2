"""The compiler on plain functions: what is found in each kind of model, and that it is true."""

import inside
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from inside import graph_of, records_of
from oracle import check_step
from step_models import KIND, MODELS, B, D, H, P, cat, draw, h, lstm, pair, sig, x

from braintrace import (
    DiagnosticLevel,
    marked,
    untraced,
)


@pytest.mark.parametrize('name', MODELS)
def test_models(name):
    step, state, traced, groups, kinds = MODELS[name]
    graph = check_step(step, P, state, x)
    ops = {}
    for path, op in inside.traced(graph):
        ops.setdefault(path[0], []).append(op)
    assert {k: ' '.join(v) for k, v in ops.items()} == traced
    assert inside.groups(graph) == groups
    records = inside.told(graph)
    assert {r.kind for r in records} >= set(kinds)
    assert all(r.kind in kinds for r in records if r.level is not DiagnosticLevel.INFO), records


def test_choice_of_traced_weights():
    def step(p, h, x):
        return (jnp.tanh(h + x @ marked(p['W']) + x @ p['V'] + untraced(p['b'])), h)

    def once_out_is_out(p, h, x):
        drive = x @ marked(marked(p['W'])) + x @ marked(untraced(p['V']))
        return jnp.tanh(h + drive + untraced(marked(p['b']))), h

    def traced(step, which):
        return [path for path, _ in inside.traced(graph_of(step, P, h, x, traced=which))]

    assert traced(step, 'all') == [('W',), ('V',)]
    assert traced(step, 'marked') == [('W',)]
    assert traced(step, lambda path: path == ('V',)) == [('V',)]
    assert traced(once_out_is_out, 'all') == traced(once_out_is_out, 'marked') == [('W',)]


def test_hidden_states_that_are_not_computed():
    def step(p, s, x):
        return (
            dict(a=s['b'], b=s['a'], kept=s['kept'], twin=s['b'], zero=jnp.zeros((B, H))),
            s['a'],
        )

    state = dict(a=h, b=h + 1, kept=h, twin=h, zero=h)
    graph = check_step(step, P, state, x)
    outs = graph.step.hidden_outs
    assert len(set(outs)) == 5 and not set(outs) & set(graph.step.hidden_vars)


def test_perturbation_adds_to_the_new_state():
    graph = records_of(graph_of(lstm, P, pair, x))
    d = [jnp.full((B, H), 0.1), jnp.full((B, H), 0.2)]
    leaves = jax.tree.leaves((P, pair, x))
    base, moved = (
        graph.hidden_perturb.eval_jaxpr(leaves, e)
        for e in (graph.hidden_perturb.init_perturb_data(), d)
    )
    np.testing.assert_allclose(moved[0], base[0] + 0.1)
    o = sig(jnp.split(cat(x, pair[1]) @ P['L'], 4, -1)[2])
    # c feeds h in the same step, and the loss reads the perturbed c
    np.testing.assert_allclose(moved[1], o * jnp.tanh(base[0] + 0.1) + 0.2)
    for error in (ValueError, AssertionError):
        with pytest.raises(error, match='2 hidden states, got 1'):
            graph.hidden_perturb.eval_jaxpr(leaves, d[:1])


def test_more_dependences_than_maps_are_cut():
    def wide(p, s):
        return (sum(0.1 * k * jnp.roll(s, k) for k in range(1, 9)) + 0.5 * s * p, s)

    check_step(wide, jnp.ones(12), draw(12))

    def fan_in(p, s, x):
        y = x @ p
        return 0.5 * s + jnp.concatenate([sum(y[k : k + 1] for k in range(7)), y[1:]]), s

    check_step(fan_in, draw(3, 12), draw(12), draw(3))


def test_complex_states():
    def unit(p, s, x):
        return (s * jnp.exp(1j * p['a']) + (x @ p['W']).astype(complex), s.real)

    graph = graph_of(unit, dict(a=draw(H), W=draw(D, H)), draw(H) + 0j, x[0])
    g = records_of(graph).hidden_groups[0]
    assert (
        g.is_diagonal_recurrence
        and g.full_jacobian(
            [draw(H) + 0j],
            [jnp.ones(v.aval.shape, v.aval.dtype) for v in g.transition_jaxpr_constvars],
        ).shape
    )
    folded = graph_of(lambda p, s: (jnp.conj(s) * p + s.real, None), draw(H), draw(H) + 0j)
    assert not inside.told(folded, KIND.TRANSITION_MIXED)
