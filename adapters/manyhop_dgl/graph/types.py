"""Node and edge types by the names that DGL accepts."""

from __future__ import annotations

from collections.abc import Sequence

from manyhop.errors import InputError
from manyhop.graph import EdgeType, NodeType


class Types:
    """The types of one graph.

    Args:
        ntypes: node types, in order.
        canonical_etypes: edge types ``(src, relation, dst)``, in order.
    """

    def __init__(self, ntypes: Sequence[NodeType], canonical_etypes: Sequence[EdgeType]) -> None:
        self.ntypes, self.canonical_etypes = list(ntypes), list(canonical_etypes)

    def node_type(self, name: object) -> NodeType:
        """A node type by its name; by ``None``, the only one.

        Raises:
            InputError: no such type; ``None`` where there are several.
        """
        if name is None and len(self.ntypes) == 1:
            return self.ntypes[0]
        if name is None:
            raise InputError(f"Expected a node type, as the graph has several: {self.ntypes}.")
        if name not in self.ntypes:
            raise InputError(f"Unknown node type {name!r}. The graph has: {self.ntypes}.")
        return str(name)

    def edge_type(self, name: object) -> EdgeType:
        """A canonical edge type by itself, or by the name of its relation; by ``None``, the only one.

        Raises:
            InputError: no such type; a name that several have; ``None`` where there are several.
        """
        known = self.canonical_etypes
        if name is None:
            if len(known) == 1:
                return known[0]
            raise InputError(f"Expected an edge type, as the graph has several: {known}.")
        if isinstance(name, str):
            found = [t for t in known if t[1] == name]
            if len(found) > 1:
                raise InputError(
                    f"Expected one edge type, but {name!r} is the name of several: {found}. Name all three."
                )
        else:
            found = [t for t in known if t == name]
        if not found:
            raise InputError(f"Unknown edge type {name!r}. The graph has: {known}.")
        return found[0]

    def title(self, kind: NodeType | EdgeType, ends: str) -> str:
        """Whose data something is, for errors."""
        alone = len(self.ntypes) == 1 and len(self.canonical_etypes) == 1
        return f"the {ends}" if alone else f"the {ends} of type {kind!r}"
