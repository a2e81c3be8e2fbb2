"""The command line."""

import pytest

import braintrace
from braintrace.tools.cli import main


def test_report_command(tmp_path, capsys):
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
        for word in (
            '<svg',
            'readout.weight.bias',
            'in-window gradient',
            'all traces',
            'Exactness',
        )
    )
    assert 'http' not in page.replace('http://www.w3.org', ''), 'the page needs nothing else'
    assert main(['report', 'people_models:plain', '--rule', 'pp_prop']) == 0
    assert 'slow' in capsys.readouterr().out
    assert main(['report', 'people_models:plain', '--rule', 'auto']) == 0
    assert 'taken: ' in capsys.readouterr().out


def test_code_command(tmp_path, capsys):
    assert main(['code', 'people_models:plain', '--backend', 'numpy']) == 0
    printed = capsys.readouterr().out
    assert 'def learn(params, state, traces, ' in printed and 'import jax' not in printed
    file = tmp_path / 'rule.py'
    assert main(['code', 'people_models:plain', '--rule', 'rtrl', '--output', str(file)]) == 0
    compile(file.read_text(), str(file), 'exec')
    assert 'Written to' in capsys.readouterr().out


def test_compare_command(tmp_path, capsys):
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
    out, err = capsys.readouterr()
    assert 'd_rtrl' in out and 'rtrl ' in out and (tmp_path / 'c.png').exists()
    assert 'exact' in out.splitlines()[0] and 'bptt: window 1 cosine' in err
    assert main(['compare', 'people_models:plain', '--rules', 'rtrl', '--limit', '0.1kB']) == 0
    assert 'its traces would take' in capsys.readouterr().out


@pytest.mark.parametrize(
    'arguments, told',
    [
        (['report', 'people_models'], 'package.module:factory'),
        (['report', 'no_such_module:f'], "no module 'no_such_module'"),
        (['report', './people_models.py:gru'], 'that holds it: people_models:gru'),
        (['report', 'people_models:gur'], 'It has Net, gru, plain'),
        (['report', 'people_models:constant'], "no function 'constant'"),
        (['report', 'people_models:number'], 'returned int'),
        (['report', 'people_models:failing'], 'OSError: no such data'),
        (['report', 'people_models:broken'], 'does not compile'),
        (['report', 'people_models:gru'], '--batch-size'),
        (['report', 'people_models:plain', '--rule', 'd_rtlr'], "Did you mean 'd_rtrl'"),
        (['report', 'people_models:plain', '--html', '/no/such/place/r.html'], 'no directory'),
        (['code', 'people_models:plain', '--rule', 'dni'], 'guesses credit'),
        (['compare', 'people_models:plain', '--rules', 'nothing'], 'There is no rule'),
        (['compare', 'people_models:plain', '--length', '0'], '--length'),
        (['compare', 'people_models:plain', '--limit', 'much'], 'limit'),
        (['demo', '--steps', '0'], '--steps'),
    ],
)
def test_errors_of_the_command_line(capsys, arguments, told):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert told in captured.err and 'Traceback' not in captured.err


def test_a_rule_is_proposed_only_if_it_is_near(capsys):
    assert main(['report', 'people_models:plain', '--rule', 'backprop']) == 2
    assert 'Did you mean' not in capsys.readouterr().err


@pytest.mark.parametrize('before', [True, False])
def test_the_version_and_where_an_error_comes_from(capsys, before):
    flag, command = ['--traceback'], ['report', 'people_models:failing']
    assert main(flag + command if before else command + flag) == 2
    told = capsys.readouterr().err
    assert 'Traceback' in told and 'people_models.py' in told and 'OSError: no such data' in told
    with pytest.raises(SystemExit, match='0'):
        main(['--version'])
    assert capsys.readouterr().out == f'braintrace {braintrace.__version__}\n'


def test_a_module_that_is_not_installed_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / 'wants_more.py').write_text('import a_package_that_is_missing')
    monkeypatch.syspath_prepend(tmp_path)
    assert main(['report', 'wants_more:f']) == 2
    assert 'a_package_that_is_missing, which is not installed' in capsys.readouterr().err
