"""The executors of 0.2: factors of a step, neighbourhoods."""

import brainstate
import brainstate as bs
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from family import D, H, Net, X
from told import RESET

import braintrace
from braintrace.compat.hidden_group import with_neighbours

pytestmark = RESET


def test_an_executor_gives_the_factors_of_a_step():
    with brainstate.random.seed_context(1):
        model = brainstate.nn.init_all_states(Net(), batch_size=2)
    executor = braintrace.ETraceVjpGraphExecutor(model)
    with pytest.raises(ValueError, match='compile_graph'):
        executor.graph  # noqa: B018
    executor.compile_graph(X[0])
    out, hidden, other, (xs, dfs), [jacobian], rest = executor.solve_h2w_h2h_jacobian(X[0])
    assert (
        executor.is_single_step_vjp
        and not other
        and rest is None
        and jacobian.shape == (2, H, 1, 1)
    )
    z = jax.nn.sigmoid(model.cell.Wz(jnp.concatenate([X[0], jnp.zeros((2, H))], -1)))
    np.testing.assert_allclose(jacobian[..., 0, 0], 1 - z, atol=1e-12)
    np.testing.assert_allclose(model(X[0]), out, atol=1e-12)
    assert all(a.shape[-1] == 1 and np.abs(a).max() > 0 for a in dfs.values()) and xs[
        '0:cell.Wz.weight.weight'
    ].shape == (2, D + H)


def test_neighbourhoods():
    """Two steps along a ring: each unit, the next and the one after; the Jacobian in each
    neighbourhood."""

    class Ring(bs.nn.Module):
        def __init__(self):
            super().__init__()
            self.R, self.h = (
                bs.ParamState(jnp.arange(1.0, 26).reshape(5, 5) / 25),
                bs.HiddenState(jnp.ones(5)),
            )

        def update(self, x):
            self.h.value = jnp.tanh(x + self.h.value @ (self.R.value * np.roll(np.eye(5), 1, 1)))

    executor = braintrace.ETraceVjpGraphExecutor(Ring(), include_recurrent_mixing=True, sparse_n=3)
    executor.compile_graph(jnp.ones(5))
    [group] = executor.graph.hidden_groups
    near = group.snap.neighbours
    assert (
        group.snap.n == 3
        and group.trace_state_width == 3
        and group.snap.valid.all()
        and (near[:, 0] == np.arange(5)).all()
    )
    assert (np.sort(near, 1) == np.sort((np.arange(5)[:, None] + np.arange(3)) % 5, 1)).all()
    R = Ring().R.value * np.roll(np.eye(5), 1, 1)
    J = np.diag(1 - np.tanh(1 + R.sum(0)) ** 2) @ R.T
    [found] = executor.solve_h2w_h2h_jacobian(jnp.ones(5))[4]
    np.testing.assert_allclose(found, J[near[:, :, None], near[:, None, :]], atol=1e-12)
    with pytest.raises(
        braintrace.NotSupportedError, match='45 elements .* snap_max_jacobian_elements=44'
    ):
        with_neighbours(executor.graph.compiled.analysis, [group], 3, 44)
    [alone] = with_neighbours(executor.graph.compiled.analysis, [group], 1, 5)
    assert alone.snap.neighbours.shape == (5, 1)
