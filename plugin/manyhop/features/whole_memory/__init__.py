"""Memory over several GPUs, by WholeGraph."""
