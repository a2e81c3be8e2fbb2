"""Any program of JAX as a page of Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..._jax import open_jaxpr
from . import flow  # noqa: F401, it fills the table of statements
from .algebra import Algebra
from .control import Reader
from .lines import Names, indented, tuple_of, wrap
from .words import Text, Words
from .write import File, Scope, count_uses

BACKENDS = ('jax', 'numpy')


def jaxpr_to_python(
    closed_jaxpr: Any,
    names: Sequence[str] | None = None,
    *,
    function: str = 'f',
    backend: str = 'jax',
) -> str:
    """A program of JAX as Python that a person can read: operators, no dead code, every common
    part once.

    Args:
        closed_jaxpr: what `jax.make_jaxpr` gives.
        names: of its inputs, in order; `a`, `b`, ... by default.
        function: the name of the function that is written.
        backend: 'jax', or 'numpy' for a file that imports numpy alone.

    Returns:
        The source of a module with this one function, which takes the inputs of the program and
        returns the tuple of its outputs. A primitive that cannot be written is refused with a
        `NotSupportedError` that names it.

    Example:
        >>> import jax, jax.numpy as jnp, braintrace
        >>> def leaky(w, h, x):
        ...     return 0.9 * h + jnp.tanh(x @ w)
        >>> program = jax.make_jaxpr(leaky)(jnp.ones((3, 2)), jnp.ones(2), jnp.ones(3))
        >>> print(braintrace.jaxpr_to_python(program, ['w', 'h', 'x'], function='leaky'))
        import jax
        import jax.numpy as jnp
        <BLANKLINE>
        <BLANKLINE>
        def leaky(w, h, x):
            return (0.9 * h + jnp.tanh(x @ w),)
        <BLANKLINE>
    """
    words = Words(check_backend(backend))
    reader = Reader(Algebra(), derivatives=backend == 'jax')
    program = open_jaxpr(_program(closed_jaxpr))
    own = [v.aval for v in program.jaxpr.invars[len(program.consts) :]]
    arguments = _names(names, len(own))
    pairs = zip(arguments, own, strict=True)
    args = [reader.terms.name(name, a.shape, a.dtype) for name, a in pairs]
    outs = reader.open(program, args)
    top = Names([function, *arguments, *words.helper_names])
    file = File(words, top)
    given = {v.node: Text(v.node.info) for v in args}
    scope = Scope(file, count_uses(outs), {}, top, given)
    results = [scope.exact(v) for v in outs]
    body = [*scope.lines, *wrap('return ', tuple_of(results))]
    lines = [f'def {function}({", ".join(arguments)}):', *indented(body)]
    return module(file, [lines])


def module(file: File, functions: Sequence[Sequence[str]], docstring: str = '') -> str:
    """A source file of these functions, with what they need above them."""
    imports = (
        ['import numpy as np'] if file.words.is_numpy else ['import jax', 'import jax.numpy as jnp']
    )
    imports = [*(['import base64', ''] if file.has_bytes else []), *imports]
    head = [docstring, ''] if docstring else []
    constants = [
        line for name, value in file.constants.values() for line in wrap(f'{name} = ', value)
    ]
    parts = [[*head, *imports, *([''] if constants else []), *constants]]
    parts += [text.rstrip().split('\n') for text in file.words.helpers.values()]
    parts += [list(lines) for lines in functions]
    return '\n\n\n'.join('\n'.join(part) for part in parts) + '\n'


def check_backend(backend: str) -> str:
    """The backend, if there is one of this name."""
    if backend not in BACKENDS:
        raise ValueError(f"`backend` must be 'jax' or 'numpy', got {backend!r}.")
    return backend


def _program(given: Any) -> Any:
    """A program, or the one in what JAX has traced or lowered."""
    for program in (given, getattr(given, 'jaxpr', None)):
        if hasattr(program, 'eqns'):
            return program
    raise TypeError(
        '`closed_jaxpr` must be a program, as `jax.make_jaxpr(f)(*args)` gives it, got '
        f'{type(given).__name__}.'
    )


def _names(names: Sequence[str] | None, count: int) -> list[str]:
    if names is None:
        letters = Names()
        return [letters.new(chr(ord('a') + k % 26)) for k in range(count)]
    names = list(names)
    wrong = [n for n in names if not (isinstance(n, str) and n.isidentifier())]
    if len(names) != count or wrong or len(set(names)) != count:
        raise ValueError(
            f'`names` must be {count} different names, one for each input of the program, got '
            f'{names}.'
        )
    return names
