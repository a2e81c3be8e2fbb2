"""Compile a GRU, print what the compiler decided for each of its parameters, and draw it.

The drawing is a page that stands alone, to be opened in a browser.
"""

import warnings

import brainstate
import jax.numpy as jnp

import braintrace


class Net(brainstate.nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = brainstate.nn.GRUCell(8, 32)
        self.readout = brainstate.nn.Linear(32, 2)

    def update(self, x):
        return self.readout(self.rnn(x))


if __name__ == '__main__':
    warnings.simplefilter('ignore')  # the report says the same
    learner = braintrace.compile(Net(), 'd_rtrl', jnp.ones((4, 8)), batch_size=4)
    learner.report.show(level=2)
    learner.report.draw(html=True, title='A GRU with D_RTRL').save('report.html')
    print('The picture is in report.html.')
