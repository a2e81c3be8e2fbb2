"""Promises about the code base: who imports whom, what a file may reach, how long it is, what an
import costs, and that compiling is repeatable."""

import ast
import functools
import pathlib
import re
import subprocess
import sys

import pytest
from told import GATE

import braintrace

ROOT = pathlib.Path(braintrace.__file__).parent
FILES = sorted(ROOT.rglob('*.py'))
ROOMS = (
    '_jax primitives errors step frontends ops graph plan engine rules learn show compat shells nn '
    'tools __init__'
).split()
BELOW_FRONTENDS = ('_jax', 'primitives', 'errors', 'step')
FRAMEWORKS = ('brainstate', 'saiunit', 'brainevent', 'brainpy', 'braintools', 'flax', 'equinox')
KNOW_FRAMEWORKS = ('shells/', 'compat/', 'nn/')  # and frontends/<name>.py each its own
SHARED = 'base', 'forms', 'closures', 'brainevent'  # what several front-ends use
PROTOCOL = tuple(f'braintrace.frontends.{name}' for name in SHARED)
OWN = {  # frameworks of a front-end
    'brainstate': ('brainstate', 'saiunit', 'brainevent'),
    'linen': ('flax',),
    'nnx': ('flax',),
    'pickling': ('brainstate',),
}
DRAW = ('show/', 'tools/')
# Underscored names that are somebody's public protocol.
PROTOCOLS = {
    '_replace',
    '_asdict',
    '_fields',
    '_make',
    '_repr_svg_',
    '_src',  # of jax, in _jax.py
}
LEAN_ON_JAX = ('_jax.py', 'primitives.py')
MOST_LINES, MOST_OF_A_FUNCTION = 400, 60
NAMES_NO_FRAMEWORK = '_jax primitives errors step ops graph plan engine rules learn'.split()


def name_of(file):
    return str(file.relative_to(ROOT))


@functools.cache
def parsed(file):
    return ast.parse(file.read_text())


def imports(file):
    """Absolute names of what a file imports, inside functions too, with the line of each."""
    here = file.relative_to(ROOT.parent).with_suffix('').parts
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            yield from ((a.name, node.lineno) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) - node.level] if node.level else ()
            base = '.'.join([*above, *([node.module] if node.module else [])])
            yield from ((f'{base}.{a.name}', node.lineno) for a in node.names)


def room(parts):
    return parts[1] if len(parts) > 1 else '__init__'


def room_of(file):
    return room(file.relative_to(ROOT.parent).with_suffix('').parts)


def ours(file):
    """What a file imports from braintrace: name, room and line."""
    for target, line in imports(file):
        top, *rest = target.split('.')
        if top == 'braintrace':
            yield target, room(['braintrace', *rest]), line


def test_imports_point_down():
    up = [
        f'{name_of(file)}:{line}: {target}'
        for file in FILES
        for target, there, line in ours(file)
        if ROOMS.index(there) > ROOMS.index(room_of(file))
    ]
    assert not up, up


def test_frontends_know_the_step_and_their_own_framework():
    for file in (ROOT / 'frontends').glob('*.py'):
        of = file.stem.split('_')[0]  # one framework may have several files
        for target, there, line in ours(file):
            protocol = target.startswith((*PROTOCOL, f'braintrace.frontends.{of}_'))
            assert there in BELOW_FRONTENDS or protocol, f'{file.name}:{line}: {target}'
        for target, line in imports(file):
            top = target.split('.')[0]
            own = OWN.get(of, (of,))
            assert top not in FRAMEWORKS or top in own, f'{file.name}:{line}: {target}'


def test_frameworks_are_known_where_they_belong():
    for file in FILES:
        name = name_of(file)
        if room_of(file) in NAMES_NO_FRAMEWORK:
            words = {*re.findall(r'\w+', file.read_text().lower())}
            assert not {*FRAMEWORKS, 'nnx'} & words, name
        for target, line in imports(file):
            at, top = f'{name}:{line}: {target}', target.split('.')[0]
            if top in FRAMEWORKS and file.parent.name != 'frontends':
                assert name.startswith(KNOW_FRAMEWORKS), at
            if top == 'matplotlib':
                assert name.startswith(DRAW), at
            if target.startswith(('jax.extend', 'jax.interpreters', 'jax._src')):
                assert name in LEAN_ON_JAX, f'{at}; internals of JAX are for {LEAN_ON_JAX}'


def private(name):
    return name.startswith('_') and not name.startswith('__')


def foreign_names(file):
    """Underscored names of others: imported, or read from anything but oneself."""
    tree = parsed(file)
    own = PROTOCOLS | names_of_own_classes(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (
            node.level or node.module.startswith('braintrace')
        ):
            for alias in node.names:
                if private(alias.name) and alias.name != '_jax':
                    yield alias.name, node.lineno
        if isinstance(node, ast.Attribute) and private(node.attr):
            if node.attr not in own and not is_self(node.value):
                yield node.attr, node.lineno


def is_self(node):
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ('super', 'type')
    return isinstance(node, ast.Name) and node.id in ('self', 'cls')


def names_of_own_classes(tree):
    """Underscored names that the classes of a file define: these may be read on other objects of
    the same class, as in `with_step(self, other)`."""
    own = set()
    for cls in ast.walk(tree):
        if isinstance(cls, ast.ClassDef):
            for node in ast.walk(cls):
                if isinstance(node, ast.FunctionDef):
                    own.add(node.name)
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    if is_self(node.value):
                        own.add(node.attr)
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    own.add(node.target.id)
    return own


def test_no_module_uses_another_s_underscored_names():
    foreign = [
        f'{name_of(file)}:{line}: {name}' for file in FILES for name, line in foreign_names(file)
    ]
    assert not foreign, foreign


def lines_of_code(node, text):
    """Lines of a function that hold code: no docstring, no comment, nothing empty."""
    first, *rest = node.body
    docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    skip = range(first.lineno, first.end_lineno + 1) if docstring else ()
    lines = enumerate(text[node.lineno - 1 : node.end_lineno], node.lineno)
    return sum(
        bool(line.strip()) and not line.strip().startswith('#')
        for k, line in lines
        if k not in skip
    )


def test_files_and_functions_fit():
    for file in FILES:
        text = file.read_text().splitlines()
        assert len(text) <= MOST_LINES, name_of(file)
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                at = f'{name_of(file)}: {node.name}'
                assert lines_of_code(node, text) <= MOST_OF_A_FUNCTION, at


def test_no_conditional_expression_holds_another():
    chained = [
        f'{name_of(file)}:{node.lineno}'
        for file in FILES
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.IfExp) and isinstance(node.orelse, ast.IfExp)
    ]
    assert not chained, chained


def run(code, **env):
    return subprocess.run(
        [sys.executable, '-W', 'ignore', '-c', code],
        capture_output=True,
        text=True,
        check=True,
        env={**env, 'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': str(ROOT.parent)},
    ).stdout


def test_import_is_light_and_plain_functions_need_no_framework():
    code = f"""
import braintrace, sys
print([m for m in {(*FRAMEWORKS, 'matplotlib')} if m in sys.modules])
import jax, jax.numpy as jnp
jax.config.update("jax_enable_x64", True)
def step(p, h, x):
    return jnp.tanh(h * p + x), h
learner = braintrace.compile(step, "d_rtrl", jnp.ones(2), jnp.zeros(2), jnp.ones(2))
carry = learner.init(jnp.ones(2), jnp.zeros(2))
(grads, _), _ = learner.grad(lambda out: out.sum(), jnp.ones(2), carry, jnp.ones((3, 2)))
print(grads.dtype, "brainstate" in sys.modules)
braintrace.D_RTRL
print(jax.config.jax_enable_x64)
"""
    assert run(code, HOME='/tmp').split() == ['[]', 'float64', 'False', 'True']


def test_every_public_name_loads():
    for name in braintrace.__all__:
        assert getattr(braintrace, name) is not None
    with pytest.raises(AttributeError, match='no_such_name'):
        braintrace.no_such_name  # noqa: B018
    assert set(braintrace.__all__) <= set(dir(braintrace))


@GATE
def test_compiling_is_repeatable(capsys):
    """Here and in another process, where text has other hashes."""
    code = """
import brainstate, jax.numpy as jnp, braintrace
brainstate.environ.set(precision=64)
from brainstate.nn import GRUCell, LSTMCell, Sequential
net = brainstate.nn.init_all_states(Sequential(GRUCell(3, 4), LSTMCell(4, 4)))
graph = braintrace.compile_etrace_graph(net, jnp.ones(3))
print(braintrace.CompilationReport(graph).to_str(2))
for r in graph.hidden_param_op_relations:
    print(r.name, r.trainable_paths, r.connected_hidden_paths)
print([g.hidden_paths for g in graph.hidden_groups])
"""
    exec(code, {})
    first = capsys.readouterr().out
    exec(code, {})
    assert first and first == capsys.readouterr().out
    assert first == run(code, PYTHONHASHSEED='1', HOME='/tmp')
