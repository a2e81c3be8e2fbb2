"""Settings of the documentation: `make docs` builds it with warnings as errors."""

import braintrace

project, author = 'braintrace', 'the braintrace authors'
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
