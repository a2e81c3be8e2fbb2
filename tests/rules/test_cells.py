"""Cells that others use, complex states among them, against BPTT in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cells_of_others import (
    CELLS,
    SPIRAL,
    B,
    Cell,
    D,
    H,
    bptt,
    complex_draw,
    data,
    draw,
    imaginary,
    loss,
    online,
)
from inside import with_random_key

import braintrace


def close(a, b, tolerance=1e-10):
    assert max(np.abs(v).max() for v in jax.tree.leaves(b)) > 1e-2  # it is alive
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_allclose(x, y, atol=tolerance)


@pytest.mark.parametrize('name, lead', [*[(name, (B,)) for name in CELLS], ('LRU', ())])
def test_rtrl_and_the_rule_for_each_cell_are_exact(name, lead):
    cell = CELLS[name]

    @jax.jit
    def gradients():
        exact = {} if cell.rule == 'rtrl' else {cell.rule: cell.options}
        rules = {'rtrl': {}, **exact}
        return bptt(cell, lead), [online(cell, r, 2, lead, **o) for r, o in rules.items()]

    true, found = gradients()
    for gradient in found:
        close(gradient, true)


# ---- complex states ----


def folded(p, h, x):
    """Not holomorphic: conjugates, sizes and parts."""
    h = p['lam'] * jnp.conj(h) * jnp.tanh(jnp.abs(h)) + (x @ p['B']) * (1 + 0.2j) + 0.3 * h.real
    return h, jnp.abs(h @ p['C'])


def mixed(p, h, x):
    h = jnp.tanh(h @ p['R'] + x @ p['B']) + 0.3 * h * p['lam']
    return h, (h @ p['C']).real


PARAMS = dict(lam=complex_draw(H), B=draw(D, H), R=complex_draw(H, H) / 2, C=SPIRAL['C'])
FOLDED, MIXED = Cell(folded, PARAMS, imaginary), Cell(mixed, PARAMS, imaginary)


def test_a_complex_state_may_leave_the_complex_numbers():
    @jax.jit
    def gradients():
        return bptt(FOLDED, ()), [online(FOLDED, rule, 2, ()) for rule in ('d_rtrl', 'rtrl')]

    true, found = gradients()
    for gradient in found:
        close(gradient, true)


def spelled_out(p, h, x):
    """The LRU with the two parts of its state as two real states."""
    size = jnp.exp(-jnp.exp(p['nu']))
    a, b = size * jnp.cos(p['angle']), size * jnp.sin(p['angle'])
    h = (a * h[0] - b * h[1] + jnp.exp(p['gain']) * (x @ p['B']), b * h[0] + a * h[1])
    return h, h[0] @ p['C'].real - h[1] @ p['C'].imag + x @ p['D']


def two_parts(*lead):
    h = imaginary(*lead)
    return h.real, h.imag


RULES = {
    'pp_prop': dict(decay_or_rank=0.9),
    'eprop': dict(kappa_filter_decay=0.7),
    'rflo': dict(decay=0.6),
    'snap': dict(n=2),
    'low_rank': dict(rank=3),
}


@pytest.mark.parametrize('rule', RULES)
def test_a_complex_state_is_two_real_states(rule):
    """Every rule gives what it gives where the model is written with two real states a unit."""
    lru = CELLS['LRU']
    real_pair = lru._replace(step=spelled_out, state=two_parts)

    @jax.jit
    def gradients():
        return [online(cell, rule, 2, **RULES[rule]) for cell in (lru, real_pair)]

    close(*gradients())


@pytest.mark.parametrize('rule', ['uoro', 'kf_rtrl'])
def test_random_products_of_complex_states_are_unbiased(rule):
    lru, start, (xs, ys) = CELLS['LRU'], imaginary(), data(())
    learner = braintrace.compile(lru.step, rule, lru.params, start, xs[0])
    carry = learner.init(lru.params, start)
    keys = jax.vmap(jax.random.key_data)(jax.random.split(jax.random.key(0), 500))

    @jax.jit
    @jax.vmap
    def gradients(key):
        drawn = with_random_key(carry, key)
        return learner.grad(loss, lru.params, drawn, xs, ys, window=2)[0][0]

    found, true = gradients(keys), bptt(lru, ())
    for k in ('nu', 'angle', 'B'):
        spread = found[k].std(0).max() / np.sqrt(len(keys))
        assert np.abs(found[k].mean(0) - true[k]).max() < 6 * spread + 1e-10
    assert 1e-4 < spread


def test_recurrence_through_a_complex_matrix():
    """The whole of it by SnAp, and on its diagonal by OSTL: with one unit there is no other."""
    one = {k: v[..., :1] if k == 'B' else v[:1] for k, v in PARAMS.items()}
    alone = MIXED._replace(
        params=one | dict(R=PARAMS['R'][:1, :1]), state=lambda *lead: imaginary(*lead)[..., :1]
    )

    @jax.jit
    def gradients():
        of_all = bptt(MIXED), online(MIXED, 'snap', 2, n=2)
        return of_all, (bptt(alone), online(alone, 'ostl_recurrent', 2))

    for true, found in gradients():
        close(found, true)


def test_a_complex_trace_needs_a_complex_type():
    cell = CELLS['S5']
    start, x = cell.state(B), jnp.ones((B, D))
    learner = braintrace.compile(cell.step, 'd_rtrl', cell.params, start, x, trace_dtype='float32')
    stored = learner.init(cell.params, start).traces
    assert {str(e.dtype) for e in stored.values()} == {'complex64'}
    with pytest.raises(braintrace.NotSupportedError, match='`trace_dtype`.*complex.*bfloat16'):
        braintrace.compile(cell.step, 'd_rtrl', cell.params, start, x, trace_dtype='bfloat16')


# ---- the leak of RFLO ----


def test_rflo_takes_a_leak_for_each_unit_or_that_of_the_model():
    cell = CELLS['continuous-time RNN']
    leak = 1 - 0.2 * np.exp(np.asarray(cell.params['rate']))

    @jax.jit
    def gradients():
        leaks = leak, 'model', lambda path: leak[None]
        return online(cell, 'd_rtrl', 2), [online(cell, 'rflo', 2, decay=e) for e in leaks]

    wanted, found = gradients()
    for gradient in found:
        close(gradient, wanted)


@pytest.mark.parametrize(
    'decay, message',
    [
        (np.ones(H), r'`decay` must have numbers in \[0, 1\)'),
        (np.full(H + 1, 0.5), r'`decay` has shape \(5,\).*units \(2, 4\)'),
        ('own', '`decay` must be a number'),
        (1.5, r'`decay` must be a number in \[0, 1\)'),
        (lambda path: 'none', '`decay` must be a number'),
    ],
)
def test_a_leak_that_cannot_be_is_refused(decay, message):
    with pytest.raises(ValueError, match=message):
        online(CELLS['continuous-time RNN'], 'rflo', 2, decay=decay)


def test_other_leaks_are_one_number():
    with pytest.raises(ValueError, match='`decay` must be a number'):
        online(CELLS['continuous-time RNN'], 'ottt', 2, decay=np.full(H, 0.5))
