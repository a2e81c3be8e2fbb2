"""What the compiler claims about one step, checked against the true Jacobian in float64."""

import jax
import jax.numpy as jnp
import numpy as np
from inside import graph_of, layout_and_window, records_of, run_flat, tail_of

from braintrace import DiagnosticKind
from braintrace._jax import Literal, bind, new_jaxpr, run_jaxpr
from braintrace.ops.axes import gradient

MOST = 4  # maps of one seed in one value; what depends on more elements is mixed


def check_step(fn, params, state, *inputs, policy=None):
    """Compile `fn` and check every claim; gives the graph."""
    graph = graph_of(fn, params, state, *inputs, policy=policy)
    leaves = jax.tree.leaves((params, state, inputs))
    values = all_values(graph, leaves)

    def plain(p, s):
        return jax.tree.leaves(fn(p, s, *inputs)[0])

    for v, w in zip(graph.step.hidden_outs, plain(params, state), strict=True):
        np.testing.assert_allclose(values[v], w, atol=1e-12)
    true = jax.jacrev(plain, (0, 1))(params, state)
    dp, ds = ([[np.asarray(a) for a in jax.tree.leaves(row[k])] for row in true] for k in (0, 1))
    check_flat(graph, leaves, dp, ds)
    check_maps(graph.analysis, ds)
    check_groups(records_of(graph), values, ds)
    check_relations(graph, values, dp, jax.tree.leaves(params))
    return graph


def all_values(graph, leaves):
    """The value of every variable."""
    jaxpr = graph.step.jaxpr
    every = [*jaxpr.invars, *[v for e in jaxpr.eqns for v in e.outvars]]
    program = new_jaxpr(jaxpr.invars, every, jaxpr.eqns)
    return dict(zip(every, run_jaxpr(program, *graph.step.captured, *leaves), strict=True))


def check_flat(graph, leaves, dp, ds):
    """The flat program has the derivatives of the original."""
    n = len(graph.step.params)
    m = n + len(graph.step.hidden)

    def run(*moving):
        return run_flat(graph, *moving, *leaves[m:])[: m - n]

    for row, p, s in zip(jax.jacrev(run, tuple(range(m)))(*leaves[:m]), dp, ds, strict=True):
        for a, b in zip(row, [*p, *s], strict=True):
            np.testing.assert_allclose(a, b, atol=1e-12)


def check_maps(analysis, ds):
    """Outside the claimed pattern the Jacobian is zero."""
    hidden = analysis.step.hidden
    for row in analysis.rows:
        dep = analysis.of_row(row)
        for i, old in enumerate(analysis.rows):
            true = ds[hidden.index(row.leaf)][hidden.index(old.leaf)]
            true = true.reshape(int(np.prod(row.shape)), int(np.prod(old.shape)))
            allowed = np.full(true.shape, bool(dep.mixed >> i & 1))
            mark(allowed, dep.maps.get(i, ()))
            assert not true[~allowed].any(), f'{row.leaf.name} by {old.leaf.name}: claimed {dep}'


def mark(allowed, maps, transposed=False):
    for m in maps:
        at = np.flatnonzero(m.ravel() >= 0)
        allowed[(m.ravel()[at], at) if transposed else (at, m.ravel()[at])] = True


def check_groups(graph, values, ds):
    """The diagonal of the transition is what `diagonal_jacobian` says, and where nothing was cut
    the transition is the whole truth."""
    order = {leaf.path: i for i, leaf in enumerate(graph.step.hidden)}
    cut = {
        r.hidden_paths
        for r in graph.explain(kind=DiagnosticKind.TRANSITION_MIXED)
        if 'moves values' not in r.message
    }
    for g in graph.hidden_groups:
        hidden = [values[v] for v in g.hidden_invars]
        consts = [values[v] for v in g.transition_jaxpr_constvars]
        full = np.asarray(g.full_jacobian(hidden, consts))
        diagonal = np.asarray(g.diagonal_jacobian(hidden, consts))
        S, n = g.num_state, int(np.prod(g.varshape))
        full = full.reshape(n, S, n, S)
        np.testing.assert_allclose(
            diagonal.reshape(n, S, S), full[np.arange(n), :, np.arange(n), :], atol=1e-12
        )
        if tuple(g.hidden_paths) in cut:
            continue
        for a, p in enumerate(g.hidden_paths):
            for b, q in enumerate(g.hidden_paths):
                true = ds[order[p]][order[q]].reshape(n, n)
                np.testing.assert_allclose(full[:, a, :, b], true, atol=1e-12)


def check_relations(graph, values, dp, params):
    """phi, labels and maps together give the derivative of the new state by the parameters, where
    no part of it was declared mixed."""
    analysis, outs = graph.analysis, graph.step.hidden_outs
    total = [[np.zeros((v.aval.size, p.size)) for p in params] for v in outs]
    weights, pull = jax.vjp(lambda *p: graph.weights(p), *params)
    for k, r in enumerate(graph.relations):
        x = r.operand([a.val if isinstance(a, Literal) else values[a] for a in r.use.eqn.invars])
        for v, d in tail_slopes(graph, r, values):
            n = v.aval.size
            dw = jax.vmap(
                lambda d, x=x, r=r: gradient(r.op, None if x is None else x[None], d[None])
            )(d)
            ct = [jnp.zeros((n, *w.shape), w.dtype) for w in weights]
            ct[k] = jnp.asarray(dw)
            for q, back in enumerate(jax.vmap(pull)(ct)):
                total[outs.index(v)][q] += np.asarray(back).reshape(n, -1)
    for j, v in enumerate(outs):
        for q, var in enumerate(graph.step.param_vars):
            parts = [u for u, use in enumerate(analysis.uses) if stems_from(analysis, use.w, var)]
            crowded = graph.explain(
                kind=DiagnosticKind.RELATION_EXCLUDED_SHAPE_MISMATCH,
                weight_path=graph.step.params[q].path,
            )
            mixed = any(analysis.dep(v).mixed >> analysis.seed(u) & 1 for u in parts)
            if not crowded and not mixed:
                true = dp[j][q].reshape(v.aval.size, -1)
                np.testing.assert_allclose(total[j][q], true, atol=1e-10)


def tail_slopes(graph, r, values):
    """For each new state that a relation feeds, its derivative by the op's output `(n, *y)`; only
    elements that the maps name may feed it."""
    y = values[r.y_var]
    for g in r.groups:
        tail = tail_of(graph, r, g)
        free = [values[v] for v in tail.free]
        slopes = jax.jacrev(lambda y, tail=tail, free=free: tail(free, y))(y)
        for v, d in zip(g.outvars, slopes, strict=True):
            d = np.asarray(d).reshape(v.aval.size, *y.shape)
            fed = np.zeros((v.aval.size, y.size), bool)
            mark(fed, r.maps[g.index], transposed=True)
            assert not d.reshape(fed.shape)[~fed].any(), (
                'a unit is fed by an element that its map does not name'
            )
            yield v, d


def check_factors(graph, params, state, *inputs):
    """What a window pulls back, D and df, are the diagonal of the transitions and the elements of
    the tails that the maps name."""
    leaves = jax.tree.leaves((params, state, inputs))
    values = all_values(graph, leaves)
    layout, window = layout_and_window(graph, leaves)
    groups = records_of(graph).hidden_groups
    for s in layout.slots:
        g, rows = groups[s.group], layout.units[s.group].rows
        order = [g.hidden_invars.index(row.old) for row in rows]
        D = g.diagonal_jacobian(
            [values[v] for v in g.hidden_invars], [values[v] for v in g.transition_jaxpr_constvars]
        )
        D = np.moveaxis(np.asarray(D), (-2, -1), (0, 1))[np.ix_(order, order)]
        np.testing.assert_allclose(window.factors.transition(s.group)[0], D, atol=1e-11)
        for f in s.feeds:
            r, unit = layout.relations[f.relation], f.unit.ravel()
            slopes = dict(tail_slopes(graph, r, values))
            df = window.factors.slope(f.relation, s.group, f.unit)[0]
            for row, k in zip(df, order, strict=True):
                true = slopes[g.hidden_outvars[k]].reshape(-1, unit.size)
                named = true[unit.clip(0), np.arange(unit.size)]
                np.testing.assert_allclose(
                    np.where(unit >= 0, row.ravel(), 0), np.where(unit >= 0, named, 0), atol=1e-11
                )


def stems_from(analysis, w, var):
    todo = [w]
    while todo:
        a = todo.pop()
        if a is var:
            return True
        if a in analysis.made_by:
            made = analysis.eqns[analysis.made_by[a]]
            todo += [b for b in made.invars if not isinstance(b, Literal)]
    return False


def position_wise_pairs(graph, points):
    """Over all new states and all seeds (old states, outputs of ops): how many pairs are position
    by position in truth, at each of the `points` (values of all leaves), and how many of these the
    compiler calls mixed. Pairs with a product of a weight between them are mixed by definition."""
    analysis = graph.analysis
    seeds = dict(enumerate(row.old for row in analysis.rows))
    seeds |= {analysis.seed(u): use.y[0] for u, use in enumerate(analysis.uses) if len(use.y) == 1}
    slopes = nonzero_slopes(graph, list(seeds.values()), points)
    there = overdeclared = 0
    for j, row in enumerate(analysis.rows):
        dep = analysis.of_row(row)
        for (i, _), by_seed in zip(seeds.items(), slopes, strict=True):
            pattern = by_seed[j]
            sparse = 0 < pattern.sum(1).max(initial=0) <= MOST
            if sparse and not product_between(analysis, i, dep):
                there += 1
                overdeclared += dep.mixed >> i & 1
    return there, overdeclared


def nonzero_slopes(graph, seeds, points):
    """For each seed and each new state: which elements depend on which, `(n, m)`, at some point."""
    jaxpr, captured, outs = graph.step.jaxpr, graph.step.captured, graph.step.hidden_outs

    def run(added, leaves):
        values = {}

        def read(a):
            return a.val if isinstance(a, Literal) else values[a]

        def write(variables, new):
            for v, a in zip(variables, new, strict=True):
                values[v] = a + added[seeds.index(v)] if v in seeds else a

        write(jaxpr.invars, [*captured, *leaves])
        for e in jaxpr.eqns:
            write(e.outvars, bind(e, [read(a) for a in e.invars]))
        return [read(v) for v in outs]

    zero = [jnp.zeros(v.aval.shape, v.aval.dtype) for v in seeds]
    slopes = jax.jit(jax.vmap(jax.jacrev(run), (None, 0)))(zero, points)
    return [
        [
            np.asarray(slopes[j][i] != 0).any(0).reshape(outs[j].aval.size, -1)
            for j in range(len(outs))
        ]
        for i in range(len(seeds))
    ]


def product_between(analysis, seed, dep):
    """Whether a seed is an operand of a product with a weight whose output reaches the value."""
    for u, use in enumerate(analysis.uses):
        operands = [a for k, a in enumerate(use.eqn.invars) if k != use.operand]
        product = use.op is None or use.axes.x is not None
        if product and dep.seeds >> analysis.seed(u) & 1:
            if any(analysis.dep(a).seeds >> seed & 1 for a in operands):
                return True
    return False
