"""Memory that the ranks of a node share: one copy, whatever the number of ranks."""

from manyhop.memory.identities import identity
from manyhop.memory.sharing import node_segment, once_per_node, share

__all__ = ["identity", "node_segment", "once_per_node", "share"]
