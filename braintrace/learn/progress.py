"""A progress bar for a compiled drive: the program calls back once for each block of steps."""

from __future__ import annotations

import sys
import threading
from typing import Any

import jax

_bars: dict[int, Any] = {}
_lock = threading.Lock()


class _Line:
    """A bar for terminals without tqdm."""

    def __init__(self, total: int):
        self.total, self.n = total, 0

    def update(self, n: int) -> None:
        self.n += n
        print(f'\r{self.n}/{self.total} steps', end='', file=sys.stderr, flush=True)

    def close(self) -> None:
        print(file=sys.stderr)


def _bar(total: int) -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return _Line(total)
    return tqdm(total=total, unit='step')


def advance(steps: int, total: int) -> None:
    """Tell, from inside a compiled program, that so many of `total` steps are done."""
    jax.debug.callback(_advance, steps, total)


def _advance(steps: Any, total: Any) -> None:
    with _lock:
        bar = _bars.get(int(total)) or _bars.setdefault(int(total), _bar(int(total)))
        bar.update(int(steps))
        if bar.n >= bar.total:
            bar.close()
            del _bars[int(total)]
