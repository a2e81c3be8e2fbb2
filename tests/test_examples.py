"""The examples at a small size: each learns what it says it learns, which an untrained network or
a wrong gradient would not."""

import pathlib

import pytest

pytestmark = pytest.mark.long
EXAMPLES = pathlib.Path(__file__).parent.parent / 'examples'


@pytest.fixture
def example(monkeypatch, tmp_path):
    """Imports an example; whatever it does, it writes one picture."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    yield __import__
    [picture] = tmp_path.glob('*.png')
    assert picture.stat().st_size > 10_000


@pytest.mark.parametrize(
    'model, units, least, most', [('gru', 24, 0.9, 0.3), ('alif', 32, 0.8, 1.5)]
)
def test_japanese_vowels(example, model, units, least, most):
    pytest.importorskip('aeon')
    found = example('japanese_vowels').train(model, units=units, epochs=5, progress=False)
    assert found['test accuracy'] > least and found['training loss'] < most, (
        'with the read-out alone the loss of the GRU stays above 0.6'
    )


def test_digits(example):
    pytest.importorskip('sklearn')
    assert (
        example('digits').train(units=48, epochs=10, rate=1e-2, progress=False)['test accuracy']
        > 0.85
    ), 'below 0.6 with the read-out alone'


def test_byte_language_model(example):
    found = example('byte_language_model').train(
        units=64, streams=16, steps=1536, rate=5e-3, progress=False
    )
    assert (
        found['bits per byte'] < found['of single bytes'] - 0.5
        and found['of pairs'] < found['of single bytes']
    )


def test_delayed_match_to_sample(example):
    found = example('delayed_match_to_sample').train(
        units=40, updates=120, delay=10, rate=5e-3, progress=False
    )
    assert found['share of right answers'] > 0.9, '0.72 with the read-out alone'


def test_plain_jax_and_the_command_line(example, capsys):
    plain = example('plain_jax')
    found = example('command').run(
        plain.train, ['--units', '12', '--updates', '400', '--rate', '0.01', '--no-progress']
    )
    assert (
        found['share of wrong bits'] < 0.05
        and 'share of wrong bits: 0.0' in capsys.readouterr().out
    )
    with pytest.raises(TypeError, match='no option `decay`'):
        example('command').run(plain.train, ['--updates', '1', '--decay', '0.9'])
