"""``import dgl`` on a torch that DGL's wheel has no C++ libraries for.

DGL 2.1 is the newest wheel for Linux on the registry. Its core works with any torch; two of its parts call into torch's
C++ and have builds for torch 2.0 to 2.2 only: ``dgl.graphbolt``, which DGL imports at once, and ``dgl.sparse``. This
package lets DGL do without them where they cannot be loaded, and leaves everything alone where they can.
"""

from manyhop_dgl.compat.finder import activate, unavailable

__all__ = ["activate", "unavailable"]

activate()
