"""From the graph that users hold to the one that the compiler made."""

from __future__ import annotations

from typing import Any


def compiled_of(graph: Any) -> Any:
    """The compiled graph behind a published one (its `compiled`); a compiled one is given back."""
    return getattr(graph, 'compiled', graph)
