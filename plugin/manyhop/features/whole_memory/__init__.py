"""Memory over multiple GPUs, by WholeGraph."""
