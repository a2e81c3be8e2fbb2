"""Many devices: gradients as without, a share of the traces on each."""

import json
import os
import pathlib
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

import braintrace

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))
# Rules with a trace for each weight, which is larger than parameters and activations are.
BY_WEIGHT = 'd_rtrl', 'rtrl', 'eprop', 'ostl_recurrent', 'rflo', 'three_factor', 'snap'


def start(script, *arguments):
    """A script in a process of its own."""
    return subprocess.Popen(
        [sys.executable, '-W', 'ignore', str(HERE / script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={'PYTHONPATH': os.pathsep.join(sys.path), 'PATH': '/usr/bin:/bin'},
    )


def told_by(process):
    """What it prints, as JSON."""
    out, error = process.communicate()
    assert process.returncode == 0, error[-3000:]
    return json.loads(out.splitlines()[-1])


@pytest.mark.long
def test_four_devices(tmp_path):
    found = told_by(start('four_devices.py', tmp_path))
    for name, told in found['placed'].items():
        assert told['gradient'] < 1e-6 and told['carry'] < 1e-4, name
        for trace, share in told['shares'].items():
            if trace.endswith('->state') or trace in 'RWa':
                assert share == 1 / 4, f'{name}: {trace}'
        if ', batch,' in name:
            assert told['gathered'] == 0, name
        if name.split(',')[0] in BY_WEIGHT:
            assert told['gathered'] < told['trace'] / 2, name
    for name, told in found['manual'].items():
        assert told['gradient'] < 1e-6 and told['carry'] < 1e-4, name
    module = found['module']
    assert module['gradient'] < 1e-6 and module['shares'] == [1 / 4] * 2
    assert module['restored'] == 0 and module['devices'] == [1, 1] and module['in place']


def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


@pytest.mark.long
def test_two_processes(tmp_path):
    """And what they have saved is read by one."""
    import four_devices as four

    port = free_port()
    both = [start('two_processes.py', rank, port, tmp_path) for rank in (0, 1)]
    found, other = map(told_by, both)
    for told in (found, other):
        assert told.pop('saved') is True
        for rule, of_rule in told.items():
            assert of_rule['error'] < 1e-5 and of_rule['share'] == 1 / 4, rule
    learner = braintrace.compile(four.step, 'd_rtrl', four.P, four.S, four.X[0])
    run = {'params': four.P, 'carry': learner.init(four.P, four.S)}
    with braintrace.Checkpoints(tmp_path / 'saves') as checkpoints:
        assert checkpoints.restore(learner, run=run) == 4
    true = np.load(tmp_path / 'true.npz')
    for a, name in zip(jax.tree.leaves(run), true.files, strict=True):
        np.testing.assert_array_equal(a, true[name])
