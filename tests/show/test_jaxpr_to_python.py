"""Programs of JAX as Python, run again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from jax import lax
from random_programs import build, example, lasting, programs, spike, straight_through

import braintrace
from braintrace import jaxpr_to_python

rng = np.random.RandomState(5)
x, y = jnp.asarray(rng.randn(3, 4)), jnp.asarray(rng.randn(3, 4))
w, v = jnp.asarray(rng.randn(4, 5)), jnp.asarray(rng.rand(4))
n, key = jnp.array([2, 0, 1]), jax.random.key(3)
INPUTS = x, y, w, v, n


def again(f, *args, backend='jax'):
    """The function that the text of a program is."""
    leaves, tree = jax.tree.flatten(args)
    program = jax.make_jaxpr(lambda *a: jax.tree.leaves(f(*tree.unflatten(a))))(*leaves)
    text = jaxpr_to_python(program, backend=backend)
    names = {}
    exec(text, names)
    return lambda *args: names['f'](*jax.tree.leaves(args)), text


def check(f, *args, backend='jax'):
    made, text = again(f, *args, backend=backend)
    expected = jax.tree.leaves(jax.jit(f)(*args))
    if backend == 'numpy':
        args = jax.tree.map(np.asarray, args)
    else:
        made = jax.jit(made)
    for a, b in zip(made(*args), expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype), text
        if jax.dtypes.issubdtype(b.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12, err_msg=text)
    return text


def loop(x, w):
    def body(carry, at):
        h, k = carry
        return (jnp.tanh(h @ w[:, :4] + at), k + 1), (h.sum(), k)

    return lax.scan(body, (x, 0), jnp.stack([y, y + 1, y * 2]), reverse=True)


def search(x):
    return lax.while_loop(lambda c: (c[0] ** 2).sum() > 1, lambda c: (c[0] * v, c[1] + 1), (x, 0))


def branches(x, k):
    cases = [jnp.sin, lambda a: a @ w[:, :4], lambda a: a[::-1]]
    return lax.switch(k, cases, x), lax.cond(k > 1, lambda a: a * v, lambda a: a + 1, x)


BOTH = {  # written for JAX and for numpy
    'arithmetic': lambda x, y, w, v, n: (
        -(x - y) * (x + 2) / (1 - (y - 1)),
        x**2,
        x**-1,
        x / lax.rsqrt(v),
        2 ** (x / y),
        -(x**2),
    ),
    'signs': lambda x, y, w, v, n: (
        x - (-y),
        -x + y,
        -x - y,
        x * -y,
        x - (y - x),
        x / (y / x),
        x / -(y * x),
        x @ -(w * v[:, None]),
    ),
    'comparison': lambda x, y, w, v, n: (
        (x > y) & ~(x < 1) | (y == x),
        (x != y) ^ (x >= 0.5),
        x <= v,
    ),
    'choice': lambda x, y, w, v, n: (
        jnp.where(x > 0, x, 0),
        jnp.where(x > 0, 2.0, 3.0),
        jnp.clip(x, -1, v),
    ),
    'functions': lambda x, y, w, v, n: (
        jnp.tanh(x),
        jax.nn.sigmoid(x),
        jnp.exp(x),
        jnp.log1p(v),
        jnp.sqrt(v),
    ),
    'types': lambda x, y, w, v, n: (
        (x > 0).astype(x.dtype),
        x.astype(int),
        n.astype(jnp.float32),
        n / 2,
    ),
    'truth': lambda x, y, w, v, n: ((x > 0) * y, y - (x > 0), (x > 0) * 2.0, (x > 0).sum()),
    'sums': lambda x, y, w, v, n: (
        x.sum(),
        x.max(0),
        x.min(-1),
        x.prod(1, keepdims=True),
        (x > 0).all(1),
    ),
    'products': lambda x, y, w, v, n: (
        x @ w,
        w.T @ v,
        x @ v,
        x.T @ y,
        x @ y.T,
        jnp.outer(v, v),
        v @ v,
    ),
    'einsums': lambda x, y, w, v, n: (
        jnp.einsum('bi,bj->bij', x, y),
        jnp.einsum('bi,ij->jb', x, w),
        jnp.einsum('bij,bj->i', x[:, :, None] * w, x @ w),
    ),
    'mixed': lambda x, y, w, v, n: (
        x @ w * (x @ w),
        2 * x @ w,
        x / v @ w,
        (x + y) @ w,
        x * (y @ w @ w.T),
    ),
    'layout': lambda x, y, w, v, n: (
        x.T,
        x[:, None],
        x[None, :, ::2],
        x[1],
        x[-1, 1:3],
        x[::-1],
        x.reshape(-1),
    ),
    'reshape': lambda x, y, w, v, n: (
        x.reshape(2, 6),
        x.reshape(3, 1, 4),
        x[:1].reshape(4, 1),
        jnp.ravel(v),
    ),
    'broadcast': lambda x, y, w, v, n: (
        jnp.broadcast_to(v, (3, 4)),
        jnp.zeros((2, 3)),
        jnp.full((3,), 2.5),
    ),
    'beside': lambda x, y, w, v, n: (
        jnp.concatenate([x, y], -1),
        jnp.stack([x, y], 1),
        jnp.pad(x, ((0, 0), (1, 2))),
    ),
    'repeated': lambda x, y, w, v, n: (jnp.tile(v, 3), jnp.stack([v, v]), jnp.concatenate([x, x])),
    'counting': lambda x, y, w, v, n: (
        jnp.arange(9),
        jnp.eye(3),
        jnp.arange(2.0),
        jnp.cumsum(x, 1),
        x.argmax(1),
    ),
    'constants': lambda x, y, w, v, n: (
        x * np.arange(12.0).reshape(3, 4),
        x + np.tri(4)[1],
        jnp.array([1, 5]),
    ),
    'rows': lambda x, y, w, v, n: (x[n], x[np.array([1, 1])], jnp.take(x, n, 0, mode='clip')),
    'sort': lambda x, y, w, v, n: (
        jnp.sort(x, 0),
        jnp.round(x),
        jnp.floor(x),
        jnp.sign(x),
        jnp.abs(x),
    ),
    'batch of one': lambda x, y, w, v, n: (
        x[:1] @ w,
        x[:1].sum(0),
        x[:1] * y,
        (x[:1] * v).reshape(4),
    ),
    'in float32': lambda x, y, w, v, n: (
        x.astype(jnp.float32) * 0.1 + 1,
        jnp.zeros(3, jnp.float32),
    ),
    'slopes': lambda x, y, w, v, n: jax.grad(lambda a: (jnp.tanh(a) * jax.nn.sigmoid(a)).sum())(x),
    'split': lambda x, y, w, v, n: jax.grad(
        lambda a: sum(p.sum() * k for k, p in enumerate(jnp.split(a, 2)))
    )(w),
    'jacobian': lambda x, y, w, v, n: jax.jacrev(lambda a: jnp.tanh(a @ w[:, :4] * v))(v),
    'scan': lambda x, y, w, v, n: loop(x, w),
    'while': lambda x, y, w, v, n: search(x),
    'branches': lambda x, y, w, v, n: (branches(x, n[0]), branches(x, n[1])),
    'nested': lambda x, y, w, v, n: lax.fori_loop(
        0, 3, lambda i, c: lax.cond(i > 1, jnp.sin, lambda a: a * v, c), x
    ),
}
BY_JAX = {  # written for JAX alone
    'gather': lambda x, y, w, v, n: (x[n, n], x[:, n], jnp.take_along_axis(x, n[:, None], 1)),
    'scatter': lambda x, y, w, v, n: (
        x.at[n].add(y),
        x.at[:, 1].set(0),
        x.at[n, n].max(9),
        w.at[1:3].mul(2),
    ),
    'slices': lambda x, y, w, v, n: (
        lax.dynamic_slice(x, (n[0], 0), (1, 4)),
        lax.dynamic_update_slice(x, y[:1], (n[2], 0)),
        jnp.roll(x, n[0]),
    ),
    'convolution': lambda x, y, w, v, n: (
        lax.conv_general_dilated(x[None], w[:3, :3, None], (1,), 'SAME'),
        lax.conv_general_dilated(
            x[None, :, :, None],
            w[None, :2, :3, None],
            (1, 2),
            [(1, 0), (2, 2)],
            dimension_numbers=('NHWC', 'OHWI', 'NHWC'),
        ),
    ),
    'windows': lambda x, y, w, v, n: (
        lax.reduce_window(x, 0.0, lax.add, (1, 2), (1, 2), 'VALID'),
        lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 1), 'SAME'),
    ),
    'special': lambda x, y, w, v, n: (
        lax.erf(x),
        lax.rsqrt(v),
        lax.lgamma(v),
        lax.erf_inv(v / 2),
        n // 2,
        n % 2,
    ),
    'sorted': lambda x, y, w, v, n: (
        jnp.argsort(x, 0),
        lax.top_k(x, 2),
        lax.cummax(x),
        lax.cumsum(x, reverse=True),
    ),
    'padded': lambda x, y, w, v, n: (lax.pad(x, 1.0, [(1, 0, 1), (0, -1, 0)]), lax.rev(x, (0,))),
    'random': lambda x, y, w, v, n: (
        jax.random.normal(key, (3,)),
        jax.random.split(key),
        jax.random.uniform(jax.random.fold_in(key, 2), (2,)),
        jax.random.bits(jax.random.PRNGKey(1), (2,)),
    ),
    'matrices': lambda x, y, w, v, n: (
        jnp.linalg.eigh(x @ x.T),
        jnp.linalg.svd(x, full_matrices=False),
        jnp.linalg.svd(x, compute_uv=False),
    ),
    'large constant': lambda x, y, w, v, n: x @ np.sin(np.arange(4 * 400.0)).reshape(4, 400),
}


@pytest.mark.parametrize('name', BOTH)
def test_written_and_run_again(name):
    text = check(BOTH[name], *INPUTS)
    assert not any(word in text for word in ('mul(', 'broadcast_in_dim', 'convert_element_type'))
    check(BOTH[name], *INPUTS, backend='numpy')


@pytest.mark.parametrize('name', BY_JAX)
def test_written_and_run_again_by_jax(name):
    check(BY_JAX[name], *INPUTS)


@given(code=programs(2, 8))
@settings(lasting, max_examples=8)
def test_random_programs(code):
    step, args = build(code), example()
    check(step, *args)


def test_custom_derivatives_are_kept():
    def f(a, b):
        return (spike(a) * straight_through(a, b)).sum()

    made, text = again(f, x, y)
    assert '@jax.custom_jvp' in text and '.defvjp(' in text
    expected = jax.grad(f, (0, 1))(x, y)
    grads = jax.grad(lambda *inputs: made(*inputs)[0], (0, 1))(x, y)
    for a, b in zip(grads, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_names():
    program = jax.make_jaxpr(lambda h, x, w: jnp.tanh(0.5 * h + x @ w))(jnp.ones(5), v, w)
    text = jaxpr_to_python(program, ['h', 'x', 'w'], function='step')
    assert 'def step(h, x, w):' in text and 'jnp.tanh(0.5 * h + x @ w)' in text
    for wrong in (['h'], ['h', 'h', 'w'], ['h', 'x', 'not a name']):
        with pytest.raises(ValueError, match='`names` must be 3 different names'):
            jaxpr_to_python(program, wrong)
    with pytest.raises(TypeError, match='`closed_jaxpr` must be a program'):
        jaxpr_to_python(lambda x: x)


def test_what_cannot_be_written_is_refused_by_name():
    def callback(a):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(a.shape, a.dtype), a)

    with pytest.raises(braintrace.NotSupportedError, match='`pure_callback`'):
        jaxpr_to_python(jax.make_jaxpr(callback)(x))
    with pytest.raises(braintrace.NotSupportedError, match='numpy has no `erf`'):
        jaxpr_to_python(jax.make_jaxpr(lax.erf)(x), backend='numpy')
