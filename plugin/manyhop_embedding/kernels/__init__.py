"""GPU kernels of embeddings. Importing a module of this package imports triton."""
