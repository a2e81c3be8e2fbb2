"""Links in docstrings and signatures: to public names of ours, and to types of jax and numpy."""

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.util import inspect

import braintrace

ELSEWHERE = {
    'jax.Array': 'https://docs.jax.dev/en/latest/_autosummary/jax.Array.html',
    'numpy.ndarray': 'https://numpy.org/doc/stable/reference/generated/numpy.ndarray.html',
    'collections.abc.Callable': 'https://docs.python.org/3/library/collections.abc.html',
    'collections.abc.Sequence': 'https://docs.python.org/3/library/collections.abc.html',
    'typing.Any': 'https://docs.python.org/3/library/typing.html#typing.Any',
}


def name_or_code(role, raw, text, line, inliner, options=None, content=()):
    """What stands in single backticks: a link if it is a public name, code in any case."""
    literal = nodes.literal(raw, text, classes=['code'])
    if text.split('.')[0] not in braintrace.__all__:
        return [literal], []
    target = {'reftype': 'obj', 'refdomain': 'py', 'reftarget': f'braintrace.{text}'}
    return [pending_xref('', literal, refexplicit=True, refwarn=False, **target)], []


def link_type(app, env, node, shown):
    """A type of ours by its short name, or one that another project documents."""
    target = node.get('reftarget', '')
    if target in ELSEWHERE:
        return nodes.reference('', '', shown, refuri=ELSEWHERE[target], internal=False)
    name = target.split('.')[-1]
    if node.get('refdomain') != 'py' or name not in braintrace.__all__:
        return None
    python, page = env.get_domain('py'), node.get('refdoc')
    ours = f'braintrace.{name}'
    return python.resolve_xref(env, page, app.builder, 'obj', ours, node, shown)


def own_arguments(app, what, name, obj, options, signature, result):
    """The arguments of a constructor, where a metaclass hides them."""
    if what == 'class' and signature == '(*args, **kwargs)':
        found = inspect.signature(obj.__init__, bound_method=True)
        return inspect.stringify_signature(found, show_return_annotation=False), None


def skip_fields(app, what, name, obj, skip, options):
    """Fields of records are told in the docstring of the record."""
    return True if type(obj).__name__ == '_tuplegetter' else None


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_role('name', name_or_code)
    app.connect('missing-reference', link_type)
    app.connect('autodoc-process-signature', own_arguments)
    app.connect('autodoc-skip-member', skip_fields)
    return {'parallel_read_safe': True, 'parallel_write_safe': True}
