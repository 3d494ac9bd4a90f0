"""``Graph`` instead of a ``DGLGraph``; both as topology and data of the engine."""
