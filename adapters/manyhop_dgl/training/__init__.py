"""Training steps on DGL's blocks at the GPU's speed."""
