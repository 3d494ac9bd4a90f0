"""DGL's ``DataLoader``, and the four objects that it gives the engine."""
