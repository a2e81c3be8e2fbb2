"""The rule that 'auto' takes."""

import jax.numpy as jnp
import numpy as np
import pytest
from small_models import OTHERS, POSITION_WISE, P, X, draw, one

import braintrace

ROOMY = 10**8
WIDE = 12  # units of a GRU
tanh_rnn, gru = OTHERS['tanh rnn'][0], OTHERS['gru'][0]


def auto(step, **options):
    params, state, inputs = P, one, X.shape[-1]
    if step is pairs:
        params, state = {'R': draw(8, 8), 'W': draw(inputs, 8)}, draw(2, 8)
    if step is gru:
        sizes = {'G': (inputs + WIDE, 2 * WIDE), 'N': (inputs + WIDE, WIDE), 'b': (WIDE,)}
        params = {name: draw(*shape) for name, shape in sizes.items()} | {'o': draw(WIDE, 2)}
        state = draw(2, WIDE)
    return braintrace.compile(step, 'auto', params, state, X[0], **options)


PAIRS = np.kron(np.eye(4), np.ones((2, 2)))  # eight units, connected two by two


def pairs(p, h, x):
    return 2 * (jnp.tanh(h @ (p['R'] * PAIRS) + x @ p['W']),)


def square(out):
    return (out**2).mean()


@pytest.mark.parametrize(
    'step, budget, taken',
    [
        (POSITION_WISE['leaky'][0], 20_000, 'd_rtrl'),
        (pairs, ROOMY, 'snap'),
        (tanh_rnn, ROOMY, 'rtrl'),
        (tanh_rnn, 2_800, 'd_rtrl'),
        (gru, 9_000, 'hybrid'),
        (gru, 4_400, 'pp_prop'),
    ],
)
@pytest.mark.filterwarnings('ignore::UserWarning')
def test_the_most_exact_rule_that_fits(step, budget, taken):
    report = auto(step, memory_budget=budget).report
    choice = report.choice
    assert choice.taken.rule == taken and choice.taken.needs <= budget
    assert report.memory['trace_bytes'] == choice.taken.trace_bytes
    assert report.memory['trace_bytes'] + report.memory['block_bytes'] <= budget
    told = report.to_str()
    assert f'taken: {taken}' in told
    if choice.better is None:
        assert report.exact is True and 'no rule is better' in told
    else:
        assert choice.better.needs > budget and f'memory_budget={choice.better.needs}' in told
        better = auto(step, memory_budget=choice.better.needs).report.choice.taken
        assert better.rule == choice.better.rule


@pytest.mark.filterwarnings('ignore::UserWarning')
def test_a_rule_that_was_taken_learns_and_says_so_on_modules_too():
    learner = auto(tanh_rnn, memory_budget=ROOMY)
    carry = learner.init(P, one)
    (grads, _), _ = learner.grad(square, P, carry, X, window=3)
    assert np.abs(grads['R']).max() > 1e-4
    net = braintrace.nn.GRUCell(2, 3)
    taken = braintrace.compile(net, 'auto', jnp.ones((4, 2)), batch_size=4, memory_budget=ROOMY)
    assert isinstance(taken, braintrace.RTRL) and taken.report.exact is True
    small = braintrace.compile(
        net, 'auto', jnp.ones((4, 2)), batch_size=4, memory_budget=3500, decay_or_rank=0.5
    )
    assert small.report.choice.better is not None
    assert isinstance(small, braintrace.D_RTRL)


@pytest.mark.parametrize(
    'options, error, told',
    [
        (dict(memory_budget=0), ValueError, 'memory_budget'),
        (dict(memory_budget='much'), ValueError, '`memory_budget` .*10MB.*much'),
        (dict(memory_budget=[9]), ValueError, "`memory_budget` .*'10MB'"),
        (dict(no_such=1), TypeError, "'auto' has no option `no_such`"),
    ],
)
def test_mistakes_are_named(options, error, told):
    with pytest.raises(error, match=told):
        auto(tanh_rnn, **options)


def test_a_budget_may_be_text_or_a_float():
    for budget in ('2 kB', 2e3):
        assert auto(tanh_rnn, memory_budget=budget).report.choice.budget == 2000
        learner = braintrace.compile(tanh_rnn, 'd_rtrl', P, one, X[0], memory_budget=budget)
        assert learner.report.memory['block_bytes'] <= 2000


def test_where_nothing_fits_the_smallest_is_taken_with_a_warning():
    with pytest.warns(UserWarning, match='no rule fits into 1 bytes') as told:
        assert auto(tanh_rnn, memory_budget=1).rule.name == 'd_rtrl'
    assert told[0].filename == __file__, 'the line of the user'
