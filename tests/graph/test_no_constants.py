"""Programs that we build have no constants: what surrounds them enters as an input."""

import dataclasses

import brainstate
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from told import GATE

import braintrace

MASK = np.triu(np.ones((4, 4)))


def step(p, h, x):
    """It closes over a mask, holds a loop and a branch, and draws a table of its own."""
    h = jax.lax.cond(x[0] > 0, lambda h: 0.5 * h, lambda h: jnp.sin(h), h)
    drive = x @ p['W'] + jnp.tanh(h @ (p['R'] * MASK)) * jnp.arange(4.0)
    h = jax.lax.fori_loop(0, 20, lambda i, v: 0.9 * v + 0.1 * drive, h)
    return h, h @ p['o']


class Masked(brainstate.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = brainstate.nn.GRUCell(3, 4), brainstate.nn.Linear(4, 4)

    def update(self, x):
        return self.out(self.cell(x) @ MASK)


def function_learner(rule):
    params = {'W': jnp.ones((3, 4)), 'R': jnp.eye(4), 'o': jnp.ones((4, 2))}
    learner = braintrace.compile(step, rule, params, jnp.zeros(4), jnp.ones(3))
    learner.grad(
        lambda out: out.sum(), params, learner.init(params, jnp.zeros(4)), jnp.ones((5, 3))
    )
    return learner


def module_learner(rule):
    learner = braintrace.compile(Masked(), rule, jnp.ones((2, 3)), batch_size=2)
    learner.etrace_grad(jnp.ones((5, 2, 3)), step_fn=lambda x: learner(x).sum())
    return learner


def programs(start):
    """Every jaxpr that can be reached from an object: through records, containers, attributes and
    what functions close over, but not through the equations of JAX."""
    seen, todo = set(), [start]
    while todo:
        a = todo.pop()
        if id(a) in seen:
            continue
        seen.add(id(a))
        if isinstance(a, jax.extend.core.ClosedJaxpr):
            a = a.jaxpr
        if isinstance(a, jax.extend.core.Jaxpr):
            yield a
        else:
            todo += parts(a)


def parts(a):
    if isinstance(a, dict):
        return [*a.keys(), *a.values()]
    if isinstance(a, list | tuple | set | frozenset):
        return list(a)
    if dataclasses.is_dataclass(a) and not isinstance(a, type):
        return [getattr(a, f.name) for f in dataclasses.fields(a)] + list(vars_of(a))
    if callable(a) and hasattr(a, '__wrapped__'):
        return [a.__wrapped__]
    if callable(a) and hasattr(a, '__closure__'):
        return [c.cell_contents for c in a.__closure__ or () if has_contents(c)]
    if type(a).__module__.startswith('braintrace'):
        return list(vars_of(a))
    return []


def vars_of(a):
    slots = [s for c in type(a).__mro__ for s in getattr(c, '__slots__', ())]
    return [*getattr(a, '__dict__', {}).values(), *(getattr(a, s) for s in slots if hasattr(a, s))]


def has_contents(cell):
    try:
        return cell.cell_contents is not None
    except ValueError:  # a name that is not bound yet
        return False


@GATE
@pytest.mark.parametrize('rule', ['d_rtrl', 'rtrl', 'ostl_recurrent'])
@pytest.mark.parametrize('make', [function_learner, module_learner])
def test_programs_have_no_constants(make, rule):
    learner = make(rule)
    reached = list(programs([learner, learner.graph]))
    assert len(reached) > 3
    info = learner.graph.module_info
    published = None if info is None else info.jaxpr  # of 0.2, with the values of its constants
    assert not [p for p in reached if p.constvars and p is not published]
