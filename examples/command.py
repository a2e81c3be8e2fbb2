"""A command line for an example: the arguments of its `train` and options of a learning rule."""

import argparse
import ast
import inspect
import time


def run(train, argv=None):
    """Call `train` with what the command line says, print what it found, and return it."""
    parser = argparse.ArgumentParser(
        description=inspect.getmodule(train).__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog='Further `--name value` are options of the rule, '
        'for instance `--rule pp_prop --decay_or_rank 0.9`.',
    )
    for name, argument in inspect.signature(train).parameters.items():
        if argument.kind is not argument.VAR_KEYWORD:
            add_argument(parser, name, argument.default)
    known, rest = parser.parse_known_args(argv)
    if len(rest) % 2:
        parser.error(f'options of the rule come as `--name value`, got {" ".join(rest)}')
    pairs = zip(rest[::2], rest[1::2], strict=True)
    options = {name.removeprefix('--'): ast.literal_eval(value) for name, value in pairs}
    start = time.perf_counter()
    result = train(**vars(known), **options)
    for name, value in result.items():
        print(f'{name}: {value:.3f}')
    print(f'time: {time.perf_counter() - start:.0f} s')
    return result


def add_argument(parser, name, default):
    """An argument of the type of its default; a switch for a boolean."""
    how = {'type': type(default), 'metavar': name.upper()}
    if isinstance(default, bool):
        how = {'action': argparse.BooleanOptionalAction}
    parser.add_argument(f'--{name}', default=default, help=f'default: {default}', **how)
