"""The command line: `braintrace demo`, `report`, `code` and `compare`.

The last three take a model as `package.module:factory`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import NotSupportedError
from ..learn.choice import is_auto
from ..rules.registry import find_rule
from .comparison import MeasuredRule, compare, needed_options
from .trial import is_module, ready

PACKAGE = 'braintrace'
FACTORY = 'package.module:factory'
RETURNS = (
    '(model, example_inputs) for a brainstate module, or (step, params, state, *inputs) for a '
    'plain function'
)
TRACEBACK = 'show where an error comes from'


class CommandError(Exception):
    """Something the user can put right."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 2 for what the user can put right."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except CommandError as error:
        if options.traceback:
            traceback.print_exception(error)
            return 2
        hint = '' if error.__cause__ is None else ' (--traceback tells where.)'
        print(f'braintrace {options.command}: {error}{hint}', file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        'braintrace', description='Online learning in recurrent and spiking networks.'
    )
    parser.add_argument('--version', action='version', version=f'braintrace {version(PACKAGE)}')
    parser.add_argument('--traceback', action='store_true', help=TRACEBACK)
    commands = parser.add_subparsers(dest='command', required=True)
    _add_demo(commands)
    _add_report(commands)
    _add_code(commands)
    _add_compare(commands)
    for command in commands.choices.values():
        # Also after the command; if it is not there, what stands before the command holds.
        default = argparse.SUPPRESS
        command.add_argument('--traceback', action='store_true', help=TRACEBACK, default=default)
    return parser


def _add_demo(commands: Any) -> None:
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


def _add_report(commands: Any) -> None:
    report = commands.add_parser(
        'report', help='what the compiler decides for each parameter of your model'
    )
    report.add_argument(
        '--rule',
        default='d_rtrl',
        help="the learning rule whose traces are counted (default d_rtrl), or 'auto'",
    )
    report.add_argument('--html', metavar='FILE', help='also write one page with the model drawn')
    report.set_defaults(run=_report)
    _add_model(report)


def _add_code(commands: Any) -> None:
    code = commands.add_parser(
        'code', help='the learning rule of your model as one file of Python that stands alone'
    )
    code.add_argument('--rule', default='d_rtrl', help='the learning rule (default d_rtrl)')
    code.add_argument(
        '--backend',
        default='jax',
        choices=('jax', 'numpy'),
        help='what the file imports (default jax)',
    )
    code.add_argument('--output', metavar='FILE', help='where it goes, instead of being printed')
    code.set_defaults(run=_code)
    _add_model(code)


def _add_compare(commands: Any) -> None:
    rules = commands.add_parser(
        'compare', help='every rule on your model: gradient against BPTT, time, memory'
    )
    rules.add_argument('--rules', help='their names, with commas between; all by default')
    rules.add_argument(
        '--length', type=int, default=64, help='steps of the test sequence (default 64)'
    )
    rules.add_argument(
        '--limit',
        metavar='BYTES',
        default='256MiB',
        help='leave out rules whose traces take more, for instance 10MB (default 256MiB)',
    )
    rules.add_argument('--plot', metavar='FILE', help='also draw error against time')
    rules.set_defaults(run=_compare)
    _add_model(rules)


def _add_model(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        'factory', metavar=FACTORY, help=f'a function without arguments that gives {RETURNS}'
    )
    command.add_argument(
        '--batch-size', type=int, help='initialise the states of a module for a batch'
    )


def _demo(options: argparse.Namespace) -> None:
    from .demo import demo  # only this command needs it

    if options.steps < 1:
        raise CommandError(f'--steps must be at least 1, got {options.steps}.')
    demo(steps=options.steps, chunk=max(options.steps // 80, 1), plot=_writable(options.plot))


def _report(options: argparse.Namespace) -> None:
    model, inputs = load(options.factory)
    file = options.html and _writable(options.html)
    report = _ready(options, options.rule, model, inputs).report
    report.show(2)
    if file:
        report.draw(html=True, title=options.factory).save(file)
        print(f'\nWritten to {options.html}.')


def _code(options: argparse.Namespace) -> None:
    model, inputs = load(options.factory)
    file = options.output and _writable(options.output)
    try:
        text = _ready(options, options.rule, model, inputs).code(options.backend)
    except NotSupportedError as error:
        raise CommandError(str(error)) from error
    if file:
        file.write_text(text)
        print(f'Written to {options.output}.')
    else:
        print(text, end='')


def _compare(options: argparse.Namespace) -> None:
    model, inputs = load(options.factory)
    rules = _rule_names(options.rules)
    if options.length < 1:
        raise CommandError(f'--length must be at least 1, got {options.length}.')
    plot = options.plot and _writable(options.plot)
    _ready(options, 'bptt', model, inputs)  # says what is wrong with the model before any rule runs
    try:
        comparison = compare(
            model,
            *inputs,
            rules=rules,
            length=options.length,
            batch_size=options.batch_size,
            limit=options.limit,
            progress=_tell_rule,
            on_row=_tell_row,
        )
        print(comparison.table())
        if plot:
            comparison.plot(plot)
            print(f'\nWritten to {options.plot}.')
    except (ValueError, ImportError) as error:
        raise CommandError(str(error)) from error


def _rule_names(listed: str | None) -> list[str] | None:
    """The rules that the user has listed with commas between; None stands for all."""
    if not listed:
        return None
    try:
        return [find_rule(name).name for name in listed.split(',') if name.strip()]
    except ValueError as error:
        raise CommandError(str(error)) from None


def _tell_rule(rule: str) -> None:
    """Say which rule runs now; on a terminal the next one is written over it."""
    print(f'{rule} ...', end='\r' if sys.stderr.isatty() else '\n', file=sys.stderr)


def _tell_row(row: MeasuredRule) -> None:
    """A row as soon as it is measured; the ranked table follows when all are."""
    print(row.line(), file=sys.stderr, flush=True)


def load(where: str) -> tuple[Any, tuple]:
    """The model and example inputs of a factory given as `package.module:factory`."""
    name, colon, attribute = where.partition(':')
    if not (name and colon and attribute):
        raise CommandError(
            f'{where!r} does not name a factory. Write it as {FACTORY}, for instance '
            'my_project.models:small_gru.'
        )
    if name.endswith('.py') or '/' in name:
        file = Path(name)
        raise CommandError(
            f'{name!r} is a file. Name the module, in the directory that holds it: '
            f'{file.stem}:{attribute}.'
        )
    module = _import(name)
    factory = getattr(module, attribute, None)
    if not callable(factory):
        known = _functions_of(module)
        hint = f'It has {", ".join(known)}.' if known else f'It should give {RETURNS}.'
        raise CommandError(f'module {name!r} has no function {attribute!r}. {hint}')
    try:
        made = factory()
    except Exception as error:
        raise CommandError(
            f'{where} failed with {type(error).__name__}: {error}. It is called without arguments.'
        ) from error
    return _unpack(where, made)


def _import(name: str) -> ModuleType:
    """A module of the user, from the working directory too."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f'{name}.'.startswith(f'{error.name}.'):
            raise CommandError(f'{name} imports {error.name}, which is not installed.') from error
        raise CommandError(
            f'there is no module {error.name!r}. Run the command in the directory that holds it, '
            'or install the package.'
        ) from None


def _functions_of(module: ModuleType) -> list[str]:
    """The public functions that a module defines itself."""
    return [
        name
        for name, value in vars(module).items()
        if callable(value)
        and getattr(value, '__module__', None) == module.__name__
        and not name.startswith('_')
    ]


def _unpack(where: str, made: Any) -> tuple[Any, tuple]:
    """The model and its example inputs from what a factory has made."""
    wrong = CommandError(f'{where} must return {RETURNS}, but it returned {_types_of(made)}.')
    if not isinstance(made, tuple) or len(made) < 2:
        raise wrong
    model, *inputs = made
    if is_module(model):
        if len(inputs) == 1 and isinstance(inputs[0], tuple | list):
            [inputs] = inputs
    elif not callable(model) or len(inputs) < 2:
        raise wrong
    return model, tuple(inputs)


def _types_of(made: Any) -> str:
    if isinstance(made, tuple):
        return f'({", ".join(type(a).__name__ for a in made)})'
    return type(made).__name__


def _ready(options: argparse.Namespace, rule: str, model: Any, inputs: tuple) -> Any:
    """The learner, its warnings left to the report."""
    try:
        needed = {} if is_auto(rule) else needed_options(find_rule(rule))
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            return ready(model, rule, *inputs, batch_size=options.batch_size, **needed)
    except Exception as error:
        hint = ''
        if is_module(model) and options.batch_size is None:
            hint = ' Are the inputs those of one step, and do they need --batch-size?'
        raise CommandError(
            f'{options.factory} does not compile. {type(error).__name__}: {error}{hint}'
        ) from error


def _writable(path: str) -> Path:
    file = Path(path)
    if not file.parent.is_dir():
        raise CommandError(f'cannot write {path}: there is no directory {file.parent}.')
    return file
