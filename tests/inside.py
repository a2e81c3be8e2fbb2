"""The one place where tests reach into the library: all others go through the public interface."""

import jax

from braintrace._jax import run_jaxpr
from braintrace.compat.records import published
from braintrace.engine.evaluate import Given
from braintrace.engine.program import Program
from braintrace.engine.window import Window
from braintrace.frontends.function import trace
from braintrace.graph.compile import compile_step
from braintrace.plan.layout import lay_out


def graph_of(fn, params, state, *inputs, policy=None, traced='all'):
    """What the compiler finds in a plain step function."""
    return compile_step(trace(fn, params, state, *inputs).step, policy=policy, trace=traced)


def records_of(graph):
    """The published records of a compiled graph."""
    return published(graph)


def traced(graph):
    """The traced uses of weights: the path of the weight and the name of the op."""
    return [(path, r.use.meets.primitive.name) for r in graph.relations for path in r.paths]


def groups(graph):
    """The hidden groups, each as the paths of its states."""
    return [g.paths for g in graph.groups]


def told(graph, kind=None, weight=None):
    """The diagnostics of one kind, about one weight."""
    return graph.explain(kind=kind, weight_path=weight)


def run_flat(graph, *leaves):
    """The outputs of the flat program."""
    return run_jaxpr(graph.step.jaxpr, *graph.step.captured, *leaves)


def tail_of(graph, relation, group):
    """The program from an op's output to the new states of a group, with what it needs besides."""
    analysis = graph.analysis
    return analysis.along([analysis.seed_of(relation.use)], [relation.y_var], group.outvars)


def layout_and_window(graph, leaves):
    """The plan of a graph for D-RTRL, and a window of one step at these values of all leaves."""
    layout, n = lay_out(graph), len(graph.step.params)
    m = n + len(graph.step.hidden)
    inputs = [a[None] for a in leaves[m:]]
    given = Given(graph.step.captured, leaves[:n], leaves[n:m], [], inputs)
    return layout, Window(Program(layout), given, 1)


def program_and_window(learner, params, state, xs):
    """What a function learner runs, and a window of it over the steps of `xs`."""
    program = learner.compiled_step().core.program
    leaves = jax.tree.leaves(params), jax.tree.leaves(state)
    given = Given(program.step.captured, *leaves, [], [xs])
    return program, Window(program, given, len(xs))


def feedback_weights(carry):
    """The feedback weights of a carry, by the name of the read-out that they stand for."""
    return {
        name.removeprefix('feedback:'): value
        for name, value in carry.traces.items()
        if name.startswith('feedback:')
    }


def with_feedback(carry, name, value):
    """The carry with other feedback weights in the place of the read-out `name`."""
    key = f'feedback:{name}'
    assert carry.traces[key].shape == value.shape
    return carry._replace(traces={**carry.traces, key: value})


def with_random_key(carry, value):
    """The carry with another random key for the rules that draw."""
    assert carry.traces['key'].shape == value.shape
    return carry._replace(traces={**carry.traces, 'key': value})
