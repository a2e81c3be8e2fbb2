"""What a compiled program moves between devices."""

import re
from typing import NamedTuple

import numpy as np

KINDS = 'all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute'
BYTES = {'pred': 1, 's8': 1, 'u8': 1, 'f16': 2, 'bf16': 2, 's64': 8, 'u64': 8, 'f64': 8}


class Moved(NamedTuple):
    """One collective: its kind, and the numbers and bytes of its result on each device."""

    kind: str
    numbers: int
    bytes: int


def collectives(compiled) -> list[Moved]:
    """Those of a compiled program, from its text. What is in a loop is listed once."""
    found = []
    for line in compiled.as_text().splitlines():
        made = re.match(rf'\s*(?:ROOT )?%\S+ = (.*?) ({KINDS})(?:-start)?\(', line)
        if made:
            parts = re.findall(r'(\w+)\[([\d,]*)\]', made[1])
            sizes = [int(np.prod([int(n) for n in dims.split(',') if n])) for _, dims in parts]
            types = [BYTES.get(dtype, 4) for dtype, _ in parts]
            moved = sum(size * width for size, width in zip(sizes, types, strict=True))
            found.append(Moved(made[2], sum(sizes), moved))
    return found
