"""Numbers of bytes as people write them."""

from __future__ import annotations

import math
import re
from numbers import Real
from typing import Any


def bytes_from_text(size: str) -> int:
    """A number of bytes from text.

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


def number_of_bytes(name: str, size: Any, least: int) -> int:
    """A number of bytes that a user gives for the option `name`, as a number or as text.

    Example:
        >>> number_of_bytes('memory_budget', 50e6, 1), number_of_bytes('memory_budget', '10MB', 1)
        (50000000, 10000000)
    """
    if isinstance(size, str):
        try:
            size = bytes_from_text(size)
        except ValueError as error:
            raise ValueError(f'`{name}` {error}') from error
    if isinstance(size, bool) or not isinstance(size, Real) or math.isnan(size):
        raise ValueError(
            f"`{name}` must be a number of bytes such as 4096 or '10MB', got {size!r}."
        )
    if size < least:
        raise ValueError(f'`{name}` must be a number of bytes, at least {least}, got {size}.')
    most: Any = min(size, 2**63 - 1)
    return int(most)
