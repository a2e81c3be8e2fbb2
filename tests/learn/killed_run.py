"""A run of learners, five or some of them, that saves what they do, and goes on where it was when
it is started again."""

import os
import pathlib
import time
import warnings

import brainstate as bs
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint  # noqa: F401, loaded once for all lives

import braintrace
import braintrace.shells.algorithms
import braintrace.shells.function  # noqa: F401

STEPS, SAVE_EVERY, BATCH = 60, 2, 2
OPTIONS = {'d_rtrl': {}, 'pp_prop': {'decay_or_rank': 0.9}, 'rtrl': {}, 'uoro': {}}
GROUPS = ('module', 'pp_prop'), ('d_rtrl', 'rtrl', 'uoro')
NAMES = tuple(name for group in GROUPS for name in group)
STATE = np.zeros((BATCH, 3), 'float32')
rng = np.random.RandomState(0)
X, Y = rng.randn(2, STEPS, BATCH, 3).astype('float32')


def gated(p, h, x):
    h = jax.nn.sigmoid(p['a']) * h + jnp.tanh(x @ p['W'] + h @ p['R'])
    return h, h


def error(out, y):
    return ((out - y) ** 2).mean()


def plain_run(rule):
    """A learner, its parameters and carry by name, and a function that makes one step."""
    params = {'W': np.ones((3, 3)) / 3, 'R': np.eye(3) / 2, 'a': np.zeros(3)}
    params, state = jax.device_put(({k: a.astype('float32') for k, a in params.items()}, STATE))
    learner = braintrace.compile(gated, rule, params, state, X[0], **OPTIONS[rule])
    run = {'params': params, 'carry': learner.init(params, state)}

    @jax.jit
    def step(params, carry, x, y):
        (grads, _), carry = learner.grad(error, params, carry, x[None], y[None])
        return {'params': jax.tree.map(lambda w, g: w - 0.1 * g, params, grads), 'carry': carry}

    return learner, {rule: run}, lambda t: run.update(step(**run, x=X[t], y=Y[t]))


class Net(bs.nn.Module):
    """A leaky layer with noise."""

    def __init__(self):
        super().__init__()
        self.inp, self.out = bs.nn.Linear(3, 4), bs.nn.Linear(4, 3)

    def init_state(self, **_):
        self.h = bs.HiddenState(jnp.zeros((BATCH, 4)))

    def update(self, x):
        noise = 0.1 * bs.random.normal(size=(BATCH, 4))
        self.h.value = 0.9 * self.h.value + jnp.tanh(self.inp(x)) + noise
        return self.out(self.h.value)


def module_run():
    """A learner of a module, an optimiser of optax by name, and a function that makes one step."""
    bs.random.seed(0)
    learner = braintrace.compile(Net(), 'd_rtrl', X[0])
    weights, adam = learner.param_states, optax.adam(1e-2)
    optimizer = bs.ShortTermState(adam.init({k: s.value for k, s in weights.items()}))

    def update(grads):
        values = {k: s.value for k, s in weights.items()}
        updates, optimizer.value = adam.update(grads, optimizer.value, values)
        for k, value in optax.apply_updates(values, updates).items():
            weights[k].value = value

    live = learner.etrace_stream(step_fn=lambda x, y: error(learner(x), y), update=update)
    return learner, {'optimizer': optimizer}, lambda t: live(X[t], Y[t])


def live(directory, progress, names=NAMES, saving=True, mortal=False):
    """One life of these learners, a module's first: from the last checkpoint to the end, which is
    written to `end.npz`; a mortal one does not end by itself. `progress.value` counts its steps."""
    jax.config.update('jax_disable_most_optimizations', True)
    jax.config.update('jax_compilation_cache_dir', os.path.join(directory, 'compiled'))
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
    jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)
    warnings.filterwarnings('ignore', 'The checkpoint .* is skipped: it is not finished')
    directory = pathlib.Path(directory)
    directory.mkdir(exist_ok=True)
    runs = [module_run() if name == 'module' else plain_run(name) for name in names]
    learner, steps = runs[0][0], [step for *_, step in runs]
    more = {name: value for _, held, _ in runs for name, value in held.items()}
    checkpoints = braintrace.Checkpoints(directory / 'saves') if saving else None
    done = checkpoints.restore(learner, **more) if saving else None
    progress.value = 0
    for t in range(done or 0, STEPS):
        for step in steps:
            step(t)
        progress.value += 1
        if saving and (t + 1) % SAVE_EVERY == 0:
            checkpoints.save(t + 1, learner, **more)
    while mortal:
        progress.value = STEPS
        time.sleep(1)
    write_end(directory, more, learner.snapshot().arrays)


def write_end(directory, more, arrays):
    values = {name: v.value if isinstance(v, bs.State) else v for name, v in more.items()}
    named = {
        rule: {jax.tree_util.keystr(k): a for k, a in jax.tree_util.tree_leaves_with_path(tree)}
        for rule, tree in values.items()
    }
    end = {f'{rule}{k}': a for rule, leaves in named.items() for k, a in leaves.items()}
    end |= {
        k: jax.random.key_data(a)
        for k, a in end.items()
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key)
    }
    np.savez(directory / 'unfinished.npz', **end, **arrays)
    os.replace(directory / 'unfinished.npz', directory / 'end.npz')
