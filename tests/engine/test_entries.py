"""How the states of a unit act on each other, entry by entry."""

import jax.numpy as jnp
import numpy as np
import pytest

from braintrace.engine import entries
from braintrace.rules.backwards import UnitCredit, backwards

STEPS, STATES, UNITS = 5, 3, 4
RNG = np.random.default_rng(0)


def moving():
    return jnp.asarray(RNG.standard_normal((STEPS, UNITS)))


def steady():
    return jnp.asarray(RNG.standard_normal((1, 1)))


SPARSE = [[moving(), None, steady()], [moving(), moving(), None], [None, None, steady()]]
FULL = [[moving() for _ in range(STATES)] for _ in range(STATES)]


@pytest.mark.parametrize('large', [0, entries.LARGE])
@pytest.mark.parametrize('D', [SPARSE, FULL], ids=['sparse', 'full'])
def test_states_go_back_as_by_matrices(D, large, monkeypatch):
    monkeypatch.setattr(entries, 'LARGE', large)
    credit = [moving() for _ in range(STATES)]
    made = backwards(D, UnitCredit(None, credit), keep=True)
    matrices = np.zeros((STEPS, UNITS, STATES, STATES))
    for a, row in enumerate(D):
        for b, e in enumerate(row):
            matrices[..., a, b] = 0 if e is None else e
    mu, Q = np.zeros((UNITS, STATES)), np.broadcast_to(np.eye(STATES), matrices[0].shape)
    for k in reversed(range(STEPS)):
        np.testing.assert_allclose(np.stack([a[k] for a in made.mu], -1), mu)
        for a, row in enumerate(made.Q):
            for b, e in enumerate(row):
                found = 0 if e is None else np.broadcast_to(e, (STEPS, UNITS))[k]
                np.testing.assert_allclose(found, Q[:, a, b], atol=1e-12)
        mu = np.stack([a[k] for a in credit], -1) + np.einsum('ua,uab->ub', mu, matrices[k])
        Q = Q @ matrices[k]
    np.testing.assert_allclose(made.mu_entry, mu.T)
