"""Text for people: sizes in bytes, and tables of columns."""

from __future__ import annotations

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
