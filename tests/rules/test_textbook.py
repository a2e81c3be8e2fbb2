"""Every rule against its textbook recursion, written out step by step: dense RNN, GRU, LSTM and
adaptive spiking units, in float64."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cells import (
    CELLS,
    DATA,
    H,
    T,
    cat,
    derivatives,
    exact,
    loss,
    online,
    rng,
    same,
    sig,
    spike,
    step_of,
    textbook,
)
from inside import with_feedback
from jax.flatten_util import ravel_pytree
from told import LOST

import braintrace

pytestmark = LOST

KEPT = {}


def kept(name, of_p, size, n):
    """Which state each parameter feeds position by position (what a trace may hold), and all that
    it reaches in its own step."""
    if name not in KEPT:
        cell, params, start = CELLS[name]
        p0, of_p = ravel_pytree(params)
        s0, of_s = ravel_pytree(jax.tree.map(lambda a: a[0], start(1)))
        M = (
            jax.jacrev(
                lambda p: ravel_pytree(
                    cell(
                        of_p(p),
                        of_s(s0 + 0.5 + (jnp.arange(len(s0)) < H)),
                        of_s(s0 + 0.1),
                        DATA[1][0][0, 0],
                    )[0]
                )[0]
            )(p0)
            != 0
        )
        unit = ravel_pytree(
            {k: jnp.broadcast_to(jnp.arange(v.shape[-1]) % H, v.shape) for k, v in params.items()}
        )[0]
        traced = ravel_pytree({k: jnp.full(v.shape, k not in 'Yo') for k, v in params.items()})[0]
        KEPT[name] = np.asarray((np.arange(len(s0))[:, None] % H == unit) & traced), np.asarray(M)
    return KEPT[name]


def carried(name, transition, within='own', kappa=0.0):
    """`E <- transition(E) + M` on what is kept, credit meets E, or its low-pass."""

    def rule(n, size, of_p):
        own_unit, own_step = kept(name, of_p, size, n)
        keep = {
            'own': own_unit,
            'step': same_units(own_step),
            'fed': same_units(own_step & own_unit),
        }[within]
        E, low = np.zeros((n, size)), np.zeros((n, size))

        def trace(across, own, M, s, x, h):
            nonlocal E, low
            E = keep * (transition(across, own, E) + M)
            low = kappa * low + E
            return s @ low + s @ (M * ~keep)

        return trace

    return rule


def same_units(keep):
    """All states of the units of which one is kept."""
    by_unit = keep.reshape(-1, H, keep.shape[1]).any(0)
    return np.tile(by_unit, (len(keep) // H, 1))


def blocks(A):
    n = len(A)
    return A * (np.arange(n)[:, None] % H == np.arange(n) % H)


def sizes(name, alone, uneven=False):
    """Batch and window: a batch in windows for every cell; for the cell `alone` also one sample,
    step by step, and if asked for a last window that is shorter than the others."""
    if name != alone:
        return [(3, 3)]
    return [(3, 4 if uneven else 3), (1, 1)]


LEAK = 0.6
TEXTBOOK = {
    'd_rtrl': ('d_rtrl', {}, lambda name: carried(name, lambda across, own, E: own @ E)),
    'eprop': (
        'eprop',
        dict(kappa_filter_decay=0.7),
        lambda name: carried(name, lambda across, own, E: own @ E, kappa=0.7),
    ),
    'ostl': (
        'ostl_recurrent',
        {},
        lambda name: carried(name, lambda across, own, E: blocks(across + own) @ E),
    ),
    'rflo': ('rflo', dict(decay=LEAK), lambda name: carried(name, lambda across, own, E: LEAK * E)),
    'snap 1': (
        'snap',
        dict(n=1),
        lambda name: carried(name, lambda across, own, E: (across + own) @ E, 'step'),
    ),
    'snap 1 of own units': (
        'snap',
        dict(n=1, far_reach=False),
        lambda name: carried(name, lambda across, own, E: (across + own) @ E, 'fed'),
    ),
}


@pytest.mark.parametrize('name', CELLS)
@pytest.mark.parametrize('rule', TEXTBOOK)
def test_textbook(rule, name):
    algorithm, options, reference = TEXTBOOK[rule]
    alone = [*CELLS][[*TEXTBOOK].index(rule) % len(CELLS)]
    for B, window in sizes(name, alone):
        same(online(name, algorithm, B, window, **options), textbook(name, B, reference(name)))


def own_units(name):
    """What each weight has done to its own unit, step by step."""
    p0, of_p, s0, *_ = derivatives(name)
    keep, _ = kept(name, of_p, p0.size, s0.size)
    E = np.zeros((s0.size, p0.size))

    def advance(own, M, s, x):
        nonlocal E
        E = keep * (own @ E + M)
        return E

    return advance


@functools.cache
def credit_inside(name):
    """The gradient of the sum of losses of a window by the parameters and by the state at its
    entry."""
    _, of_p, *_ = derivatives(name)
    cell, _, start = CELLS[name]
    of_s = ravel_pytree(jax.tree.map(lambda a: a[0], start(1)))[1]

    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1))
    def credit(p, s, xs, ys):
        total, state = 0.0, of_s(s)
        for x, y in zip(xs, ys, strict=True):
            state, seen = cell(of_p(p), state, state, x)
            total = total + loss(seen @ of_p(p)['o'], y)
        return total

    return credit


def multi_step(name, B, window, influence=own_units):
    """Exact credit inside each window, which at its entry meets an influence, the last step before
    the edge included."""
    p0, of_p, s0, derive, _ = derivatives(name)
    (xs, ys), total = DATA[B], np.zeros(p0.size)
    for b in range(B):
        s, J, advance = s0, np.zeros((s0.size, p0.size)), influence(name)
        for k in range(0, T, window):
            part = slice(k, k + window)
            inside, lam = credit_inside(name)(p0, s, xs[part, b], ys[part, b])
            total += np.asarray(inside + lam @ J)
            for x in xs[part, b]:
                n, M, _, own = derive(s, x)
                J = advance(np.asarray(own), np.asarray(M), s, x)
                s = n
    return of_p(jnp.asarray(total / (T * B)))


@pytest.mark.parametrize(
    'rule, name', [*[('d_rtrl', name) for name in CELLS], ('eprop', 'gru'), ('eprop', 'alif')]
)
def test_exact_credit_inside_a_window_meets_what_the_last_step_did(rule, name):
    for B, window in sizes(name, 'lstm' if rule == 'd_rtrl' else 'gru', uneven=True):
        given = online(name, rule, B, window, vjp_method='multi-step')
        same(given, multi_step(name, B, window))


@pytest.mark.parametrize('name', ['rnn', 'gru', 'lstm'])
def test_credit_of_a_leaky_read_out_meets_the_low_pass_and_all_other_credit_the_trace(name):
    kappa, window = 0.7, 2
    (cell, params, start), (xs, ys) = CELLS[name], DATA[1]
    p0, of_p, s0, derive, _ = derivatives(name)
    of_s = ravel_pytree(jax.tree.map(lambda a: a[0], start(1)))[1]

    def step(p, state, x):
        (s, y), x = state, x[None] if x.ndim == 1 else x
        s, seen = cell(p, s, s, x)
        y = kappa * y + seen @ p['o']
        return (s, y), y

    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1, 2))
    def credit(p, s, y, xs, ys):
        state, total = (jax.tree.map(lambda a: a[None], of_s(s)), y), 0.0
        for x, y in zip(xs, ys, strict=True):
            state, out = step(of_p(p), state, x)
            total = total + loss(out, y).sum()
        return total

    def written_out():
        s, y, total, advance = s0, np.zeros(ys.shape[1:]), 0.0, own_units(name)
        E = low = np.zeros((s0.size, p0.size))
        for k in range(0, T, window):
            now = xs[k : k + window, 0], ys[k : k + window]
            inside, of_state, of_y = credit(p0, s, y, *now)
            of_units = np.zeros(s0.size)
            of_units[-H:] = of_y[0] @ params['o'].T
            total += np.asarray(inside + of_state @ E + of_units @ low)
            for x in now[0]:
                (_, y), _ = step(params, (jax.tree.map(lambda a: a[None], of_s(s)), y), x)
                s_new, M, _, own = derive(s, x)
                E = advance(np.asarray(own), np.asarray(M), s, x)
                low, s = kappa * low + E, s_new
        return of_p(jnp.asarray(total / T))

    options = dict(kappa_filter_decay=kappa, vjp_method='multi-step')
    state = start(1), jnp.zeros(ys.shape[1:])
    wanted = written_out()

    def mean(out, y):
        return loss(out, y).mean()

    own_weights = [dict(feedback='random', random_feedback_key=0)] if name == 'gru' else []
    for feedback in ({}, *own_weights):
        learner = braintrace.compile(step, 'eprop', params, state, xs[0], **options, **feedback)
        carry = learner.init(params, state)
        if feedback:
            carry = with_feedback(carry, 'o', params['o'])
        given = learner.grad(mean, params, carry, xs, ys, window=window)[0][0]
        same(*[{k: a for k, a in g.items() if k != 'o'} for g in (given, wanted)])


@pytest.mark.parametrize(
    'rule, name', [*[('pp_prop', name) for name in CELLS], ('hybrid', 'gru'), ('hybrid', 'alif')]
)
def test_averages_leave_the_last_step_as_it_was(rule, name):
    """`J_a = x_a (x) df_a + ex_{a-1} (x) D_a ef_{a-1}`, the last corrected; hybrid has the product
    itself for the weights that it is asked to."""
    product = set('WN') if rule == 'hybrid' else set()
    options = dict(prefer=lambda path: 'full' if path[0] in product else 'approx')
    for B, window in sizes(name, 'lstm' if rule == 'pp_prop' else 'gru', uneven=True):
        given = online(
            name,
            rule,
            B,
            window,
            vjp_method='multi-step',
            decay_or_rank=0.9,
            **(options if product else {}),
        )
        wanted = multi_step(name, B, window, averaged)
        if product & set(wanted):
            full = multi_step(name, B, window)
            wanted |= {k: full[k] for k in product & set(wanted)}
        same(given, wanted)


@pytest.mark.parametrize('name', ['rnn', 'lstm'])
def test_block_scope_keeps_the_weight_from_each_unit_to_itself(name):
    same(online(name, 'd_rtrl', 3, 3, scope='block'), textbook(name, 3, TEXTBOOK['ostl'][2](name)))


@pytest.mark.parametrize('name', CELLS)
def test_saturated_snap_is_exact(name):
    """And so is low rank of full rank."""
    true = textbook(name, 3, exact)
    same(online(name, 'snap', 3, 2, n=3), true)
    if name in ('rnn', 'lstm'):
        same(online(name, 'snap', 3, 3, n=3, vjp_method='multi-step'), true)
    else:
        same(online(name, 'low_rank', 3, 3, rank=100), true)


OPERANDS = {  # what multiplies each weight that has a trace; state as a flat vector
    'rnn': lambda p, h, x: dict(W=x, R=h, b=None),
    'gru': lambda p, h, x: dict(Z=cat(x, h), N=cat(x, sig(cat(x, h) @ p['Y']) * h), b=None),
    'lstm': lambda p, h, x: dict(L=cat(x, h[H:])),
    'alif': lambda p, h, x: dict(W=x, R=spike(h[:H] - h[H:] - 0.2)),
}


def slopes(name, M, h, x):
    """For each weight with a trace what multiplies it, and the derivative of the state by the
    output of its op, (n, *y)."""
    _, of_p, s0, *_ = derivatives(name)
    params = CELLS[name][1]
    own_unit, _ = kept(name, of_p, M.shape[1], s0.size)
    xs = OPERANDS[name](params, h, x)
    by_weight = jax.vmap(of_p)(jnp.asarray(M * own_unit))
    found = {}
    for k, x in xs.items():
        like = 'W' if k == 'R' else k  # W and R are added up, and h or z may be zero
        df = np.asarray(by_weight[like])
        if x is not None:
            df = np.einsum('nij,i->nj', df, xs[like]) / (xs[like] @ xs[like])
        found[k] = None if x is None else np.asarray(x), df
    return found


def same_unit(df):
    """Where a state and an output belong to the same unit, (n, *y)."""
    return np.arange(df.shape[0])[:, None] % H == np.arange(df.shape[1]) % H


def averaged(name, decay=0.9):
    """The last step, and the product of averages for what is older."""
    params, ex, ef, steps = CELLS[name][1], {}, {}, itertools.count()
    n = derivatives(name)[2].size

    def advance(own, M, s, x):
        J = {k: np.zeros((n, *v.shape)) for k, v in params.items()}
        older = max(1 - decay ** next(steps), 1e-8)
        for k, (operand, df) in slopes(name, M, s, x).items():
            moved = same_unit(df) * (own @ ef.get(k, np.zeros_like(df)))
            if operand is None:
                J[k] = df + moved / older
            else:
                before = ex.get(k, np.zeros_like(operand))
                J[k] = np.einsum('i,nj->nij', operand, df)
                J[k] = J[k] + np.einsum('i,nj->nij', before, moved) / older
                ex[k] = decay * before + operand
            ef[k] = decay * moved + (1 - decay) * df
        return np.concatenate([np.reshape(J[k], (n, -1)) for k in sorted(J)], 1)

    return advance


def factorised(name, decay_x, decay_f):
    """`ex <- a_x ex + x, ef <- a_f D ef + (1 - a_f) df`, credit meets their product."""

    def rule(n, size, of_p):
        params, ex, ef, steps = CELLS[name][1], {}, {}, itertools.count(1)
        own_unit, _ = kept(name, of_p, size, n)

        def trace(across, own, M, s, x, h):
            found = {k: np.zeros(v.shape) for k, v in params.items()}
            for k, (operand, df) in slopes(name, M, h, x).items():
                moved = same_unit(df) * (own @ ef.get(k, np.zeros_like(df)))
                ef[k] = decay_f * moved + (1 - decay_f) * df
                ex[k] = None if operand is None else decay_x * ex.get(k, 0) + operand
            correction = 1 - decay_f ** next(steps)
            for k, e in ef.items():
                found[k] = (s @ e if ex[k] is None else np.outer(ex[k], s @ e)) / correction
            return ravel_pytree(found)[0] + s @ (M * ~own_unit)

        return trace

    return rule


@pytest.mark.parametrize('name', CELLS)
def test_ottt_and_pp_prop_follow_their_recursions(name):
    """OTTT: an input leak times the instantaneous derivative."""
    for B, window in sizes(name, 'alif'):
        same(
            online(name, 'ottt', B, window, decay=LEAK),
            textbook(name, B, factorised(name, LEAK, 0.0)),
        )
        same(
            online(name, 'pp_prop', B, window, decay_or_rank=0.9),
            textbook(name, B, factorised(name, 0.9, 0.9)),
        )


@pytest.mark.parametrize('name', CELLS)
def test_three_factor_multiplies_the_trace_by_the_modulator(name):
    cell, params, start = CELLS[name]
    per_step = jnp.asarray(rng.randn(T))
    for B, window in sizes(name, 'lstm'):
        xs, ys = DATA[B]
        learner = braintrace.compile(step_of(cell), 'three_factor', params, start(B), xs[0])

        def run(m):
            return learner.grad(
                lambda out, y: loss(out, y).mean(),
                params,
                learner.init(params, start(B)),
                xs,
                ys,
                window=window,
                modulator=m,
            )[0][0]

        times = itertools.cycle(np.asarray(per_step) / T)  # the mean over the steps

        def rule(n, size, of_p, times=times):
            trace = carried(name, lambda across, own, E: own @ E)(n, size, of_p)
            return lambda across, own, M, s, x, h: trace(
                across, own, M, np.full(n, next(times)), x, h
            )

        def traced(grads):
            return {
                k: v for k, v in grads.items() if k != 'Y'
            }  # without a trace the reset gate gets the gradient of the loss

        same(traced(run(per_step)), traced(textbook(name, B, rule)))
    if name != 'gru':
        return
    units = jnp.broadcast_to(per_step[:, None, None], (T, B, H))
    same(run(units), run(per_step))
    with pytest.raises(ValueError, match='broadcast'):
        run(jnp.ones((T, 5)))
    with pytest.raises(RuntimeError, match='modulator'):
        run(None)


@pytest.mark.parametrize('rule', ['d_rtrl', 'pp_prop', 'eprop', 'snap 1'])
def test_what_outputs_read_of_the_old_state_is_credit_of_the_step_before(rule):
    """A read-out of the old state gives, one step later, what a read-out of the new state gives."""
    name, options, _ = {**TEXTBOOK, 'pp_prop': ('pp_prop', dict(decay_or_rank=0.9), None)}[rule]
    cell, params, start = CELLS['gru']
    xs, ys = DATA[3]
    found = []
    for old, x, y in ((True, xs, ys), (False, xs[:-1], ys[1:])):

        def step(p, h, x, old=old):
            new = cell(p, h, h, x)[0] + 0.1 * h.mean(-1, keepdims=True)
            return new, (h if old else new) @ p['o']

        learner = braintrace.compile(step, name, params, start(3), xs[0], **options)
        found.append(
            learner.grad(
                lambda out, y: loss(out, y).sum(),
                params,
                learner.init(params, start(3)),
                x,
                y,
                window=2,
                reduction='sum',
            )[0][0]
        )
    found[1]['Y'] = (
        found[0]['Y'] if rule != 'snap 1' else found[1]['Y']
    )  # a weight without a trace: its same-step gradient is gone when the credit comes
    same(*found)


@pytest.mark.parametrize('name', ['rnn', 'gru'])
def test_snap_of_masked_weights_follows_its_recursion_on_the_pattern(name):
    """Traces hold only weights that are not masked out, and units within reach."""
    cell, params, start = CELLS[name]

    def two(m, n):
        return (np.arange(m)[:, None] + 3 * np.arange(n)) % m < 2  # two weights for each output

    mask = {
        k: two(*v.shape) if v.ndim == 2 and k != 'o' else np.ones(v.shape)
        for k, v in params.items()
    }

    def masked(p, s, q, x):
        return cell({k: v * mask[k] for k, v in p.items()}, s, q, x)

    CELLS['masked'] = masked, params, start
    derivatives.cache_clear()
    try:
        n, M, across, own = (
            np.asarray(a) for a in derivatives('masked')[3](jnp.full(H, 0.5), DATA[1][0][0, 0])
        )
        for steps in (1, 2):
            reach = (
                (M != 0)
                if steps == 1
                else (M != 0) | ((across + own != 0).astype(int) @ (M != 0) > 0)
            )

            def rule(n, size, of_p, reach=reach):
                E = np.zeros((n, size))

                def trace(across, own, M, s, x, h):
                    nonlocal E
                    E = reach * ((across + own) @ E + M)
                    return s @ E

                return trace

            same(online('masked', 'snap', 3, 3, n=steps), textbook('masked', 3, rule))
    finally:
        del CELLS['masked']
        derivatives.cache_clear()
    sizes = [
        {
            k: v.size
            for k, v in braintrace.compile(step_of(f), 'snap', params, start(3), DATA[3][0][0], n=1)
            .init(params, start(3))
            .traces.items()
        }
        for f in (masked, cell)
    ]
    assert all(sizes[0][k] < sizes[1][k] for k in set('RZYN') & set(params))
