"""The command line: `braintrace demo`, `braintrace report package.module:factory`, `braintrace compare package.module:factory`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from ..show.report import CompilationReport
from .comparison import _is_module, compare, ready

FACTORY = 'package.module:factory'
RETURNS = '(model, example_inputs) for a brainstate module, or (step, params, state, *inputs) for a plain function'


class CommandError(Exception):
    """Something the user can put right."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 2 for what the user can put right."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except CommandError as error:
        print(f'braintrace {options.command}: {error}', file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        'braintrace', description='Online learning in recurrent and spiking networks.'
    )
    commands = parser.add_subparsers(dest='command', required=True)
    demo = commands.add_parser(
        'demo', help='a network learns online from a stream that never repeats, with four rules'
    )
    demo.add_argument('--steps', type=int, default=20000, help='of the stream (default 20000)')
    demo.add_argument(
        '--plot',
        default='add_task.png',
        metavar='FILE',
        help='where the curves go (default add_task.png)',
    )
    demo.set_defaults(run=_demo)
    report = commands.add_parser(
        'report', help='what the compiler decides for each parameter of your model'
    )
    report.add_argument(
        '--rule',
        default='d_rtrl',
        help='the learning rule whose traces are counted (default d_rtrl)',
    )
    report.add_argument('--html', metavar='FILE', help='also write one page with the model drawn')
    report.set_defaults(run=_report)
    rules = commands.add_parser(
        'compare', help='every rule on your model: gradient against BPTT, time, memory'
    )
    rules.add_argument('--rules', help='their names, with commas between; all by default')
    rules.add_argument(
        '--length', type=int, default=64, help='steps of the test sequence (default 64)'
    )
    rules.add_argument('--plot', metavar='FILE', help='also draw error against time')
    rules.set_defaults(run=_compare)
    for command in (report, rules):
        command.add_argument(
            'factory', metavar=FACTORY, help=f'a function without arguments that gives {RETURNS}'
        )
        command.add_argument(
            '--batch-size', type=int, help='initialise the states of a module for a batch'
        )
    return parser


def _demo(options: argparse.Namespace) -> None:
    from .demo import demo

    if options.steps < 1:
        raise CommandError(f'--steps must be at least 1, got {options.steps}.')
    demo(steps=options.steps, chunk=max(options.steps // 80, 1), plot=_writable(options.plot))


def _report(options: argparse.Namespace) -> None:
    model, inputs = load(options.factory)
    file = options.html and _writable(options.html)
    learner = _ready(options, model, inputs)
    learner.report.show(2)
    if file:
        file.write_text(page(options.factory, learner.report))
        print(f'\nWritten to {options.html}.')


def _compare(options: argparse.Namespace) -> None:
    from ..rules.registry import find_rule

    model, inputs = load(options.factory)
    names = [n for n in options.rules.split(',') if n.strip()] if options.rules else None
    try:
        rules = None if names is None else [find_rule(n).name for n in names]
    except ValueError as error:
        raise CommandError(str(error)) from error
    if options.length < 1:
        raise CommandError(f'--length must be at least 1, got {options.length}.')
    plot = options.plot and _writable(options.plot)
    _ready(options, model, inputs)  # says what is wrong with the model before any rule runs
    tell = lambda rule: print(
        f'{rule} ...', end='\r' if sys.stderr.isatty() else '\n', file=sys.stderr
    )
    try:
        found = compare(
            model,
            *inputs,
            rules=rules,
            length=options.length,
            batch_size=options.batch_size,
            progress=tell,
        )
        print(found.table())
        if plot:
            found.plot(plot)
            print(f'\nWritten to {options.plot}.')
    except (ValueError, ImportError) as error:
        raise CommandError(str(error)) from error


def load(where: str) -> tuple[Any, tuple]:
    """The model and example inputs of a factory given as `package.module:factory`."""
    name, colon, attribute = where.partition(':')
    if not (name and colon and attribute):
        raise CommandError(
            f'{where!r} does not name a factory. Write it as {FACTORY}, for instance my_project.models:small_gru.'
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name + '.').startswith(error.name + '.'):
            raise CommandError(f'{name} imports {error.name}, which is not installed.') from error
        raise CommandError(
            f'there is no module {error.name!r}. Run the command in the directory that holds it, or install the package.'
        ) from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        known = [
            n
            for n, v in vars(module).items()
            if callable(v) and getattr(v, '__module__', None) == name and not n.startswith('_')
        ]
        raise CommandError(
            f'module {name!r} has no function {attribute!r}. '
            + (f'It has {", ".join(known)}.' if known else f'It should give {RETURNS}.')
        )
    try:
        made = factory()
    except Exception as error:
        raise CommandError(
            f'{where} failed with {type(error).__name__}: {error}. It is called without arguments.'
        ) from error
    return _unpack(where, made)


def _unpack(where: str, made: Any) -> tuple[Any, tuple]:
    wrong = CommandError(f'{where} must return {RETURNS}, but it returned {_said(made)}.')
    if not isinstance(made, tuple) or len(made) < 2:
        raise wrong
    model, *rest = made
    if _is_module(model):
        return model, tuple(rest[0]) if len(rest) == 1 and isinstance(
            rest[0], tuple | list
        ) else tuple(rest)
    if not callable(model) or len(rest) < 2:
        raise wrong
    return model, tuple(rest)


def _said(made: Any) -> str:
    return (
        f'({", ".join(type(a).__name__ for a in made)})'
        if isinstance(made, tuple)
        else type(made).__name__
    )


def _ready(options: argparse.Namespace, model: Any, inputs: tuple) -> Any:
    """The learner, its warnings left to the report."""
    from ..rules.registry import find_rule
    from .comparison import DEFAULTS

    try:
        rule = find_rule(getattr(options, 'rule', 'bptt'))
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            given = {k: v for k, v in DEFAULTS.items() if k in rule.options}
            return ready(model, rule.name, *inputs, batch_size=options.batch_size, **given)
    except Exception as error:
        hint = (
            ' Are the inputs those of one step, and do they need --batch-size?'
            if _is_module(model) and options.batch_size is None
            else ''
        )
        raise CommandError(
            f'{options.factory} does not compile. {type(error).__name__}: {error}{hint}'
        ) from error


def _writable(path: str) -> Path:
    file = Path(path)
    if not file.parent.is_dir():
        raise CommandError(f'cannot write {path}: there is no directory {file.parent}.')
    return file


STYLE = """body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem;color:#111827}
.graph{overflow-x:auto;border:1px solid #e5e7eb;border-radius:8px;padding:.5rem}table{border-collapse:collapse;font-size:14px}
td,th{text-align:left;padding:.35rem .8rem .35rem 0;border-bottom:1px solid #e5e7eb;vertical-align:top}
td:first-child,td:nth-child(2){font-family:ui-monospace,monospace}
li{margin:.3rem 0}"""


def page(title: str, report: CompilationReport) -> str:
    """One HTML page that needs nothing else: the model drawn, a row for each parameter, memory and diagnostics."""
    from ..show.picture import draw

    fates = [(leaf.name, v.aval.str_short(), report._fate(leaf, v)) for leaf, v in report._leaves()]
    rows = ''.join(f'<tr>{"".join(f"<td>{escape(c)}</td>" for c in row)}</tr>' for row in fates)
    memory = report.memory or {}
    cost = ', '.join(f'{name.replace("_", " ")} {value:,}' for name, value in memory.items())
    told = ''.join(
        f'<li><b>{r.level.value}</b> {escape(r.message)}</li>'
        for r in report.diagnostics
        if r.level.value != 'info'
    )
    return f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style></head><body>
<h1>{escape(title)}</h1><div class="graph">{draw(report.graph).svg()}</div>
<h2>Parameters</h2><table><tr><th>name</th><th>shape</th><th>what it gets</th></tr>{rows}</table>
<h2>Memory</h2><p>{escape(cost)}</p>
<h2>Diagnostics</h2>{f'<ul>{told}</ul>' if told else '<p>None.</p>'}</body></html>
"""
