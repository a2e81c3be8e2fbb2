"""Compile a GRU and print what the compiler decided for each of its parameters."""

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
    net = brainstate.nn.init_all_states(Net(), batch_size=4)
    graph = braintrace.compile_etrace_graph(net, jnp.ones((4, 8)))
    braintrace.CompilationReport(graph).show(level=2)
