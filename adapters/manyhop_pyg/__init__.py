"""manyhop for PyTorch Geometric."""
