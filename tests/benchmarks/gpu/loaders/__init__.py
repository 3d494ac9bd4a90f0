"""Whole loaders and training, the parts ``loader`` and ``epoch`` of ``benchmarks gpu``. Imports PyG."""
