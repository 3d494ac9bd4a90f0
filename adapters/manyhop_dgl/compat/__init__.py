"""``import dgl`` on versions of torch without C++ libraries in DGL's wheel.

DGL 2.1 is the newest wheel for Linux on the registry. Its core works with any torch; two of its parts call into torch's
C++ and have builds for torch 2.0 to 2.2 only: ``dgl.graphbolt``, which DGL imports at once, and ``dgl.sparse``. This
package replaces them if they cannot be loaded, and changes nothing otherwise.
"""

from manyhop_dgl.compat.finder import activate, unavailable

__all__ = ["activate", "unavailable"]

activate()
