"""What a rule keeps for each parameter, in bytes: from the traces themselves, whatever the rule."""

from __future__ import annotations

from typing import NamedTuple

from .core import Core


class TraceBytes(NamedTuple):
    """The bytes of the traces by name of the parameter, and of what belongs to no single one (a
    random key, a factor of the state). Together they are all that is kept."""

    by_name: dict[str, int]
    shared: int


def bytes_of_parameters(core: Core) -> TraceBytes:
    """The traces of a core by parameter. A trace of a weight that is made of several is divided
    among them."""
    by_name = {leaf.name: 0 for leaf in core.program.step.params}
    shared = 0
    for key, trace in core.shapes.items():
        size = trace.size * trace.dtype.itemsize
        owners = [leaf for leaf in key.weight if leaf.name in by_name]
        if not owners:
            shared += size
            continue
        each, rest = divmod(size, len(owners))
        for k, leaf in enumerate(owners):
            by_name[leaf.name] += each + (k < rest)
    return TraceBytes(by_name, shared)
