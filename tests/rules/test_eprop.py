"""e-prop: feedback weights, and two outside results to the digit."""

import jax.numpy as jnp
import numpy as np
import pytest
from cells import CELLS, DATA, C, H, loss, online, same, step_of
from inside import feedback_weights, with_feedback
from nest_tasks import EVIDENCE, PATTERN, evidence_accumulation, pattern_generation
from told import LOST

import braintrace

pytestmark = LOST


def test_random_feedback_goes_through_its_own_weights():
    """With feedback weights equal to the read-out's it is the true gradient; adaptive ones follow
    the read-out."""
    cell, params, start = CELLS['gru']
    xs, ys = DATA[3]

    def mean(out, y):
        return loss(out, y).mean()

    true = online('gru', 'eprop', 3, 3, kappa_filter_decay=0.5)
    for kind in ('random', 'adaptive'):
        learner = braintrace.compile(
            step_of(cell),
            'eprop',
            params,
            start(3),
            xs[0],
            feedback=kind,
            random_feedback_key=0,
            kappa_filter_decay=0.5,
        )
        carry = learner.init(params, start(3))
        assert list(feedback_weights(carry)) == ['o']

        def run(c):
            return learner.grad(mean, params, c, xs, ys, window=3)[0][0]

        same(run(carry)['o'], true['o'])
        assert not np.allclose(run(carry)['N'], true['N'])
        equal = params['o'] if kind == 'random' else jnp.zeros((H, C))
        same(run(with_feedback(carry, 'o', equal)), true)

    def multi(feedback):
        carry = with_feedback(learner_multi.init(params, start(3)), 'o', feedback)
        return learner_multi.grad(mean, params, carry, xs, ys, window=2)[0][0]

    learner_multi = braintrace.compile(
        step_of(cell),
        'eprop',
        params,
        start(3),
        xs[0],
        feedback='random',
        random_feedback_key=0,
        kappa_filter_decay=0.5,
        vjp_method='multi-step',
    )
    true = online('gru', 'eprop', 3, 2, kappa_filter_decay=0.5, vjp_method='multi-step')
    same(multi(params['o']), true)
    assert not np.allclose(multi(-params['o'])['Z'], true['Z'])
    square = online('gru', 'eprop', 3, 4, feedback='square', random_feedback_key=0)
    same(square, online('gru', 'eprop', 3, 1, feedback='square', random_feedback_key=0))


@pytest.mark.parametrize(
    'task, published', [(pattern_generation, PATTERN), (evidence_accumulation, EVIDENCE)]
)
def test_losses_that_others_published(task, published):
    """Five losses of two regression tests that other implementations agree on to 1e-7."""
    np.testing.assert_allclose(task(), published, rtol=1e-9)
