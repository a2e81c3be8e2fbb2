"""The report of a compiled model as one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from ..graph.diagnostics import CompilationRecord, DiagnosticLevel
from ..show.exact import exactness_lines
from ..show.picture import draw
from ..show.report import CompilationReport
from ..show.text import bytes_as_text

STYLE = '\n'.join(
    [
        'body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem;'
        'color:#111827}',
        '.graph{overflow-x:auto;border:1px solid #e5e7eb;border-radius:8px;padding:.5rem}'
        'table{border-collapse:collapse;font-size:14px}',
        'td,th{text-align:left;padding:.35rem .8rem .35rem 0;border-bottom:1px solid #e5e7eb;'
        'vertical-align:top}',
        'td:first-child,td:nth-child(2){font-family:ui-monospace,monospace}',
        'li{margin:.3rem 0}',
    ]
)


def page(title: str, report: CompilationReport) -> str:
    """The model drawn, a row for each parameter, memory and diagnostics."""
    name = escape(title)
    lines = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<title>{name}</title><style>{STYLE}</style></head><body>',
        f'<h1>{name}</h1><div class="graph">{draw(report.graph).svg()}</div>',
        f'<h2>Parameters</h2>{_parameters(report)}',
        f'<h2>Exactness</h2>{_list(exactness_lines(report.exactness))}',
        f'<h2>Memory</h2><p>{escape(_memory(report))}</p>',
        f'<h2>Diagnostics</h2>{_diagnostics(report.diagnostics)}</body></html>',
    ]
    return '\n'.join([*lines, ''])


def _parameters(report: CompilationReport) -> str:
    head = '<tr><th>name</th><th>shape</th><th>what it gets</th><th>traces</th><th>exact</th></tr>'
    told = report.exactness
    rows = [
        _table_row([*row[:3], bytes_as_text(row.trace_bytes or 0), _yes(told[row.name].exact)])
        for row in report.parameters
    ]
    return f'<table>{head}{"".join(rows)}</table>'


def _table_row(cells: Sequence[str]) -> str:
    return f'<tr>{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>'


def _yes(exact: bool) -> str:
    return 'yes' if exact else 'no'


def _list(lines: Iterable[str]) -> str:
    return f'<ul>{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul>'


def _memory(report: CompilationReport) -> str:
    costs = (report.memory or {}).items()
    return ', '.join(f'{name.replace("_", " ")} {value:,}' for name, value in costs)


def _diagnostics(records: Sequence[CompilationRecord]) -> str:
    told = [
        f'<li><b>{record.level.value}</b> {escape(record.message)}</li>'
        for record in records
        if record.level is not DiagnosticLevel.INFO
    ]
    return f'<ul>{"".join(told)}</ul>' if told else '<p>None.</p>'
