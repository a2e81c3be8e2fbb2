"""Handwritten digits, row by row.

A network sees the eight rows of an 8 x 8 image one after another and names the digit after the
last. Only the last row has a loss: what the network did with the rows before it is learned through
the traces.

    python examples/digits.py
    python examples/digits.py --rule bptt

Of the 300 digits kept for the test, 0.970 are named rightly with D-RTRL, after 10 s on two cores
(0.967 with seed 1), and 0.977 with BPTT, which D-RTRL approximates here. With fixed recurrent
weights, the read-out alone gets to 0.727.
"""

import brainstate
import braintools
import jax.numpy as jnp
import numpy as np
from command import run
from picture import BLUE, GREEN, ORANGE, panels, save
from tqdm.auto import trange

import braintrace

ROWS = 8


class Net(brainstate.nn.Module):
    def __init__(self, units):
        super().__init__()
        self.rnn = braintrace.nn.FusedGRUCell(ROWS, units)
        self.out = brainstate.nn.Linear(units, 10)

    def update(self, x):
        return self.out(self.rnn(x))


def load(test=300, seed=0):
    """Rows (time, sample, pixel) and digits (sample,) to learn from, and others to test with."""
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    order = np.random.RandomState(seed).permutation(len(digits))
    rows = images[order].reshape(-1, ROWS, ROWS).swapaxes(0, 1).astype(np.float32) / 16
    return (rows[:, test:], digits[order][test:]), (rows[:, :test], digits[order][:test])


def train(
    rule='d_rtrl',
    *,
    units=128,
    epochs=60,
    batch=32,
    rate=3e-3,
    seed=0,
    picture='digits.png',
    progress=True,
    **options,
):
    """Learn from 1497 digits; gives the share of the other 300 that are named rightly."""
    brainstate.random.seed(seed)
    (xs, ys), (test, answers) = load(seed=seed)
    net = Net(units)
    learner = braintrace.compile(net, rule, xs[0, :batch], batch_size=batch, **options)
    optimizer = braintools.optim.Adam(schedule := braintools.optim.CosineAnnealingLR(rate, epochs))
    optimizer.register_trainable_weights(net.states(brainstate.ParamState))

    def loss(x, y):
        return braintools.metric.softmax_cross_entropy_with_integer_labels(learner(x), y)

    @brainstate.transform.jit
    def learn(x, y):
        brainstate.nn.reset_all_states(learner, batch_size=batch)
        last = jnp.arange(ROWS) == ROWS - 1
        grads, losses = learner.etrace_grad(
            x, jnp.tile(y, (ROWS, 1)), step_fn=loss, mask=last, return_value=True, fresh=True
        )
        optimizer.update(grads)
        return losses[-1].mean()

    rng, curve = np.random.RandomState(seed), []
    for _ in (bar := trange(epochs, unit='epoch', disable=not progress)):
        batches = rng.permutation(len(ys))[: len(ys) // batch * batch].reshape(-1, batch)
        losses = [learn(xs[:, i], ys[i]) for i in batches]
        schedule.step()
        curve.append(float(np.mean(losses)))
        bar.set_postfix(loss=f'{np.mean(losses):.3f}')
    brainstate.nn.reset_all_states(net, batch_size=len(answers))
    named = brainstate.transform.for_loop(net, test)[-1].argmax(-1)
    draw(picture, curve, test, np.asarray(named), answers, rule)
    return {'test accuracy': float((named == answers).mean())}


def draw(file, curve, rows, named, answers, rule):
    """The loss over the epochs, and digits of the test with what they were taken for."""
    right = f'{(named == answers).mean():.1%} of {len(answers)} new ones are named rightly'
    figure, [left, shown] = panels(f'Digits read row by row, learned with {rule}: {right}', 1, 1.3)
    left.semilogy(curve, color=BLUE, linewidth=2)
    left.set(title='loss after the last row', xlabel='epochs')
    order = np.argsort(named == answers, kind='stable')[:28]  # the wrong ones first
    tiles = np.ones((4 * 11, 7 * 10))
    for k, i in enumerate(order):
        y, x = 11 * (k // 7), 10 * (k % 7)
        tiles[y : y + ROWS, x : x + ROWS] = 1 - rows[:, i]
        colour = GREEN if named[i] == answers[i] else ORANGE
        shown.text(x + 3.5, y + 9.2, str(named[i]), color=colour, ha='center', va='center')
    shown.imshow(tiles, cmap='gray', vmin=0, vmax=1)
    shown.set_title('what they were taken for; wrong ones first, in orange')
    shown.axis('off')
    save(figure, file)


if __name__ == '__main__':
    run(train)
