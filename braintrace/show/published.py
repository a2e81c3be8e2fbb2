"""From the graph that users hold to the one that the compiler made."""

from __future__ import annotations

from typing import Any, Protocol

from ..graph.compile import Graph


class Published(Protocol):
    """A view of a compiled graph, as `braintrace.ETraceGraph` is."""

    @property
    def compiled(self) -> Graph: ...


def compiled_of(graph: Graph | Published) -> Graph:
    """The compiled graph behind a published one; a compiled one is given back."""
    compiled: Any = getattr(graph, 'compiled', graph)
    return compiled
