"""Soundness of the analysis on random programs: what it claims about one step is checked against the true Jacobian in float64."""

import os

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax

from braintrace._jax import eval_jaxpr, new_jaxpr
from braintrace.frontends.functional import trace
from braintrace.graph.analysis import Analysis
from braintrace.graph.etrace_graph import assemble, prepare
from braintrace.graph.canonical import ControlFlowPolicy
from braintrace.graph.diagnostics import Diagnostics

PROGRAMS = int(os.environ.get('BRAINTRACE_PROGRAMS', 220))
R, C = 2, 3  # every value has shape (2, 3), whatever happens on the way


@jax.custom_jvp
def spike(x):
    return (x > 0).astype(x.dtype)


spike.defjvp(lambda p, t: (spike(*p), t[0] / (1 + p[0] ** 2)))


@jax.custom_jvp
def spiking_layer(x, w):
    return (x @ w > 0).astype(x.dtype)


spiking_layer.defjvp(lambda p, t: (spiking_layer(*p), .3 * (t[0] @ p[1] + p[0] @ t[1])))


@jax.custom_vjp
def straight_through(x, w):
    return jnp.round(x * w)


straight_through.defvjp(lambda x, w: (straight_through(x, w), (x, w)), lambda r, g: (g * r[1], g * jnp.cos(r[0])))

PERMUTED = np.array([2, 0, 1])
flip = lambda a: a.T.reshape(R, C)

# Each takes two values, the weights and the input, and gives a value.
OPS = [
    lambda a, b, p, x: jnp.tanh(a),
    lambda a, b, p, x: a * b,
    lambda a, b, p, x: a + .5 * b,
    lambda a, b, p, x: jnp.where(a > 0, a, b),
    lambda a, b, p, x: jnp.maximum(jnp.sin(a), b * lax.stop_gradient(a)),
    lambda a, b, p, x: jax.nn.relu(a) - jax.nn.softplus(b),
    lambda a, b, p, x: spike(a),
    lambda a, b, p, x: straight_through(a, b),
    lambda a, b, p, x: jnp.roll(a, 1, -1),
    lambda a, b, p, x: a[:, ::-1],
    lambda a, b, p, x: flip(a),
    lambda a, b, p, x: a[:, PERMUTED],
    lambda a, b, p, x: jnp.concatenate([a[:, :1], b[:, 1:]], -1),
    lambda a, b, p, x: jnp.pad(a, ((0, 0), (1, 1)))[:, :C],
    lambda a, b, p, x: jnp.stack([a, b])[1],
    lambda a, b, p, x: jnp.broadcast_to(a[:1], (R, C)),
    lambda a, b, p, x: lax.dynamic_slice(jnp.concatenate([a, b]), (1, 0), (R, C)),
    lambda a, b, p, x: a.at[:, 1].set(b[:, 0]),
    lambda a, b, p, x: sum(jnp.split(jnp.concatenate([a, b], -1), 2, -1)),
    lambda a, b, p, x: jax.vmap(lambda row, other: row * other[::-1])(a, b),
    lambda a, b, p, x: a - a.mean(-1, keepdims=True),
    lambda a, b, p, x: jnp.broadcast_to(a.max(0), (R, C)) * b,
    lambda a, b, p, x: jnp.cumsum(a, -1),
    lambda a, b, p, x: jax.nn.softmax(a, -1),
    lambda a, b, p, x: jnp.einsum('ij,kj->ik', a, jnp.ones((C, C)) * .3),
    lambda a, b, p, x: jax.jit(lambda a: jnp.tanh(a) + b)(a),
    lambda a, b, p, x: jax.checkpoint(lambda a: jnp.sin(a) * b)(a),
    lambda a, b, p, x: lax.cond(x[0, 0] > 0, lambda a, b: a * b, lambda a, b: a[:, ::-1], a, b),
    lambda a, b, p, x: lax.scan(lambda c, y: (jnp.tanh(c) + y, c), a, jnp.stack([b, a]))[0],
    lambda a, b, p, x: lax.scan(lambda c, _: (.9 * c + .1 * jnp.sin(b), None), a, length=20)[0],
    lambda a, b, p, x: lax.fori_loop(0, 20, lambda i, c: jnp.roll(c, 1, -1) * .9, a),
    lambda a, b, p, x: a @ p['W'],
    lambda a, b, p, x: jnp.roll((p['W'].T * 2 @ a.T).T, 1, -1),
    lambda a, b, p, x: jnp.einsum('ij,jk->ki', a, jnp.abs(p['W']))[:, :R].reshape(C * R)[:R * C].reshape(R, C),
    lambda a, b, p, x: p['v'] * a + p['v'],
    lambda a, b, p, x: jnp.concatenate([a @ p['W'], x @ p['U'][:C]], -1)[:, 1:1 + C],
    lambda a, b, p, x: x @ (p['U'][:C] + p['W']),
    lambda a, b, p, x: a * p['s'] + jnp.where(x > 0, p['s'], b),
    lambda a, b, p, x: p['U'][(x[:, 0] > 0).astype(int) + 2],
    lambda a, b, p, x: spiking_layer(a, p['W']),
    lambda a, b, p, x: straight_through(x, jnp.broadcast_to(p['v'], (R, C))),
    lambda a, b, p, x: lax.scan(lambda c, w: (jnp.tanh(c + x @ w), None), a, jnp.stack([p['W'], p['W'].T]))[0],
    lambda a, b, p, x: lax.cond(x[0, 1] > 0, lambda a: a @ p['W'], lambda a: p['v'] + a, a),
]

programs = lambda least, most: st.lists(st.tuples(st.integers(0, len(OPS) - 1), st.integers(0, 7), st.integers(0, 7)), min_size=least, max_size=most)


def build(code):
    """A step with two hidden states from a list of (op, operand, operand)."""
    def step(p, state, x):
        pool = [state['h'], state['g'], x]
        for op, a, b in code:
            pool.append(OPS[op](pool[a % len(pool)], pool[b % len(pool)], p, x))
        return {'h': .5 * pool[-1], 'g': pool[-2] + .1 * pool[-1]}, pool[-1]
    return step


def example(seed=0):
    rng = np.random.RandomState(seed)
    draw = lambda *s: jnp.asarray(rng.randn(*s))
    return dict(W=draw(C, C), U=draw(5, C), v=draw(C), s=draw()), dict(h=draw(R, C), g=draw(R, C)), draw(R, C)


def pattern(dep, seed, size, shape):
    """The entries (new element, old element) that a claim allows to be non-zero."""
    allowed = np.full((int(np.prod(shape)), size), bool(dep.mixed >> seed & 1))
    for m in dep.maps.get(seed, ()):
        at = np.flatnonzero(m.ravel() >= 0)
        allowed[at, m.ravel()[at]] = True
    return allowed


def all_values(step, flat):
    """Every variable's value."""
    jaxpr = step.jaxpr.jaxpr
    every = [*jaxpr.invars, *[v for e in jaxpr.eqns for v in e.outvars]]
    values = eval_jaxpr(new_jaxpr(jaxpr.invars, every, jaxpr.eqns, jaxpr.constvars), step.jaxpr.consts, *flat)
    return dict(zip(every, values, strict=True)) | dict(zip(jaxpr.constvars, step.jaxpr.consts, strict=True))


lasting = settings(max_examples=PROGRAMS // 2, deadline=None, derandomize='BRAINTRACE_PROGRAMS' not in os.environ, suppress_health_check=list(HealthCheck))


@lasting
@given(programs(2, 4))
def test_claims_hold_for_short_programs(code):
    check(code)


@lasting
@given(programs(5, 8))
def test_claims_hold_for_long_programs(code):
    check(code)


def check(code):
    p, state, x = example()
    traced, _ = trace(build(code), p, state, x)
    diagnostics = Diagnostics()
    found = prepare(traced, ControlFlowPolicy(), diagnostics)
    graph = assemble(found, diagnostics)
    flat = [*jax.tree.leaves(p), *jax.tree.leaves(state), x]
    values = all_values(found.step, flat)
    plain = lambda p, s: jax.tree.leaves(build(code)(p, s, x)[0])
    new = plain(p, state)
    for v, w in zip(found.step.hidden_outs, new, strict=True):
        np.testing.assert_allclose(values[v], w, atol=1e-12)
    dp, ds = zip(*jax.jacrev(plain, (0, 1))(p, state), strict=True)
    check_maps(found, ds)
    check_groups(graph, values, ds)
    check_relations(graph, found, values, [jax.tree.leaves(d) for d in dp], jax.tree.leaves(p))


def check_maps(found: Analysis, ds):
    for j, row in enumerate(found.rows):
        for i, old in enumerate(found.rows):
            true = np.asarray(jax.tree.leaves(ds[j])[i]).reshape(R * C, R * C)
            allowed = pattern(found.of_row(row), i, R * C, row.shape)
            assert not np.abs(true[~allowed]).any(), f'{row.leaf.name} by {old.leaf.name}: claimed {found.of_row(row)}'


def check_groups(graph, values, ds):
    order = {leaf.path: i for i, leaf in enumerate(graph.step.hidden)}
    for g in graph.hidden_groups:
        hidden, consts = [values[v] for v in g.hidden_invars], [values[v] for v in g.transition_jaxpr_constvars]
        full, diagonal = g.full_jacobian(hidden, consts), g.diagonal_jacobian(hidden, consts)
        S, n = g.num_state, R * C
        own = np.asarray(full).reshape(n, S, n, S)[np.arange(n), :, np.arange(n), :]
        np.testing.assert_allclose(np.asarray(diagonal).reshape(n, S, S), own, atol=1e-12)
        clean = not any(r.kind.name == 'TRANSITION_MIXED' and 'moves values' not in r.message and set(r.hidden_paths) == set(g.hidden_paths)
                        for r in graph.diagnostics)
        if clean:  # nothing was cut, so the transition is the whole truth about the group
            for a, p in enumerate(g.hidden_paths):
                for b, q in enumerate(g.hidden_paths):
                    np.testing.assert_allclose(full[..., a, :, :, b], jax.tree.leaves(ds[order[p]])[order[q]], atol=1e-12)


def check_relations(graph, found, values, dp, params):
    """phi, labels and maps together give the derivative of the new state by the parameters, where no part of it was declared mixed."""
    outs = found.step.hidden_outs
    total = [[np.zeros((R * C, p.size)) for p in params] for _ in outs]
    weights, pull = jax.vjp(lambda *p: graph.weights(p), *params)
    relations = graph.hidden_param_op_relations
    for k, r in enumerate(relations):
        eqn = r.use.eqn
        x = r.operand([a.val if hasattr(a, 'val') else values[a] for a in eqn.invars])
        for g, tail in zip(r.hidden_groups, r.y_to_hidden_group_jaxprs, strict=True):
            consts = [values[v] for v in tail.constvars]
            dh = jax.jacrev(lambda y, tail=tail, consts=consts: eval_jaxpr(tail, consts, y))(values[r.y])
            for v, d in zip(g.hidden_outvars, dh, strict=True):
                d = np.asarray(d).reshape(R * C, *r.y.aval.shape)
                fed = np.zeros((R * C, r.y.aval.size), bool)
                for m in r.maps[g.index]:
                    at = np.flatnonzero(m.ravel() >= 0)
                    fed[m.ravel()[at], at] = True
                assert not d.reshape(R * C, -1)[~fed].any(), 'a unit is fed by an element that its map does not name'
                dw = np.einsum(f'Z{r.axes.y},{r.axes.x}->Z{r.axes.w}', d, x) if x is not None else d
                ct = [jnp.asarray(dw) if i == k else jnp.zeros((R * C, *w.shape)) for i, w in enumerate(weights)]
                for q, back in enumerate(jax.vmap(pull)(ct)):
                    total[outs.index(v)][q] += np.asarray(back).reshape(R * C, -1)
    for j, v in enumerate(outs):
        for q, var in enumerate(found.step.param_vars):
            parts = [u for u, use in enumerate(found.uses) if reaches(found, var, use.w)]
            if not any(found.dep(v).mixed >> found.seed(u) & 1 for u in parts):
                np.testing.assert_allclose(total[j][q], np.asarray(dp[j][q]).reshape(R * C, -1), atol=1e-10)


def reaches(found, var, w):
    todo = [w]
    while todo:
        a = todo.pop()
        if a is var:
            return True
        if a in found.made_by:
            todo += [b for b in found.eqns[found.made_by[a]].invars if not hasattr(b, 'val')]
    return False
