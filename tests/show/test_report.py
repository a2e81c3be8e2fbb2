"""The report: every leaf and its fate, at the line of the user."""

import jax.numpy as jnp
from inside import graph_of, told
from step_models import B, D, H, P, draw, gru, h, x

from braintrace import (
    CompilationReport,
)


def test_the_report_names_every_leaf_and_its_fate():
    graph = graph_of(gru, P | {'idle': draw(2)}, h, x)
    text = CompilationReport(graph).to_str(2)
    line = {words[0]: text for text in text.splitlines() if (words := text.split())}
    assert (
        'traced into group 0 through `dot_general` at step_models.py' in line['G']
        and 'in part' in line['G']
    )
    assert f'{B * (D + H) * 2 * H * 8 / 1000:.3g} kB' in line['G']
    assert 'reaches no hidden state' in line['o'] and 'gradient is zero' in line['idle']
    assert CompilationReport(graph).counts == dict(
        hidden_groups=1, etrace_weights=3, excluded_weights=len(P) - 2, warnings=1, errors=0
    )


def test_the_place_of_an_op_inside_a_library_function_is_the_users_line():
    def step(p, s, x):
        s = jnp.tanh(0.5 * s + jnp.fft.irfft(jnp.fft.rfft(x[:, :1]) * jnp.fft.rfft(p['b']), H))
        return s, s

    [record] = told(graph_of(step, P, h, x), weight=('b',))
    assert 'through `fft` at test_report.py' in record.message
