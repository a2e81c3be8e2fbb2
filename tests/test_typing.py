"""What type checkers know of the public names, from the stub `braintrace/__init__.pyi`."""

import ast
import importlib.util
import pathlib
import subprocess
import sys
import textwrap

import pytest

import braintrace

ROOT = pathlib.Path(braintrace.__file__).parent
STUB = ROOT / '__init__.pyi'

HEAD = '''\
"""The public names and where they are written; `__init__.py` loads them when they are first used.

Changed together with the table there: `tests/test_typing.py` prints what this file should be.
"""
'''
VERSION = '__version__: str\n__version_info__: tuple[int, int, int]\n'

# mypy reads the stub and `compile`; the rest of the package is for `make lint`.
CONFIG = """\
[mypy]
follow_imports = skip
ignore_missing_imports = True
[mypy-braintrace,braintrace.shells.entry]
follow_imports = silent
"""


def homes():
    """The public names by the module they are written in, those of 0.1 too."""
    tables = braintrace._HOME | braintrace._OLD_HOME
    return {module: sorted(names) for module, names in tables.items()}


def as_imports(module, names):
    if len(names) == 1:
        return f'from .{module} import {names[0]} as {names[0]}\n'
    listed = ''.join(f'    {name} as {name},\n' for name in names)
    return f'from .{module} import (\n{listed})\n'


def expected_stub():
    parts = ''.join(f'from . import {part} as {part}\n' for part in braintrace._PARTS)
    return f'{HEAD}\n{parts}' + ''.join(as_imports(*home) for home in homes().items()) + VERSION


def redirects(text):
    """The `(module, name)` that a stub hands on as names of its own."""
    nodes = [n for n in ast.parse(text).body if isinstance(n, ast.ImportFrom)]
    return {(n.module, a.name) for n in nodes for a in n.names if a.name == a.asname}


def test_stub_lists_the_public_names():
    assert redirects(STUB.read_text()) == redirects(expected_stub()), (
        f'Write this to {STUB.name} and run `make format`:\n\n{expected_stub()}'
    )
    names = {name for _, name in redirects(STUB.read_text())}
    assert names == {*braintrace.__all__, *braintrace._LEGACY, *braintrace._PARTS}


def mypy(folder, code):
    """What mypy says of a program that uses the package."""
    (folder / 'mypy.ini').write_text(CONFIG)
    (folder / 'program.py').write_text(textwrap.dedent(code))
    answer = subprocess.run(
        [sys.executable, '-m', 'mypy', '--config-file=mypy.ini', 'program.py'],
        capture_output=True,
        text=True,
        cwd=folder,
        env={'MYPYPATH': str(ROOT.parent)},
    )
    return answer.stdout + answer.stderr


@pytest.mark.skipif(not importlib.util.find_spec('mypy'), reason='needs mypy')
def test_type_checkers_know_the_public_names(tmp_path):
    answer = mypy(
        tmp_path,
        """
        import braintrace
        from braintrace import D_RTRL

        reveal_type(braintrace.compile)
        braintrace.D_RTRL, braintrace.nn, braintrace.ETraceParam, D_RTRL
        braintrace.no_such_name
        """,
    )
    [revealed, error, total] = answer.splitlines()
    assert 'model: Any, algorithm: Any' in revealed
    assert error.startswith('program.py:7: error: Module has no attribute "no_such_name"')
    assert total.startswith('Found 1 error')


def test_the_package_says_that_it_is_typed():
    assert (ROOT / 'py.typed').exists()
