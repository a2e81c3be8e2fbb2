"""A front-end for a small framework of objects that hold their weights and states as attributes."""

from dataclasses import dataclass
from typing import Any


@dataclass
class Weight:
    value: Any


@dataclass
class Memory:
    value: Any


def cells(model, path=()):
    """Every Weight and Memory below a model, by path."""
    for name, part in vars(model).items():
        if isinstance(part, Weight | Memory):
            yield (*path, name), part
        elif hasattr(part, '__dict__'):
            yield from cells(part, (*path, name))


def functional(model):
    """`(step, params, state)`: the model as a pure function, and the present values of what it holds."""
    held = {
        kind: {'.'.join(path): c for path, c in cells(model) if isinstance(c, kind)}
        for kind in (Weight, Memory)
    }
    values = lambda kind: {name: c.value for name, c in held[kind].items()}

    def write(kind, new):
        for name, c in held[kind].items():
            c.value = new[name]

    def step(params, state, *inputs):
        before = values(Weight), values(Memory)
        write(Weight, params)
        write(Memory, state)
        try:
            out = model(*inputs)
            return values(Memory), out
        finally:  # no tracer stays behind in the objects
            write(Weight, before[0])
            write(Memory, before[1])

    return step, values(Weight), values(Memory)
