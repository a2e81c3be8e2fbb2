"""Many devices: gradients as without, a share of the traces on each."""

import json
import pathlib
import subprocess
import sys

import braintrace

SCRIPT = pathlib.Path(__file__).with_name('four_devices.py')


def test_four_devices(tmp_path):
    found = json.loads(
        subprocess.run(
            [sys.executable, '-W', 'ignore', str(SCRIPT), str(tmp_path)],
            capture_output=True,
            text=True,
            check=True,
            cwd=pathlib.Path(braintrace.__file__).parents[1],
            env={'PYTHONPATH': ':'.join(sys.path), 'PATH': '/usr/bin:/bin'},
        ).stdout
    )
    for name, told in found['placed'].items():
        assert told['gradient'] < 1e-6 and told['carry'] < 1e-6, name
        for trace, share in told['shares'].items():
            if trace.endswith('->state') or trace in 'RWa':
                assert share == 1 / 4, f'{name}: {trace}'
    assert found['placed']['d_rtrl, batch']['gathered'] == 0
    assert found['placed']['d_rtrl, both']['gathered'] < 1 / 4  # states and inputs, no trace
    assert max(found['manual'].values()) < 1e-6, found['manual']
    module = found['module']
    assert module['gradient'] < 1e-6 and module['shares'] == [1 / 4] * 2
    assert module['restored'] == 0 and module['devices'] == [1, 1] and module['in place']
