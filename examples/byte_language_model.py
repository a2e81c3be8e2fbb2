"""A language model of bytes, learned from the sources of Python's standard library.

They stream by for ever: each stream reads from its own place in the text and goes on from its end
to its beginning. Nothing is ever reset: states and traces are carried on from window to window, and
the weights change after each. What is reported is how well the next byte was foretold before it was
learned from.

    python examples/byte_language_model.py
    python examples/byte_language_model.py --steps 1000000 --rule d_rtrl --units 128

2.03 bits per byte at the end of 32768 steps of 32 streams, 87 s on two cores. The best table of
single bytes needs 4.54, of pairs 3.49, of triples 2.51.
"""

import pathlib
import sysconfig

import brainstate
import braintools
import jax
import numpy as np
from command import run
from picture import BLUE, level, panels, save
from tqdm.auto import tqdm

import braintrace


def text():
    """The bytes of the library's modules, one after another."""
    files = sorted(pathlib.Path(sysconfig.get_path('stdlib')).glob('*.py'))
    return np.frombuffer(b''.join(f.read_bytes() for f in files), np.uint8).astype(np.int32)


def entropy(data, order):
    """Bits per byte for one who knows the text's frequencies of bytes after `order` bytes."""
    return float(entropy_of_words(data, order + 1) - entropy_of_words(data, order))


def entropy_of_words(data, n):
    """Bits of a word of `n` bytes, by the frequencies of such words in the text."""
    if n == 0:
        return 0.0
    words = sum(data[i : len(data) - n + 1 + i] * 256**i for i in range(n))
    _, count = np.unique(words, return_counts=True)
    share = count / count.sum()
    return -np.sum(share * np.log2(share))


class Net(brainstate.nn.Module):
    def __init__(self, units):
        super().__init__()
        self.rnn = braintrace.nn.FusedGRUCell(256, units)
        self.out = brainstate.nn.Linear(units, 256)

    def update(self, byte):
        return self.out(self.rnn(jax.nn.one_hot(byte, 256)))


def train(
    rule='pp_prop',
    *,
    units=256,
    streams=32,
    steps=32768,
    window=16,
    rate=2e-3,
    chunk=256,
    seed=0,
    picture='byte_language_model.png',
    progress=True,
    **options,
):
    """Learn from `steps` bytes of each stream.

    Gives the bits per byte over the last tenth, and those of counting bytes and pairs of bytes.
    """
    brainstate.random.seed(seed)
    data = text()
    rows = data[: len(data) // streams * streams].reshape(streams, -1).T
    net = Net(units)
    needed = {'decay_or_rank': 0.9} if rule == 'pp_prop' else {}
    options = {'vjp_method': 'multi-step', **needed, **options}
    learner = braintrace.compile(net, rule, rows[0], batch_size=streams, **options)
    optimizer = braintools.optim.Adam(rate)
    optimizer.register_trainable_weights(net.states(brainstate.ParamState))

    def loss(byte, following):
        logits = learner(byte)
        losses = braintools.metric.softmax_cross_entropy_with_integer_labels(logits, following)
        return losses.mean()

    @brainstate.transform.jit
    def learn(read):
        return learner.etrace_learn(
            read[:-1],
            read[1:],
            step_fn=loss,
            update=optimizer.update,
            schedule='window',
            window_size=window,
        )

    bits = []
    with tqdm(total=steps, unit='step', disable=not progress) as bar:
        for start in range(0, steps, chunk):
            losses = learn(rows[np.arange(start, start + chunk + 1) % len(rows)])
            bits.append(float(losses.mean()) / np.log(2))
            bar.set_postfix(bits=f'{np.mean(bits[-10:]):.3f}', refresh=False)
            bar.update(chunk)
    counted = {'single bytes': entropy(data, 0), 'pairs': entropy(data, 1)}
    draw(picture, bits, chunk, counted, rule)
    return {
        'bits per byte': float(np.mean(bits[-max(len(bits) // 10, 1) :])),
        **{f'of {what}': bits for what, bits in counted.items()},
    }


def draw(file, bits, chunk, counted, rule):
    """Bits per byte while the text goes by, and what counting would need."""
    title = f'Every byte is foretold before it is learned from: a GRU with {rule} reads source code'
    figure, [axes] = panels(title, 1)
    axes.plot(np.arange(1, len(bits) + 1) * chunk, bits, color=BLUE, linewidth=2)
    for what, needed in counted.items():
        level(axes, needed, f'the best table of {what}: {needed:.2f}')
    axes.set(xlabel='bytes read by each stream', ylabel='bits per byte', ylim=(0, 8))
    save(figure, file)


if __name__ == '__main__':
    run(train)
