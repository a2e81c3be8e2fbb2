"""Settings of the documentation: `make docs` builds it with warnings as errors."""

import os
import pathlib
import sys

import braintrace

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE / '_ext'))

project, author = 'braintrace', 'The braintrace developers'
release = version = braintrace.__version__
extensions = ['myst_nb', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon', 'mathml', 'names']
exclude_patterns = ['_build', '_ext', 'jupyter_execute']

html_theme = 'furo'
html_title = f'braintrace {version}'
html_show_copyright = False
html_static_path = ['_static']
html_css_files = ['pages.css']
html_math_renderer = 'mathml'

myst_enable_extensions = ['colon_fence', 'deflist', 'dollarmath']
myst_heading_anchors = 3

# Tutorials are notebooks in text form. They run when the pages are built, and one that fails
# fails the build.
nb_execution_mode = 'force'
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True
os.environ['PYTHONWARNINGS'] = 'ignore:IProgress not found'  # of a progress bar, without widgets
# Compiling is what takes them the time, and these halve it.
os.environ.setdefault('JAX_DISABLE_MOST_OPTIMIZATIONS', '1')
os.environ.setdefault(
    'XLA_FLAGS', '--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1'
)

default_role = 'name'  # docstrings write code, and names of ours, in single backticks
autodoc_member_order = 'bysource'
autodoc_typehints = 'signature'
autodoc_typehints_format = 'short'
python_use_unqualified_type_names = True
maximum_signature_line_length = 90
