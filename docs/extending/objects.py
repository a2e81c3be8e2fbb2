"""A front-end for a small framework: objects that hold weights and states as attributes."""

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
    """`(step, params, state)`: the model as a pure function, and what it holds at present."""
    weights, memories = held(model, Weight), held(model, Memory)

    def step(params, state, *inputs):
        before = values(weights), values(memories)
        write(weights, params)
        write(memories, state)
        try:
            out = model(*inputs)
            return values(memories), out
        finally:  # no tracer stays behind in the objects
            write(weights, before[0])
            write(memories, before[1])

    return step, values(weights), values(memories)


def held(model, kind):
    """The cells of one kind, by dotted path."""
    return {'.'.join(path): cell for path, cell in cells(model) if isinstance(cell, kind)}


def values(named):
    """The present values of cells, by name."""
    return {name: cell.value for name, cell in named.items()}


def write(named, new):
    """Give cells new values, by name."""
    for name, cell in named.items():
        cell.value = new[name]
