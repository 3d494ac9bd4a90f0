"""Memory that the ranks of a node share: one copy, whatever the number of ranks."""

from manyhop.memory.identities import identity
from manyhop.memory.sharing import DEFAULT_TIMEOUT, once_per_node, share

__all__ = ["DEFAULT_TIMEOUT", "identity", "once_per_node", "share"]
