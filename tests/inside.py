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
    """What the compiler finds in a plain step function, with the published records."""
    step = trace(fn, params, state, *inputs).step
    return published(compile_step(step, policy=policy, trace=traced))


def records_of(graph):
    """The published records of a compiled graph."""
    return graph


def traced(graph):
    """The traced uses of weights: the path of the weight and the name of the op."""
    return [
        (path, r.primitive.name)
        for r in graph.hidden_param_op_relations
        for path in r.trainable_paths.values()
    ]


def groups(graph):
    """The hidden groups, each as the paths of its states."""
    return [g.hidden_paths for g in graph.hidden_groups]


def told(graph, kind=None, weight=None):
    """The diagnostics of one kind, about one weight."""
    return [
        r
        for r in graph.diagnostics
        if kind in (None, r.kind) and (weight is None or r.weight_path == weight)
    ]


def run_flat(graph, *leaves):
    """The outputs of the flat program."""
    jaxpr, captured = flat_program(graph)
    return run_jaxpr(jaxpr, *captured, *leaves)


def analysis_of(graph):
    """The influence of everything on everything."""
    return graph.compiled.analysis


def flat_program(graph):
    """The flat step as a program without constants, and the values of its first inputs."""
    return graph.step.jaxpr, graph.step.captured


def layout_and_window(graph, leaves):
    """The plan of a graph for D-RTRL, and a window of one step at these values of all leaves."""
    layout, n = lay_out(graph.compiled), len(graph.step.params)
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
