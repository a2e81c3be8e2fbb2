"""The page of a report: it escapes what it prints, and tells what a rule drops."""

import jax
import jax.numpy as jnp
import pytest

import braintrace

BAD = '<script>alert("x")</script>'


@pytest.mark.filterwarnings('ignore:.*reaches')
def test_names_are_text():
    def step(p, s, x):
        return {BAD: jnp.tanh(s[BAD] + jnp.cumsum(x @ p[BAD], -1)), 'key': s['key']}, s[BAD]

    params, state = {BAD: jnp.ones((2, 2))}, {BAD: jnp.zeros((1, 2)), 'key': jax.random.key(0)}
    learner = braintrace.compile(step, 'd_rtrl', params, state, jnp.ones((1, 2)))
    text = str(learner.report.draw(html=True, title=BAD))
    assert BAD not in text and text.count('<script') == 1 and '&lt;script&gt;' in text
    shown = learner.graph.draw(html=True)._repr_html_()
    assert shown.startswith('<iframe') and shown.count('<') == 2


def two_layers(p, s, x):
    low = 0.9 * s['low'] + jnp.tanh(x @ p['first'] + s['low'] @ p['R'])
    return {'low': low, 'high': 0.8 * s['high'] + low @ p['second']}, s['high']


@pytest.mark.parametrize(
    'rule, dropped',
    [
        ('d_rtrl', {'R', 'second'}),
        ('rtrl', set()),
        ('bptt', {'R', 'group 0: high', 'group 1: low'}),
    ],
)
def test_the_page_tells_what_the_rule_drops(rule, dropped, tmp_path):
    shapes = {'first': (3, 40), 'R': (40, 40), 'second': (40, 40)}
    params = {name: jnp.ones(shape, 'float32') for name, shape in shapes.items()}
    state = dict.fromkeys(('low', 'high'), jnp.zeros((2, 40), 'float32'))
    report = braintrace.compile(two_layers, rule, params, state, jnp.ones((2, 3), 'float32')).report
    picture = report.draw()
    names = {n.name: n.lines[0] for n in picture.nodes}
    on_op = {e.target: names[e.source].split()[0] for e in picture.edges if e.source[0] == 'w'}
    assert {on_op.get(e.target, names[e.target]) for e in picture.edges if e.dropped} == dropped
    report.draw(html=True, title='two layers').save(tmp_path / 'page.html')
    text = (tmp_path / 'page.html').read_text()
    assert ('dropped or only estimated</li>' in text) == bool(dropped)
    of_second = text.split('id="of-w2"')[1].split('</div>')[0]
    for told in ('second', 'float32[40,40]', '6.4 kB', 'exact', 'traces'):
        assert told in of_second, told
    assert 'test_page.py' in text.split('id="of-op0"')[1].split('</div>')[0], 'the line of the user'
