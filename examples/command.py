"""A command line for an example: the arguments of its `train`, and any option of a learning rule."""

import argparse
import ast
import inspect
import time


def run(train, argv=None):
    """Call `train` with what the command line says, print what it found, and return it."""
    parser = argparse.ArgumentParser(
        description=inspect.getmodule(train).__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog='Further `--name value` are options of the rule, for instance `--rule pp_prop --decay_or_rank 0.9`.',
    )
    for name, a in inspect.signature(train).parameters.items():
        if a.kind is not a.VAR_KEYWORD:
            how = (
                {'action': argparse.BooleanOptionalAction}
                if isinstance(a.default, bool)
                else {'type': type(a.default), 'metavar': name.upper()}
            )
            parser.add_argument(f'--{name}', default=a.default, help=f'default: {a.default}', **how)
    known, rest = parser.parse_known_args(argv)
    options = {
        k.removeprefix('--'): ast.literal_eval(v)
        for k, v in zip(rest[::2], rest[1::2], strict=True)
    }
    start = time.perf_counter()
    result = train(**vars(known), **options)
    for name, value in result.items():
        print(f'{name}: {value:.3f}')
    print(f'time: {time.perf_counter() - start:.0f} s')
    return result
