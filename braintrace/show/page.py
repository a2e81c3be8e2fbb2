"""The report of a compiled model as one HTML page that needs nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from os import PathLike
from pathlib import Path

from .boxes import Node, explained_boxes, explained_ways
from .choice import choice_lines
from .exact import exactness_lines, in_one_word
from .page_look import SCRIPT, STYLE
from .picture import Picture, draw
from .report import CompilationReport, diagnostic_lines
from .svg import sample_of_box, sample_of_way, svg
from .text import bytes_as_text


@dataclass(frozen=True)
class Page:
    """A page that stands alone. Notebooks show it, `save(path)` writes it, `str(page)` is its
    text."""

    text: str

    def save(self, path: str | PathLike[str]) -> None:
        """Write the page to a file."""
        Path(path).write_text(self.text, encoding='utf-8')

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        frame = 'width:100%;height:40rem;border:0;border-radius:8px'
        return f'<iframe srcdoc="{escape(self.text)}" style="{frame}"></iframe>'


def page(title: str, report: CompilationReport) -> Page:
    """The model drawn, a row for each parameter, memory and diagnostics."""
    picture, name = draw(report), escape(title)
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<title>{name}</title><style>{STYLE}</style></head><body><main>',
        f'<h1>{name}</h1>',
        _figures(report),
        _drawing(picture),
        f'<h2>Parameters</h2>{_parameters(report)}',
        *_exactness(report),
        *_choice(report),
        f'<h2>Diagnostics</h2>{_list(diagnostic_lines(report.diagnostics), "None.")}',
        f'</main>{"".join(map(_card, picture.nodes))}<script>{SCRIPT}</script></body></html>',
    ]
    return Page('\n'.join([*parts, '']))


def _figures(report: CompilationReport) -> str:
    """The figures that a reader wants first."""
    figures = {
        'parameters': str(len(report.parameters)),
        'hidden groups': str(len(report.hidden_groups)),
    }
    if report.exactness:
        figures['exact'] = in_one_word(report.exactness)
    if report.memory is not None:
        figures['all traces'] = bytes_as_text(report.memory['trace_bytes'])
        steps = report.memory['block_steps']
        figures[f'a block of {steps} steps'] = bytes_as_text(report.memory['block_bytes'])
        figures['a gradient in all'] = bytes_as_text(report.memory['peak_bytes'])
    told = [
        f'<div><dt>{escape(word)}</dt><dd>{escape(value)}</dd></div>'
        for word, value in figures.items()
    ]
    return f'<dl class="figures">{"".join(told)}</dl>'


def _drawing(picture: Picture) -> str:
    image = svg(picture.nodes, picture.edges, with_legend=False)
    boxes = [(sample_of_box(k), v.legend) for k, v in explained_boxes(picture.nodes).items()]
    ways = [(sample_of_way(k), v.legend) for k, v in explained_ways(picture.edges).items()]
    legend = [f'<li>{mark}{escape(text)}</li>' for mark, text in [*boxes, *ways]]
    return (
        f'<div class="graph">{image}</div><ul class="legend">{"".join(legend)}</ul>'
        '<p class="hint">Point at a box, or tap it: shapes, bytes and the line of your code.</p>'
    )


def _marked(text: str) -> str:
    """A text in which `` `names` `` are code."""
    return re.sub('`([^`]+)`', r'<code>\1</code>', escape(text))


def _card(node: Node) -> str:
    """What is shown about a box that is pointed at."""
    lines = [f'<dt>{escape(word)}</dt><dd>{_marked(text)}</dd>' for word, text in node.details]
    return (
        f'<div class="card" id="of-{node.name}" role="tooltip" hidden>'
        f'<b>{escape(node.lines[0])}</b><dl>{"".join(lines)}</dl></div>'
    )


def _parameters(report: CompilationReport) -> str:
    heads = ['name', 'shape', 'what it gets']
    rows = [list(row[:3]) for row in report.parameters]
    if report.exactness:
        heads += ['traces', 'exact']
        for cells, row in zip(rows, report.parameters, strict=True):
            exact = 'yes' if report.exactness[row.name].exact else 'no'
            cells += [bytes_as_text(row.trace_bytes or 0), exact]
    head = ''.join(f'<th>{word}</th>' for word in heads)
    body = ''.join(_table_row(heads, cells) for cells in rows)
    return f'<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _table_row(heads: Sequence[str], cells: Sequence[str]) -> str:
    told = [
        f'<td data-head="{head}">{_marked(cell)}</td>'
        for head, cell in zip(heads, cells, strict=True)
    ]
    return f'<tr>{"".join(told)}</tr>'


def _exactness(report: CompilationReport) -> list[str]:
    if not report.exactness:
        return []
    return [f'<h2>Exactness</h2>{_list(exactness_lines(report.exactness))}']


def _choice(report: CompilationReport) -> list[str]:
    if report.choice is None:
        return []
    lines = choice_lines(report.choice, len(report.parameters))
    return [f'<h2>Choice of the rule</h2>{_list(lines)}']


def _list(lines: Iterable[str], nothing: str = '') -> str:
    told = [f'<li>{_marked(line)}</li>' for line in lines]
    return f'<ul>{"".join(told)}</ul>' if told else f'<p>{nothing}</p>'
