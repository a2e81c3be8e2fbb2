"""What the compiler claims about one step, checked against the true Jacobian in float64."""

import jax
import jax.numpy as jnp
import numpy as np

from braintrace._jax import Literal, new_jaxpr, run_jaxpr
from braintrace.compat.records import published
from braintrace.frontends.function import trace
from braintrace.graph.compile import compile_step
from braintrace.graph.diagnostics import DiagnosticKind
from braintrace.ops.axes import gradient


def check_step(fn, params, state, *inputs, policy=None):
    """Compile `fn` and check every claim; gives the published graph."""
    graph = compile_step(trace(fn, params, state, *inputs)[0], policy=policy)
    analysis = graph.analysis
    leaves = jax.tree.leaves((params, state, inputs))
    values = all_values(graph.step, leaves)
    plain = lambda p, s: jax.tree.leaves(fn(p, s, *inputs)[0])
    for v, w in zip(graph.step.hidden_outs, plain(params, state), strict=True):
        np.testing.assert_allclose(values[v], w, atol=1e-12)
    true = jax.jacrev(plain, (0, 1))(params, state)
    dp, ds = ([[np.asarray(a) for a in jax.tree.leaves(row[k])] for row in true] for k in (0, 1))
    check_flat(graph.step, leaves, dp, ds)
    check_maps(analysis, ds)
    check_groups(published(graph), values, ds)
    check_relations(graph, values, dp, jax.tree.leaves(params))
    return published(graph)


def all_values(step, leaves):
    """The value of every variable."""
    jaxpr = step.jaxpr
    every = [*jaxpr.invars, *[v for e in jaxpr.eqns for v in e.outvars]]
    program = new_jaxpr(jaxpr.invars, every, jaxpr.eqns)
    return dict(zip(every, run_jaxpr(program, *step.captured, *leaves), strict=True))


def check_flat(step, leaves, dp, ds):
    """The flat program has the derivatives of the original."""
    n, m = len(step.params), len(step.params) + len(step.hidden)

    def run(*moving):
        return run_jaxpr(step.jaxpr, *step.captured, *moving, *leaves[m:])[: m - n]

    for row, p, s in zip(jax.jacrev(run, tuple(range(m)))(*leaves[:m]), dp, ds, strict=True):
        for a, b in zip(row, [*p, *s], strict=True):
            np.testing.assert_allclose(a, b, atol=1e-12)


def check_maps(analysis, ds):
    """Outside the claimed pattern the Jacobian is zero."""
    for row in analysis.rows:
        for i, old in enumerate(analysis.rows):
            true = ds[analysis.step.hidden.index(row.leaf)][analysis.step.hidden.index(old.leaf)]
            dep, n = analysis.of_row(row), int(np.prod(old.shape))
            true = true.reshape(int(np.prod(row.shape)), n)
            allowed = np.full(true.shape, bool(dep.mixed >> i & 1))
            mark(allowed, dep.maps.get(i, ()))
            assert not true[~allowed].any(), f'{row.leaf.name} by {old.leaf.name}: claimed {dep}'


def mark(allowed, maps, transposed=False):
    for m in maps:
        at = np.flatnonzero(m.ravel() >= 0)
        allowed[(m.ravel()[at], at) if transposed else (at, m.ravel()[at])] = True


def check_groups(graph, values, ds):
    """The diagonal of the transition is what `diagonal_jacobian` says, and where nothing was cut the transition is the whole truth."""
    order = {leaf.path: i for i, leaf in enumerate(graph.step.hidden)}
    cut = {
        r.hidden_paths
        for r in graph.explain(kind=DiagnosticKind.TRANSITION_MIXED)
        if 'moves values' not in r.message
    }
    for g in graph.hidden_groups:
        hidden, consts = (
            [values[v] for v in g.hidden_invars],
            [values[v] for v in g.transition_jaxpr_constvars],
        )
        full, diagonal = (
            np.asarray(g.full_jacobian(hidden, consts)),
            np.asarray(g.diagonal_jacobian(hidden, consts)),
        )
        S, n = g.num_state, int(np.prod(g.varshape))
        full = full.reshape(n, S, n, S)
        np.testing.assert_allclose(
            diagonal.reshape(n, S, S), full[np.arange(n), :, np.arange(n), :], atol=1e-12
        )
        if tuple(g.hidden_paths) not in cut:
            for a, p in enumerate(g.hidden_paths):
                for b, q in enumerate(g.hidden_paths):
                    np.testing.assert_allclose(
                        full[:, a, :, b], ds[order[p]][order[q]].reshape(n, n), atol=1e-12
                    )


def check_relations(graph, values, dp, params):
    """phi, labels and maps together give the derivative of the new state by the parameters, where no part of it was declared mixed."""
    analysis = graph.analysis
    outs = graph.step.hidden_outs
    total = [[np.zeros((v.aval.size, p.size)) for p in params] for v in outs]
    weights, pull = jax.vjp(lambda *p: graph.weights(p), *params)
    for k, r in enumerate(graph.relations):
        x = r.operand([a.val if isinstance(a, Literal) else values[a] for a in r.use.eqn.invars])
        for g in r.groups:
            tail = analysis.along([analysis.seed_of(r.use)], [r.y_var], g.outvars)
            free = [values[v] for v in tail.free]
            slopes = jax.jacrev(lambda y, t=tail, c=free: t(c, y))(values[r.y_var])
            for v, d in zip(g.outvars, slopes, strict=True):
                n = v.aval.size
                d = np.asarray(d).reshape(n, *r.y_var.aval.shape)
                fed = np.zeros((n, r.y_var.aval.size), bool)
                mark(fed, r.maps[g.index], transposed=True)
                assert not d.reshape(n, -1)[~fed].any(), (
                    'a unit is fed by an element that its map does not name'
                )
                dw = jax.vmap(
                    lambda d, x=x, r=r: gradient(r.op, None if x is None else x[None], d[None])
                )(d)
                ct = [
                    jnp.asarray(dw) if i == k else jnp.zeros((n, *w.shape), w.dtype)
                    for i, w in enumerate(weights)
                ]
                for q, back in enumerate(jax.vmap(pull)(ct)):
                    total[outs.index(v)][q] += np.asarray(back).reshape(n, -1)
    for j, v in enumerate(outs):
        for q, var in enumerate(analysis.step.param_vars):
            parts = [u for u, use in enumerate(analysis.uses) if stems_from(analysis, use.w, var)]
            crowded = graph.explain(
                kind=DiagnosticKind.RELATION_EXCLUDED_SHAPE_MISMATCH,
                weight_path=analysis.step.params[q].path,
            )
            if not crowded and not any(analysis.dep(v).mixed >> analysis.seed(u) & 1 for u in parts):
                np.testing.assert_allclose(
                    total[j][q], dp[j][q].reshape(v.aval.size, -1), atol=1e-10
                )


def check_factors(graph, params, state, *inputs):
    """What a window pulls back, D and df, are the diagonal of the transitions and the elements of the tails that the maps name."""
    from braintrace.engine.evaluate import Program
    from braintrace.engine.window import Window
    from braintrace.plan.layout import lay_out

    layout = lay_out(graph.compiled)
    leaves, n = jax.tree.leaves((params, state, inputs)), len(graph.step.params)
    values, m = all_values(graph.step, leaves), n + len(graph.step.hidden)
    window = Window(Program(layout), leaves[:n], leaves[n:m], [], [a[None] for a in leaves[m:]], 1)
    for s in layout.slots:
        g, rows = graph.hidden_groups[s.group], layout.units[s.group].rows
        order = [g.hidden_invars.index(row.old) for row in rows]
        D = g.diagonal_jacobian(
            [values[v] for v in g.hidden_invars], [values[v] for v in g.transition_jaxpr_constvars]
        )
        np.testing.assert_allclose(
            window.transition(s.group)[0],
            np.moveaxis(np.asarray(D), (-2, -1), (0, 1))[np.ix_(order, order)],
            atol=1e-11,
        )
        for f in s.feeds:
            r, unit = layout.relations[f.relation], f.unit.ravel()
            analysis = graph.compiled.analysis
            tail = analysis.along([analysis.seed_of(r.use)], [r.y_var], g.hidden_outvars)
            free = [values[v] for v in tail.free]
            true = jax.jacrev(lambda y, t=tail, c=free: t(c, y))(values[r.y_var])
            for df, k in zip(window.slope(f.relation, s.group, f.unit)[0], order, strict=True):
                df, named = (
                    df.ravel(),
                    np.asarray(true[k]).reshape(-1, unit.size)[unit.clip(0), np.arange(unit.size)],
                )
                np.testing.assert_allclose(
                    np.where(unit >= 0, df, 0), np.where(unit >= 0, named, 0), atol=1e-11
                )


def stems_from(analysis, w, var):
    todo = [w]
    while todo:
        a = todo.pop()
        if a is var:
            return True
        if a in analysis.made_by:
            todo += [b for b in analysis.eqns[analysis.made_by[a]].invars if not isinstance(b, Literal)]
    return False
