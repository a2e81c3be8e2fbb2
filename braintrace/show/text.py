"""Text for people: sizes in bytes, and tables of columns."""

from __future__ import annotations

import re
from collections.abc import Sequence


def bytes_as_text(size: float) -> str:
    """A number of bytes with three digits and a unit.

    Example:
        >>> bytes_as_text(0), bytes_as_text(1536), bytes_as_text(2.5e9), bytes_as_text(999_900)
        ('0 B', '1.54 kB', '2.5 GB', '1 MB')
    """
    for unit in ('B', 'kB', 'MB', 'GB'):
        if size < 999.5:
            return f'{size:.3g} {unit}'
        size /= 1000
    return f'{size:.3g} TB'


def bytes_from_text(size: str) -> int:
    """A number of bytes as people write it.

    Example:
        >>> bytes_from_text('4096'), bytes_from_text('10MB'), bytes_from_text('1.5 GiB')
        (4096, 10000000, 1610612736)
    """
    written = re.fullmatch(r'([0-9]*[.]?[0-9]+) *([kMGT]?)(i?)B?', size.strip())
    if written is None:
        raise ValueError(f'must be a number of bytes such as 4096, 10MB or 1.5 GiB, got {size!r}.')
    number, prefix, binary = written.groups()
    power = ' kMGT'.index(prefix or ' ')
    return int(float(number) * (1024 if binary else 1000) ** power)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of text under a head: the first column to the left, the others to the right.

    Example:
        >>> print(table(['rule', 'ms'], [['d_rtrl', '2'], ['bptt', '11']]))
        rule    ms
        ------  --
        d_rtrl   2
        bptt    11
    """
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        first, *others = zip(cells, widths, strict=True)
        aligned = [first[0].ljust(first[1]), *[cell.rjust(width) for cell, width in others]]
        return '  '.join(aligned).rstrip()

    rule = '  '.join('-' * width for width in widths)
    return '\n'.join([line(head), rule, *map(line, rows)])
