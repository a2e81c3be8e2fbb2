"""Settings of the documentation: `make docs` builds it with warnings as errors."""

import inspect

import braintrace

project, author = 'braintrace', 'The braintrace developers'
release = version = braintrace.__version__
extensions = ['myst_parser', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon']
exclude_patterns = ['_build']
myst_enable_extensions = ['deflist']
myst_heading_anchors = 3
default_role = 'code'  # docstrings write code in single backticks
autodoc_member_order = 'bysource'
autodoc_typehints = 'none'
html_theme = 'furo'
html_title = f'braintrace {version}'


def _signature(app, what, name, obj, options, signature, result):
    """The constructor's own arguments, where a metaclass hides them."""
    if what == 'class' and signature == '(*args, **kwargs)':
        s = inspect.signature(obj.__init__)
        plain = [p.replace(annotation=p.empty) for k, p in s.parameters.items() if k != 'self']
        return str(s.replace(parameters=plain, return_annotation=s.empty)), None


def setup(app):
    app.connect('autodoc-process-signature', _signature)
    app.connect(
        'autodoc-skip-member',
        lambda app, what, name, obj, skip, options: (
            True if type(obj).__name__ == '_tuplegetter' else None
        ),
    )  # fields of records
