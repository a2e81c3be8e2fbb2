"""Promises about the code base: who imports whom, what an import costs, and that compiling is
repeatable."""

import ast
import pathlib
import subprocess
import sys

import pytest

import braintrace

ROOT = pathlib.Path(braintrace.__file__).parent
ROOMS = (
    '_jax errors step frontends ops graph plan engine rules learn show compat shells nn tools __init__'
).split()
FRAMEWORKS = (
    'brainstate',
    'saiunit',
    'brainevent',
    'brainpy',
    'braintools',
    'matplotlib',
    'flax',
    'equinox',
)
KNOWS_BRAINSTATE = ('frontends/brainstate.py', 'shells/', 'compat/', 'nn/', 'ops/functions.py')


def imports(file):
    """Absolute names of what a file imports."""
    here = file.relative_to(ROOT.parent).with_suffix('').parts
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = (
                '.'.join([*here[: len(here) - node.level], *([node.module] if node.module else [])])
                if node.level
                else node.module
            )
            yield from (f'{base}.{a.name}' for a in node.names)


def room(parts):
    return parts[1] if len(parts) > 1 else '__init__'


@pytest.mark.parametrize('file', sorted(ROOT.rglob('*.py')), ids=lambda f: str(f.relative_to(ROOT)))
def test_imports_point_down(file):
    name = str(file.relative_to(ROOT))
    here = room(file.relative_to(ROOT.parent).with_suffix('').parts)
    for target in imports(file):
        top, *rest = target.split('.')
        if top == 'braintrace':
            assert ROOMS.index(room(['braintrace', *rest])) <= ROOMS.index(here), (
                f'{name} imports {target} from a room above it'
            )
            if here == 'frontends':
                assert room(['braintrace', *rest]) in ('_jax', 'errors', 'step'), (
                    f'{name} may import step and its own framework only'
                )
        if top in FRAMEWORKS:
            assert name.startswith(KNOWS_BRAINSTATE) or (name, top) == (
                'graph/picture.py',
                'matplotlib',
            ), f'{name} must not know {top}'
        if target.startswith(('jax.extend', 'jax.interpreters', 'jax._src')):
            assert name == '_jax.py', (
                f'{name} reaches into {target}; version differences live in _jax.py'
            )


def run(code, **env):
    return subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', code],
        capture_output=True,
        text=True,
        check=True,
        env={**env, 'JAX_PLATFORMS': 'cpu'},
    ).stdout


def test_import_is_light():
    loaded = run(f'import braintrace, sys; print([m for m in {FRAMEWORKS} if m in sys.modules])')
    assert loaded.strip() == '[]'


def test_plain_functions_need_no_framework():
    code = """
import jax, jax.numpy as jnp, braintrace, sys
jax.config.update("jax_enable_x64", True)
learner = braintrace.compile(lambda p, h, x: (jnp.tanh(h * p + x), h), "d_rtrl", jnp.ones(2), jnp.zeros(2), jnp.ones(2))
carry = learner.init(jnp.ones(2), jnp.zeros(2))
(grads, _), _ = learner.grad(lambda out: out.sum(), jnp.ones(2), carry, jnp.ones((3, 2)))
print(grads.dtype, "brainstate" in sys.modules)
braintrace.D_RTRL
print(jax.config.jax_enable_x64)
"""
    assert run(code, HOME='/tmp').split() == ['float64', 'False', 'True']


def test_every_public_name_loads():
    for name in braintrace.__all__:
        assert getattr(braintrace, name) is not None
    with pytest.raises(AttributeError, match='no_such_name'):
        braintrace.no_such_name  # noqa: B018
    assert set(braintrace.__all__) <= set(dir(braintrace))


def test_compiling_is_repeatable():
    code = """
import brainstate, jax.numpy as jnp, braintrace
net = brainstate.nn.init_all_states(brainstate.nn.Sequential(brainstate.nn.GRUCell(3, 4), brainstate.nn.LSTMCell(4, 4)))
for _ in range(2):
    graph = braintrace.compile_etrace_graph(net, jnp.ones(3))
    print(braintrace.CompilationReport(graph).to_str(2))
    print([(r.name, r.trainable_paths, r.connected_hidden_paths) for r in graph.hidden_param_op_relations], [g.hidden_paths for g in graph.hidden_groups])
"""
    first, second = (run(code, PYTHONHASHSEED=seed, HOME='/tmp') for seed in '12')
    assert first == second and len(set(first.split('Hidden groups'))) == 2
