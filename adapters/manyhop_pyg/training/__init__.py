"""Training steps at the GPU's speed: PyG's layers with the engine's aggregation, and captured steps."""
