"""A user's own loop with a gradient in it, step by step: `own_loops.py ours | reference`.

Once of all weights, and once of those alone to which 0.2.6 gives a gradient.
"""

import brainstate
import jax
import jax.numpy as jnp
from lockstep import in_turns
from models import Net, data, loss, traced_by_reference
from rules import RULES, SIZES
from worker import LINEAR, say

import braintrace

LOOPS = [
    (cell, rule, s) for cell in ('gru', 'lif') for s in SIZES for rule in ('D_RTRL', 'pp_prop')
]


def own_loop(cell, rule, shape, same_work=False):
    """The gradient of a sequence, summed over the steps of a loop, as a function of nothing; for
    the same work only of the weights to which 0.2.6 gives one."""
    xs, ys = data(shape)
    net, options = Net(cell, LINEAR, *shape[:2]), RULES[rule]
    algorithm = getattr(braintrace, rule)
    learner = braintrace.compile(net, algorithm, xs[0], batch_size=shape[2], **options)
    weights = net.states(brainstate.ParamState)
    if same_work:
        weights = traced_by_reference(net, cell)

    @brainstate.transform.jit
    def run(xs, ys):
        def one(total, xy):
            x, y = xy
            grads = brainstate.transform.grad(lambda: loss(learner(x), y), weights)()
            return jax.tree.map(jnp.add, total, dict(grads)), None

        zero = jax.tree.map(jnp.zeros_like, {k: s.value for k, s in weights.items()})
        return brainstate.transform.scan(one, zero, (xs, ys))[0]

    return lambda: jax.tree.leaves(run(xs, ys))


def main():
    for cell, rule, shape in LOOPS:
        ms = in_turns(*[own_loop(cell, rule, shape, same) for same in (False, True)])
        say(cell=cell, shape=shape, rule=rule, ms=ms)


if __name__ == '__main__':
    main()
