"""The filters of 0.2."""

import brainstate
import jax.numpy as jnp
import numpy as np
import pytest
import saiunit as u

import braintrace


def test_filters():
    low = braintrace.KappaFilter(jnp.zeros(3), 0.5)
    np.testing.assert_allclose(low.update(jnp.ones(3)), 0.5)
    low.reset_state(batch_size=2)
    assert low.value.shape == (2,)
    with pytest.raises(ValueError, match='kappa'):
        braintrace.KappaFilter(jnp.zeros(3), 1.0)
    total = braintrace.GradExpon({'w': jnp.zeros(2)}, 0.5)
    total.update({'w': jnp.ones(2)})
    np.testing.assert_allclose(total.update({'w': jnp.ones(2)})['w'], 1.5)
    with brainstate.environ.context(dt=1.0 * u.ms):
        np.testing.assert_allclose(
            braintrace.GradExpon({'w': jnp.zeros(2)}, 10.0 * u.ms).decay, np.exp(-0.1)
        )
    for wrong, error in ((2, TypeError), (1.5, AssertionError)):
        with pytest.raises(error):
            braintrace.GradExpon({'w': jnp.zeros(2)}, wrong)
