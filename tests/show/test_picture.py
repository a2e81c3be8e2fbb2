"""Pictures of graphs and of traces."""

import xml.etree.ElementTree as xml

import jax.numpy as jnp
import people_models
import pytest
from told import LOST

import braintrace
from braintrace.show.picture import draw


def test_draw():
    net, inputs = people_models.gru()
    with pytest.warns(UserWarning, match='only the direct'):
        learner = braintrace.compile(net, 'd_rtrl', *inputs, batch_size=2)
    picture = draw(learner.graph)
    text, image = picture.mermaid(), picture._repr_svg_()
    for name in (
        'rnn.Wh.weight.weight',
        'readout.weight.bias',
        'rnn.h',
        'dot_general',
        'people_models.py',
    ):
        assert name in text and name in image
    kind = {n.lines[0].split()[0]: n.kind for n in picture.nodes if n.shape == 'weight'}
    assert (
        kind['rnn.Wh.weight.weight'],
        kind['rnn.Wrz.weight.weight'],
        kind['readout.weight.weight'],
    ) == ('traced', 'partly', 'readout')
    assert xml.fromstring(image).tag.endswith('svg')
    assert picture.matplotlib().axes
    names = {n.name for n in picture.nodes}
    assert all(e.source in names and e.target in names for e in picture.edges)
    with pytest.raises(TypeError, match='compiled graph'):
        draw(net)


@LOST
def test_draw_tells_what_has_no_trace():
    def two(p, h, x):
        low = jnp.tanh(x @ p['first'])
        h = 0.5 * h + (low / jnp.sqrt((low**2).sum() + 1)) @ p['second']
        return h, h @ p['<look>']

    params = {'first': jnp.ones((3, 4)), 'second': jnp.ones((4, 2)), '<look>': jnp.ones((2, 1))}
    picture = draw(braintrace.compile(two, 'd_rtrl', params, jnp.zeros(2), jnp.ones(3)).graph)
    kind = {n.lines[0].split()[0]: n.kind for n in picture.nodes if n.shape == 'weight'}
    assert kind == {'first': 'untraced', 'second': 'traced', '<look>': 'readout'}
    op = {n.name: n for n in picture.nodes if n.shape == 'op'}
    chain = [(e.source, e.target) for e in picture.edges if e.source in op and e.target in op]
    assert chain == [('op0', 'op1')], 'the first weight feeds the second'
    xml.fromstring(picture.svg())
    assert [e.traced for e in picture.edges if (e.source, e.target) == ('op1', 'g0')] == [True]


def test_picture_of_traces(tmp_path):
    step, params, state, x = people_models.plain()
    learner = braintrace.compile(step, 'd_rtrl', params, state, x)
    _, carry = learner.evolve(params, learner.init(params, state), jnp.ones((3, 2, 3)))
    figure = braintrace.picture_of_traces(carry.traces, tmp_path / 'traces.png')
    assert (
        len(figure.axes) == 2 * len(carry.traces)
        and (tmp_path / 'traces.png').stat().st_size > 1000
    )
    with pytest.raises(ValueError, match='no trace to show'):
        braintrace.picture_of_traces({})
