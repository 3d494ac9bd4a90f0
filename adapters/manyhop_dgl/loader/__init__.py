"""DGL's ``DataLoader``, and the four objects that it passes to the engine."""
