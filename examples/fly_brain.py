"""A brain of the size of a fly's, fitted online to the activity of its regions.

Leaky neurons with exponential synapses and delays, connected by a matrix that is stored sparsely.
Every synapse has a weight to learn. The activity of 78 regions comes as a stream; after each window
of it all weights change a little, and nothing of the past is kept but the eligibility traces.

    python examples/fly_brain.py
    python examples/fly_brain.py --neurons 138639 --synapses 15.1e6 --rule pp_prop
    python examples/fly_brain.py --connectome my_brain.npz

The connectome is made by a generator (regions, heavy tails of the degrees), or read from a file
with `indptr`, `indices` and, for the signs, `data`, as `scipy.sparse.save_npz` writes it.
"""

import resource
from typing import NamedTuple

import brainevent
import jax
import jax.numpy as jnp
import numpy as np
import optax
from command import run
from tqdm.auto import tqdm

import braintrace

REGIONS, WAVES = 78, 6
LAST = 5  # seconds of the picture in which single regions are shown
DELAY = 2  # steps of a millisecond
MEMBRANE, SYNAPSE, ACTIVITY = np.exp(-1 / np.array([20.0, 5.0, 50.0]))  # what is left after a step
INHIBITORY = 0.2  # of the neurons


class Brain(NamedTuple):
    """A connectome by rows of presynaptic neurons, the sign of each neuron, and its region."""

    starts: np.ndarray
    targets: np.ndarray
    sign: np.ndarray
    region: np.ndarray

    @property
    def neurons(self):
        return len(self.sign)

    @property
    def synapses(self):
        return len(self.targets)


def made_up(neurons, synapses, rng):
    """A connectome with heavy-tailed degrees, half of the synapses inside of a region."""
    region = np.sort(rng.integers(0, REGIONS, neurons))
    sends, receives = rng.lognormal(size=neurons), rng.lognormal(size=neurons)
    degree = np.maximum(1, sends / sends.sum() * synapses).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(degree)])
    # A target is a point on the line of all neurons, each as long as it is likely to receive.
    ends = np.concatenate([[0], np.cumsum(receives)])
    first = np.searchsorted(region, np.arange(REGIONS + 1))
    low, high = ends[first[:-1]], ends[first[1:]]
    mine = np.repeat(region, degree)
    point, inside = rng.random(starts[-1]), rng.random(starts[-1]) < 0.5
    point = np.where(inside, low[mine] + point * (high - low)[mine], point * ends[-1])
    targets = np.minimum(np.searchsorted(ends, point, 'right') - 1, neurons - 1)
    sign = np.where(rng.random(neurons) < INHIBITORY, -1.0, 1.0)
    return Brain(starts.astype(np.int32), targets.astype(np.int32), sign, region)


def read(file, rng):
    """A connectome from a file; a neuron is inhibitory if its synapses sum to less than zero."""
    with np.load(file) as stored:
        starts, targets = stored['indptr'].astype(np.int32), stored['indices'].astype(np.int32)
        data = stored['data'] if 'data' in stored else np.ones(len(targets))
    neurons = len(starts) - 1
    if len(targets) != starts[-1] or targets.min() < 0 or targets.max() >= neurons:
        raise ValueError(f'`connectome`: {file} is no square matrix in the format CSR.')
    line = np.repeat(np.arange(neurons), np.diff(starts))
    sums = np.bincount(line, data, neurons)
    region = np.sort(rng.integers(0, REGIONS, neurons))
    return Brain(starts, targets, np.where(sums < 0, -1.0, 1.0), region)


@jax.custom_jvp
def spike(x):
    """One above zero, with a slope for learning."""
    return (x > 0).astype(x.dtype)


@spike.defjvp
def _(primals, tangents):
    [x], [dx] = primals, tangents
    return spike(x), dx * jnp.maximum(0, 1 - jnp.abs(x))


def of_regions(activity, region):
    """The mean activity of the neurons of each region."""
    members = jnp.maximum(jnp.bincount(region, length=REGIONS), 1)
    return jnp.zeros(REGIONS).at[region].add(activity) / members


def model(brain, rng):
    """One step of the network as a plain function, its parameters and its first state."""
    n, stored = brain.neurons, brain.synapses
    indices = jnp.asarray(brain.targets), jnp.asarray(brain.starts)
    matrix = brainevent.CSR((jnp.zeros(stored), *indices), shape=(n, n))
    sign = jnp.asarray(np.repeat(brain.sign, np.diff(brain.starts)), jnp.float32)
    region = jnp.asarray(brain.region)
    of_waves = jnp.asarray(rng.normal(scale=0.2, size=(WAVES, n)), jnp.float32)

    def step(params, state, waves):
        weights = sign * params['strength']
        arrived = brainevent.BinaryArray(state['sent'][-1]) @ matrix.with_data(weights)
        current = SYNAPSE * state['current'] + arrived
        drive = 0.8 + waves @ of_waves
        voltage = MEMBRANE * state['voltage'] + (1 - MEMBRANE) * (current + drive)
        spikes = spike(voltage - 1)
        sent = jax.lax.stop_gradient(spikes)
        activity = ACTIVITY * state['activity'] + (1 - ACTIVITY) * spikes
        new = {
            'current': current,
            'voltage': voltage - sent,
            'activity': activity,
            'sent': jnp.concatenate([sent[None], state['sent'][:-1]]),
        }
        return new, of_regions(activity, region)

    strength = rng.lognormal(sigma=0.5, size=stored) * 2 * n / stored
    params = {'strength': jnp.asarray(strength, jnp.float32)}
    state = {name: jnp.zeros(n) for name in ('current', 'voltage', 'activity')}
    return step, params, {**state, 'sent': jnp.zeros((DELAY, n))}


def stream(steps, rng):
    """Slow waves over time, which drive the neurons, and the activity that each region shall have,
    a mixture of the same waves."""
    time = np.arange(steps)[:, None] / 1000
    waves = np.sin(2 * np.pi * (rng.uniform(0.3, 2, WAVES) * time + rng.random(WAVES)))
    mixed = waves @ rng.normal(size=(WAVES, REGIONS)) / np.sqrt(WAVES / 2)
    activity = 0.02 + 0.01 * np.tanh(mixed)
    return jnp.asarray(waves, jnp.float32), jnp.asarray(activity, jnp.float32)


def train(
    rule='d_rtrl',
    *,
    neurons=2000,
    synapses=1e5,
    steps=20_000,
    window=50,
    rate=0.05,
    connectome='',
    picture='fly_brain.png',
    seed=0,
    progress=True,
    **options,
):
    """Fit the activity of all regions while it comes by.

    Gives the error over the first and the last tenth of the stream, that of the mean activity
    alone, the share of neurons that spike in a step, and the peak memory of the process.
    """
    rng = np.random.default_rng(seed)
    brain = read(connectome, rng) if connectome else made_up(neurons, int(synapses), rng)
    step, params, state = model(brain, rng)
    waves, target = stream(steps, rng)
    needed = {'decay_or_rank': 0.9} if rule == 'pp_prop' else {}
    learner = braintrace.compile(step, rule, params, state, waves[0], **needed, **options)
    carry = learner.init(params, state)
    optimizer = optax.adam(rate * float(params['strength'].mean()))
    moments = optimizer.init(params)

    def loss(active, wanted):
        return jnp.mean((active - wanted) ** 2)

    @jax.jit
    def update(params, moments, grads):
        moves, moments = optimizer.update(grads, moments)
        moved = optax.apply_updates(params, moves)
        return jax.tree.map(lambda w: jnp.maximum(w, 0), moved), moments

    fits, errors, rates = [], [], []
    with tqdm(total=steps, unit='step', disable=not progress) as bar:
        for start in range(0, steps - window + 1, window):
            now = slice(start, start + window)
            (grads, losses), carry = learner.grad(
                loss, params, carry, waves[now], target[now], window=window
            )
            params, moments = update(params, moments, grads)
            fits.append(np.asarray(of_regions(carry.state['activity'], brain.region)))
            errors.append(float(losses.mean()))
            rates.append(float(carry.state['sent'].mean()))
            bar.set_postfix(
                error=f'{errors[-1]:.2e}', spikes=f'{rates[-1]:.1%}', GB=f'{peak():.2f}'
            )
            bar.update(window)
    if picture:
        draw(picture, np.stack(fits), np.asarray(target)[window - 1 :: window], errors, window)
    tenth = max(len(errors) // 10, 1)
    error_of_mean = float(np.mean(np.var(np.asarray(target), 0)))
    return {
        'error at first, in that of the mean activity': np.mean(errors[:tenth]) / error_of_mean,
        'error at last': np.mean(errors[-tenth:]) / error_of_mean,
        'spikes in a step, percent': 100 * np.mean(rates),
        'memory in GB': peak(),
    }


def peak():
    """The most memory that this process has had, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def draw(file, fit, target, errors, window):
    """The activity of all regions as it was and as the network has it, and how the error fell."""
    import matplotlib

    matplotlib.use('agg')
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(11, 6), layout='constrained')
    seconds = np.arange(1, len(fit) + 1) * window / 1000
    extent, top = (0, seconds[-1], REGIONS, 0), target.max()
    for axis, shown, title in zip(axes[0], (target, fit), ('target', 'fit'), strict=True):
        image = axis.imshow(shown.T, aspect='auto', extent=extent, vmin=0, vmax=top, cmap='magma')
        axis.set(title=f'activity of the regions: {title}', xlabel='seconds', ylabel='region')
    figure.colorbar(image, ax=axes[0], label='spikes in a millisecond')
    last = seconds > seconds[-1] - LAST
    for k in range(3):
        axes[1, 0].plot(seconds[last], target[: len(fit), k][last], f'C{k}', ls=':')
        axes[1, 0].plot(seconds[last], fit[last, k], f'C{k}')
    axes[1, 0].set(title='three regions at the end: target dotted, fit solid', xlabel='seconds')
    axes[1, 1].semilogy(seconds, errors)
    axes[1, 1].set(title='mean squared error', xlabel='seconds')
    figure.savefig(file, dpi=120)
    plt.close(figure)


if __name__ == '__main__':
    run(train)
