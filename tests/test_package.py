"""The package as a user gets it: a wheel beside jax and numpy alone; names, pickles, doctests."""

import ast
import importlib.util
import pathlib
import pickle
import re
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import distribution

import pytest
from _pytest.doctest import DoctestItem

import braintrace

HOUSE = pathlib.Path(braintrace.__file__).parent
ROOT = HOUSE.parent
SPLIT = '-' * 20
PLAIN = ('jax', 'jaxlib', 'numpy', 'scipy', 'ml_dtypes', 'opt_einsum')  # jax and what it needs


def run(python, *args, cwd):
    answer = subprocess.run(
        [str(python), *map(str, args)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={'HOME': str(cwd), 'JAX_PLATFORMS': 'cpu'},
    )
    assert not answer.returncode, answer.stdout + answer.stderr
    return answer.stdout


def show(names, folder):
    """A folder in which just these installed distributions are visible."""
    folder.mkdir()
    for name in names:
        there = distribution(name)
        for top in {file.parts[0] for file in there.files} - {'..', '__pycache__'}:
            (folder / top).symlink_to(there.locate_file(top))
    return folder


@pytest.fixture(scope='module')
def plain_python(tmp_path_factory):
    """The interpreter of a fresh environment with our wheel, jax and numpy."""
    if not importlib.util.find_spec('hatchling'):
        pytest.skip('needs hatchling')
    here = tmp_path_factory.mktemp('wheel')
    pip = ('-m', 'pip', '--disable-pip-version-check')
    build = ('wheel', '--quiet', '--no-deps', '--no-index', '--no-build-isolation')
    run(sys.executable, *pip, *build, '--wheel-dir', here, ROOT, cwd=here)
    [wheel] = here.glob('*.whl')

    venv.create(here / 'venv', with_pip=False)
    python = here / 'venv/bin/python'
    [site] = (here / 'venv').glob('lib/python*/site-packages')
    (site / 'plain.pth').write_text(str(show(PLAIN, here / 'plain')))
    inside = ('-m', 'pip', '--disable-pip-version-check', '--python', python)
    run(sys.executable, *inside, 'install', '--quiet', '--no-deps', '--no-index', wheel, cwd=here)
    run(sys.executable, *inside, 'check', cwd=here)  # nothing it declares is missing
    return python


LEARN = """
import braintrace, jax.numpy as jnp, sys

def step(params, h, x):
    h = jnp.tanh(params['a'] * h + x @ params['W'])
    return h, h

params, h = {'a': jnp.ones(2), 'W': jnp.ones((3, 2))}, jnp.zeros((4, 2))
learner = braintrace.compile(step, 'd_rtrl', params, h, jnp.ones((4, 3)))
(grads, losses), _ = learner.grad(
    lambda out: (out**2).mean(), params, learner.init(params, h), jnp.ones((5, 4, 3))
)
print(grads['W'].shape, float(abs(grads['a']).min()) > 0, losses.shape, learner.report)
"""

NEEDING = ('D_RTRL', 'nn', 'ETraceParam', 'GRUCell')
NEEDS = f"""
for name in {NEEDING}:
    try:
        getattr(braintrace, name)
    except ImportError as error:
        print(error)
"""

FILES = """
import pathlib
print(*pathlib.Path(braintrace.__path__[0]).iterdir())
"""


def test_the_wheel_beside_jax_and_numpy_alone(plain_python, tmp_path):
    """Plain functions learn, what needs brainstate says so, and the types are there."""
    mark = f'print({SPLIT!r})\n'
    answer = run(plain_python, '-c', mark.join((LEARN, NEEDS, FILES)), cwd=tmp_path)
    learned, needs, files = answer.split(f'{SPLIT}\n')
    assert learned.startswith('(3, 2) True (5,) CompilationReport(')
    remedy = 'brainstate is needed for this: pip install brainstate'
    assert needs.splitlines() == [f'`braintrace.{name}`: {remedy}' for name in NEEDING]
    assert 'py.typed' in files and '__init__.pyi' in files and str(ROOT) not in files.split()


def test_the_matrix_tries_the_lower_bounds():
    project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
    bounded = [*project['dependencies'], *project['optional-dependencies']['brainstate']]
    lower = dict(re.fullmatch(r'(\w+)>=([\d.]+),<[\d.]+', bound).groups() for bound in bounded)
    [oldest] = re.findall(r'^OLDEST := (.*)$', (ROOT / 'Makefile').read_text(), re.M)
    tried = dict(pin.split('==') for pin in oldest.split())
    for name, version in lower.items():
        assert tried[name] == version or tried[name].startswith(f'{version}.'), name


def test_the_citation_has_the_version():
    [version] = re.findall(r'^version: (.*)$', (ROOT / 'CITATION.cff').read_text(), re.M)
    assert version == braintrace.__version__


def test_layers_forward_from_the_top():
    assert set(braintrace._LAYERS) == set(braintrace.nn.__all__)
    with pytest.warns(DeprecationWarning, match='`braintrace.GRUCell` is `braintrace.nn') as told:
        assert braintrace.GRUCell is braintrace.nn.GRUCell
    assert told[0].filename == __file__
    with pytest.raises(ImportError):
        exec('from braintrace import NoSuchCell')


def test_public_classes_are_known_by_their_public_name():
    for name in braintrace.__all__:
        value = getattr(braintrace, name)
        if isinstance(value, type):
            assert value.__module__ == 'braintrace', name
            assert pickle.loads(pickle.dumps(value)) is value


def written_doctests():
    """The examples in classes: `(file's module, 'Class')` or `(file's module, 'Class.method')`."""
    for file in HOUSE.rglob('*.py'):
        module = '.'.join(file.relative_to(ROOT).with_suffix('').parts)
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef):
                yield from ((module, name) for name in with_example(node))


def with_example(cls):
    methods = [node for node in cls.body if isinstance(node, ast.FunctionDef)]
    named = {cls.name: cls, **{f'{cls.name}.{method.name}': method for method in methods}}
    return [name for name, node in named.items() if '>>> ' in (ast.get_docstring(node) or '')]


def test_doctests_of_public_classes_are_collected(request):
    """pytest looks for examples in the module that a class says it is from: for public classes that
    is `braintrace`, where it finds those of the class, and not those of its methods."""
    config = request.config
    if config.args != config.getini('testpaths') or config.option.keyword:
        pytest.skip('only when everything is collected')
    collected = {item.name for item in request.session.items if isinstance(item, DoctestItem)}
    lost = [
        f'{module}.{name}'
        for module, name in written_doctests()
        if not {f'{module}.{name}', f'braintrace.{name}'} & collected
    ]
    assert not lost, f'{lost} do not run: move each to the docstring of its class.'
