"""What people look at: the comparison of rules, pictures, the command line and the demo."""

import sys
import xml.etree.ElementTree as xml

import brainstate
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import braintrace
from braintrace.rules.registry import BY_NAME
from braintrace.show.picture import draw
from braintrace.tools.cli import main
from braintrace.tools.demo import demo, floors, stretch, table

MODELS = """
import brainstate, jax.numpy as jnp

class Net(brainstate.nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.readout = brainstate.nn.GRUCell(3, 4), brainstate.nn.Linear(4, 2)
    def update(self, x):
        return self.readout(self.rnn(x))

def gru():
    return Net(), (jnp.ones((2, 3)),)

def plain():
    def step(p, h, x):
        h = jnp.tanh(p['slow'] * h + x @ p['W'] + h @ p['R'])
        return h, h @ p['look']
    eye = jnp.eye(4)
    return step, {'slow': jnp.full(4, .5), 'W': eye[:3], 'R': eye[::-1] / 3, 'look': eye[:, :2]}, jnp.zeros((2, 4)), jnp.ones((2, 3))

def number():
    return 3

def broken():
    return plain()[0], {}, jnp.zeros(4), jnp.ones(3)

def failing():
    raise OSError('no such data')

constant = 3
"""


@pytest.fixture(scope='module')
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp('people')
    (folder / 'people_models.py').write_text(MODELS)
    (folder / 'people_import.py').write_text('import a_package_that_is_missing')
    sys.path.insert(0, str(folder))
    yield __import__('people_models')
    sys.path.remove(str(folder))


def test_compare_a_function(models, tmp_path, monkeypatch):
    known = {name: BY_NAME[name] for name in ('bptt', 'rtrl', 'd_rtrl', 'pp_prop')}
    monkeypatch.setattr('braintrace.tools.comparison.BY_NAME', known)
    found = braintrace.compare(*models.plain(), length=12, windows=(1, 4), repeats=1)
    assert [r.rule for r in found.rows] == list(known)
    for w in (1, 4):
        assert abs(found['rtrl'].cosine[w] - 1) < 1e-6 and found['rtrl'].error[w] < 1e-5
        assert (
            found['rtrl'].error[w] < found['d_rtrl'].error[w]
            and found['rtrl'].error[w] < found['bptt'].error[w]
        )
    assert found['bptt'].error[4] < found['bptt'].error[1] and found['bptt'].trace_bytes == 0
    assert found['pp_prop'].seconds[1] > 0 and not found['pp_prop'].note
    assert all(r.rule in found.table() for r in found.rows)
    found.plot(tmp_path / 'rules.png')
    assert (tmp_path / 'rules.png').stat().st_size > 1000


def test_compare_a_module(models):
    net, inputs = models.gru()
    brainstate.nn.init_all_states(net, batch_size=2)
    net.rnn.h.value = start = jnp.full((2, 4), 0.3)
    rules = {
        'half': ('pp_prop', {'decay_or_rank': 0.5}),
        'd_rtrl': ('d_rtrl', {}),
        'rtrl': ('rtrl', {}),
        'wrong': ('d_rtrl', {'no_such': 1}),
    }
    found = braintrace.compare(net, *inputs, rules=rules, length=9, windows=(1,), repeats=1)
    assert abs(found['rtrl'].cosine[1] - 1) < 1e-6 and found['half'].cosine[1] < 0.9999
    assert 'no_such' in found['wrong'].note and 'no_such' in found.table()
    assert net.rnn.h.value is start, 'the model is left as it was'
    small = braintrace.compare(net, *inputs, rules=['rtrl'], length=5, windows=(1,), limit=100)
    assert 'traces would take' in small['rtrl'].note


def test_compare_with_data(models):
    step, params, state, x = models.plain()
    xs, ys = np.random.RandomState(0).randn(7, 2, 3), np.zeros((7, 2), int)
    nll = lambda out, y: -jnp.take_along_axis(jax.nn.log_softmax(out), y[:, None], 1).mean()
    of = lambda *names: braintrace.compare(
        step,
        params,
        state,
        x,
        rules=['bptt'],
        loss=nll,
        sequences=(xs, ys),
        windows=(1,),
        repeats=1,
        only=lambda path: path[0] in names,
    )['bptt'].error[1]
    assert of('look') < 1e-6 < of('W', 'R'), 'a read-out is exact with any rule'
    with pytest.raises(ValueError, match='no parameter'):
        of('none')
    with pytest.raises(ValueError, match='gradient is zero'):
        braintrace.compare(step, params, state, x, loss=lambda out: 0 * out.sum(), rules=['bptt'])
    with pytest.raises(ValueError, match='at least 1 sequences'):
        braintrace.compare(step, params, state, x, sequences=())
    with pytest.raises(ValueError, match='windows'):
        braintrace.compare(step, params, state, x, windows=(0,))


def test_draw(models):
    net, inputs = models.gru()
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
    kind = {n.lines[0]: n.kind for n in picture.nodes if n.shape == 'weight'}
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


def test_draw_tells_what_has_no_trace():
    def two(p, h, x):
        low = jnp.tanh(x @ p['first'])
        h = 0.5 * h + (low / jnp.sqrt((low**2).sum() + 1)) @ p['second']
        return h, h @ p['<look>']

    params = {'first': jnp.ones((3, 4)), 'second': jnp.ones((4, 2)), '<look>': jnp.ones((2, 1))}
    picture = draw(braintrace.compile(two, 'd_rtrl', params, jnp.zeros(2), jnp.ones(3)).graph)
    kind = {n.lines[0]: n.kind for n in picture.nodes if n.shape == 'weight'}
    assert kind == {'first': 'untraced', 'second': 'traced', '<look>': 'readout'}
    op = {n.name: n for n in picture.nodes if n.shape == 'op'}
    chain = [(e.source, e.target) for e in picture.edges if e.source in op and e.target in op]
    assert chain == [('op0', 'op1')], 'the first weight feeds the second'
    xml.fromstring(picture.svg())
    assert [e.traced for e in picture.edges if (e.source, e.target) == ('op1', 'g0')] == [True]


def test_picture_of_traces(models, tmp_path):
    step, params, state, x = models.plain()
    learner = braintrace.compile(step, 'd_rtrl', params, state, x)
    _, carry = learner.evolve(params, learner.init(params, state), jnp.ones((3, 2, 3)))
    figure = braintrace.picture_of_traces(carry.traces, tmp_path / 'traces.png')
    assert (
        len(figure.axes) == 2 * len(carry.traces)
        and (tmp_path / 'traces.png').stat().st_size > 1000
    )
    with pytest.raises(ValueError, match='no trace to show'):
        braintrace.picture_of_traces({})


def test_report_command(models, tmp_path, capsys):
    assert (
        main(
            ['report', 'people_models:gru', '--batch-size', '2', '--html', str(tmp_path / 'r.html')]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert all(
        word in out for word in ('rnn.Wh.weight.weight', 'all traces', 'Diagnostics', 'r.html')
    )
    page = (tmp_path / 'r.html').read_text()
    assert all(
        word in page
        for word in ('<svg', 'readout.weight.bias', 'in-window gradient', 'trace bytes')
    )
    assert 'http' not in page.replace('http://www.w3.org', ''), 'the page needs nothing else'
    assert main(['report', 'people_models:plain', '--rule', 'pp_prop']) == 0
    assert 'slow' in capsys.readouterr().out


def test_compare_command(models, tmp_path, capsys):
    assert (
        main(
            [
                'compare',
                'people_models:plain',
                '--rules',
                'd_rtrl,bptt',
                '--length',
                '8',
                '--plot',
                str(tmp_path / 'c.png'),
            ]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert 'd_rtrl' in out and 'rtrl ' in out and (tmp_path / 'c.png').exists()


@pytest.mark.parametrize(
    'arguments, told',
    [
        (['report', 'people_models'], 'package.module:factory'),
        (['report', 'no_such_module:f'], "no module 'no_such_module'"),
        (['report', 'people_import:f'], 'a_package_that_is_missing, which is not installed'),
        (['report', 'people_models:gur'], 'It has Net, gru, plain'),
        (['report', 'people_models:constant'], "no function 'constant'"),
        (['report', 'people_models:number'], 'returned int'),
        (['report', 'people_models:failing'], 'OSError: no such data'),
        (['report', 'people_models:broken'], 'does not compile'),
        (['report', 'people_models:gru'], '--batch-size'),
        (['report', 'people_models:plain', '--rule', 'd_rtlr'], "Did you mean 'd_rtrl'"),
        (['report', 'people_models:plain', '--html', '/no/such/place/r.html'], 'no directory'),
        (['compare', 'people_models:plain', '--rules', 'nothing'], 'There is no rule'),
        (['compare', 'people_models:plain', '--length', '0'], '--length'),
        (['demo', '--steps', '0'], '--steps'),
    ],
)
def test_errors_of_the_command_line(models, capsys, arguments, told):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert told in captured.err and 'Traceback' not in captured.err


def test_the_stream():
    x, y, past = stretch(jax.random.key(0), jnp.zeros((10, 500)), 100)
    first, second, label = np.asarray(x[5:95, :, 0]), np.asarray(x[:90, :, 0]), np.asarray(y[10:])
    for a in (0, 1):
        for b in (0, 1):
            assert (
                abs(label[(first == a) & (second == b)].mean() - (0.5 + 0.5 * a - 0.25 * b)) < 0.02
            )
    np.testing.assert_array_equal(past, x[-10:, :, 0])
    np.testing.assert_allclose(list(floors().values()), [0.6616, 0.5192, 0.4545], atol=1e-4)


def test_demo(tmp_path, capsys):
    results = demo(
        steps=60, units=4, streams=3, chunk=20, plot=tmp_path / 'curves.png', progress=False
    )
    assert [r.rule for r in results] == ['d_rtrl', 'pp_prop', 'rtrl', 'bptt']
    for r in results:
        assert np.isfinite(r.losses).all() and len(r.losses) == 3 and r.speed > 0
    exact, _, full, truncated = results
    np.testing.assert_allclose(exact.losses, full.losses, atol=1e-4)
    assert abs(full.cosine - 1) < 1e-5 > abs(exact.cosine - 1) and truncated.cosine < 0.999
    assert exact.trace_bytes < full.trace_bytes and truncated.trace_bytes == 0
    assert table(results) in capsys.readouterr().out and 'truncated BPTT' in table(results)
    assert (tmp_path / 'curves.png').stat().st_size > 1000
