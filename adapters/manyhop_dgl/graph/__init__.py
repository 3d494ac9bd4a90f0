"""``Graph`` in place of a ``DGLGraph``; graphs of either kind as topology and data of the engine."""
