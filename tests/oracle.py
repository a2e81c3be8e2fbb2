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
    records = records_of(graph)

    def plain(p, s):
        return jax.tree.leaves(fn(p, s, *inputs)[0])

    @jax.jit  # one program: compiling is what takes the time
    def measure(params, state):
        leaves = jax.tree.leaves((params, state, inputs))
        values = all_values(graph, leaves)
        return (
            ([values[v] for v in graph.step.hidden_outs], plain(params, state)),
            by_leaf(jax.jacrev(plain, (0, 1))(params, state)),
            flat_jacobians(graph, leaves),
            group_jacobians(records, values),
            *relation_derivatives(graph, values, jax.tree.leaves(params)),
        )

    outs, (dp, ds), flat, groups, slopes, total = jax.tree.map(np.asarray, measure(params, state))
    same(*outs)
    same(flat, (dp, ds))
    check_maps(graph.analysis, ds)
    check_groups(records, groups, ds)
    check_fed(graph, slopes)
    check_relations(graph, total, dp)
    return graph


def by_leaf(jacobian):
    """The derivatives by the parameters and by the old state, each by row and leaf."""
    return tuple([jax.tree.leaves(row[k]) for row in jacobian] for k in (0, 1))


def same(found, true):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(true), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


def all_values(graph, leaves):
    """The value of every variable."""
    jaxpr = graph.step.jaxpr
    every = [*jaxpr.invars, *[v for e in jaxpr.eqns for v in e.outvars]]
    program = new_jaxpr(jaxpr.invars, every, jaxpr.eqns)
    return dict(zip(every, run_jaxpr(program, *graph.step.captured, *leaves), strict=True))


def flat_jacobians(graph, leaves):
    """The derivatives of the flat program."""
    n = len(graph.step.params)
    m = n + len(graph.step.hidden)

    def run(params, state):
        return run_flat(graph, *params, *state, *leaves[m:])[: m - n]

    return by_leaf(jax.jacrev(run, (0, 1))(leaves[:n], leaves[n:m]))


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


def group_jacobians(records, values):
    """The whole Jacobian of each group's transition, and its diagonal."""
    return [
        (g.full_jacobian(*old), g.diagonal_jacobian(*old))
        for g in records.hidden_groups
        for old in [state_and_rest(g, values)]
    ]


def state_and_rest(g, values):
    """The values of a group's old states and of what else its transition needs."""
    return [[values[v] for v in part] for part in (g.hidden_invars, g.transition_jaxpr_constvars)]


def check_groups(records, jacobians, ds):
    """The diagonal of the transition is what `diagonal_jacobian` says, and where nothing was cut
    the transition is the whole truth."""
    order = {leaf.path: i for i, leaf in enumerate(records.step.hidden)}
    cut = {
        r.hidden_paths
        for r in records.explain(kind=DiagnosticKind.TRANSITION_MIXED)
        if 'moves values' not in r.message
    }
    for g, (full, diagonal) in zip(records.hidden_groups, jacobians, strict=True):
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


def relation_derivatives(graph, values, params):
    """The slopes of the tail of each relation, and what phi, labels and maps together say of the
    derivative of each new state by each parameter, `(n, p)`."""
    outs = graph.step.hidden_outs
    total = [[jnp.zeros((v.aval.size, p.size)) for p in params] for v in outs]
    weights, pull = jax.vjp(lambda *p: graph.weights(p), *params)
    slopes = [tail_slopes(graph, r, values) for r in graph.relations]
    for k, r in enumerate(graph.relations):
        x = r.operand([a.val if isinstance(a, Literal) else values[a] for a in r.use.eqn.invars])
        for v, d in zip(fed_by(r), slopes[k], strict=True):
            n = v.aval.size
            dw = jax.vmap(
                lambda d, x=x, r=r: gradient(r.op, None if x is None else x[None], d[None])
            )(d)
            ct = [jnp.zeros((n, *w.shape), w.dtype) for w in weights]
            ct[k] = jnp.asarray(dw)
            row = total[outs.index(v)]
            for q, back in enumerate(jax.vmap(pull)(ct)):
                row[q] += back.reshape(n, -1)
    return slopes, total


def check_relations(graph, total, dp):
    """They are the truth where no part of it was declared mixed."""
    analysis = graph.analysis
    for j, v in enumerate(graph.step.hidden_outs):
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


def fed_by(r):
    """The new states that a relation feeds."""
    return [v for g in r.groups for v in g.outvars]


def tail_slopes(graph, r, values):
    """For each new state that a relation feeds, its derivative by the op's output `(n, *y)`."""
    y = values[r.y_var]
    found = []
    for g in r.groups:
        tail = tail_of(graph, r, g)
        free = [values[v] for v in tail.free]
        slopes = jax.jacrev(lambda y, tail=tail, free=free: tail(free, y))(y)
        found += [d.reshape(v.aval.size, *y.shape) for v, d in zip(g.outvars, slopes, strict=True)]
    return found


def check_fed(graph, slopes):
    """Only elements that the maps name feed a unit."""
    for r, found in zip(graph.relations, slopes, strict=True):
        groups = [g for g in r.groups for _ in g.outvars]
        for g, d in zip(groups, found, strict=True):
            fed = np.zeros((len(d), d[0].size), bool)
            mark(fed, r.maps[g.index], transposed=True)
            assert not d.reshape(fed.shape)[~fed].any(), (
                'a unit is fed by an element that its map does not name'
            )


def check_factors(graph, params, state, *inputs):
    """What a window pulls back, D and df, are the diagonal of the transitions and the elements of
    the tails that the maps name."""
    groups, units = records_of(graph).hidden_groups, {}

    @jax.jit
    def measure(leaves):
        """For each group that has a trace: D, and what it is in truth; for each relation that
        feeds it df and the slopes."""
        values = all_values(graph, leaves)
        layout, window = layout_and_window(graph, leaves)
        found = []
        for s in layout.slots:
            g, rows = groups[s.group], layout.units[s.group].rows
            order = [g.hidden_invars.index(row.old) for row in rows]
            D = jnp.moveaxis(g.diagonal_jacobian(*state_and_rest(g, values)), (-2, -1), (0, 1))
            fed = []
            for k, f in enumerate(s.feeds):
                r = layout.relations[f.relation]
                slopes = dict(zip(fed_by(r), tail_slopes(graph, r, values), strict=True))
                df = window.factors.slope(f.relation, s.group, f.unit)[0]
                fed.append((df, [slopes[g.hidden_outvars[k]] for k in order]))
                units[len(found), k] = f.unit.ravel()
            found.append((window.factors.transition(s.group)[0], D[np.ix_(order, order)], fed))
        return found

    found = jax.tree.map(np.asarray, measure(jax.tree.leaves((params, state, inputs))))
    for j, (transition, D, fed) in enumerate(found):
        np.testing.assert_allclose(transition, D, atol=1e-11)
        for k, (df, slopes) in enumerate(fed):
            unit = units[j, k]
            for row, true in zip(df, slopes, strict=True):
                named = true.reshape(-1, unit.size)[unit.clip(0), np.arange(unit.size)]
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
