"""A step that is not finite costs that sample that step, and nothing else."""

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import braintrace

T, B, BAD = 4, 3, (2, 1)  # the bad step and its sample
KEEP, REST = np.array([0, 2]), np.array([0, 1, 3])
rng = np.random.RandomState(0)
P = {'W': rng.randn(2, 3), 'a': rng.rand(3), 'o': rng.randn(3, 1)}
H, X, Y = rng.randn(B, 3), rng.randn(T, B, 2), rng.randn(T, B)


def leaky(p, h, x):
    h = jnp.tanh(p['a'] * h + x @ p['W'])
    return h, h @ p['o']


def each(out, y):
    return (out[:, 0] - y) ** 2


def together(out, y):
    return each(out, y).mean()


def run(learner, loss, xs, ys, h, **more):
    carry = learner.init(P, h)
    (grads, losses), carry = learner.grad(loss, P, carry, xs, ys, reduction='sum', **more)
    return grads, losses, carry


CASES = {
    'eprop': ({'kappa_filter_decay': 0.5}, together),
    'd_rtrl': ({'vjp_method': 'multi-step'}, each),
}


@pytest.mark.parametrize('case', CASES)
def test_the_other_samples_and_steps_go_on(case):
    """As if the bad step of the one sample had not been: its others move up, and a step that no
    loss looks at fills the end."""
    rule, (options, loss) = case, CASES[case]
    learner = braintrace.compile(leaky, rule, P, H, X[0], nonfinite='skip', **options)
    xs = X.copy()
    xs[BAD] = np.nan
    grads, losses, carry = run(learner, loss, xs, Y, H)
    plain = braintrace.compile(leaky, rule, P, H, X[0], **options)
    moved, targets, mask = X.copy(), Y.copy(), np.ones((T, B))
    moved[:, 1], targets[:, 1] = X[[*REST, 2], 1], Y[[*REST, 2], 1]
    mask[-1, 1] = 0
    expected, _, after = run(plain, each, moved, targets, H, mask=mask)
    share = 1 if loss is each else 1 / B
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, share * b, rtol=1e-10), grads, expected)
    np.testing.assert_allclose(carry.state[KEEP], after.state[KEEP])
    h = H[1]
    for x in X[REST, 1]:
        h = leaky(P, h, x)[0]
    np.testing.assert_allclose(carry.state[1], h)
    assert carry.skipped == 1 and carry.steps == T and np.isfinite(losses).all()
    mesh = jax.make_mesh((1,), ('data',), axis_types=(jax.sharding.AxisType.Auto,))
    placed = learner.init(P, jnp.array(H), shardings=learner.shardings(mesh)[1])
    for begin in (placed, learner.init(P, jnp.array(H))):
        jax.jit(lambda c: c, donate_argnums=0)(begin)  # no buffer is there twice
    if loss is each:
        assert losses[BAD] == 0
    lost = H.copy()
    lost[0] = np.nan  # a state that never comes back costs that sample all its steps
    grads, _, carry = run(learner, loss, X, Y, lost)
    assert carry.skipped == T and all(np.isfinite(g).all() for g in grads.values())
    assert np.isfinite(carry.state[1:]).all() and not np.array_equal(carry.state[1:], H[1:])


def conv(p, h, x):
    h = p['a'] * h + jax.lax.conv(x, p['k'], (1,), 'SAME')
    return h, h.sum((1, 2))


@pytest.mark.parametrize('rule', ['d_rtrl', 'pp_prop', 'hybrid', 'eprop'])
def test_where_traces_have_their_samples(rule):
    of_rule = {
        'pp_prop': {'decay_or_rank': 0.5},
        'hybrid': {'decay_or_rank': 0.5},
        'eprop': {'kappa_filter_decay': 0.5, 'trace_dtype': 'bfloat16'},
    }
    p = {'k': jnp.ones((4, 2, 2)), 'a': jnp.ones((4, 1))}
    state, x = jnp.zeros((B, 4, 5)), jnp.ones((B, 2, 5))
    core = braintrace.compile(conv, rule, p, state, x, **of_rule.get(rule, {})).compiled_step().core
    assert core.samples.told_apart and core.trace_axes.keys() == core.shapes.keys()
    assert {core.shapes[key].shape[axis] for key, axis in core.trace_axes.items()} == {B}


def test_a_bad_gradient_of_a_good_state():
    """The root of zero has no slope: without samples to tell apart, the step is left out."""

    def step(p, h, x):
        h = 0.9 * h + jnp.sqrt(p * x)
        return h, h

    xs = jnp.array([1.0, 0.0, 2.0])
    learner = braintrace.compile(
        step, 'd_rtrl', jnp.ones(()), jnp.zeros(()), xs[0], nonfinite='skip'
    )

    def grad(learner, xs):
        carry = learner.init(jnp.ones(()), jnp.zeros(()))
        return learner.grad(lambda out: out, jnp.ones(()), carry, xs, reduction='sum')

    (found, losses), carry = grad(learner, xs)
    plain = braintrace.compile(step, 'd_rtrl', jnp.ones(()), jnp.zeros(()), xs[0])
    (expected, _), after = grad(plain, xs[jnp.array([0, 2])])
    np.testing.assert_allclose(found, expected)
    np.testing.assert_allclose(carry.state, after.state)
    assert carry.skipped == 1 and losses[1] == 0


def test_raise_says_where():
    xs = X.copy()
    xs[BAD] = np.inf
    learner = braintrace.compile(leaky, 'd_rtrl', P, H, X[0], nonfinite='raise')
    carry = learner.init(P, H)
    with pytest.raises(
        FloatingPointError, match='hidden state state .group 0., sample 1, .*step 2'
    ):
        learner.evolve(P, carry, xs * np.where(np.isinf(xs), np.nan, 1))
    (grads, _), _ = learner.grad(each, P, carry, X, Y)
    assert np.isfinite(grads['W']).all()
    with pytest.raises(Exception, match='The loss, sample 1, is not finite after step 2'):
        bad = jnp.asarray(Y).at[BAD].set(np.nan)
        jax.block_until_ready(jax.jit(lambda y: learner.grad(each, P, carry, X, y))(bad))
        jax.effects_barrier()


@pytest.mark.parametrize('by_sample', [False, True])
def test_a_masked_step_is_not_read(by_sample):
    learner = braintrace.compile(leaky, 'd_rtrl', P, H, X[0])
    mask = np.ones((T, B) if by_sample else T)
    at = BAD if by_sample else BAD[0]
    mask[at] = 0
    found = []
    for value in (np.nan, 0.0):
        xs, ys = X.copy(), Y.copy()
        xs[at] = ys[at] = value
        carry = learner.init(P, H)
        (grads, _), carry = learner.grad(each, P, carry, xs, ys, mask=mask)
        found.append((grads, carry))
    for a, b in zip(*map(jax.tree.leaves, found), strict=True):
        assert np.isfinite(a).all() and np.array_equal(a, b)


def test_means_are_normalised_whatever_the_mask_sums_to():
    learner = braintrace.compile(leaky, 'd_rtrl', P, H, X[0])
    grads = [
        learner.grad(each, P, learner.init(P, H), X, Y, mask=mask)[0][0]
        for mask in (np.ones(T), np.full(T, 0.01))
    ]
    jax.tree.map(np.testing.assert_allclose, *grads)


def test_a_modulated_gradient_follows_the_reduction():
    learner = braintrace.compile(leaky, 'three_factor', P, H, X[0])
    grads = [
        learner.grad(
            each, P, learner.init(P, H), X, Y, modulator=1.0, reduction=reduction, window=window
        )[0][0]
        for reduction, window in (('mean', T), ('sum', 2))
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a * T * B, b), *grads)


class Net(brainstate.nn.Module):
    def __init__(self):
        super().__init__()
        self.W, self.a = brainstate.ParamState(P['W']), brainstate.ParamState(P['a'])

    def init_state(self, batch_size=None, **kwargs):
        self.h = brainstate.HiddenState(jnp.asarray(H))

    def update(self, x):
        self.h.value = jnp.tanh(self.a.value * self.h.value + x @ self.W.value)
        return self.h.value


def test_modules():
    learner = braintrace.compile(Net(), 'd_rtrl', X[0], nonfinite='skip')
    x = jnp.asarray(X[0]).at[1].set(np.nan)
    weights = learner.param_states
    grads = brainstate.transform.grad(lambda: (learner(x)[KEEP] ** 2).sum(), weights)()
    assert all(np.isfinite(g).all() and g.any() for g in grads.values())
    h = learner.model4compile.h.value
    assert learner.skipped == 1 and np.array_equal(h[1], H[1]) and not np.array_equal(h, H)
    found = learner.etrace['W->h'].value
    assert not found[:, 1].any() and found[:, 0].any()


def test_modules_raise_and_stay_as_they_were():
    learner = braintrace.compile(Net(), 'd_rtrl', X[0], nonfinite='raise')
    xs = jnp.asarray(X).at[BAD].set(np.nan)
    with pytest.raises(FloatingPointError, match='hidden state h .group 0., sample 1, .*step 2'):
        learner.etrace_grad(xs, step_fn=lambda x: learner(x).sum())
    assert np.array_equal(learner.model4compile.h.value, H) and learner.running_index.value == 0
    assert learner.skipped == 0


def test_counts_do_not_wrap():
    learner = braintrace.compile(leaky, 'd_rtrl', P, H, X[0])
    carry = learner.init(P, H)._replace(steps=jnp.int32(2**31 - 3))
    assert learner.evolve(P, carry, X)[1].steps == 2**31 - 1
