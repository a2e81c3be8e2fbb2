"""Equations as MathML, which browsers draw by themselves: nothing is loaded to read a page."""

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.writers.html import HTMLTranslator


def inline(writer: HTMLTranslator, node: nodes.math) -> None:
    """An equation within a line."""
    writer.body.append(convert(node.astext()))
    raise nodes.SkipNode


def display(writer: HTMLTranslator, node: nodes.math_block) -> None:
    """An equation on lines of its own."""
    writer.body.append(writer.starttag(node, 'div', CLASS='math'))
    # The converter knows the lines of `align*`, not those of `aligned`.
    latex = node.astext().strip().replace('{aligned}', '{align*}')
    writer.body.append(convert(latex, display='block') + '</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer('mathml', (inline, None), (display, None))
    return {'parallel_read_safe': True, 'parallel_write_safe': True}
