"""Rules put together from their parts."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from family import H, Net, P, X, Y, grads_of, learner_of, rnn, same
from told import RESET

import braintrace

pytestmark = RESET


def legal():
    sides = dict(
        per_param=['jacobian', 'scalar_leak', 'none'],
        io_factorized=['jacobian', 'scalar_leak', 'none'],
        random_projection=['jacobian'],
    )
    for form, scope, signal, low in itertools.product(
        sides,
        ['diagonal', 'coupled', 'sparse_n'],
        ['symmetric', 'random_feedback', 'modulatory'],
        ['none', 'kappa'],
    ):
        for recursion in sides[form]:
            given = (
                dict(decay=0.5)
                if recursion == 'scalar_leak' or form == 'io_factorized' and recursion == 'jacobian'
                else {}
            )
            given |= dict(kappa=0.5) if low == 'kappa' else {}
            given |= dict(sparse_n=2) if scope == 'sparse_n' else {}
            try:
                yield braintrace.ETraceConfig(form, recursion, scope, signal, low, **given)
            except ValueError:
                continue


def pairs_of(config):
    parts = 'trace_factorization temporal_recursion recurrence_scope learning_signal trace_filter'
    choices = [(part, getattr(config, part)) for part in parts.split()]
    return set(itertools.combinations(choices, 2))


def in_pairs(configs):
    """As many as it takes for every two choices that may meet to meet."""
    left = set().union(*map(pairs_of, configs))
    while left:
        config = max(configs, key=lambda c: len(pairs_of(c) & left))
        left -= pairs_of(config)
        yield config


CONFIGS = list(in_pairs(list(dict.fromkeys(legal()))))


@pytest.mark.parametrize('k', range(0, len(CONFIGS), 3))
def test_legal_configurations_compile_and_run(k):
    for config in CONFIGS[k : k + 3]:
        key = dict(random_feedback_key=0) if config.learning_signal == 'random_feedback' else {}
        learner = braintrace.compile(rnn, config, P, jnp.zeros((2, H)), X[0], **key)
        modulator = 0.5 if config.learning_signal == 'modulatory' else None
        grads = learner.grad(
            lambda out, y: jnp.mean((out - y) ** 2),
            P,
            learner.init(P, jnp.zeros((2, H))),
            X,
            Y,
            window=3,
            modulator=modulator,
        )[0][0]
        assert all(np.isfinite(g).all() and np.abs(g).max() > 0 for g in jax.tree.leaves(grads)), (
            config
        )


def test_configurations_mean_the_rules_they_describe():
    Config = braintrace.ETraceConfig
    pairs = [
        (Config('io_factorized', decay=0.9), 'pp_prop', dict(decay_or_rank=0.9)),
        (Config(temporal_recursion='scalar_leak', decay=0.5), 'rflo', dict(decay=0.5)),
        (Config(trace_filter='kappa', kappa=0.5), 'eprop', dict(kappa_filter_decay=0.5)),
        (
            Config('io_factorized', ('scalar_leak', 'none'), decay=(0.5, 0.0)),
            'ottt',
            dict(decay=0.5),
        ),
    ]
    for config, rule, options in pairs:
        same(grads_of(learner_of(config)), grads_of(learner_of(rule, **options)))


def test_configurations_have_one_form_and_refuse_nonsense():
    Config = braintrace.ETraceConfig
    assert Config(temporal_recursion='scalar_leak', decay=0) == Config(temporal_recursion='none')
    assert Config(recurrence_scope='sparse_n', sparse_n=1) == Config(recurrence_scope='coupled')
    assert Config(trace_filter='kappa', kappa=0.0) == Config()
    assert (
        Config('io_factorized', decay=0.9).recursion_f == 'jacobian'
        and Config('io_factorized', decay=(0.9, 0.0)).recursion_f == 'none'
    )
    assert 'kappa=0.5' in Config(trace_filter='kappa', kappa=0.5).describe()
    bad = [
        dict(trace_factorization='io_factorized'),
        dict(kappa=0.5),
        dict(trace_filter='kappa'),
        dict(decay=0.5),
        dict(sparse_n=2),
        dict(trace_factorization='x'),
        dict(trace_factorization='random_projection'),
        dict(temporal_recursion=('none', 'none')),
        dict(trace_filter='kappa', kappa=1.5),
        dict(
            trace_factorization='io_factorized',
            temporal_recursion=('jacobian', 'jacobian'),
            decay=0.5,
        ),
        dict(update_schedule='window'),
    ]
    for options in bad:
        with pytest.raises(ValueError):
            Config(**options)
    for options in (
        dict(recurrence_scope='sparse_n', sparse_n=True),
        dict(trace_filter='kappa', kappa='x'),
    ):
        with pytest.raises(TypeError):
            Config(**options)
    with pytest.raises(AttributeError):
        Config().decay_x  # noqa: B018
    with pytest.raises(ValueError, match='per_param'):
        braintrace.ParamDimVjpAlgorithm(Net(), config=Config('io_factorized', decay=0.5))
