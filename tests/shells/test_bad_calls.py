"""Calls that are refused: by name, with what to do, and with model and learner as they were."""

import re

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import braintrace

T, B = 3, 2
X, Y = jnp.ones((T, B, 2)), jnp.zeros((T, B, 1))
P, H = {'W': jnp.ones((2, 3)), 'a': jnp.full(3, 0.5)}, jnp.zeros((B, 3))


class Net(brainstate.nn.Module):
    def __init__(self, dtype=float, weights=float):
        super().__init__()
        self.dtype = dtype
        self.W = brainstate.ParamState(P['W'].astype(weights))
        self.a = brainstate.ParamState(P['a'])

    def init_state(self, batch_size=B, **kwargs):
        self.h = brainstate.HiddenState(jnp.zeros((batch_size, 3), self.dtype))

    def update(self, x):
        new = self.a.value * self.h.value + x @ self.W.value
        self.h.value = new.astype(self.dtype)
        return self.h.value


def step(p, h, x):
    h = p['a'] * h + x @ p['W']
    return h, h


def loss(out, *targets):
    return (out**2).mean()


@pytest.fixture(scope='module')
def module():
    net = Net()
    learner = braintrace.compile(net, 'd_rtrl', X[0], batch_size=B)
    learner.etrace_evolve(X)
    return learner


@pytest.fixture(scope='module')
def modulated():
    return braintrace.compile(Net(), 'three_factor', X[0], batch_size=B)


@pytest.fixture(scope='module')
def plain():
    return braintrace.compile(step, 'd_rtrl', P, H, X[0])


def compiled(**options):
    return braintrace.compile(step, 'd_rtrl', P, H, X[0], **options)


def grad(module, f, *sequences, **options):
    def step_fn(x, *targets):
        return f(module(x), *targets)

    return module.etrace_grad(*(sequences or (X,)), step_fn=step_fn, **options)


def learn(module, **options):
    def step_fn(x):
        return loss(module(x))

    return module.etrace_learn(X, step_fn=step_fn, update=lambda g: None, **options)


def of(plain, f=loss, xs=X, state=H, **options):
    return plain.grad(f, P, plain.init(P, state), xs, **options)


def narrower(plain):
    carry = plain.init(P, H)
    traces = {name: a[..., :1] for name, a in carry.traces.items()}
    return plain.grad(loss, P, carry._replace(traces=traces), X)


W = P['W']
RANDOM_FEEDBACK = braintrace.ETraceConfig(learning_signal='random_feedback')
OPTIONS = [
    (lambda: compiled(trace='some'), ValueError, "`trace` .*'all', 'marked'.*'some'"),
    (lambda: compiled(trace_dtype='int32'), ValueError, '`trace_dtype` .*float'),
    (lambda: compiled(trace_dtype='bool'), ValueError, '`trace_dtype` .*float'),
    (lambda: compiled(memory_budget=-1), ValueError, '`memory_budget` .*at least 1'),
    (
        lambda: braintrace.compile(step, 'eprop', P, H, X[0], feedback='random'),
        ValueError,
        "'eprop' .*needs `random_feedback_key`",
    ),
    (
        lambda: braintrace.compile(step, RANDOM_FEEDBACK, P, H, X[0]),
        ValueError,
        'random_feedback.* needs `random_feedback_key`',
    ),
    (
        lambda: braintrace.ParamDimVjpAlgorithm(Net(), config=RANDOM_FEEDBACK),
        ValueError,
        'random_feedback.* it needs `random_feedback_key`',
    ),
    (lambda: compiled(nonfinite='drop'), ValueError, "`nonfinite` .*'skip'.*'drop'"),
    (
        lambda: braintrace.compile(lambda p, h, x: 2 * (h + x @ W,), 'd_rtrl', {'b': W}, H, X[0]),
        ValueError,
        'nothing of `params`.*closes over .*no gradient',
    ),
    (
        lambda: braintrace.compile(lambda p, h, x: h * p['a'], 'd_rtrl', P, H, X[0]),
        TypeError,
        r'`step` must return \(state, out\)',
    ),
]
OPTIONS.append(
    (
        lambda: braintrace.compile(Net(int), 'd_rtrl', X[0], batch_size=B),
        braintrace.CompilationError,
        r'No hidden state is of a float type: h \(int',
    )
)
OPTIONS += [
    (
        lambda: braintrace.compile(
            lambda p, h, x: 2 * (h + (x @ p['W']).astype(int),), 'd_rtrl', P, H.astype(int), X[0]
        ),
        braintrace.CompilationError,
        r'No hidden state is of a float type: state \(int',
    ),
    (
        lambda: braintrace.compile(Net(weights=int), 'd_rtrl', X[0], batch_size=B),
        braintrace.CompilationError,
        r'The parameter W is i.* no gradient: make it a float',
    ),
    (
        lambda: braintrace.compile(lambda p, h, x: 2 * (h * p['a'] + x @ W,), 'd_rtrl', P, H, X[0]),
        ValueError,
        'closes over W instead of taking it from `params`',
    ),
    (
        lambda: braintrace.compile(3, 'd_rtrl', X[0]),
        TypeError,
        '`model` must be a module .* or a function',
    ),
    (lambda: compiled(trace_dtpe='x'), TypeError, 'no option `trace_dtpe`. It takes trace_dtype'),
    (lambda: compiled(batch_size=2), TypeError, '`batch_size` is for modules'),
    (lambda: braintrace.compile('d_rtrl', step, P, H, X[0]), TypeError, 'The model comes first'),
    (lambda: braintrace.compile(step, P, H, X[0]), TypeError, 'got dict. It comes after the model'),
    (lambda: braintrace.compile(step, 'd_rtrl', P, H), TypeError, "cannot be called so, .*'x'"),
    (lambda: braintrace.compile(step, 'd_rtrl', P, H, X), ValueError, r'one step, `xs\[0\]`'),
    (lambda: braintrace.compare(step, P, H, X[0], windows=1), ValueError, r'such as \(1, 16\)'),
    (lambda: braintrace.compare(step, P, H, X[0], repeats=0), ValueError, '`repeats` .*got 0'),
    (
        lambda: braintrace.compile(Net(), 'd_rtrl', X[0], hidden=brainstate.HiddenState),
        TypeError,
        '`hidden` .*a `brainstate.HiddenState`',
    ),
]
OF_PLAIN = [
    (lambda p: of(p, lambda out: (out > 0).sum()), TypeError, '`loss_fn` .*floating.*int'),
    (lambda p: of(p, lambda out: (out * 1j).sum()), TypeError, '`loss_fn` .*real.*complex'),
    (lambda p: of(p, lambda out: jnp.ones(())), ValueError, '`loss_fn` depends on no parameter'),
    (lambda p: of(p, lambda out: (out.sum(), out)), ValueError, '`loss_fn` .*one loss.*2 arrays'),
    (lambda p: of(p, mask=np.array([1, -1, 1])), ValueError, '`mask` .*at least 0'),
    (lambda p: of(p, mask=np.array([1, np.nan, 1])), ValueError, '`mask` .*finite'),
    (lambda p: of(p, xs=X[0]), ValueError, '`xs` has no time axis'),
    (lambda p: of(p, xs=X[:, :1, :]), ValueError, 'trace W->state is .* needs'),
    (
        lambda p: of(p, xs=jnp.ones((T, 5, 2))),
        ValueError,
        'number of samples differs, 5 and 2.*init',
    ),
    (lambda p: of(p, xs=X[..., :1]), ValueError, r'`xs` is .*\[2, 1\].* compiled for .*\[2, 2\]'),
    (
        lambda p: p.grad(lambda out, y: (out - y).sum(), P, p.init(P, H), X, jnp.ones((T, 5, 3))),
        ValueError,
        r'fails for .*\[5, 3\] as inputs .*samples differs, 5 and 2',
    ),
    (
        lambda p: p.grad(lambda out, y: (out - y).sum(), P, p.init(P, H), X, Y[..., [0, 0]]),
        TypeError,
        r'given float\d+\[2, 3\] as `out` and float\d+\[2, 2\] as `targets`',
    ),
    (
        lambda p: of(p, lambda out, y: (out - y).sum()),
        TypeError,
        r"missing .*'y'.* and nothing as `targets`",
    ),
    (lambda p: braintrace.compile(step, 'auto', P, X[0], H), ValueError, 'runs with .*exchanged'),
    (lambda p: p.init(P, jnp.zeros((B, 4))), ValueError, '`state` is .*compiled for .*samples'),
    (lambda p: of(p, modulator=1.0), TypeError, 'takes no `modulator`'),
    (lambda p: p.grad(P, loss, p.init(P, H), X), TypeError, '`loss_fn` must be a function'),
    (lambda p: p.grad(loss, P, (H, {}), X), TypeError, '`carry` must be what `init` .*got tuple'),
    (narrower, ValueError, 'trace W->state is .* there, and this call needs .*init'),
]
OF_MODULE = [
    (lambda m: m.reset_state('a'), TypeError, '`batch_size` must be an int'),
    (lambda m: grad(m, lambda out: (out.sum(), out)), TypeError, 'pass has_aux=True'),
    (lambda m: grad(m, jnp.sum, has_aux=True), TypeError, r'pair \(loss, aux\)'),
    (lambda m: grad(m, lambda out: jnp.argmax(out)), TypeError, '`step_fn` .*floating'),
    (lambda m: grad(m, lambda out: jnp.ones(())), ValueError, '`step_fn` depends on no parameter'),
    (
        lambda m: grad(m, jnp.sum, weights={'w': brainstate.ParamState(W)}),
        ValueError,
        "`weights`: the state under 'w' .*param_states",
    ),
    (lambda m: grad(m, jnp.sum, mask=-np.ones(T)), ValueError, '`mask` .*at least 0'),
    (
        lambda m: grad(m, lambda out, y: (out - y).sum(), X, jnp.ones((T, 5, 3))),
        ValueError,
        r'fails for .*\[5, 3\] as inputs .*samples differs, 5 and 2',
    ),
    (lambda m: m(jnp.ones((5, 2))), ValueError, 'number of samples differs, 5 and 2.*batch_size'),
    (
        lambda m: m.etrace_grad(X[0], step_fn=lambda x: m(x).sum()),
        ValueError,
        r'no time axis: .*\(2, 2\).*`x\[None\]`',
    ),
    (lambda m: m.etrace_stream(step_fn=3, update=None), TypeError, '`step_fn` must be a function'),
    (lambda m: m.etrace_grad(X, step_fn=3), TypeError, '`step_fn` must be a function, got int'),
    (lambda m: learn(m, schedule='window', window_size=0), ValueError, '`window_size` .*got 0'),
    (
        lambda m: setattr(m.etrace['W->h'], 'value', jnp.zeros((1, B, 2, 4))),
        ValueError,
        'W->h is .* and cannot become',
    ),
]


def check(bad, error, words):
    with pytest.raises(error) as raised:
        bad()
    told = [str(raised.value), *getattr(raised.value, '__notes__', [])]
    assert re.search(words, ' '.join(told)), told


def number(rows):
    return pytest.mark.parametrize('bad, error, words', rows, ids=[row[2][:25] for row in rows])


@number(OPTIONS)
def test_options(bad, error, words):
    check(bad, error, words)


@number(OF_PLAIN)
def test_plain_learners(plain, bad, error, words):
    check(lambda: bad(plain), error, words)


@number(OF_MODULE)
def test_modules(module, bad, error, words):
    before = {p: s.value for p, s in module.states().items()}
    check(lambda: bad(module), error, words)
    after = {p: s.value for p, s in module.states().items()}
    assert before.keys() == after.keys()
    jax.tree.map(np.testing.assert_array_equal, before, after)


def test_modulators(modulated):
    check(
        lambda: grad(modulated, jnp.sum, modulator='x'), TypeError, '`modulator` must be a number'
    )
    for m in ({99: 1.0}, {}):
        check(lambda m=m: grad(modulated, jnp.sum, modulator=m), ValueError, '`modulator` .*groups')
    each = jnp.ones((T, B))
    check(lambda: grad(modulated, jnp.sum, modulator=each), ValueError, r'sample as .*\(batch, 1\)')


def test_lost_traces_are_missed(module):
    memory = module._memory.value
    module._memory.value = {**memory, 'traces': {}}
    try:
        check(lambda: module(X[0]), ValueError, 'made 3 steps, but holds no traces')
    finally:
        module._memory.value = memory


def test_a_stream_follows_its_learner():
    """Compiled for another type meanwhile, what it shows is what it learns."""
    learner = braintrace.compile(Net(), 'd_rtrl', X[0], batch_size=B)
    live = learner.etrace_stream(step_fn=lambda x: loss(learner(x)), update=lambda g: None)
    live(X[0])
    learner.compile_graph(X[0].astype('float32'))
    live(X[0].astype('float32'))
    assert learner.running_index.value == 1 and learner.etrace['W->h'].value.any()


def test_what_is_taken(module, plain):
    """Whole numbers of other types, and any number of samples."""
    assert learn(module, schedule='window', window_size=np.int64(2)).shape == (T,)
    xs, state = jnp.ones((T, 5, 2)), jnp.zeros((5, 3))
    (grads, _), carry = of(plain, xs=xs, state=state)
    np.testing.assert_allclose(grads['W'], of(plain)[0][0]['W'])
    assert carry.state.shape == (5, 3) and carry.traces['W->state'].shape == (1, 5, 2, 3)


def test_one_warning_at_the_line_of_the_user():
    with pytest.warns(UserWarning) as told:
        two = brainstate.nn.Sequential(*[braintrace.nn.GRUCell(n, 3) for n in (2, 3)])
        braintrace.compile(two, 'd_rtrl', X[0], batch_size=B)
    [warning] = told
    assert warning.filename == __file__
    assert 'Wr.weight' in str(warning.message) and 'report.show(2)' in str(warning.message)
    assert 'linear.py' in str(warning.message)


def test_a_lost_trace_of_a_plain_learner_is_told_once():
    def mixing(p, h, x):
        h = jnp.tanh(x @ p['W'] + h.sum())
        return h, h

    given = P, H, X[0]
    with pytest.warns(
        UserWarning, match='mixes its units through `reduce_sum` at test_bad'
    ) as told:
        braintrace.compile(mixing, 'd_rtrl', *given)
    assert [w.filename for w in told] == [__file__]
    braintrace.compile(mixing, 'rtrl', *given)


def test_a_trace_function_that_takes_nothing_is_told():
    with pytest.warns(UserWarning, match=r"false for every parameter.*such as \('W',\)"):
        compiled(trace=lambda path: path == 'W')
